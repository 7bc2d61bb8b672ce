//! The server: it listens, and runs its parts of one run at a time.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::DirBuilderExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use rustix::net::sockopt;

use crate::case::{MOST_BYTES, MOST_MESSAGES, Over, Settings, Station};
use crate::control::{self, Answer, Ask, Lines, Trouble};
use crate::selection::processor;
use crate::stop::Stop;
use crate::system_calls::Counter;
use crate::usage::Usage;
use crate::work::{Assignment, Role, Said, Worker, adapter};

/// How long a client that is silent in the middle of a message, or a part that does not end, is
/// waited for.
const PATIENCE: Duration = Duration::from_secs(120);
/// After how long without a sign of life the kernel asks the client's host, and how often.
const KEEP_ALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(5), 3);
/// How long a client is kept waiting before it is refused because of another one.
const MOMENT: Duration = Duration::from_secs(1);
/// Most stations of a run.
const MOST_STATIONS: usize = 64;

/// What a server was told.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Where to listen: `host` or `host:port`.
    pub(crate) at: String,
    /// The processors that its threads run on.
    pub(crate) processors: Vec<usize>,
    /// The device of its verbs adapter.
    pub(crate) device: Option<String>,
    /// End after one run.
    pub(crate) once: bool,
}

/// Serves until the process ends, or one run with `once`.
pub(crate) fn serve(options: &Options) -> Result<(), Trouble> {
    let at = control::with_port(&options.at);
    let addrs = at.to_socket_addrs().map_err(|error| Trouble::new(format!("`{}`: {error}", options.at)))?;
    let addrs: Vec<SocketAddr> = addrs.collect();
    let listener = TcpListener::bind(&addrs[..])
        .map_err(|error| Trouble::new(format!("cannot listen at {at}: {error}; is another server running?")))?;
    let addr = listener.local_addr().map_err(|error| Trouble::new(error.to_string()))?;
    println!("listening at {addr}; measure with: bmi-perf run {}", shown(addr));
    if addr.ip().is_loopback() {
        println!("only this host can reach it; for others, give an address: bmi-perf serve 0.0.0.0");
    }
    // If nobody reads the lines, it serves all the same.
    let _ = std::io::stdout().flush();
    let busy: Arc<Busy> = Arc::default();
    let (begin, runs) = channel();
    let other = busy.clone();
    let accepting = Builder::new().name("accept".to_owned()).spawn(move || accept(&listener, &other, &begin));
    accepting.map_err(|error| Trouble::new(error.to_string()))?;
    for (who, lines, stream) in runs {
        println!("measuring with {who}");
        let _ = std::io::stdout().flush();
        let ended = run(options, lines, stream);
        busy.end();
        match ended {
            Ok(rounds) => println!("{who}: {rounds} rounds"),
            Err(trouble) => println!("{who}: {trouble}"),
        }
        let _ = std::io::stdout().flush();
        if options.once {
            break;
        }
    }
    Ok(())
}

/// Returns an address as another host would write it.
fn shown(addr: SocketAddr) -> String {
    match (addr.ip().is_unspecified(), addr.port() == control::PORT) {
        (true, true) => "THIS-HOST".to_owned(),
        (true, false) => format!("THIS-HOST:{}", addr.port()),
        (false, true) => addr.ip().to_string(),
        (false, false) => addr.to_string(),
    }
}

/// With whom the server measures.
#[derive(Debug, Default)]
struct Busy {
    with: Mutex<Option<String>>,
    has_ended: Condvar,
}

