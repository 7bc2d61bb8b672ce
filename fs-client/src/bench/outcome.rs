//! What a run has measured so far, as the rows of a report.

use std::collections::BTreeMap;
use std::time::Duration;

use bmi_report::{Cost, Histogram, Host, Kind, Report, Row, Step, Unit, units};

use super::crew::merged;
use super::job::{Copying, Io, Job, Meta, Order, Part, Ready, Work};
use super::task::partner::Partner;
use super::usage::Usage;

/// What was measured of a phase in a lane.
#[derive(Default)]
struct Figure {
    rounds: Vec<Step>,
    operations: Histogram,
    clients: Usage,
    servers: Usage,
    /// The plain program beside it: its name, and its rounds.
    partner: (&'static str, Vec<Step>),
}

/// Collects what was measured.
pub(crate) struct Outcome {
    job: Job,
    hosts: Vec<Host>,
    labels: Vec<String>,
    /// In the order of the phases of a round.
    figures: Vec<(Order, Figure)>,
    /// What went wrong: one line each.
    pub(crate) failures: Vec<String>,
    /// Why the run ended early.
    pub(crate) ended: Option<String>,
    /// The user has interrupted the run.
    pub(crate) interrupted: bool,
    /// Rounds that were measured as a whole.
    pub(crate) rounds: u32,
}

impl Outcome {
    /// Begins with no figures for what is to be measured.
    pub(crate) fn new(job: &Job, ready: &[Ready], measured: Vec<Order>) -> Outcome {
        let figures = measured.into_iter().map(|order| (order, Figure::default())).collect();
        let hosts = ready.iter().map(|ready| ready.host.clone()).chain(servers(ready)).collect();
        let labels = labels(job, ready);
        let (failures, ended, interrupted, rounds) = (Vec::new(), None, false, 0);
        Outcome { job: job.clone(), hosts, labels, figures, failures, ended, interrupted, rounds }
    }

    /// Returns the name of a lane.
    pub(crate) fn label(&self, lane: usize) -> &str {
        &self.labels[lane]
    }

    /// Adds a phase that all hosts have done, and what servers of this host took meanwhile.
    pub(crate) fn add(&mut self, round: u32, order: Order, took: Duration, (part, servers): (&Part, Usage)) {
        let Some((_, figure)) = self.figures.iter_mut().find(|(key, _)| *key == order) else { return };
        let value = rate(part.amount, took);
        figure.rounds.push(Step { round, value });
        figure.operations.add(&part.operations);
        figure.clients.cpu += part.cpu;
        figure.clients.switches += part.switches;
        figure.servers.cpu += servers.cpu;
        figure.servers.switches += servers.switches.max(0.0);
    }

    /// Adds what the plain program did beside a phase.
    pub(super) fn add_partner(&mut self, round: u32, order: Order, took: Duration, done: &Partner) {
        let Some((_, figure)) = self.figures.iter_mut().find(|(key, _)| *key == order) else { return };
        figure.partner.0 = done.over;
        figure.partner.1.push(Step { round, value: rate(done.amount, took) });
    }

    /// Returns the report.
    pub(crate) fn report(&self, began: u64, command: Vec<String>) -> Report {
        let program = format!("pvfs {}", env!("CARGO_PKG_VERSION"));
        let mut report = Report::new(program, title(&self.job));
        (report.began, report.command, report.hosts) = (began, command, self.hosts.clone());
        report.rows = self
            .figures
            .iter()
            .filter(|(_, figure)| !figure.rounds.is_empty())
            .flat_map(|(order, figure)| {
                let row = self.row(*order, figure);
                let (over, rounds) = &figure.partner;
                let partner = (!rounds.is_empty()).then(|| Row {
                    over: (*over).to_owned(),
                    kind: Kind::Baseline,
                    rounds: rounds.clone(),
                    histogram: None,
                    cost: BTreeMap::new(),
                    ..row.clone()
                });
                std::iter::once(row).chain(partner)
            })
            .collect();
        report.notes = notes(&self.job);
        report.interrupted.clone_from(&self.ended);
        report
    }

