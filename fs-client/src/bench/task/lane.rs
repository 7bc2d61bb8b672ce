//! A client of a task: a cluster over a transport.

use std::time::Duration;

use crate::{Client, File};
use bmi::Memory;

use crate::bench::job::Part;

/// How long servers may take to remove what was removed by its name, and how often they are asked.
const SETTLE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// A client, and what a phase leaves to the next one.
pub(super) struct Lane {
    pub(super) client: Client,
    /// The file to write, and the one to read.
    pub(super) files: Option<[File; 2]>,
    /// For the transfers in flight.
    pub(super) memory: Memory,
    /// The local files of copies.
    pub(super) local: Option<tempfile::TempDir>,
}

/// Returns the line of an error.
pub(super) fn text(error: crate::Error) -> String {
    error.to_string()
}

/// Returns the time on the clock of a client.
pub(super) fn now(client: &Client) -> bmi::Time {
    client.endpoint().now()
}

/// Lets the first task wait until the servers have removed what is removed already by its name, so
/// that they do not do it during the next phase. Others may use the cluster and remove files all
/// the time: it does not wait for long.
pub(super) async fn settle(lane: &Lane, rank: u32) -> Result<Part, String> {
    let end = now(&lane.client) + SETTLE;
    while rank == 0 && lane.client.statfs().await.map_err(text)?.manager.orphans > 0 && now(&lane.client) < end {
        lane.client.endpoint().sleep(PAUSE).await;
    }
    Ok(Part::default())
}
