//! Runs an I/O server: its store, its registration with the manager, and the first of its loops.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bmi::Addr;
use fs_proto::{ErrorCode, FsError, StoreId};
use futures_util::FutureExt;
use futures_util::future::select;

use super::transports::{OpenEndpoint, Opened};
use super::{Neighbours, Role, Server};
use crate::embedded::loops::{Before, Loops, Parts, Work, adapter};
use crate::embedded::waiting_room::{wait_until, why_iod};
use crate::host::random_number;
use crate::iod::{Gate, Iod, LabelLock, Membership};
use crate::service::{Handler, Standing, beside, serve_beside};
use crate::store::{CachedFiles, DataStore, Directory, FileStore, Label, Service};
use crate::workers::Workers;

/// How long a server that stops makes checksums of what was changed last.
const SETTLING: Duration = Duration::from_secs(3);

/// The directory of an I/O server, and how many of its datafiles may be open.
pub(super) struct Home {
    pub(super) directory: Directory,
    pub(super) open_files: usize,
}

impl Home {
    /// Gives the directory a label, if one is given, and opens the store in it.
    fn open(
        mut self,
        label: Option<Label>,
        offload: u64,
        service: &Service,
        checksums: bool,
    ) -> Result<FileStore, FsError> {
        if let Some(label) = label {
            self.directory.establish(&label)?;
        }
        let store = FileStore::open(self.directory.path(), offload)?.keeping_open(self.open_files);
        let store = store.checksums(checksums)?.direct_io(service.has_cache()).mapped(*service == Service::Mmap)?;
        Ok(store.locked_by(self.directory.lock()))
    }
}

impl Server {
    /// Runs an I/O server. The first of its loops is on this thread.
    pub(super) fn run_iod(
        &self,
        mut home: Home,
        ready: impl FnOnce(&[Addr]) -> Result<Neighbours, FsError>,
        serving: impl FnOnce(),
        stop: impl Future<Output = ()>,
    ) -> Result<(), FsError> {
        let Role::Iod { index, .. } = self.role else { unreachable!("only an I/O server gets here") };
        // A directory that does not exist is made, so that it can be locked. It stays only if the
        // manager agrees.
        home.directory.claim()?;
        let (opened, addrs) = self.open_and_listen()?;
        let neighbours = ready(&addrs)?;
        let manager =
            neighbours.first().ok_or_else(|| FsError::new(ErrorCode::Invalid, "the manager has no address"))?;
        let Opened { first, further, clock } = opened;
        let before = Before::Waiting(why_iod(index));
        let settings = self.loop_settings(format!("iod{index}"), before, clock);
        thread::scope(|scope| {
            let mut loops = Loops::start(scope, &settings, further)?;
            let result = self.run_first_loop(home, (first, addrs), manager, serving, stop, &mut loops);
            loops.end().and(result)
        })
    }

