//! Servers as threads of this process. Each has its own endpoints, so they share nothing but the
//! process.

use std::io;
use std::pin::pin;
use std::thread::{Builder, JoinHandle};

use bmi::Addr;
use fs_proto::FsError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
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
    allow_open_files(servers.iter_mut().map(|(_, server, _)| server));
    servers.sort_by_key(|(name, ..)| *name);
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

/// Raises this process's limit of open files as far as it may, and lowers the servers' limits of
/// connections if that is not enough for them. Otherwise a newcomer that finds no descriptor waits,
/// and no idle connection makes room for it.
pub(crate) fn allow_open_files<'a>(servers: impl IntoIterator<Item = &'a mut Server>) {
    let limit = getrlimit(Resource::Nofile);
    let mut most = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "the limit of open files stays {:?}", limit.current);
        most = limit.current;
    }
    let (Some(most), servers) = (most, servers.into_iter().collect::<Vec<_>>()) else { return };
    let share = usize::try_from(most).unwrap_or(usize::MAX) / servers.len().max(1);
    for server in servers {
        let wanted = server.endpoint.limits.max_peers;
        let fit = connections_within(share, server.listen.len(), server.transports.tcp.max_half_open);
        if fit < wanted {
            let name = &server.endpoint.name;
            tracing::warn!(name, limit = most, wanted, fit, "the limit of open files allows fewer connections");
            server.endpoint.limits.max_peers = fit;
        }
    }
}

/// Returns how many connections over each of `transports` fit into `descriptors`. Each may have
/// `half_open` sockets besides, and an eighth more connections while some are ending. An I/O server
/// keeps up to 256 files open ([`crate::store::FileStore`]).
fn connections_within(descriptors: usize, transports: usize, half_open: usize) -> usize {
    const FILES: usize = 256 + 64;
    let each = descriptors.saturating_sub(FILES) / transports.max(1);
    (each.saturating_sub(half_open.min(each / 4)) * 8 / 9).max(1)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_fit_into_the_descriptors() {
        for (descriptors, transports, half_open) in [(1024, 1, 256), (4096, 3, 256), (1 << 20, 3, 256)] {
            let fit = connections_within(descriptors, transports, half_open);
            let half_open = half_open.min((descriptors - 320) / transports / 4);
            assert!(320 + transports * (fit + fit / 8 + half_open) <= descriptors, "{fit} of {descriptors}");
            assert!(2 * transports * fit > descriptors - 320, "{fit} of {descriptors}: most of them are used");
        }
        assert_eq!(connections_within(100, 1, 256), 1);
    }
}
