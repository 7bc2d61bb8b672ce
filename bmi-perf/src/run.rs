//! The client: it measures with a server, round by round, and makes the report.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use bmi::Addr;
use bmi::timeline::Timeline;
use bmi_report::{Cost, Plan, Report, Row, Step};

use crate::case::{Case, MOST_MESSAGES, Over, Station, Test};
use crate::control::{self, Answer, Ask, Lines, Settings, Trouble};
use crate::count::Count;
use crate::host;
use crate::measured::{Measured, now};
use crate::plan::Wanted;
use crate::progress::Progress;
use crate::schedule::Schedule;
use crate::serve::processor;
use crate::stop::Stop;
use crate::system_calls::Counter;
use crate::timelines::{self, Recorded};
use crate::usage::Usage;
use crate::worker::{Abilities, Assignment, Besides, Job, Role, Said, Worker};

/// How much longer than expected a round may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Least messages of a round that is recorded.
const RECORDED: u64 = 16;
/// Most messages of a round in which system calls are counted.
const COUNTED: u64 = 1000;

/// What a client was told.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) host: String,
    /// What to measure. Its `overs` are those that the user named; none means all that there are.
    pub(crate) wanted: Wanted,
    /// Whether to measure plain sockets and memory beside the library.
    pub(crate) baseline: bool,
    pub(crate) enough: bmi_report::stats::Stop,
    /// How long a round of a case takes.
    pub(crate) round: Duration,
    /// Messages of a round on each connection, instead of a time.
    pub(crate) count: Option<u64>,
    /// When to stop measuring.
    pub(crate) time: Duration,
    pub(crate) seed: u64,
    pub(crate) processors: Vec<usize>,
    pub(crate) device: Option<String>,
    pub(crate) server_device: Option<String>,
    /// Whether the report gets a timeline.
    pub(crate) timeline: bool,
    pub(crate) command: Vec<String>,
}

/// What happens.
enum Event {
    Answered(Box<Answer>),
    /// The server has gone, or sent something odd.
    Gone(Option<Trouble>),
    Said(Said),
    Interrupted,
}

/// A case, and what is known of it.
struct Measurement {
    case: Case,
    row: Row,
    /// Messages of a round on each connection.
    count: Count,
    /// The messages of each round so far.
    counts: Vec<u64>,
    missed: u64,
    usage: [Usage; 2],
    messages: u64,
    /// System calls of the client and the server for a message.
    calls: [Option<f64>; 2],
}

/// Measures. Returns a report in any case but one in which nothing could begin: then the report has
/// the reason in `interrupted`.
///
/// # Errors
/// Why the run could not begin.
pub(crate) fn run(options: &Options) -> Result<Report, Trouble> {
    let (mut run, mut report) = Run::begin(options)?;
    let ended = run.measure(&mut report);
    run.finish(&mut report, ended);
    Ok(report)
}

struct Run<'a> {
    options: &'a Options,
    to: TcpStream,
    peer: IpAddr,
    tell: Sender<Event>,
    events: Receiver<Event>,
    stop: Arc<Stop>,
    stations: BTreeMap<Station, Vec<Worker>>,
    abilities: BTreeMap<Over, Abilities>,
    groups: Vec<Vec<Measurement>>,
    end: Instant,
    progress: Progress,
}

