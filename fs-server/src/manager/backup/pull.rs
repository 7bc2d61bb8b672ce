//! Pulls the metadata from a running manager into a file.

use std::path::Path;
use std::time::Duration;

use bmi::Addr;
use bmi::driver::{MonotonicClock, event};
use fs_proto::{ErrorCode, FsError, Hello, ManagerReply, ManagerRequest, ReplyBody, Role, user_transports};

use super::Summary;
use super::file::{FORMAT, Header, Writer};
use super::row::{Row, Rows};
use crate::call;
use crate::host::{random_number, wall_clock};

/// Time limit of one request.
const PATIENCE: Duration = Duration::from_secs(30);

/// Writes the metadata of the manager at this address to a file. Holds one page in memory.
///
/// # Errors
/// Those of the connection and of the manager; `Exists` if there is such a file, unless `force` is
/// set; `Io`, `NoSpace`, `Permission`.
pub(crate) fn backup(manager: &Addr, path: &Path, force: bool) -> Result<Summary, FsError> {
    let config = bmi::Config::named("backup");
    let endpoint = bmi::endpoint(manager.scheme(), &user_transports()?, config, MonotonicClock::new())?;
    let work = async {
        let peer = endpoint.connect(&manager.without_device(), endpoint.within(PATIENCE)).await?;
        let identity = call::greet(&peer, Hello::to(Role::Manager), PATIENCE).await?;
        let (cluster, epoch) = (identity.cluster, identity.start.epoch);
        let header = Header { format: FORMAT, cluster, store: identity.store, epoch, time_ns: wall_clock() };
        let mut writer = Writer::create(path, &header, random_number()?, force)?;
        let (mut objects, mut page) = (0, 0);
        loop {
            let reply = call::ask(&peer, page + 1, ManagerRequest::Backup { page }, PATIENCE).await?;
            let ReplyBody::Manager(ManagerReply::Backup { rows, more }) = reply else {
                return Err(call::unexpected());
            };
            for row in Rows(&rows) {
                let malformed = || FsError::new(ErrorCode::Protocol, "a malformed row in a backup");
                let (bytes, row) = row.ok_or_else(malformed)?;
                objects += u64::from(matches!(row, Row::Object(..)));
                writer.add(bytes)?;
            }
            if !more {
                break;
            }
            page += 1;
        }
        let bytes = writer.finish()?;
        // An error means that the connection has ended already.
        let _ = peer.disconnect(peer.within(PATIENCE)).await;
        Ok::<_, FsError>(Summary { cluster, epoch, objects, bytes })
    };
    event::block_on(endpoint.clone(), work)?.map_err(|error| match error.code {
        ErrorCode::Exists | ErrorCode::IsDirectory => error,
        _ => error.with_server(manager),
    })
}
