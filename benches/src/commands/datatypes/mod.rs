//! `datatypes`: pieces a second of cursors, and patterns of noncontiguous access in several ways,
//! over any transport.

mod cursors;
mod record;

use std::time::Duration;

use bmi_report::units::parse_size;
use fs_client::CollectiveOptions;

use self::record::Measured;
use super::Failed;
use super::workload::{Target, one_of, over};
use crate::limit::Limit;
use crate::report::{ReportArgs, begin};
use crate::workload::noncontiguous::{Noncontiguous, Way};
use crate::workload::patterns::{self, Known, Size};
use crate::workload::{Setup, bed};

/// Measures datatypes: how many pieces a second a cursor finds, and what noncontiguous access
/// costs by one call for each piece, by lists, and by views.
///
/// Each pattern is written and read back by each way in turns, so that the ways are side by side.
/// All data that is read is compared with the data that was written; after a difference the exit
/// status is not zero. Figures are medians of the rounds, of all processes together. In each round
/// the slowest process counts.
///
/// "wire" is how many bytes the clients sent and received for each byte of data: requests and data,
/// without headers. "cpu" is processor time for each KiB of data, of all clients and of all
/// servers. A client's is that of its thread. "single" moves only the first pieces of a pattern.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  cargo run --release -p benches -- datatypes --quick\n  \
                        cargo run --release -p benches -- datatypes --over tcp --pattern tile,flash --pieces 512,4K\n  \
                        cargo run --release -p benches -- datatypes --cursors")]
pub(crate) struct Datatypes {
    /// Where to run, as for `workload`: tcp, shm, ib, sim, and profiles of the simulator.
    #[arg(long, value_name = "PLACE", value_delimiter = ',', default_value = "tcp,shm,sim", value_parser = over)]
    over: Vec<Target>,
    /// The patterns: noncontig, hpio-c-c, hpio-c-nc, hpio-nc-c, hpio-nc-nc, interleaved, tile,
    /// bt-io, flash [default: all].
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = pattern)]
    pattern: Vec<Known>,
    /// The bytes of a piece, for patterns that leave it open [default: 4,64,512,4K,64K; with
    /// --quick 4,4K].
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_size)]
    pieces: Vec<u64>,
    /// The ways: single, list, view [default: all].
    #[arg(long, value_name = "WAY", value_delimiter = ',', value_parser = way)]
    way: Vec<Way>,
    /// The bytes of each process [default: 1M; with --quick 64K].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    bytes: Option<u64>,
    /// The number of processes. BT-IO needs a square.
    #[arg(long, value_name = "CLIENTS", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    clients: u16,
    /// The number of I/O servers.
    #[arg(long, value_name = "SERVERS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    servers: u16,
    /// The most pieces that are moved one by one [default: 512; with --quick 64].
    #[arg(long, value_name = "PIECES")]
    singles: Option<u32>,
    /// The number of rounds that are measured [default: 5; with --quick 1].
    #[arg(long, value_name = "ROUNDS", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// Measure only the cursors.
    #[arg(long, conflicts_with = "pattern")]
    cursors: bool,
    /// Measure less, for a short time.
    #[arg(long)]
    quick: bool,
    /// Time limit of a pattern in one place, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    #[command(flatten)]
    report: ReportArgs,
}

fn pattern(text: &str) -> Result<Known, String> {
    one_of(text, patterns::ALL.map(|known| (known.name, known)))
}

fn way(text: &str) -> Result<Way, String> {
    one_of(text, Way::ALL.map(|way| (way.as_str(), way)))
}

/// Returns what was given, or else the default.
fn or<T: Clone>(given: &[T], default: &[T]) -> Vec<T> {
    if given.is_empty() { default.to_vec() } else { given.to_vec() }
}

impl Datatypes {
    pub(crate) fn run(&self) -> Result<bool, Failed> {
        let mut report = begin("benches datatypes", "datatypes, and patterns of noncontiguous access");
        let rounds = self.rounds.map_or(if self.quick { 1 } else { 5 }, usize::from);
        let time = Duration::from_millis(if self.quick { 2 } else { 200 });
        report.rows = cursors::measure(rounds, time).map_err(|error| -> Failed { error })?;
        print!("{}", record::cursors(&report.rows).render());
        let mut measured = Vec::new();
        if !self.cursors {
            for over in &self.over {
                self.measure(over, rounds, &mut measured)?;
            }
            print!("\n{}", record::patterns(&measured).render());
        }
        let mut first = rounds;
        for one in &measured {
            one.record(&mut report, first);
            // The ways of a pattern were measured side by side, others were not.
            first += if one.is_last { rounds } else { 0 };
        }
        self.report.write(&report)?;
        Ok(true)
    }

    /// Measures all patterns in one place.
    fn measure(&self, over: &Target, rounds: usize, all: &mut Vec<Measured>) -> Result<(), Failed> {
        let (bytes, singles) = if self.quick { (64 << 10, 64) } else { (1 << 20, 512) };
        let (bytes, ranks) = (self.bytes.unwrap_or(bytes), u64::from(self.clients));
        let setup = Setup::new(self.clients.into(), self.servers.into());
        let pieces = or(&self.pieces, if self.quick { &[4, 4 << 10] } else { &[4, 64, 512, 4 << 10, 64 << 10] });
        let mut done = Vec::new();
        for known in or(&self.pattern, &patterns::ALL) {
            for piece in &pieces {
                let pattern = (known.of)(Size { piece: *piece, bytes, ranks });
                // Some patterns have their own size of a piece, or one piece in any case.
                let share = (known.name, pattern.share(0, ranks).map_err(|error| format!("{}: {error}", known.name))?);
                if done.contains(&share) {
                    continue;
                }
                done.push(share);
                let parameters = pattern.parameters();
                let what = format!("{} over {}", known.name, over.name);
                let _limit = Limit::new(&*what, Duration::from_secs(self.limit), || {})?;
                let ways = or(&self.way, &Way::ALL);
                let singles = self.singles.map_or(singles, |singles| singles as usize);
                let collective = CollectiveOptions::default();
                let program = Noncontiguous { pattern, ways, rounds, singles, collective };
                let ranks = bed::run(&over.bed, &setup, &program).map_err(|error| format!("{what}: {error}"))?;
                all.extend(record::measured(known.name, &parameters, over, &setup, &ranks));
            }
        }
        Ok(())
    }
}
