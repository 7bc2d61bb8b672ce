//! What runs in the machine beside test programs: several processes that work together.

use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use super::process::{self, captured, command};
use super::{DEVICE, await_some, gid_index};

/// Runs the scenario `name`; an error says what went wrong.
pub(crate) fn run(name: &str, limit: Duration) -> Result<String, String> {
    match name {
        "perftest" => perftest_once(limit),
        _ => Err("there is no such scenario".into()),
    }
}

/// `perftest` alone: its two processes send to each other, so that a failure elsewhere is not the machine's.
fn perftest_once(limit: Duration) -> Result<String, String> {
    perftest("ib_send_lat", &["-s", "64", "-n", "500"], limit)
}

/// Runs a program of `perftest` as server and as client; returns what the client printed.
fn perftest(program: &str, args: &[&str], limit: Duration) -> Result<String, String> {
    const PORT: u16 = 18515;
    let gid = gid_index(DEVICE).ok_or("the device has no IPv4 GID")?.to_string();
    let words = [&[program, "-d", DEVICE, "-x", &gid], args].concat();
    let mut server = start(&words)?;
    let client = await_some("the server of perftest", || listens(PORT).then_some(()))
        .map(|()| captured(command(&[&words[..], &["127.0.0.1"]].concat(), &[]), limit));
    let ended = process::wait(&mut server, Duration::from_secs(5)).map_err(|error| error.to_string())?;
    let client = client?;
    match (client.status, ended) {
        (0, 0) => Ok(client.output),
        statuses => Err(format!("status of client and server: {statuses:?}\n{}", client.output)),
    }
}

/// Starts a program whose output nobody needs.
fn start(words: &[&str]) -> Result<Child, String> {
    command(words, &[])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("{}: {error}", words.join(" ")))
}

/// Whether somebody listens on a TCP port, by the kernel's own table (asking by connecting would be taken for a client).
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
