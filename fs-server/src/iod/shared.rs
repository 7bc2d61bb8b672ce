//! Shared reads: the server puts a range where a client on this host reads it in place.
//!
//! **Invariants**
//! 1. A view segment is exposed to each peer at most once, for reading. The exposure ends with the
//!    connection, or when some more views were asked for after the store has given the segment up.
//! 2. What a peer does with a view, and whether it lives, is of no concern here: nothing waits for
//!    it. So the exposure is a standing one ([`bmi::polled::Engine::expose_standing`]). A peer with
//!    views is neither stalled nor busy because of them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Weak};

use bmi::PeerId;
use bmi::bulk::{Access, Exposure, RemoteSlice};
use bmi::hooks::{mutated, steps};
use bmi::memory::PublishedPages;
use fs_proto::{DatafileHandle, ErrorCode, FsError, IodReply, ViewGrant, ViewRange, ViewRefusal};

use super::Iod;
use super::transfer::is_small;
use crate::service::Context;
use crate::store::{DataStore, SharedRange, StoreHandle};

/// A segment that a peer may read.
struct Exposed {
    pages: Weak<PublishedPages>,
    exposure: Exposure,
}

/// Peers whose exposures are looked at beside those of a peer that asks for one.
const SWEPT: usize = 8;

/// The segments that the peers of an endpoint may read.
#[derive(Default)]
pub(super) struct ExposedViews(RefCell<State>);

#[derive(Default)]
struct State {
    peers: BTreeMap<PeerId, Vec<Exposed>>,
    /// The last peer that was swept in turn.
    swept: Option<PeerId>,
}

impl State {
    /// Ends the exposures of segments that were given up: those to a peer, and those to some others
    /// in turn.
    fn sweep(&mut self, peer: PeerId) {
        let behind = (self.swept.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let most = if mutated("iod/views-of-all-peers-swept") { usize::MAX } else { SWEPT };
        let others: Vec<PeerId> = self.peers.range(behind).map(|(peer, _)| *peer).take(most).collect();
        self.swept = others.last().copied().filter(|_| others.len() == most);
        for peer in others.into_iter().chain([peer]) {
            let Some(views) = self.peers.get_mut(&peer) else { continue };
            steps(views.len());
            views.retain(|view| view.pages.strong_count() > 0);
        }
    }
}

impl ExposedViews {
    /// Forgets a peer.
    pub(super) fn depart(&self, peer: PeerId) {
        self.0.borrow_mut().peers.remove(&peer);
    }

    /// Returns the exposure of a segment to a peer.
    fn of(
        &self,
        peer: PeerId,
        pages: &Arc<PublishedPages>,
        expose: impl FnOnce() -> Result<Exposure, bmi::Error>,
    ) -> Result<Option<RemoteSlice>, bmi::Error> {
        let mut state = self.0.borrow_mut();
        state.sweep(peer);
        let peers = &mut state.peers;
        let views = peers.entry(peer).or_default();
        let known = views.iter().position(|view| std::ptr::eq(view.pages.as_ptr(), Arc::as_ptr(pages)));
        let at = match known {
            Some(at) => at,
            None => match expose() {
                Ok(exposure) => {
                    views.push(Exposed { pages: Arc::downgrade(pages), exposure });
                    views.len() - 1
                }
                Err(error) => {
                    // The peer may have departed before, and then nobody forgets it again.
                    if views.is_empty() {
                        peers.remove(&peer);
                    }
                    return Err(error);
                }
            },
        };
        Ok(<[RemoteSlice; 1]>::try_from(views[at].exposure.descriptor().pieces()).ok().map(|[slice]| slice))
    }
}

impl<S: StoreHandle> Iod<S> {
    pub(super) async fn read_shared(
        &self,
        context: &Context,
        datafile: DatafileHandle,
        offset: u64,
        len: u64,
    ) -> Result<IodReply, FsError> {
        let Some(range) = ViewRange::of(offset, len) else {
            let text = format!("a view of {len} bytes at {offset}; it must be within one window");
            return Err(FsError::new(ErrorCode::Invalid, text));
        };
        if !self.endpoint.with(|engine| engine.transport().capabilities().shares_pages) {
            return Ok(IodReply::Shared(Err(ViewRefusal::NotLocal)));
        }
        context.check(self.endpoint.now())?;
        let turn = self.disk_turn(context, is_small(&self.zones, len));
        let shared = self.store.share(datafile, range, self.endpoint.now(), &turn).await?;
        let SharedRange { pages, size, lease } = match shared {
            Ok(lent) => lent,
            Err(refusal) => return Ok(IodReply::Shared(Err(refusal))),
        };
        let peer = self.endpoint.peer(context.peer);
        let expose = || peer.expose_standing(pages.memory().all(), Access::READ);
        let Some(RemoteSlice { key, addr, .. }) = self.views.of(context.peer, &pages, expose)? else {
            return Ok(IodReply::Shared(Err(ViewRefusal::NotLocal)));
        };
        let lease_ms = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
        Ok(IodReply::Shared(Ok(ViewGrant { key: key.0, addr, size, lease_ms })))
    }
}
