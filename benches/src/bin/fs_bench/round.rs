//! One round over one transport: starts the servers and the client, and measures each line once.

use std::fs;
use std::time::Duration;

use benches::net;
use benches::processes::Processes;
use benches::sandbox::Sandbox;
use benches::workload::Failed;
use bmi_core::Scheme;
use bmi_core::driver::event;
use fs_client::{Client, ClientOptions};

use crate::copies::{self, Source};
use crate::line::{NAMESPACE_DEPTHS, Selection, What};
use crate::report::Progress;
use crate::{data, namespace};

/// The number of I/O servers.
const IODS: usize = 4;

/// Durations and sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// How long a line is measured, if that can be chosen.
    pub(crate) line: Duration,
    /// The bytes of the file for random accesses and lists.
    pub(crate) file: u64,
    /// The bytes of the file to put and get.
    pub(crate) copy: u64,
}

impl Settings {
    /// Returns the approximate number of bytes that a run takes at most in the temporary directory.
    pub(crate) fn room(&self, selection: &Selection) -> u64 {
        /// The bytes of databases, logs and empty files.
        const BESIDE: u64 = 64 << 20;
        // The local file, that of the servers, and the one that get creates.
        let copies = if selection.wants_copies() { self.copy.saturating_mul(3) } else { 0 };
        copies.saturating_add(self.file + BESIDE)
    }
}

/// A running round: the state that the modules of the lines share.
pub(crate) struct Round<'a> {
    pub(crate) client: Client,
    pub(crate) settings: &'a Settings,
    scheme: Scheme,
    selection: &'a Selection,
    progress: &'a Progress,
    /// The line that was started last, for errors.
    under_way: Option<What>,
    figures: Vec<(What, f64)>,
}

impl Round<'_> {
    /// Returns true if one of these lines is chosen.
    pub(crate) fn wants_any(&self, lines: &[What]) -> bool {
        lines.iter().any(|what| self.selection.find(self.scheme, *what).is_some())
    }

    /// Returns how long to measure a line.
    pub(crate) fn time(&self) -> Duration {
        self.settings.line
    }

    /// Returns how long to warm up a line.
    pub(crate) fn warm_up(&self) -> Duration {
        self.settings.line / 10
    }

    /// Records that a line begins.
    pub(crate) fn begin(&mut self, what: What) {
        self.under_way = Some(what);
        if let Some(line) = self.selection.find(self.scheme, what) {
            self.progress.say(&line.name);
        }
    }

    /// Records the figure of a line. A line that is not chosen is left out.
    pub(crate) fn note(&mut self, what: What, figure: f64) {
        if self.selection.find(self.scheme, what).is_some() {
            self.figures.push((what, figure));
            self.progress.advance();
        }
    }
}

/// Runs a round and returns the figures of the chosen lines.
///
/// # Errors
/// If a server does not start, an operation fails, or the data that is read is not what was
/// written.
pub(crate) fn run(
    sandbox: &Sandbox,
    scheme: Scheme,
    selection: &Selection,
    settings: &Settings,
    source: Option<&Source>,
    progress: &Progress,
) -> Result<Vec<(What, f64)>, Failed> {
    progress.say(&format!("{scheme}: servers"));
    let folder = sandbox.folder().join(scheme.as_str());
    fs::create_dir(&folder)?;
    let cluster = Processes::start(sandbox, &folder, scheme, IODS, 1)?;
    let endpoint = net::endpoint(scheme, "fs_bench")?;
    let figures = event::block_on(endpoint.clone(), async {
        // The servers belong to this round, so the client's number need not be random.
        let client = Client::connect(endpoint, cluster.manager().clone(), ClientOptions::new(1)).await?;
        let (under_way, figures) = (None, Vec::new());
        let mut round = Round { client, settings, scheme, selection, progress, under_way, figures };
        let measured = async {
            for in_flight in NAMESPACE_DEPTHS {
                namespace::measure(&mut round, in_flight).await?;
            }
            data::measure(&mut round).await?;
            if let Some(source) = source {
                copies::measure(&mut round, source, &folder.join("got")).await?;
            }
            Ok::<(), Failed>(())
        };
        let measured = measured.await;
        match (measured, round.under_way.and_then(|what| selection.find(scheme, what))) {
            (Ok(()), _) => Ok(round.figures),
            (Err(error), Some(line)) => Err(Failed::from(format!("{}: {error}", line.name))),
            (Err(error), None) => Err(format!("{scheme}: {error}").into()),
        }
    })??;
    cluster.stop()?;
    fs::remove_dir_all(&folder)?;
    Ok(figures)
}