impl Busy {
    /// Begins to measure with somebody, or returns with whom it does. Waits a moment for a run that
    /// is about to end: a script may start the next run as soon as its client has ended.
    fn begin(&self, who: &str) -> Result<(), String> {
        let with = self.with.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.has_ended.wait_timeout_while(with, MOMENT, |with| with.is_some());
        let (mut with, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match &*with {
            Some(other) => Err(other.clone()),
            None => {
                *with = Some(who.to_owned());
                Ok(())
            }
        }
    }

    fn end(&self) {
        *self.with.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.has_ended.notify_all();
    }
}

/// Greets clients, and refuses those that come while one is served.
fn accept(listener: &TcpListener, busy: &Busy, begin: &Sender<(String, Lines, TcpStream)>) {
    for stream in listener.incoming().flatten() {
        let from = stream.peer_addr().map_or_else(|_| "somebody".to_owned(), |addr| addr.ip().to_string());
        let Ok((mut lines, mut to)) = control::split(stream) else { continue };
        let first = lines.next::<Ask>();
        let who = match first {
            Ok(Some(first)) => control::check_hello(&first),
            Ok(None) => continue,
            Err(trouble) => Err(trouble),
        };
        let refused = match who {
            Ok(who) => {
                let who = format!("{who} at {from}");
                match busy.begin(&who) {
                    Err(other) => format!("it measures with {other}; one run at a time, try again later"),
                    Ok(()) if begin.send((who, lines, to)).is_err() => return,
                    Ok(()) => continue,
                }
            }
            Err(trouble) => trouble.to_string(),
        };
        // Who does not listen to the answer has gone.
        let _ = control::tell(&mut to, &Answer::Refused { why: refused });
    }
}

/// What happens in a run.
enum Event {
    Asked(Box<Ask>),
    /// The client has gone, or sent something odd.
    Ended(Option<Trouble>),
    Said(usize, Said),
}

/// Serves one client. Returns the number of rounds.
fn run(options: &Options, mut lines: Lines, mut to: TcpStream) -> Result<u64, Trouble> {
    let io = |error: std::io::Error| Trouble::new(error.to_string());
    let (idle, interval, count) = KEEP_ALIVE;
    sockopt::set_socket_keepalive(&to, true).map_err(|error| io(error.into()))?;
    sockopt::set_tcp_keepidle(&to, idle).map_err(|error| io(error.into()))?;
    sockopt::set_tcp_keepintvl(&to, interval).map_err(|error| io(error.into()))?;
    sockopt::set_tcp_keepcnt(&to, count).map_err(|error| io(error.into()))?;
    lines.trust()?;
    let (local, peer) = (to.local_addr().map_err(io)?.ip(), to.peer_addr().map_err(io)?.ip());
    let names = tempfile::tempdir().map_err(io)?;
    control::tell(
        &mut to,
        &Answer::Welcome {
            host: bmi_report::host::describe("server", Some(peer)),
            host_id: bmi::backend::host_id(),
            overs: adapter::all(options.device.as_deref()),
            no_calls: Counter::open().err().map(|error| error.to_string()),
        },
    )?;
    let (tell, events) = channel();
    let stop = Arc::new(Stop::default());
    let reader = reading(lines, tell.clone(), stop.clone())?;
    let mut run = Run {
        options,
        stations: BTreeMap::new(),
        tell,
        events,
        stop,
        to,
        ip: local,
        names: names.path().to_owned(),
        ended: None,
    };
    let ended = run.serve();
    run.stop.now("the run has ended");
    // The reader ends with the connection.
    let _ = run.to.shutdown(std::net::Shutdown::Both);
    drop(run);
    let _ = reader.join();
    ended
}

/// Reads what the client asks. When the client has gone, parts that are running end.
fn reading(mut lines: Lines, tell: Sender<Event>, stop: Arc<Stop>) -> Result<std::thread::JoinHandle<()>, Trouble> {
    let read = move || {
        loop {
            let ended = match lines.next::<Ask>() {
                Ok(Some(ask)) => {
                    if tell.send(Event::Asked(Box::new(ask))).is_err() {
                        return;
                    }
                    continue;
                }
                Ok(None) => None,
                Err(trouble) => Some(trouble),
            };
            stop.now("the client has gone");
            let _ = tell.send(Event::Ended(ended));
            return;
        }
    };
    Builder::new().name("control".to_owned()).spawn(read).map_err(|error| Trouble::new(error.to_string()))
}

/// A run that is served.
struct Run<'a> {
    options: &'a Options,
    stations: BTreeMap<Station, (usize, Vec<Worker>)>,
    tell: Sender<Event>,
    events: Receiver<Event>,
    stop: Arc<Stop>,
    to: TcpStream,
    ip: IpAddr,
    names: std::path::PathBuf,
    /// How the client has ended the run, if that came while something else was awaited.
    ended: Option<Option<Trouble>>,
}

