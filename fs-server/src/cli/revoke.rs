//! `pvfsd revoke`: shuts somebody out of a running cluster.
//!
//! **Why beside `ca revoke`.** A list of revoked certificates has to be copied to all servers,
//! which then open no new connection to them. This is one request to the manager, which tells the
//! others with their next registration: what the holder has open ends as well. It knows names and
//! no certificates, so it also shuts out one that is issued later, until he is let in again.

use std::time::Duration;

use bmi::Addr;
use bmi::driver::{MonotonicClock, event};
use fs_proto::{
    ErrorCode, FsError, Hello, Holder, ManagerReply, ManagerRequest, Name, ReplyBody, RequestId, Role, user_transports,
};
use serde::Serialize;

use super::output::{Failure, print};
use crate::{authority, call, host};

/// Time limit of a request.
const PATIENCE: Duration = Duration::from_secs(30);

/// Shuts the holder of a certificate out, or lets him in again: `user-anna` or `host-alpha`.
pub(super) fn revoke(manager: &Addr, label: &str, undo: bool) -> Result<(), Failure> {
    let holder = Holder::of_label(label).map_err(authority::Error::from)?;
    if holder.is_server() {
        let text = format!("{label} is a server: stop it, and revoke its certificate with `pvfsd ca revoke {label}`");
        return Err(Failure::Usage(text));
    }
    let request = ManagerRequest::Revoke { holder: Name(holder.to_string()), back: undo };
    match ask(manager, request)? {
        ManagerReply::Done if undo => print(&format!("{label} is let in again\n")),
        ManagerReply::Done => print(&format!(
            "{label} is shut out: at the manager now, at the I/O servers that it reaches within two seconds\n"
        )),
        _ => Err(call::unexpected().into()),
    }
}

/// Somebody who was shut out.
#[derive(Debug, Serialize)]
struct Out {
    holder: String,
    /// In seconds since 1970.
    since: u64,
}

/// Lists who was shut out.
pub(super) fn list(manager: &Addr, json: bool) -> Result<(), Failure> {
    let ManagerReply::Revoked(all) = ask(manager, ManagerRequest::Revoked)? else {
        return Err(call::unexpected().into());
    };
    let label = |name: String| name.trim_start_matches("pvfs:").replacen('/', "-", 1);
    let all: Vec<Out> =
        all.into_iter().map(|(name, ns)| Out { holder: label(name.0), since: ns / 1_000_000_000 }).collect();
    if json {
        let text = serde_json::to_string(&all).map_err(|error| Failure::Runtime(error.to_string()))?;
        return print(&(text + "\n"));
    }
    let ago = |since: u64| host::wall_clock() / 1_000_000_000 - since.min(host::wall_clock() / 1_000_000_000);
    let lines = all.iter().map(|one| format!("{}  for {} minutes\n", one.holder, ago(one.since) / 60));
    let lines: String = lines.collect();
    print(if lines.is_empty() { "nobody is shut out\n" } else { &lines })
}

/// Asks the manager, with the certificate of the user.
fn ask(manager: &Addr, request: ManagerRequest) -> Result<ManagerReply, FsError> {
    let config = bmi::Config::named("revoke");
    let endpoint = bmi::endpoint(manager.scheme(), &user_transports()?, config, MonotonicClock::new())?;
    let id = RequestId { client: host::random_number()?, seq: 1 };
    let work = async {
        let peer = endpoint.connect(&manager.without_device(), endpoint.within(PATIENCE)).await?;
        call::greet(&peer, Hello::to(Role::Manager), PATIENCE).await?;
        let reply = call::ask_as(&peer, id, request, PATIENCE).await?;
        // An error means that the connection has ended already.
        let _ = peer.disconnect(peer.within(PATIENCE)).await;
        match reply {
            ReplyBody::Manager(reply) => Ok::<_, FsError>(reply),
            _ => Err(call::unexpected()),
        }
    };
    event::block_on(endpoint.clone(), work)?.map_err(|error| match error.code {
        ErrorCode::NotFound => error,
        _ => error.with_server(manager),
    })
}