    fn run_first_loop(
        &self,
        home: Home,
        (opened, addrs): (Vec<OpenEndpoint>, Vec<Addr>),
        manager: &Addr,
        serving: impl FnOnce(),
        stop: impl Future<Output = ()>,
        loops: &mut Loops<'_>,
    ) -> Result<(), FsError> {
        let Role::Iod { index, settings, heartbeat, service, cache_dir, replace, discard_cache, tickets, .. } =
            &self.role
        else {
            unreachable!("only an I/O server gets here")
        };
        let way = opened.iter().find(|open| open.scheme == manager.scheme());
        let no_way = || FsError::new(ErrorCode::Unreachable, format!("{manager}: its transport cannot be opened here"));
        let endpoint = way.ok_or_else(no_way)?.endpoint.clone();
        let instance = random_number()?;
        let gate = Arc::new(tickets.map_or_else(Gate::default, |patience| Gate::new(true, patience)));
        let membership = Membership::new(endpoint, manager.clone(), *index, instance, *replace, *heartbeat);
        let mut membership = membership.telling(gate.clone());
        let labels = Arc::new(LabelLock::default());
        let mut stop = std::pin::pin!(stop.fuse());
        let endpoints: Vec<_> = opened.iter().map(|open| open.endpoint.clone()).collect();
        let begin = async {
            let none = || FsError::new(ErrorCode::Invalid, "the store has lost its label");
            let begin = async {
                let (files, start) = self.begin_store(home, &mut membership, &labels).await?;
                let label = files.label().ok_or_else(none)?;
                let cached = CachedFiles::open(files, service, cache_dir, label.store, *discard_cache).await?;
                Ok::<_, FsError>((cached, start, label))
            };
            let (cached, start, label) = tokio::select! {
                biased;
                begun = begin => begun?,
                error = loops.ended() => return Err(error),
            };
            let store = cached.store();
            let standing = Standing::serving(self.identity(&label, start, addrs));
            // All transports and all loops share one set of buffers and one queue of clients.
            let first = Iod::new(opened[0].endpoint.clone(), store.clone(), *settings)?;
            let first = first.started_as(instance as u64).with_labels(labels.clone()).guarded_by(gate);
            let work = Work { parts: Parts::Iod(first.parts()), standing };
            loops.begin(&work).await?;
            Ok::<_, FsError>((cached, start, first, work.standing))
        };
        // Who asks meanwhile is told to wait.
        let why = why_iod(*index);
        let begun = wait_until(&why, &endpoints, self.limits, begin, stop.as_mut());
        let begun = self.block_on(&opened, begun)?;
        let Some(begun) = begun else { return Ok(()) };
        let (cached, start, first, standing) = begun?;
        let store = cached.store();
        let others = opened[1..].iter().zip(1..).map(|(open, at)| first.beside(open.endpoint.clone(), adapter(0, at)));
        let others: Vec<_> = others.collect();
        let handlers = std::iter::once(&first).chain(&others).map(|iod| iod as &dyn Handler);
        let fronts: Vec<_> = endpoints.into_iter().zip(handlers).collect();
        serving();
        let seat = loops.first_seat();
        let refusal = Cell::new(None);
        let stop = async {
            tokio::select! {
                () = stop => {}
                error = membership.keep(&*store, &labels, start) => refusal.set(Some(error)),
                error = store.failure() => refusal.set(Some(error)),
                error = loops.ended() => refusal.set(Some(error)),
            }
            loops.stop();
        };
        let serve = serve_beside(&fronts, &standing, self.limits, seat.as_ref(), stop);
        self.block_on(&opened, beside(&first, serve))?;
        let ended = loops.end();
        let patience = |time| opened[0].endpoint.sleep(time);
        let files = self.block_on(&opened, cached.close(patience(self.limits.reply_timeout)))?;
        // The next start makes the checksums that are not made in time.
        self.block_on(&opened, select(pin!(files.settle_all()), pin!(patience(SETTLING))))?;
        if !files.wait_until_idle(self.limits.reply_timeout) {
            tracing::warn!("the disk has not answered; the server ends without it, and its directory stays locked");
        }
        ended?;
        refusal.take().map_or(Ok(()), Err)
    }

    /// Opens the store of an I/O server, with a label of the manager if the directory is empty, and
    /// begins its next start.
    async fn begin_store(
        &self,
        home: Home,
        membership: &mut Membership,
        labels: &LabelLock,
    ) -> Result<(Arc<FileStore>, fs_proto::Start), FsError> {
        let Role::Iod { offload, ref service, checksums, .. } = self.role else {
            unreachable!("only an I/O server gets here")
        };
        let number = StoreId(random_number()?);
        let label = match home.directory.label() {
            None => Some(membership.ask_for_label(number).await?),
            Some(_) => None,
        };
        let service = service.clone();
        // The names of all datafiles are read, while the others are told to wait.
        let store = Arc::new(
            Workers::new("disk-opening", 1).run(move || home.open(label, offload, &service, checksums)).await??,
        );
        let start = membership.begin(&*store, labels).await?;
        Ok((store, start))
    }
}