impl Run<'_> {
    fn serve(&mut self) -> Result<u64, Trouble> {
        let mut rounds = 0;
        loop {
            match self.events.recv().map_err(|error| Trouble::new(error.to_string()))? {
                Event::Asked(ask) => {
                    rounds += u64::from(matches!(*ask, Ask::Round(_)));
                    let answered = self.answer(*ask);
                    match (answered, self.ended.take()) {
                        // Nobody reads another answer.
                        (_, Some(ended)) => return ended.map_or(Ok(rounds), Err),
                        (Err(why), None) => control::tell(&mut self.to, &Answer::Failed { why: why.to_string() })?,
                        (Ok(()), None) => {}
                    }
                }
                Event::Ended(ended) => return ended.map_or(Ok(rounds), Err),
                // A part that failed was answered, and its thread has ended.
                Event::Said(..) => {}
            }
        }
    }

    fn answer(&mut self, ask: Ask) -> Result<(), Trouble> {
        match ask {
            Ask::Hello { .. } => Err(Trouble::new("a second greeting")),
            Ask::Open { station, settings } => self.open(station, settings),
            Ask::Round(job) => {
                job.case.check().map_err(Trouble)?;
                if job.count > MOST_MESSAGES {
                    return Err(Trouble::new(format!("{} messages in a round", job.count)));
                }
                let (id, workers) =
                    self.stations.get(&job.case.station).ok_or_else(|| Trouble::new("the station is not open"))?;
                workers.iter().for_each(|worker| worker.give(job));
                let (id, number) = (*id, workers.len());
                let (mut usage, mut timeline) = (Usage::default(), None);
                for _ in 0..number {
                    match self.said(id)? {
                        Said::Part(_, part, recorded) => {
                            (usage, timeline) = (usage.plus(part), timeline.or(recorded));
                        }
                        other => return Err(Trouble::new(format!("a thread of the server: {other:?}"))),
                    }
                }
                self.stop.forget();
                let timeline = timeline.map(|timeline| timeline.encode());
                control::tell(&mut self.to, &Answer::Done { usage, timeline })
            }
        }
    }

    fn open(&mut self, station: Station, settings: Settings) -> Result<(), Trouble> {
        station.check().map_err(Trouble)?;
        if self.stations.len() >= MOST_STATIONS || self.stations.contains_key(&station) {
            return Err(Trouble::new("too many stations, or one twice"));
        }
        let settings = Settings {
            device: self.options.device.clone().or(settings.device),
            max_message: settings.max_message.min(MOST_BYTES),
            room: settings.room.min(MOST_BYTES),
            streams: settings.streams,
            secure: station.over == Over::Tls,
        };
        let id = self.stations.len();
        let names = self.names.join(id.to_string());
        if station.over == Over::Shm {
            // Sockets with names are in a directory that nobody else can enter.
            std::fs::DirBuilder::new().mode(0o700).create(&names).map_err(|error| Trouble::new(error.to_string()))?;
        }
        let mut workers = Vec::new();
        let mut addrs = Vec::new();
        for index in 0..station.threads {
            let assignment = Assignment {
                role: Role::Server { ip: self.ip, names: names.clone() },
                station,
                index,
                settings: settings.clone(),
                processor: processor(&self.options.processors, index),
                stop: self.stop.clone(),
            };
            let tell = self.tell.clone();
            // When the run is over, nobody listens.
            let said = move |said| drop(tell.send(Event::Said(id, said)));
            workers.push(Worker::start(assignment, said).map_err(|error| Trouble::new(error.to_string()))?);
            match self.said(id)? {
                Said::Listening(addr) => addrs.push(addr),
                other => return Err(Trouble::new(format!("a thread of the server: {other:?}"))),
            }
        }
        self.stations.insert(station, (id, workers));
        control::tell(&mut self.to, &Answer::Opened { addrs })?;
        for _ in 0..station.threads {
            match self.said(id)? {
                Said::Joined => {}
                other => return Err(Trouble::new(format!("a thread of the server: {other:?}"))),
            }
        }
        control::tell(&mut self.to, &Answer::Joined)
    }

    /// Returns the next thing that a thread of a station says.
    fn said(&mut self, id: usize) -> Result<Said, Trouble> {
        loop {
            match self.events.recv_timeout(PATIENCE) {
                Ok(Event::Said(from, Said::Failed(error))) if from == id => {
                    return Err(Trouble::new(error.to_string()));
                }
                Ok(Event::Said(from, said)) if from == id => return Ok(said),
                Ok(Event::Said(..)) => {}
                Ok(Event::Ended(ended)) => {
                    self.ended = Some(ended);
                    return Err(Trouble::new("the client has gone"));
                }
                Ok(Event::Asked(_)) => return Err(Trouble::new("the client did not wait for an answer")),
                Err(RecvTimeoutError::Timeout) => {
                    self.stop.now("it took too long");
                    return Err(Trouble::new(format!("a part did not end within {} s", PATIENCE.as_secs())));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Trouble::new("no thread is left")),
            }
        }
    }
}
