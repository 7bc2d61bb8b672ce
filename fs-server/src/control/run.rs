//! Servers as threads of this process. Each has its own endpoints, so they share nothing but the
//! process.

use std::pin::pin;

use bmi::Addr;
use tokio::sync::mpsc;

use super::ServerName;
use crate::embedded::{Event, Neighbours, Server, ServerThread};

/// Runs the servers, the manager first, until `stop` ends or one of them does. Calls `listening`
/// with the addresses of each one that listens, and `serving` with the name of each one that
/// serves.
///
/// # Errors
/// Why a server ended before `stop` did, and what the others failed with. A line for each.
pub(crate) fn run(
    mut servers: Vec<(ServerName, Server, Neighbours)>,
    listening: impl Fn(ServerName, &[Addr]),
    serving: impl Fn(ServerName),
    stop: impl Future<Output = ()>,
) -> Result<(), String> {
    servers.sort_by_key(|(name, ..)| *name);
    let sharers = servers.len();
    servers.iter_mut().for_each(|(_, server, _)| server.sharers = sharers);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("the runtime: {error}"))?;
    let (events, mut happened) = mpsc::unbounded_channel();
    let mut running = Vec::new();
    let mut errors = Vec::new();
    let ended = runtime.block_on(async {
        let mut stop = pin!(stop);
        let others = servers.split_off(servers.iter().filter(|(name, ..)| *name == ServerName::Manager).count());
        // An I/O server reports to the manager, so it starts when the manager can answer.
        let (mut first, mut later) = if servers.is_empty() { (others, Vec::new()) } else { (servers, others) };
        loop {
            for (name, server, neighbours) in first.drain(..) {
                let events = events.clone();
                // The receiver is gone if the end was requested.
                let report = move |event| drop(events.send((name, event)));
                match ServerThread::start(&name.to_string(), server, || Ok(neighbours), report) {
                    Ok(server) => running.push((name, server)),
                    Err(error) => {
                        errors.push(format!("{name}: no thread: {error}"));
                        return None;
                    }
                }
            }
            tokio::select! {
                biased;
                () = &mut stop => return None,
                event = happened.recv() => match event {
                    Some((name, Event::Listening(addrs))) => listening(name, &addrs),
                    Some((name, Event::Serving)) => {
                        serving(name);
                        first.append(&mut later);
                    }
                    Some((name, Event::Ended)) => return Some(name),
                    // Not possible while `events` exists.
                    None => return None,
                },
            }
        }
    });
    errors.extend(end(running, ended));
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}

/// Stops the manager, then all I/O servers at the same time. Returns what they failed with. `ended`
/// is the server that ended by itself.
fn end(mut running: Vec<(ServerName, ServerThread)>, ended: Option<ServerName>) -> Vec<String> {
    let iods = running.split_off(running.iter().filter(|(name, _)| *name == ServerName::Manager).count());
    let mut errors = Vec::new();
    for servers in [running, iods] {
        let threads: Vec<_> = servers.into_iter().map(|(name, server)| (name, server.stop())).collect();
        for (name, thread) in threads {
            match thread.join() {
                Ok(Ok(())) if ended == Some(name) => errors.push(format!("{name} ended, but nothing stopped it")),
                Ok(Ok(())) => {}
                Ok(Err(error)) => errors.push(format!("{name}: {error}")),
                Err(_) => errors.push(format!("{name} panicked")),
            }
        }
    }
    errors
}