impl Run<'_> {
    /// Connects, and learns what can be measured.
    fn begin(options: &Options) -> Result<(Run<'_>, Report), Trouble> {
        let io = |error: std::io::Error| Trouble::new(error.to_string());
        let stream = control::connect(&options.host)?;
        let peer = stream.peer_addr().map_err(io)?.ip();
        let (mut lines, mut to) = control::split(stream)?;
        let own = bmi_report::host::describe("client", Some(peer));
        control::tell(&mut to, &control::hello(&own.name))?;
        let (host, host_id, mut overs, no_calls) = match lines.next::<Answer>() {
            Ok(Some(Answer::Welcome { host, host_id, overs, no_calls })) => (host, host_id, overs, no_calls),
            Ok(Some(Answer::Refused { why })) => {
                return Err(Trouble::new(format!("the server at {peer} refuses: {why}")));
            }
            Ok(Some(_)) => return Err(Trouble::new(format!("the server at {peer} does not greet"))),
            Ok(None) => {
                return Err(Trouble::new(format!("{peer} has closed the connection: is it a bmi-perf server?")));
            }
            Err(trouble) => return Err(Trouble::new(format!("{peer}: {trouble}"))),
        };
        lines.trust()?;
        if bmi::host_id().is_none() || bmi::host_id() != host_id {
            overs.insert(Over::Shm, Err("the server is another host".to_owned()));
            overs.insert(Over::Memory, Err("the server is another host".to_owned()));
        }
        for (over, own) in host::overs(options.device.as_deref()) {
            if let (Err(why), Some(known)) = (own, overs.get_mut(&over)) {
                *known = Err(why);
            }
        }
        let (wanted, notes) = chosen(options, &overs)?;
        let new = |case| Measurement::new(case, count_of(&case, options));
        let groups = wanted.groups().into_iter().map(|group| group.into_iter().map(new).collect()).collect();
        let title = format!("{} and {}", own.name, host.name);
        let mut report = Report::new(concat!("bmi-perf ", env!("CARGO_PKG_VERSION")), title);
        report.began = seconds_since_1970();
        report.command.clone_from(&options.command);
        report.hosts = vec![own, host];
        report.notes = notes;
        report.notes.push(format!("the order of the rounds has the seed {}", options.seed));
        let uncounted = Counter::open().err().map(|error| error.to_string());
        for (role, why) in [("client", uncounted), ("server", no_calls)] {
            report.notes.extend(why.map(|why| format!("the {role} counts no system calls: {why}")));
        }
        let (tell, events) = channel();
        let stop = Arc::new(Stop::default());
        read_answers(lines, tell.clone())?;
        watch_for_interrupt(tell.clone())?;
        let run = Run {
            options,
            to,
            peer,
            tell,
            events,
            stop,
            stations: BTreeMap::new(),
            abilities: BTreeMap::new(),
            groups,
            end: now() + options.time,
            progress: Progress::new(),
        };
        Ok((run, report))
    }

    fn measure(&mut self, report: &mut Report) -> Result<(), Trouble> {
        self.open_stations()?;
        self.leave_out_the_impossible(report);
        if self.groups.iter().all(Vec::is_empty) {
            return Err(Trouble::new("nothing is left to measure"));
        }
        self.end = now() + self.options.time;
        self.choose_counts()?;
        self.learn_plans(report)?;
        let sizes = self.groups.iter().map(Vec::len);
        let mut schedule = Schedule::new(self.options.enough, self.options.seed, sizes);
        while let Some((round, order)) = schedule.next_round() {
            let of = self.groups.len();
            for (group, cases) in order {
                if now() >= self.end && round > 0 {
                    report.notes.push(format!("the time was over after {round} rounds"));
                    return self.look_closely(report);
                }
                for index in cases {
                    let (case, count) = self.groups[group][index].next();
                    let left = self.end.saturating_duration_since(now());
                    self.progress.show(round, &case.row().name(), of - schedule.open(), of, left);
                    let (measured, usage, _) = self.round(Job { case, count, besides: Besides::Nothing })?;
                    self.groups[group][index].add(round, measured, usage);
                }
                let rows: Vec<&Row> = self.groups[group].iter().map(|measurement| &measurement.row).collect();
                schedule.judge(group, &rows);
            }
        }
        self.look_closely(report)
    }

    /// Opens all stations that the cases need.
    fn open_stations(&mut self) -> Result<(), Trouble> {
        let cases = || self.groups.iter().flatten().map(|measurement| measurement.case);
        let max_message = cases().map(|case| case.size).max().unwrap_or(0);
        let mut stations: Vec<Station> = cases().map(|case| case.station).collect();
        stations.sort_unstable();
        stations.dedup();
        for station in stations {
            self.progress.say(&format!("connecting over {}", station.over));
            let settings = Settings { device: self.options.server_device.clone(), max_message };
            self.ask(&Ask::Open { station, settings: settings.clone() })?;
            let addrs = match self.answer(PATIENCE)? {
                Answer::Opened { addrs } if addrs.len() == station.threads as usize => addrs,
                other => return Err(unexpected(&other)),
            };
            let mut workers = Vec::new();
            for (index, addr) in addrs.iter().enumerate() {
                let index = index as u32;
                let assignment = Assignment {
                    role: Role::Client { to: self.reachable(station.over, addr)? },
                    station,
                    index,
                    settings: Settings { device: self.options.device.clone(), max_message },
                    processor: processor(&self.options.processors, index),
                    stop: self.stop.clone(),
                };
                let tell = self.tell.clone();
                // When the run is over, nobody listens.
                let said = move |said| drop(tell.send(Event::Said(said)));
                workers.push(Worker::start(assignment, said).map_err(|error| Trouble::new(error.to_string()))?);
            }
            self.stations.insert(station, workers);
            self.join(station)?;
        }
        Ok(())
    }

    /// Waits until the connections of a station are there on both sides.
    fn join(&mut self, station: Station) -> Result<(), Trouble> {
        let (mut missing, mut is_answered) = (station.threads, false);
        while missing > 0 || !is_answered {
            match self.event(PATIENCE)? {
                Event::Said(Said::Joined(abilities)) => {
                    if missing == station.threads {
                        self.abilities.insert(station.over, abilities);
                    }
                    missing -= 1;
                }
                Event::Said(Said::Failed(error)) => {
                    let text = format!(
                        "cannot connect over {}, although the control connection works: {error}. Does a firewall let \
                         only some ports through?",
                        station.over
                    );
                    return Err(Trouble::new(text));
                }
                Event::Answered(answer) => match *answer {
                    Answer::Joined => is_answered = true,
                    other => return Err(unexpected(&other)),
                },
                Event::Said(..) | Event::Gone(_) | Event::Interrupted => {}
            }
        }
        Ok(())
    }

    /// Returns the address at which this host reaches a server's thread.
    fn reachable(&self, over: Over, addr: &str) -> Result<String, Trouble> {
        let odd = || Trouble::new(format!("the server's address `{addr}`"));
        match over {
            Over::Memory => Ok(String::new()),
            Over::Shm => Ok(addr.to_owned()),
            Over::Sockets => {
                let at: SocketAddr = addr.parse().map_err(|_| odd())?;
                Ok(SocketAddr::new(self.peer, at.port()).to_string())
            }
            Over::Tcp | Over::Ib => {
                let at: Addr = addr.parse().map_err(|_| odd())?;
                let at = match over {
                    Over::Ib => Addr::ib(None, self.peer.to_string(), at.port()),
                    _ => Addr::tcp(self.peer.to_string(), at.port()),
                };
                Ok(at.to_string())
            }
        }
    }

    /// Leaves out what a transport has not.
    fn leave_out_the_impossible(&mut self, report: &mut Report) {
        let mut missing: Vec<String> = Vec::new();
        for group in &mut self.groups {
            group.retain(|measurement| {
                let (test, over) = (measurement.case.test, measurement.case.station.over);
                let Some(abilities) = self.abilities.get(&over) else { return true };
                let why = match test {
                    Test::ReadLatency | Test::ReadBandwidth | Test::ListRead if !abilities.rdma_read => "RDMA read",
                    Test::WriteImm if !abilities.write_with_immediate => "write with immediate data",
                    _ => return true,
                };
                missing.push(format!("{over} has no {why}: `{}` is left out", test.name()));
                false
            });
        }
        missing.sort();
        missing.dedup();
        report.notes.extend(missing);
    }

    /// Finds out how many messages take about as long as a round should. The trials also warm
    /// everything up.
    fn choose_counts(&mut self) -> Result<(), Trouble> {
        for group in 0..self.groups.len() {
            for index in 0..self.groups[group].len() {
                let case = self.groups[group][index].case;
                self.progress.say(&format!("trying {}", case.row().name()));
                loop {
                    let count = self.groups[group][index].count.now();
                    let (measured, ..) = self.round(Job { case, count, besides: Besides::Nothing })?;
                    let known = &mut self.groups[group][index].count;
                    known.add(measured.seconds);
                    if known.is_tried() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Asks for the plan of each transport. The trials have shown what its peer has.
    fn learn_plans(&mut self, report: &mut Report) -> Result<(), Trouble> {
        let mut asked: Vec<Over> = Vec::new();
        let stations: Vec<Station> = self.stations.keys().copied().collect();
        for station in stations {
            let worker = self.stations[&station].first();
            let Some(worker) = worker.filter(|_| station.over.scheme().is_some() && !asked.contains(&station.over))
            else {
                continue;
            };
            asked.push(station.over);
            worker.ask_for_plan();
            loop {
                match self.event(PATIENCE)? {
                    Event::Said(Said::Planned(rules)) => break report.plans.extend(plans(station.over, &rules)),
                    Event::Said(Said::Failed(error)) => return Err(self.reason(&error.to_string())),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Runs two short rounds more of each case: one in which system calls are counted, and one in
    /// which a timeline is recorded. Their times mean nothing.
    fn look_closely(&mut self, report: &mut Report) -> Result<(), Trouble> {
        let mut all = Vec::new();
        for group in 0..self.groups.len() {
            for index in 0..self.groups[group].len() {
                let (case, count) = self.groups[group][index].next();
                self.progress.say(&format!("looking closely at {}", case.row().name()));
                let counted = count.min(COUNTED).max(u64::from(case.depth));
                let job = Job { case, count: counted, besides: Besides::Counting };
                let (measured, usage, _) = self.round(job)?;
                let each = |usage: Usage| usage.calls.map(|calls| calls as f64 / measured.messages.max(1) as f64);
                self.groups[group][index].calls = usage.map(each);
                if case.station.over.scheme().is_none() {
                    continue;
                }
                let job = Job { case, count: RECORDED.max(2 * u64::from(case.depth)), besides: Besides::Recording };
                let (.., recorded) = self.round(job)?;
                if let Some(recorded) = recorded {
                    self.groups[group][index].row.stages = timelines::stages(&recorded);
                    all.push(recorded);
                }
            }
        }
        if self.options.timeline {
            report.timeline = Some(timelines::trace(&all).map_err(|error| Trouble::new(error.to_string()))?);
        }
        Ok(())
    }

    /// Runs a case once, on both sides.
    fn round(&mut self, job: Job) -> Result<(Measured, [Usage; 2], Option<Recorded>), Trouble> {
        let Job { case, count, besides } = job;
        self.ask(&Ask::Round { case, count, besides })?;
        let workers = self.stations.get(&case.station).ok_or_else(|| Trouble::new("a station that is not open"))?;
        workers.iter().for_each(|worker| worker.give(job));
        let (mut missing, mut server) = (workers.len(), None);
        let (mut measured, mut client) = (Measured::default(), Usage::default());
        let (mut own, mut theirs) = (None, None);
        // A rate that is low takes its time.
        let paced = match case.test {
            Test::LatencyAtRate => {
                Duration::from_secs_f64(count as f64 * f64::from(case.station.connections) / f64::from(case.rate))
            }
            _ => Duration::ZERO,
        };
        while missing > 0 || server.is_none() {
            match self.event(PATIENCE + paced + 20 * self.options.round)? {
                Event::Said(Said::Part(part, usage, recorded)) => {
                    (measured, client, missing) = (measured.beside(part), client.plus(usage), missing - 1);
                    own = own.or(recorded);
                }
                Event::Said(Said::Failed(error)) => {
                    // The server may tell the reason better.
                    return Err(self.reason(&format!("{}: {error}", case.row().name())));
                }
                Event::Answered(answer) => match *answer {
                    Answer::Done { usage, timeline } => (server, theirs) = (Some(usage), timeline),
                    other => return Err(unexpected(&other)),
                },
                Event::Said(..) | Event::Gone(_) | Event::Interrupted => {}
            }
        }
        self.stop.forget();
        let odd = |error| Trouble::new(format!("the server's timeline: {error}"));
        let theirs = theirs.map(|bytes| Timeline::decode(&bytes)).transpose().map_err(odd)?;
        let recorded = own.zip(theirs).map(|(client, server)| Recorded { case, client, server });
        Ok((measured, [client, server.unwrap_or_default()], recorded))
    }

    /// Returns why a part failed: what the server says within a moment, or `own`.
    fn reason(&mut self, own: &str) -> Trouble {
        match self.event(Duration::from_millis(500)) {
            Err(trouble) => trouble,
            Ok(Event::Answered(answer)) => match *answer {
                Answer::Failed { why } => Trouble::new(format!("{own}; the server: {why}")),
                _ => Trouble::new(own),
            },
            Ok(_) => Trouble::new(own),
        }
    }

    fn ask(&mut self, ask: &Ask) -> Result<(), Trouble> {
        control::tell(&mut self.to, ask)
    }

    /// Returns the server's answer.
    fn answer(&mut self, patience: Duration) -> Result<Answer, Trouble> {
        loop {
            if let Event::Answered(answer) = self.event(patience)? {
                return Ok(*answer);
            }
        }
    }

    /// Returns what happens next. The end of the run is an error.
    fn event(&mut self, patience: Duration) -> Result<Event, Trouble> {
        let ended = match self.events.recv_timeout(patience) {
            Ok(Event::Gone(None)) => {
                Trouble::new(format!("the server at {} has gone in the middle of the run", self.peer))
            }
            Ok(Event::Gone(Some(trouble))) => Trouble::new(format!("the server at {}: {trouble}", self.peer)),
            Ok(Event::Interrupted) => Trouble::new(INTERRUPTED),
            Ok(event) => return Ok(event),
            Err(RecvTimeoutError::Timeout) => {
                Trouble::new(format!("nothing has come from {} for {} s", self.peer, patience.as_secs()))
            }
            Err(RecvTimeoutError::Disconnected) => Trouble::new("no thread is left"),
        };
        self.stop.now(ended.to_string());
        Err(ended)
    }

    /// Puts what was measured into the report.
    fn finish(self, report: &mut Report, ended: Result<(), Trouble>) {
        self.progress.end();
        self.stop.now("the run has ended");
        // The server ends its part of the run, whose threads otherwise wait for the next round.
        let _ = self.to.shutdown(std::net::Shutdown::Both);
        report.interrupted = ended.err().map(|trouble| trouble.to_string());
        let rows = self.groups.into_iter().flatten().map(Measurement::finished);
        report.rows = rows.filter(|row| !row.rounds.is_empty()).collect();
    }
}

/// The reason of a run that its user ended.
pub(crate) const INTERRUPTED: &str = "interrupted by a signal";

/// A round with fewer messages than this part of the most is left out. The processors of a virtual
/// machine change their distance, and the time of a message over shared memory with it, by a factor
/// of five.
const SHORT: u64 = 8;

impl Measurement {
    fn new(case: Case, count: Count) -> Measurement {
        Measurement {
            case,
            row: case.row(),
            count,
            counts: Vec::new(),
            missed: 0,
            usage: [Usage::default(); 2],
            messages: 0,
            calls: [None; 2],
        }
    }

    /// Returns the case, and the messages of its next round on each connection.
    fn next(&self) -> (Case, u64) {
        (self.case, self.count.now())
    }

    fn add(&mut self, round: u32, measured: Measured, usage: [Usage; 2]) {
        let bytes = measured.messages as f64 * self.case.size as f64;
        let value = match (self.case.test, &measured.histogram) {
            (Test::Rate, _) => measured.messages as f64 / measured.seconds,
            (test, _) if test.unit() == bmi_report::Unit::BytesPerSecond => bytes / measured.seconds,
            // Half the round trip.
            (Test::Latency, Some(trips)) => trips.quantile(0.5) as f64 / 2e9,
            (_, Some(trips)) => trips.quantile(0.5) as f64 / 1e9,
            (_, None) => measured.seconds / measured.messages as f64,
        };
        self.row.rounds.push(Step { round, value });
        self.counts.push(self.count.now());
        self.count.add(measured.seconds);
        if let Some(trips) = &measured.histogram {
            let factor = if self.case.test == Test::Latency { 0.5 } else { 1.0 };
            self.row.histogram.get_or_insert_default().add(&trips.scaled(factor));
        }
        self.missed += measured.missed;
        self.messages += measured.messages;
        for (sum, part) in self.usage.iter_mut().zip(usage) {
            *sum = sum.plus(part);
        }
    }

    /// Leaves out rounds from before the number of messages was corrected. They show how a round
    /// begins. Of the processor time and the durations, so few messages are a negligible part.
    fn leave_out_the_short(&mut self) {
        let most = self.counts.iter().copied().max().unwrap_or_default();
        let (before, mut counts) = (self.row.rounds.len(), self.counts.iter());
        self.row.rounds.retain(|_| counts.next().is_none_or(|count| count * SHORT >= most));
        if before > self.row.rounds.len() {
            let (left_out, of) = (before - self.row.rounds.len(), before);
            self.row.notes.push(format!("{left_out} of {of} rounds had too few messages, and are left out"));
        }
    }

    fn finished(mut self) -> Row {
        self.leave_out_the_short();
        let warm_up = bmi_report::stats::warm_up(&self.row.values());
        if warm_up > 0 && self.row.rounds.len() - warm_up >= bmi_report::stats::LEAST_ROUNDS {
            self.row.rounds.drain(..warm_up);
            self.row.notes.push(format!("the first {warm_up} rounds were warm-up, and are left out"));
        }
        if self.missed > 0 {
            self.row.notes.push(format!("{} of {} calls took another path", self.missed, self.messages));
        }
        let messages = self.messages.max(1) as f64;
        for ((role, usage), calls) in ["client", "server"].into_iter().zip(self.usage).zip(self.calls) {
            if role == "server" && self.case.station.over == Over::Memory {
                continue; // it has nothing to do
            }
            let cost = Cost { cpu: usage.cpu / messages, switches: usage.switches as f64 / messages, calls };
            self.row.cost.insert(role.to_owned(), cost);
        }
        self.row
    }
}

/// Returns how many messages the rounds of a case have.
fn count_of(case: &Case, options: &Options) -> Count {
    let wanted = options.round.as_secs_f64();
    match (options.count, case.test) {
        (Some(count), _) => Count::fixed(count),
        (None, Test::LatencyAtRate) => {
            let each = f64::from(case.rate) / f64::from(case.station.connections);
            Count::fixed(((wanted * each) as u64).clamp(10, MOST_MESSAGES))
        }
        (None, _) => {
            let least = if case.test.streams() { 2 * u64::from(case.depth) } else { 2 };
            Count::new(least, MOST_MESSAGES.min((16 << 30) / case.size), wanted)
        }
    }
}

/// Returns what to measure over what, and why something is left out.
///
/// # Errors
/// If the user named a transport that cannot be had.
fn chosen(options: &Options, overs: &BTreeMap<Over, Result<(), String>>) -> Result<(Wanted, Vec<String>), Trouble> {
    let unknown = Err("the server does not know it".to_owned());
    let can = |over: Over| overs.get(&over).cloned().unwrap_or_else(|| unknown.clone());
    let (mut list, mut notes) = (Vec::new(), Vec::new());
    let named = &options.wanted.overs;
    for over in [Over::Tcp, Over::Ib, Over::Shm, Over::Sockets, Over::Memory] {
        let is_library = over.scheme().is_some();
        match can(over) {
            Err(why) if named.contains(&over) => {
                return Err(Trouble::new(format!("{over} cannot be measured between these hosts: {why}")));
            }
            Err(why) if named.is_empty() && is_library => notes.push(format!("{over} is left out: {why}")),
            Err(_) => {}
            Ok(()) if named.contains(&over) || (named.is_empty() && is_library) => list.push(over),
            Ok(()) => {}
        }
    }
    if options.baseline {
        for baseline in list.clone().into_iter().map(Over::baseline) {
            if can(baseline).is_ok() && !list.contains(&baseline) {
                list.push(baseline);
            }
        }
    }
    if options.wanted.self_check {
        list.truncate(1);
    }
    if list.is_empty() {
        return Err(Trouble::new("no transport can be opened on both hosts"));
    }
    Ok((Wanted { overs: list, ..options.wanted.clone() }, notes))
}

/// Returns the plan of a transport, for the report.
fn plans(over: Over, rules: &[bmi::paths::Rule]) -> Vec<Plan> {
    let line = |rule: &bmi::paths::Rule| Plan {
        over: over.name().to_owned(),
        direction: format!(
            "{}, {}",
            rule.direction,
            if rule.registered { "registered memory" } else { "other memory" }
        ),
        size: rule.from,
        path: rule.path.to_string(),
        why: rule.why.clone(),
    };
    rules.iter().map(line).collect()
}

fn unexpected(answer: &Answer) -> Trouble {
    match answer {
        Answer::Failed { why } => Trouble::new(format!("the server: {why}")),
        other => Trouble::new(format!("an answer of the server that does not fit: {other:?}")),
    }
}

fn read_answers(mut lines: Lines, tell: Sender<Event>) -> Result<(), Trouble> {
    let read = move || {
        loop {
            let event = match lines.next::<Answer>() {
                Ok(Some(answer)) => Event::Answered(Box::new(answer)),
                Ok(None) => Event::Gone(None),
                Err(trouble) => Event::Gone(Some(trouble)),
            };
            let is_last = matches!(event, Event::Gone(_));
            if tell.send(event).is_err() || is_last {
                return;
            }
        }
    };
    Builder::new().name("control".to_owned()).spawn(read).map(drop).map_err(|error| Trouble::new(error.to_string()))
}

/// Tells when the user ends the run by ctrl-C, or the system by SIGTERM.
fn watch_for_interrupt(tell: Sender<Event>) -> Result<(), Trouble> {
    use tokio::signal::unix::{SignalKind, signal};
    let io = |error: std::io::Error| Trouble::new(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(io)?;
    let watch = move || {
        runtime.block_on(async {
            let (Ok(mut interrupt), Ok(mut terminate)) =
                (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
            else {
                return;
            };
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            // A run that has ended needs no word.
            let _ = tell.send(Event::Interrupted);
        });
    };
    Builder::new().name("signals".to_owned()).spawn(watch).map(drop).map_err(io)
}

#[expect(clippy::disallowed_methods, reason = "the report has the date of the run")]
fn seconds_since_1970() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |time| time.as_secs())
}
