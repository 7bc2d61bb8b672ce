//! Who is at the other end of a connection, as the servers of a cluster see it, and what it may do
//! with datafiles.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use bmi::{Peer, PeerIdentity};
use fs_proto::{Access, Claims, DatafileHandle, Duty, ErrorCode, FsError, Holder, HolderDigest, Sender, Speaker};

use crate::lock::lock;

/// What a connection may do with datafiles: the epoch of the ticket that it has shown, and the
/// right.
#[derive(Debug, Default)]
pub(crate) struct Rights(Mutex<BTreeMap<DatafileHandle, (u64, Access)>>);

impl Rights {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<DatafileHandle, (u64, Access)>> {
        lock(&self.0)
    }
}

/// Who the peer of a connection is, as the servers of a cluster see it.
#[derive(Debug)]
pub(crate) struct Party {
    /// For whom it may speak.
    pub(super) speaker: Speaker,
    /// The name that tickets are made for, and that can be shut out.
    pub(crate) name: String,
    pub(crate) digest: HolderDigest,
    /// It is a server, or may do everything on this machine anyway: it needs no tickets.
    pub(crate) is_trusted: bool,
}

impl Party {
    /// Returns who a peer is that has said this Hello.
    ///
    /// # Errors
    /// `Permission` if it is not who it says it is.
    pub(super) fn of(peer: &PeerIdentity, sender: &Sender) -> Result<Party, FsError> {
        Claims::check_sender(peer, sender)?;
        let own = rustix::process::geteuid().as_raw();
        let speaker = Speaker::of_peer(peer, own)?;
        let name = match (&speaker, peer) {
            (Speaker::Listed(claims), _) => claims.role.as_ref().map(Holder::to_string).unwrap_or_default(),
            (_, peer) => peer.user().map_or_else(|| "nobody".to_owned(), |user| format!("pvfs:uid/{user}")),
        };
        if matches!((&speaker, sender), (Speaker::One(_), Sender::Server(..))) {
            let text = format!("{peer} is no server: those of a host run as one user");
            return Err(FsError::new(ErrorCode::Permission, text));
        }
        let is_local = matches!(peer, PeerIdentity::Process { .. }) && speaker == Speaker::Everybody;
        let is_trusted = is_local || matches!(sender, Sender::Server(..));
        Ok(Party { speaker, digest: HolderDigest::of(&name), name, is_trusted })
    }

    /// Checks that the peer has a duty. Who is another user of this host has none.
    pub(super) fn check_duty(&self, peer: &PeerIdentity, duty: Duty) -> Result<(), FsError> {
        if let Speaker::One(caller) = &self.speaker {
            let text = format!("this takes root, the user of the servers, or a certificate, and this is {caller}");
            return Err(FsError::new(ErrorCode::Permission, text));
        }
        Claims::check_duty(peer, duty)
    }
}

/// Writes a line of the audit: what a peer did that takes a duty, or why it was refused. A JSON
/// object, under the target `audit`. Of each kind and host, few are written at a time.
pub(crate) fn audit(peer: &Peer, event: &'static str, request: &str, refused: Option<&FsError>) {
    if !peer.endpoint().with(|engine| engine.admits_log_line(event, peer.id())) {
        return;
    }
    let line = serde_json::json!({
        "event": event,
        "peer": peer.identity().to_string(),
        "from": peer.addr().map(|addr| addr.to_string()),
        "request": request,
        "reason": refused.map(ToString::to_string),
    });
    match refused {
        Some(_) => tracing::warn!(target: "audit", "{line}"),
        None => tracing::info!(target: "audit", "{line}"),
    }
}
