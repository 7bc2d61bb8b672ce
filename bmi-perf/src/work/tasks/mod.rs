//! Both sides as programs on tokio's default runtime: a client whose tasks call, and a server with
//! a task for each call. Through the library, or over plain sockets.
//!
//! **Why.** Many services are such programs. An endpoint on one thread does not show what they pay
//! for tasks, and for waking the runtime's threads.
//!
//! **Work.** A request has 64 bytes. A read is answered with data of the case's size; a write
//! brings it, and its reply is empty. On each connection as many tasks as the depth call, each
//! again when its reply is there. Both ways use their buffers again.
//!
//! **Protocol.** A round begins with a call that the server answers once its worker measures. A
//! last call ends the worker's part. Runtimes and connections last as long as the station. The
//! runtime's threads are not known to the worker, so the cost of a round is that of the process.
//!
//! | module | what is there |
//! |---|---|
//! | `library` | the library's client and server |
//! | `sockets` | those over plain sockets of tokio |

mod library;
mod sockets;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bmi::{Error, ErrorKind, Memory};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::produce::memory;
use super::{Assignment, Role, Said, listening_address};
use crate::case::{Case, MOST_BYTES, Over, Test};
use crate::measured::{Measured, Stopwatch};
use crate::stop::Stop;

/// Length of a request in bytes.
const REQUEST: usize = 64;

/// What a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    /// Wait until the server's worker measures.
    Begin,
    /// Reply with data.
    Read,
    /// Take data.
    Write,
    /// End the part of the server's worker.
    End,
}

/// The contents of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    verb: Verb,
    /// Length of the data of the reply in bytes.
    size: u64,
}

impl Request {
    fn encode(self) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        bytes[0] = self.verb as u8;
        bytes[1..9].copy_from_slice(&self.size.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Request, Error> {
        let verb = [Verb::Begin, Verb::Read, Verb::Write, Verb::End].into_iter().find(|verb| bytes[0] == *verb as u8);
        let size = bytes.get(1..).and_then(|rest| rest.first_chunk()).map(|size| u64::from_le_bytes(*size));
        match verb.zip(size) {
            Some((verb, size)) if size <= MOST_BYTES => Ok(Request { verb, size }),
            _ => Err(Error::new(ErrorKind::Protocol, "no request of bmi-perf")),
        }
    }
}

/// A connection of a client, for any task.
trait Client: Clone + Send + Sync + 'static {
    /// Calls with the memory of the data. Returns it when the reply is there.
    fn call(&self, request: Request, data: Memory) -> impl Future<Output = Result<Memory, Error>> + Send;
}

/// The rounds of a server.
#[derive(Debug, Default)]
struct Rounds {
    begin: Notify,
    end: Notify,
}

impl Rounds {
    async fn handle(&self, verb: Verb) {
        match verb {
            Verb::Begin => self.begin.notified().await,
            Verb::End => self.end.notify_one(),
            Verb::Read | Verb::Write => {}
        }
    }
}

/// The memory of a server that no call uses.
struct Pool(Over, Mutex<Vec<Memory>>);

impl Pool {
    /// Returns memory of a length: that which was used last, if it fits.
    fn take(&self, len: usize) -> Result<Memory, Error> {
        let last = lock(&self.1).pop();
        last.filter(|last| last.len() == len).map_or_else(|| memory(self.0, len), Ok)
    }

    fn put(&self, memory: Memory) {
        lock(&self.1).push(memory);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A side of a station.
enum Side {
    Library(Vec<library::Connection>),
    Sockets(Vec<Arc<sockets::Connection>>),
    Server(Arc<Rounds>),
}

/// A side of a station, and the runtime that it runs on.
pub(super) struct Tasks {
    side: Side,
    runtime: Runtime,
}

impl Tasks {
    /// Connects to a server, or listens and serves.
    pub(super) fn open(of: &Assignment, said: &dyn Fn(Said)) -> Result<Tasks, Error> {
        // As by `#[tokio::main]`.
        let runtime = Builder::new_multi_thread().enable_all().build()?;
        let (over, connections) = (of.station.over, of.station.connections);
        let opening = async {
            match &of.role {
                Role::Client { to } if over == Over::Sockets => {
                    Ok(Side::Sockets(sockets::connect(to, connections).await?))
                }
                Role::Client { to } => {
                    Ok(Side::Library(library::connect(over, &to.parse()?, connections, &of.settings).await?))
                }
                Role::Server { ip, names } => {
                    let rounds = Arc::new(Rounds::default());
                    let at = match over {
                        Over::Sockets => sockets::serve(SocketAddr::new(*ip, 0), rounds.clone()).await?.to_string(),
                        _ => {
                            let at = listening_address(of, *ip, names);
                            library::serve(over, &at, &of.settings, rounds.clone()).await?.without_device().to_string()
                        }
                    };
                    said(Said::Listening(at));
                    Ok(Side::Server(rounds))
                }
            }
        };
        let side = runtime.block_on(of.stop.unless(opening))?;
        Ok(Tasks { side, runtime })
    }

    /// Runs the client's part: `count` calls on each connection.
    pub(super) fn measure(&self, case: &Case, count: u64, stop: &Stop) -> Result<Measured, Error> {
        let part = async {
            match &self.side {
                Side::Library(connections) => calls(connections, case, count).await,
                Side::Sockets(connections) => calls(connections, case, count).await,
                Side::Server(_) => Err(Error::new(ErrorKind::Invalid, "a server that calls")),
            }
        };
        self.runtime.block_on(stop.unless(part))
    }

    /// Runs the server's part.
    pub(super) fn serve(&self, stop: &Stop) -> Result<(), Error> {
        let Side::Server(rounds) = &self.side else { return Ok(()) };
        rounds.begin.notify_one();
        let ended = async {
            rounds.end.notified().await;
            Ok(())
        };
        self.runtime.block_on(stop.unless(ended))
    }
}

/// Calls from as many tasks on each connection as the case's depth.
async fn calls<C: Client>(connections: &[C], case: &Case, count: u64) -> Result<Measured, Error> {
    let Some(first) = connections.first() else { return Ok(Measured::default()) };
    let (over, mut callers) = (case.station.over, Vec::new());
    for connection in connections {
        for task in 0..u64::from(case.depth) {
            let depth = u64::from(case.depth);
            let share = count / depth + u64::from(task < count % depth);
            callers.push((connection.clone(), memory(over, case.len())?, share));
        }
    }
    let request = match case.test {
        Test::TokioWrite => Request { verb: Verb::Write, size: 0 },
        _ => Request { verb: Verb::Read, size: case.size },
    };
    first.call(Request { verb: Verb::Begin, size: 0 }, Memory::zeroed(0)?).await?;
    let watch = Stopwatch::start();
    let mut tasks = JoinSet::new();
    for (connection, mut data, share) in callers {
        tasks.spawn(async move {
            let (mut measured, mut last) = (Measured::of_each(), watch.begin);
            for _ in 0..share {
                data = connection.call(request, data).await?;
                last = measured.lap(last);
            }
            Ok::<_, Error>(measured.ended(watch, share))
        });
    }
    let mut measured = Measured::default();
    while let Some(ended) = tasks.join_next().await {
        let failed = |_| Error::new(ErrorKind::Io, "a task of the client failed");
        measured = measured.beside(ended.map_err(failed)??);
    }
    first.call(Request { verb: Verb::End, size: 0 }, Memory::zeroed(0)?).await?;
    Ok(measured)
}
