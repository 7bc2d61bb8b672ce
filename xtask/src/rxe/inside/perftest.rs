//! The programs of others that use the device: `perftest`, the examples of libibverbs. They show
//! that the machine works.

use std::fs;
use std::time::Duration;

use super::scenario::{PROGRAM_LIMIT, Scene};
use super::{DEVICE, await_some, gid_index};

/// `perftest` alone: its two processes send to each other, so that a failure elsewhere is not the
/// machine's.
pub(crate) fn once(scene: &Scene<'_>) -> Result<(), String> {
    perftest(scene, "ib_send_lat", &["-s", "64", "-n", "200"]).map(drop)
}

/// The example of libibverbs that compares what it receives.
pub(crate) fn ping_pong(scene: &Scene<'_>) -> Result<(), String> {
    let words = ping_pong_words()?;
    both(scene, &words.each_ref().map(String::as_str), PING_PONG_PORT).map(drop)
}

const PING_PONG_PORT: u16 = 18_516;

/// Its server's command line; the client's has the host in addition. `-c` compares.
fn ping_pong_words() -> Result<[String; 12], String> {
    let (gid, port) = (gid()?, PING_PONG_PORT.to_string());
    let words = ["ibv_rc_pingpong", "-d", DEVICE, "-g", &gid, "-p", &port, "-s", "4096", "-n", "100", "-c"];
    Ok(words.map(str::to_owned))
}

/// Runs a program of `perftest` as server and as client; returns what the client printed.
pub(crate) fn perftest(scene: &Scene<'_>, program: &str, args: &[&str]) -> Result<String, String> {
    const PORT: u16 = 18_515;
    let gid = gid()?;
    both(scene, &[&[program, "-d", DEVICE, "-x", &gid], args].concat(), PORT)
}

fn gid() -> Result<String, String> {
    gid_index(DEVICE).map(|index| index.to_string()).ok_or_else(|| "the device has no IPv4 GID".into())
}

/// Runs a server and its client, whose command line has the host in addition.
fn both(scene: &Scene<'_>, words: &[&str], port: u16) -> Result<String, String> {
    const AFTERWARDS: Duration = Duration::from_secs(5);
    let server = scene.start(words)?;
    await_some(&server.words, || listens(port).then_some(())).map_err(|why| why + "\n" + &server.output())?;
    let client = scene.finish(&[words, &["127.0.0.1"]].concat());
    let server = server.finish(if client.status == 0 { PROGRAM_LIMIT } else { AFTERWARDS });
    match (client.status, server.status) {
        (0, 0) => Ok(client.output),
        statuses => Err(format!("status of client and server: {statuses:?}\n{}\n{}", client.output, server.output)),
    }
}

/// Whether somebody listens on a TCP port, by the kernel's own table (asking by connecting would be
/// taken for a client).
fn listens(port: u16) -> bool {
    const LISTEN: &str = "0A";
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        fs::read_to_string(table).unwrap_or_default().lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().is_some_and(|local| local.ends_with(&format!(":{port:04X}")));
            local && words.nth(1) == Some(LISTEN)
        })
    })
}
