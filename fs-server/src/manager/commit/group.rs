//! A group of changes that are made in one transaction, away from the manager's event loop.
//!
//! **Why a copy of the manager's state.** A group is made on a worker thread (`database`), while
//! the loop goes on. So it begins with a copy of what it needs, its [`Situation`], and returns what
//! the manager has to note about its changes, its [`Effect`]s. They are noted when the transaction
//! is durable. A group that fails leaves no trace in the manager's state.
//!
//! **Invariants**
//! 1. One group is made at a time, and nothing else changes the pools meanwhile. So the pools that
//!    a group returns replace those that it was given.
//! 2. A change that meets stored data which cannot be read fails alone.

use std::collections::{BTreeMap, BTreeSet};

use bmi::hooks::{mutated, step};
use fs_proto::{
    Caller, DatafileHandle, ErrorCode, Existing, Fix, FsError, ManagerReply, ManagerRequest, Reply, ReplyBody,
    RequestId, codec,
};

use crate::manager::Fault;
use crate::manager::tables::{
    Birth, CLIENTS, Candidate, Change, Dedup, Holds, NewFile, Pools, Publication, Unplaced, Wanted, placement,
};
use crate::store::MetaStore;

/// A change that a client has requested.
#[derive(Debug)]
pub(in crate::manager) struct Requested {
    pub(in crate::manager) id: RequestId,
    pub(in crate::manager) unanswered: u64,
    /// For whom.
    pub(in crate::manager) caller: Caller,
    pub(in crate::manager) request: ManagerRequest,
}

/// What a group has to know of the manager.
#[derive(Debug)]
pub(super) struct Situation {
    /// The time for attributes, in nanoseconds since 1970.
    pub(in crate::manager) now_ns: u64,
    /// The strip size of files for which none is requested, in bytes.
    pub(in crate::manager) default_strip: u64,
    /// The I/O servers, without what depends on the pools and on the request.
    pub(in crate::manager) servers: Vec<Candidate>,
    /// The errors of the I/O servers that could not create datafiles.
    pub(in crate::manager) failing: BTreeMap<u32, FsError>,
    pub(in crate::manager) pools: Pools,
    /// Who has which file open.
    pub(in crate::manager) holds: Holds,
    /// The clients with a connection; `None` if no client has to be forgotten.
    pub(in crate::manager) connected: Option<BTreeSet<u128>>,
    /// The last turn that was long ago.
    pub(in crate::manager) before: u64,
}

/// What the manager notes when a group is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::manager) enum Effect {
    /// A client has created a file, and has it open.
    Held(u64, u128),
    /// A client has begun a file without a name.
    DraftBegun(u128),
    /// A client has published or abandoned a file without a name.
    DraftEnded(u128),
    /// Somebody was shut out, or let in again.
    Revoked,
}

/// What became of a group.
#[derive(Debug)]
pub(super) struct Made {
    pub(in crate::manager) answers: Answers,
    pub(super) effects: Vec<Effect>,
    pub(in crate::manager) pools: Pools,
    /// Number of clients whose answers are remembered.
    pub(in crate::manager) clients: u64,
    /// The last turn of one of them.
    pub(in crate::manager) turn: u64,
}

/// Changes that share a transaction.
pub(super) struct Group {
    changes: Vec<Requested>,
    situation: Situation,
    /// Changes that have failed, with their answers.
    failed: BTreeMap<usize, Vec<u8>>,
    /// The change that is being made.
    at: Option<usize>,
    effects: Vec<Effect>,
}

/// The encoded answers; `None` for changes that must wait for datafiles.
type Answers = Vec<Option<Vec<u8>>>;

fn encode(result: Result<ManagerReply, FsError>) -> Vec<u8> {
    codec::encode_reply(&Reply { result: result.map(ReplyBody::Manager) })
}

impl Group {
    pub(super) fn new(changes: Vec<Requested>, situation: Situation) -> Group {
        Group { changes, situation, failed: BTreeMap::new(), at: None, effects: Vec::new() }
    }

    /// Returns the changes.
    pub(super) fn into_changes(self) -> Vec<Requested> {
        self.changes
    }

    /// Makes the changes in one transaction.
    ///
    /// A change that meets stored data which cannot be read fails alone. What it has written so far
    /// is dropped with the transaction, and the others are made again without it.
    ///
    /// # Errors
    /// The transaction failed. None of the changes was made.
    pub(in crate::manager) fn make(&mut self, store: &MetaStore) -> Result<Made, Fault> {
        loop {
            self.at = None;
            self.effects.clear();
            let fault = match self.attempt(store) {
                Ok((answers, clients, turn)) => {
                    self.situation.pools.committed();
                    let (effects, pools) = (std::mem::take(&mut self.effects), self.situation.pools.clone());
                    return Ok(Made { answers, effects, pools, clients, turn });
                }
                Err(fault) => fault,
            };
            self.situation.pools.undo();
            let (Fault::Corrupt(_), Some(at)) = (&fault, self.at) else { return Err(fault) };
            let error = fault.into_error();
            tracing::error!(%error, request = self.changes[at].request.name(), "a change failed");
            self.failed.insert(at, encode(Err(error)));
        }
    }

