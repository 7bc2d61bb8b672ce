//! The check of a whole cluster, and its repair.
//!
//! **Why a client.** What can be wrong shows only if all rows of the manager are compared with each
//! other, and with what each I/O server has. That takes memory and time, and no server has to wait
//! for it. The servers only tell, in pages.
//!
//! **Why nothing that merely changes counts as damage**
//! 1. The rows of the manager are of one moment (`ManagerRequest::Check`).
//! 2. Datafiles are listed after that moment. One that is in none of these rows, and whose handle
//!    had been assigned by then, belongs to nobody: the manager creates a datafile after it has
//!    noted that, and forgets one after its removal.
//! 3. A file that seems to be damaged is looked at again: it counts if the manager has the same of
//!    it before and after its I/O servers were asked. A handle never comes back, so a file that is
//!    there afterwards was there all the time.
//!
//! **Invariants** of a repair
//! 1. Nothing is changed unless all servers are there, each with the store that the manager knows.
//! 2. No bytes go: what belongs to nobody gets a name in [`LOST_FOUND`].
//! 3. The manager makes a repair only of what is damaged as it was found.
//!
//! | module | contents |
//! |---|---|
//! | `finding` | what is found, and a report |
//! | `tables` | compares the rows of the manager with each other |
//! | `datafiles` | compares them with what the I/O servers have |
//! | `repair` | asks for repairs |
//! | `scrub` | lets the I/O servers compare their datafiles with checksums |

mod datafiles;
mod finding;
mod repair;
mod scrub;
mod tables;

pub use finding::{Finding, Report};
pub use repair::LOST_FOUND;
pub use scrub::{ScrubOptions, ScrubReport};

use bmi::threading::Threading;
use fs_proto::{CheckRow, ErrorCode, ManagerReply, ManagerRequest};

use crate::client::Client;
use crate::error::Error;
use tables::Tables;

/// How often the rows are asked for from the beginning, if the connection is lost.
const ATTEMPTS: u32 = 3;

impl<S: Threading> Client<S> {
    /// Checks the whole cluster, and changes nothing. Calls `progress` with the number of rows and
    /// datafiles that were looked at since the last call. Needs memory for all names, objects and
    /// datafiles in use.
    ///
    /// # Errors
    /// Those of requests to the manager. I/O servers that do not answer are in the report.
    pub async fn check(&self, progress: impl Fn(u64)) -> Result<Report, Error> {
        let mut report = Report { unchecked: self.absent().await?, ..Report::default() };
        let tables = self.tables(&progress).await?;
        let servers = self.iods();
        tables.check(&servers, &mut report);
        self.check_datafiles(&tables, &progress, &mut report).await?;
        report.findings.sort_by(|one, other| (&one.path, &one.text).cmp(&(&other.path, &other.text)));
        Ok(report)
    }

    /// Asks the manager for all of its rows.
    async fn tables(&self, progress: &impl Fn(u64)) -> Result<Tables, Error> {
        let mut attempts = 0;
        'all: loop {
            attempts += 1;
            let (mut tables, mut page) = (Tables::default(), 0);
            loop {
                let (rows, more) = match self.check_page(page).await {
                    // A page comes once.
                    Err(error) if error.code() == ErrorCode::Stale && attempts < ATTEMPTS => continue 'all,
                    rows => rows?,
                };
                progress(rows.len() as u64);
                rows.into_iter().for_each(|row| tables.add(row));
                if !more {
                    return Ok(tables);
                }
                page += 1;
            }
        }
    }

    async fn check_page(&self, page: u64) -> Result<(Vec<CheckRow>, bool), Error> {
        match self.ask_manager(ManagerRequest::Check { page }).await.map_err(|error| error.during("check"))? {
            // A page has rows if another one follows: so the pages end.
            ManagerReply::Check { rows, more } if !more || !rows.is_empty() => Ok((rows, more)),
            other => Err(self.odd(other.into())),
        }
    }
}
