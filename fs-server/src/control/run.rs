//! Servers as threads of this process. Each has its own endpoints, so they share nothing but the
//! process.

use std::io;
use std::pin::pin;
use std::thread::{Builder, JoinHandle};

use bmi::Addr;
use fs_proto::FsError;
use tokio::sync::{mpsc, oneshot};

use super::ServerName;
use crate::embedded::{Neighbours, Server};

/// What a server's thread reports.
enum Event {
    Listening(ServerName, Vec<Addr>),
    Serving(ServerName),
    Ended(ServerName),
}

/// Reports the end of a server's thread when it is dropped, also by a panic.
struct Ending(ServerName, mpsc::UnboundedSender<Event>);

impl Drop for Ending {
    fn drop(&mut self) {
        // The receiver is gone if the end was requested.
        let _ = self.1.send(Event::Ended(self.0));
    }
}

/// A server on its thread.
struct Running {
    name: ServerName,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), FsError>>,
}

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
                match launch(name, server, neighbours, &events) {
                    Ok(server) => running.push(server),
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
                    Some(Event::Listening(name, addrs)) => listening(name, &addrs),
                    Some(Event::Serving(name)) => {
                        serving(name);
                        first.append(&mut later);
                    }
                    Some(Event::Ended(name)) => return Some(name),
                    // Not possible while `events` exists.
                    None => return None,
                },
            }
        }
    });
    errors.extend(end(running, ended));
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}

fn launch(
    name: ServerName,
    server: Server,
    neighbours: Neighbours,
    events: &mpsc::UnboundedSender<Event>,
) -> io::Result<Running> {
    let (stop, stopped) = oneshot::channel::<()>();
    let events = events.clone();
    let run = move || {
        let ending = Ending(name, events);
        let ready = |addrs: &[Addr]| {
            let _ = ending.1.send(Event::Listening(name, addrs.to_vec()));
            Ok(neighbours)
        };
        let serving = || drop(ending.1.send(Event::Serving(name)));
        server.run(ready, serving, async {
            // Dropping the sender also stops the server.
            let _ = stopped.await;
        })
    };
    Ok(Running { name, stop, thread: Builder::new().name(name.to_string()).spawn(run)? })
}

/// Stops the manager, then all I/O servers at the same time. Returns what they failed with. `ended`
/// is the server that ended by itself.
fn end(mut running: Vec<Running>, ended: Option<ServerName>) -> Vec<String> {
    let iods = running.split_off(running.iter().filter(|server| server.name == ServerName::Manager).count());
    let mut errors = Vec::new();
    for servers in [running, iods] {
        let stopped = servers.into_iter().map(|Running { name, stop, thread }| {
            // The server may have ended already.
            let _ = stop.send(());
            (name, thread)
        });
        let threads: Vec<_> = stopped.collect();
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