    /// Makes the changes that have not failed before. Returns the answers, the number of clients
    /// whose answers are remembered, and the last turn of one of them.
    fn attempt(&mut self, store: &MetaStore) -> Result<(Answers, u64, u64), Fault> {
        let mut transaction = store.write()?;
        if mutated("manager/answers-before-it-is-synced") {
            // This fails only for a transaction with savepoints.
            let _ = transaction.set_durability(redb::Durability::None);
        }
        let mut answers = Vec::with_capacity(self.changes.len());
        let (clients, turn) = {
            let mut change = Change::open(&transaction, self.situation.now_ns)?;
            change.holds = self.situation.holds.clone();
            let mut dedup = Dedup::open(&transaction, CLIENTS)?;
            for index in 0..self.changes.len() {
                if let Some(answer) = self.failed.get(&index) {
                    answers.push(Some(answer.clone()));
                    continue;
                }
                self.at = Some(index);
                answers.push(match self.once(&mut change, &mut dedup, index) {
                    Ok(answer) => Some(answer),
                    Err(Fault::Later) => None,
                    Err(fault) => return Err(fault),
                });
            }
            (dedup.clients()?, dedup.turn()?)
        };
        self.at = None;
        self.situation.pools.store(&transaction)?;
        if let Err(error) = transaction.commit()
            && !mutated("manager/failed-commit-acknowledged")
        {
            return Err(error.into());
        }
        Ok((answers, clients, turn))
    }

    /// Makes one change, unless it was made before. Returns the encoded answer.
    fn once(&mut self, change: &mut Change<'_>, dedup: &mut Dedup<'_>, index: usize) -> Result<Vec<u8>, Fault> {
        let Requested { id, unanswered, .. } = self.changes[index];
        match dedup.recall(id, unanswered) {
            Ok(Some(answer)) if !mutated("manager/change-made-twice") => return Ok(answer),
            Ok(Some(_)) => {}
            Ok(None) => {}
            Err(Fault::Refused(error)) => return Ok(encode(Err(error))),
            Err(fault) => return Err(fault),
        }
        let (answer, is_final) = match self.apply(change, index) {
            Ok(reply) => (encode(Ok(reply)), true),
            Err(Fault::Refused(error)) => (encode(Err(error.clone())), !error.is_retryable()),
            Err(fault) => return Err(fault),
        };
        if is_final && !mutated("manager/reply-not-remembered") {
            let Situation { connected, before, .. } = &self.situation;
            let is_connected = |client: u128| connected.as_ref().is_none_or(|connected| connected.contains(&client));
            dedup.remember(id, unanswered, &answer, *before, is_connected)?;
        }
        Ok(answer)
    }

