//! The model beside the measurement: what the simulator predicts for the rows of a report.
//!
//! **How.** Each prediction is a new world with two nodes. The library runs there as it does on a
//! network, with the messages, sizes, depth and way of waiting of the row. Only the transport and
//! the clock are the simulator's. A short pass before the measured one fills the caches, as the
//! warm-up of a run does.
//!
//! **Invariants**
//! 1. The same profile and row give the same prediction: time is virtual, and there is one seed.
//! 2. A prediction has one round, so no ratio with it is called faster or slower.
//! 3. Work in the simulator is bounded, whatever the report says ([`MOST_BYTES`]).
//!
//! Tested here: the profile's own prices bound the predictions.

mod world;

use bmi_report::{Kind, Report, Row, Step};
use bmi_sim::Profile;
use clap::ValueEnum;

use crate::case::{Test, Waiting};

/// Most bytes in flight, and most bytes of a message.
const MOST_BYTES: u64 = 16 << 20;
/// Most messages in flight.
const MOST_DEPTH: u64 = 1024;

/// A profile, and the name that it was given by.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    name: String,
    profile: Profile,
}

impl Model {
    /// Reads a profile by name or from a file, with or without a disk.
    pub(crate) fn parse(text: &str) -> Result<Model, String> {
        let profile = Profile::from_name_or_file(text).map_err(|error| error.to_string())?;
        Ok(Model { name: text.to_owned(), profile })
    }

    /// Returns what its rows run over.
    fn over(&self) -> String {
        format!("{} model", self.name)
    }
}

/// What a row asks of the simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Question {
    test: Test,
    waiting: Waiting,
    size: usize,
    depth: usize,
}

impl Question {
    /// Returns `None` for what the simulator does not run.
    fn of(row: &Row) -> Option<Question> {
        let setup = |name: &str| row.setup.get(name).map(String::as_str);
        if row.setup.keys().any(|name| !["waiting", "depth"].contains(&name.as_str())) {
            return None;
        }
        let test = Test::value_variants().iter().find(|test| test.name() == row.test && test.unit() == row.unit)?;
        let predicted = matches!(
            test,
            Test::Latency
                | Test::Bandwidth
                | Test::Rate
                | Test::WriteLatency
                | Test::WriteBandwidth
                | Test::ReadLatency
                | Test::ReadBandwidth
        );
        let waiting = Waiting::value_variants().iter().find(|waiting| Some(waiting.name()) == setup("waiting"))?;
        let depth: u64 = if test.streams() { setup("depth")?.parse().ok()? } else { 1 };
        let size = row.size?;
        let fits = size > 0 && (1..=MOST_DEPTH).contains(&depth) && size.saturating_mul(depth) <= MOST_BYTES;
        (predicted && fits).then_some(Question {
            test: *test,
            waiting: *waiting,
            size: size as usize,
            depth: depth as usize,
        })
    }

    /// Returns the number of messages of the measured pass.
    fn messages(&self) -> usize {
        const STREAM: usize = 32 << 20;
        if self.test.streams() { (STREAM / self.size).clamp(4 * self.depth, 4096.max(4 * self.depth)) } else { 32 }
    }
}

/// Adds the predictions of the models to a report, each after the rows that it is beside. Those of
/// the same models that the report has already are replaced.
pub(crate) fn add(report: &mut Report, models: &[Model]) {
    if models.is_empty() {
        return;
    }
    let is_first = |at: &usize| !models[..*at].iter().any(|other| other.name == models[*at].name);
    let models: Vec<&Model> = (0..models.len()).filter(is_first).map(|at| &models[at]).collect();
    let is_one = |row: &Row| row.kind == Kind::Model && models.iter().any(|model| model.over() == row.over);
    let old: Vec<Row> = std::mem::take(&mut report.rows).into_iter().filter(|row| !is_one(row)).collect();
    let (mut without, mut failed) = (0, Vec::new());
    for (number, row) in old.iter().enumerate() {
        report.rows.push(row.clone());
        let is_library = |other: &Row| other.kind == Kind::Library && other.is_beside(row);
        if old[number + 1..].iter().any(|other| other.is_beside(row)) || !old.iter().any(is_library) {
            continue;
        }
        let Some(question) = Question::of(row) else {
            without += 1;
            continue;
        };
        for model in &models {
            match world::predict(&model.profile, question) {
                Ok(value) => report.rows.push(predicted(row, model, value)),
                Err(why) => failed.push(format!("no prediction of {} for {}: {why}", model.over(), row.what())),
            }
        }
    }
    let notes = std::iter::once(note(&models, without)).chain(failed);
    let notes: Vec<String> = notes.filter(|note| !report.notes.contains(note)).collect();
    report.notes.extend(notes);
}

fn predicted(row: &Row, model: &Model, value: f64) -> Row {
    Row {
        test: row.test.clone(),
        over: model.over(),
        kind: Kind::Model,
        size: row.size,
        setup: row.setup.clone(),
        unit: row.unit,
        rounds: vec![Step { round: 0, value }],
        ..Row::default()
    }
}

/// Says what the rows of a model are, and how many have none.
fn note(models: &[&Model], without: usize) -> String {
    let names: Vec<String> = models.iter().map(|model| model.over()).collect();
    let text = format!("{}: the library in the simulator, predicted and not measured", names.join(", "));
    match without {
        0 => text,
        1 => format!("{text}; 1 group of rows has no prediction: {WITHOUT}"),
        _ => format!("{text}; {without} groups of rows have no prediction: {WITHOUT}"),
    }
}

const WITHOUT: &str = "the model predicts latency, bandwidth, message rate, and RDMA writes and reads on one \
                       connection of one thread, with up to 16 MiB in flight";

#[cfg(test)]
mod tests;
