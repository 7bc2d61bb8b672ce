//! The repair of what a check has found.

use bmi::threading::Threading;
use fs_proto::{DirHandle, ErrorCode, Fix, ManagerRequest, Repair};

use super::finding::{Finding, Report};
use crate::client::Client;
use crate::error::{Error, Failure, ServerName};
use crate::path::FsPath;

/// The directory for what has no other place.
pub const LOST_FOUND: &str = "/lost+found";

/// Returns the place of a repair in the order of all. What agrees with the names is set right
/// before names come and go.
fn order(finding: &&Finding) -> u8 {
    match finding.fix {
        Some(Fix::Ties { .. } | Fix::Counts { .. }) | None => 0,
        Some(Fix::Name { .. }) => 1,
        Some(Fix::Nameless { .. }) => 2,
        Some(Fix::Datafile { .. }) => 3,
    }
}

impl<S: Threading> Client<S> {
    /// Repairs what a check has found, as far as that is possible. What has changed since the check
    /// is left as it is. Calls `done` with each repair and its result.
    ///
    /// # Errors
    /// `Unreachable` if a server is missing, now or in the check: nothing is changed then. Those of
    /// requests if it is not known whether a repair was made, and no further one was tried.
    pub async fn repair(
        &self,
        report: &Report,
        mut done: impl FnMut(&Finding, Result<(), Error>),
    ) -> Result<(), Error> {
        let absent = self.absent().await?;
        if let Some((server, error)) = report.unchecked.iter().chain(&absent).next() {
            let text = format!("nothing is repaired while a server is missing: {error}");
            return Err(Failure::at(server.clone(), ErrorCode::Unreachable, text).into());
        }
        let mut fixes: Vec<&Finding> = report.repairable().collect();
        fixes.sort_by_key(order);
        let (mut before, mut lost) = (report.repairs, None);
        for finding in fixes {
            let Some(fix) = finding.fix.clone() else { continue };
            let lost = match (order(&finding), lost) {
                (0, _) => DirHandle::ROOT,
                (_, Some(lost)) => lost,
                (_, None) => *lost.insert(self.lost_found().await?),
            };
            let result = self.ask_done(ManagerRequest::Repair(Repair { fix, before, lost })).await;
            match result {
                Err(error) if error.is_retryable() => return Err(error.during("repair")),
                result => {
                    before += u64::from(result.is_ok());
                    done(finding, result.map_err(|error| error.during("repair")));
                }
            }
        }
        Ok(())
    }

    async fn lost_found(&self) -> Result<DirHandle, Error> {
        let path: FsPath = LOST_FOUND.parse()?;
        match self.mkdir_for(&path, 0o700, self.owner()).await {
            Err(error) if error.code() != ErrorCode::Exists => return Err(error),
            _ => {}
        }
        let found = self.lookup(&path).await?.handle.dir();
        found.ok_or_else(|| Error::new(ErrorCode::NotDirectory, format!("{LOST_FOUND} is no directory")))
    }

    /// Returns the servers that do not answer, or whose store the manager does not know to be the
    /// right one, and why.
    pub(super) async fn absent(&self) -> Result<Vec<(ServerName, Error)>, Error> {
        let learned = self.inner().connections.learn_cluster(self.inner().deadline()).await;
        let down = learned.map_err(|failure| Error::from(failure).during("check"))?;
        let pongs = self.ping().await.into_iter();
        let absent = pongs.filter_map(|pong| match pong.result {
            Err(error) => Some((pong.server, error)),
            Ok(_) if down.contains(&pong.server) => {
                let text = "it answers, but the manager does not count it as up";
                let failure = Failure::at(pong.server.clone(), ErrorCode::Unreachable, text);
                Some((pong.server, Error::from(failure).during("check")))
            }
            Ok(_) => None,
        });
        Ok(absent.collect())
    }
}