    fn apply(&mut self, change: &mut Change<'_>, index: usize) -> Result<ManagerReply, Fault> {
        let Group { changes, situation, effects, .. } = self;
        let Requested { id, request, caller, .. } = &changes[index];
        let client = id.client;
        change.speak_for(caller, client);
        let reply = match request {
            ManagerRequest::Mkdir { place, mode, uid, gid } => {
                ManagerReply::Entry(change.mkdir(place, Birth { mode: *mode, uid: *uid, gid: *gid })?)
            }
            ManagerRequest::Create { place, mode, uid, gid, strip_size, servers, avoid, existing, hold, small } => {
                let birth = Birth { mode: *mode, uid: *uid, gid: *gid };
                let default_strip = situation.default_strip;
                let (strip_size, servers, existing) = (*strip_size, *servers, *existing);
                if *hold && existing != Existing::Refuse {
                    return Err(FsError::new(ErrorCode::Invalid, "only a new file is held").into());
                }
                if *hold && !situation.holds.has_room(client) {
                    return Err(FsError::new(ErrorCode::Busy, Holds::TOO_MANY).into());
                }
                let (small, by) = (*small, *id);
                let new = NewFile { place, birth, strip_size, default_strip, servers, existing, small, by };
                let (entry, access) =
                    change.create(new, |created, wanted| situation.place(created, wanted, small, avoid))?;
                if let (true, Some(file)) = (*hold, entry.handle.file()) {
                    change.hold(client, file)?;
                    effects.push(Effect::Held(file.0, client));
                }
                if existing == Existing::Replace {
                    effects.push(Effect::DraftBegun(client));
                }
                ManagerReply::Opened { entry, access, grant: None }
            }
            ManagerRequest::Publish { file, place, inherit, mode, mtime_ns, size, replace } => {
                let (file, inherit, replace) = (*file, *inherit, *replace);
                let how = Publication { file, place, inherit, mode: *mode, mtime_ns: *mtime_ns, size: *size, replace };
                let entry = change.publish(client, how)?;
                effects.push(Effect::DraftEnded(client));
                ManagerReply::Entry(entry)
            }
            ManagerRequest::Abandon { file } => {
                change.abandon(client, *file)?;
                effects.push(Effect::DraftEnded(client));
                ManagerReply::Done
            }
            ManagerRequest::Truncate { file, size } => {
                change.truncate(*id, *file, *size)?;
                ManagerReply::Done
            }
            ManagerRequest::RecordSize { file, size } => {
                change.record_size(*file, *id, *size)?;
                ManagerReply::Done
            }
            ManagerRequest::BeginWrite { file } => {
                change.may_write(*file, client)?;
                if !mutated("manager/recorded-size-kept") {
                    change.begin_write(*file, *id)?;
                }
                ManagerReply::Done
            }
            ManagerRequest::Close { files } => {
                change.close(files, *id)?;
                ManagerReply::Done
            }
            ManagerRequest::Setattr { handle, set } => ManagerReply::Entry(change.setattr(*handle, set)?),
            ManagerRequest::Rename { from, to, replace } => {
                change.rename(from, to, *replace)?;
                ManagerReply::Done
            }
            ManagerRequest::Remove { place, kind } => {
                change.remove(place, *kind)?;
                ManagerReply::Done
            }
            ManagerRequest::Symlink { place, target, uid, gid, replace } => {
                ManagerReply::Entry(change.symlink(place, target, (*uid, *gid), *replace)?)
            }
            ManagerRequest::Link { file, place, replace } => {
                ManagerReply::Entry(change.hard_link(*file, place, *replace)?)
            }
            ManagerRequest::Exchange { one, other } => {
                change.exchange(one, other)?;
                ManagerReply::Done
            }
            ManagerRequest::SetXattr { handle, name, value, exists } => {
                change.set_xattr(*handle, name, value.as_ref(), *exists)?;
                ManagerReply::Done
            }
            ManagerRequest::Repair(repair) => {
                if let Fix::Datafile { iod, datafile } = repair.fix
                    && situation.pools.has(iod, datafile)
                {
                    let text = format!("{datafile} is there for a new file");
                    return Err(FsError::new(ErrorCode::Stale, text).into());
                }
                change.repair(repair, situation.servers.len())?;
                ManagerReply::Done
            }
            ManagerRequest::Revoke { holder, back } => {
                change.revoke(&holder.0, *back)?;
                effects.push(Effect::Revoked);
                ManagerReply::Done
            }
            ManagerRequest::Grow { file, avoid } => {
                change.may_write(*file, client)?;
                let entry = change.grow(*file, |first, most| situation.place_further(first, most, avoid))?;
                let access = change.writer_access(*file, client)?;
                ManagerReply::Opened { entry, access, grant: None }
            }
            other => return Err(FsError::new(ErrorCode::Invalid, format!("{} changes nothing", other.name())).into()),
        };
        Ok(reply)
    }
}

impl Situation {
    /// Takes datafiles for a new file from the pools: one if it is small. Also returns the number
    /// of servers that it is to have.
    fn place(
        &mut self,
        created: u64,
        wanted: Wanted,
        small: bool,
        avoid: &[u32],
    ) -> Result<(Vec<(u32, DatafileHandle)>, u32), Fault> {
        let iods = placement::place(&self.candidates(avoid), created, wanted, small);
        let iods = iods.map_err(|unplaced| self.unplaced(unplaced))?;
        let needed = if small { 1 } else { iods.len() };
        Ok((self.take(&iods[..needed])?, iods.len() as u32))
    }

    /// Takes the further datafiles of a small file from the pools.
    fn place_further(&mut self, first: u32, most: u32, avoid: &[u32]) -> Result<Vec<(u32, DatafileHandle)>, Fault> {
        let iods = placement::place_further(&self.candidates(avoid), first, most);
        let iods = iods.map_err(|unplaced| self.unplaced(unplaced))?;
        self.take(&iods)
    }

    fn candidates(&self, avoid: &[u32]) -> Vec<Candidate> {
        let avoid: BTreeSet<u32> = avoid.iter().copied().inspect(|_| step()).collect();
        let candidate = |(iod, server): (usize, &Candidate)| {
            let iod = iod as u32;
            Candidate { prepared: self.pools.left(iod) > 0, avoided: avoid.contains(&iod), ..*server }
        };
        self.servers.iter().enumerate().map(candidate).collect()
    }

    fn unplaced(&self, unplaced: Unplaced) -> Fault {
        match unplaced {
            Unplaced::Later => Fault::Later,
            Unplaced::Refused(error) => Fault::Refused(error),
            Unplaced::Failing(iod) => {
                let error = self.failing.get(&iod).cloned();
                let error = error.unwrap_or_else(|| Fault::Later.into_error());
                let text = format!("iod {iod} cannot create datafiles: {}", error.detail);
                Fault::Refused(FsError::new(error.code, text))
            }
        }
    }

    fn take(&mut self, iods: &[u32]) -> Result<Vec<(u32, DatafileHandle)>, Fault> {
        let take = |iod: &u32| Some((*iod, self.pools.take(*iod)?));
        iods.iter().map(take).collect::<Option<Vec<_>>>().ok_or(Fault::Later)
    }
}