    fn row(&self, order: Order, figure: &Figure) -> Row {
        let (unit, size, setup) = match self.job.works[order.work] {
            Work::Io(io) => (Unit::BytesPerSecond, Some(io.transfer), io_setup(&self.job, io)),
            Work::Meta(meta) => (Unit::PerSecond, None, meta_setup(&self.job, meta)),
            Work::Copy(Copying { size }) => (Unit::BytesPerSecond, Some(size), setup(&self.job, Vec::new())),
        };
        let operations = figure.operations.len().max(1) as f64;
        let of =
            |usage: Usage| Cost { cpu: usage.cpu / operations, switches: usage.switches / operations, calls: None };
        let sides = [("client", figure.clients), ("server", figure.servers)];
        // Those of servers are known only if their processes were named.
        let known = sides.into_iter().filter(|(_, usage)| usage.cpu > 0.0);
        Row {
            test: order.phase.test().unwrap_or_default().to_owned(),
            over: self.labels[order.lane].clone(),
            size,
            setup,
            unit,
            rounds: figure.rounds.clone(),
            histogram: Some(figure.operations.clone()),
            cost: known.map(|(side, usage)| (side.to_owned(), of(usage))).collect::<BTreeMap<_, _>>(),
            ..Row::default()
        }
    }
}

fn rate(amount: u64, took: Duration) -> f64 {
    amount as f64 / took.as_secs_f64().max(1e-9)
}

/// Returns a name for each lane: its transport, and its cluster if there are several. The name of
/// `auto` is what it turned out to be.
fn labels(job: &Job, ready: &[Ready]) -> Vec<String> {
    let schemes = ready.iter().fold(Vec::new(), |all, ready| merged(all, ready.labels.clone()));
    let one = |(lane, schemes): (usize, Vec<String>)| {
        let (cluster, over) = (&job.clusters[lane / job.overs.len()], &*job.overs[lane % job.overs.len()]);
        match over {
            _ if job.clusters.len() > 1 && job.overs.len() == 1 => cluster.name.clone(),
            _ if job.clusters.len() > 1 => format!("{over}, {}", cluster.name),
            // With others beside it, it could have the same name as one of them.
            "auto" if job.overs.len() > 1 => format!("auto ({})", schemes.join("+")),
            "auto" => schemes.join("+"),
            over => over.to_owned(),
        }
    };
    schemes.into_iter().enumerate().map(one).collect()
}

/// Returns the servers, as the first host knows them.
fn servers(ready: &[Ready]) -> Vec<Host> {
    let known = ready.first().map(|ready| ready.servers.clone()).unwrap_or_default();
    let host = |(name, serves)| Host { role: "server".to_owned(), name, facts: vec![("serves".to_owned(), serves)] };
    known.into_iter().map(host).collect()
}

/// Returns the number of hosts.
fn hosts(job: &Job) -> u32 {
    job.all / job.tasks
}

fn many(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn title(job: &Job) -> String {
    let who = format!("{} on {}", many(job.all.into(), "task"), many(hosts(job).into(), "host"));
    match job.works[..] {
        [Work::Io(io)] => {
            let bytes = u64::from(job.all) * io.block * io.segments;
            format!("pvfs bench io: {who}, {} in transfers of {}", units::amount(bytes), units::amount(io.transfer))
        }
        [Work::Meta(meta)] => {
            format!("pvfs bench meta: {who}, {} of each task", many(meta.files, "file"))
        }
        [Work::Copy(copy)] => format!("pvfs bench copy: {who}, a file of {} of each task", units::amount(copy.size)),
        _ => format!("pvfs bench: {who}"),
    }
}

/// Returns all settings as pairs. Those of a row name themselves, where a number does not.
fn setup(job: &Job, others: Vec<(&str, String)>) -> BTreeMap<String, String> {
    let tasks = [("hosts", hosts(job).to_string()), ("tasks", job.all.to_string())];
    let waiting = job.busy.then(|| ("waiting", "polling".to_owned()));
    let all = tasks.into_iter().chain(waiting).chain(others);
    all.map(|(name, value)| (name.to_owned(), value)).collect()
}

fn io_setup(job: &Job, io: Io) -> BTreeMap<String, String> {
    let layout = if io.shared { "shared file" } else { "file per task" };
    let mut others = vec![
        ("layout", layout.to_owned()),
        ("block", format!("blocks of {}", units::amount(io.block))),
        ("segments", io.segments.to_string()),
    ];
    others.extend((io.pieces > 1).then(|| ("pieces", format!("{} pieces", io.pieces))));
    others.extend(io.view.then(|| ("access", "through a view".to_owned())));
    others.extend(in_flight(io.in_flight));
    others.extend(io.overwrite.then(|| ("file", "overwritten".to_owned())));
    others.extend(io.random.then(|| ("order", "random".to_owned())));
    others.extend(io.sync.then(|| ("sync", "synced".to_owned())));
    others.extend(io.verify.then(|| ("check", "verified".to_owned())));
    others.extend((job.shift == 0 && job.all > 1).then(|| ("reader", "own data".to_owned())));
    setup(job, others)
}

fn meta_setup(job: &Job, meta: Meta) -> BTreeMap<String, String> {
    let dirs = if meta.unique { "directory per task" } else { "shared directory" };
    let mut others =
        vec![("dirs", dirs.to_owned()), ("files", meta.files.to_string()), ("depth", meta.depth.to_string())];
    others.extend(in_flight(meta.in_flight));
    others.extend((meta.bytes > 0).then(|| ("data", format!("{} written", units::amount(meta.bytes)))));
    setup(job, others)
}

fn in_flight(number: u32) -> Option<(&'static str, String)> {
    (number > 1).then(|| ("in flight", format!("{number} in flight")))
}

fn notes(job: &Job) -> Vec<String> {
    let mut notes = vec![
        "The time of a phase is from the first begin to the last end of all hosts.".to_owned(),
        format!("The seed is {}.", job.seed),
    ];
    if job.works.iter().any(|work| matches!(work, Work::Io(_))) {
        notes.push("Clients cache nothing. Servers may answer reads from their memory.".to_owned());
    }
    notes
}
