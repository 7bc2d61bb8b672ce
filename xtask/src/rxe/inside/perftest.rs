//! Runs programs of other projects that use the device: `perftest`, and the examples of libibverbs.
//! They show that the machine works.

use std::fs;
use std::time::Duration;

use super::scenario::{PROGRAM_LIMIT, Scene};
use super::{DEVICE, await_some, gid_index};

/// Runs `perftest` alone. Its two processes send to each other. If this test passes, a failure of
/// another test is not the machine's fault.
pub(crate) fn once(scene: &Scene<'_>) -> Result<(), String> {
    perftest(scene, "ib_send_lat", &["-s", "64", "-n", "200"]).map(drop)
}

/// Runs the example of libibverbs that compares the data that it receives.
pub(crate) fn ping_pong(scene: &Scene<'_>) -> Result<(), String> {
    let words = ping_pong_words()?;
    both(scene, &words.each_ref().map(String::as_str), PING_PONG_PORT).map(drop)
}

const PING_PONG_PORT: u16 = 18_516;

/// Returns the command line of its server. The client's has the host in addition. `-c` compares.
fn ping_pong_words() -> Result<[String; 12], String> {
    let (gid, port) = (gid()?, PING_PONG_PORT.to_string());
    let words = ["ibv_rc_pingpong", "-d", DEVICE, "-g", &gid, "-p", &port, "-s", "4096", "-n", "100", "-c"];
    Ok(words.map(str::to_owned))
}

/// Runs a program of `perftest` as server and as client. Returns what the client printed.
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

/// Returns true if a program listens on a TCP port. It reads the kernel's own table, because the
/// server would take a connection for a client.
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
