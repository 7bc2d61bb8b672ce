//! Runs a manager: a roll call after a restore, and the loop that makes the changes.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::thread;

use bmi::{Addr, Clock};
use fs_proto::{FsError, Identity};
use futures_util::FutureExt;

use super::transports::{OpenEndpoint, Opened};
use super::{Neighbours, Role, Server};
use crate::embedded::directory::take_inventory;
use crate::embedded::loops::{Before, Loops, Parts, Work};
use crate::host::{random_bytes, random_number, wall_clock};
use crate::manager::{Manager, ManagerIdentity, ManagerSettings, RollCall, invalid_directory};
use crate::service::{Front, Handler, Standing, beside, serve_beside};
use crate::store::{DATABASE, Directory, Label, MetaStore};

impl Server {
    /// Runs a manager. The first of its loops is on this thread.
    pub(super) fn run_manager(
        &self,
        directory: &Directory,
        ready: impl FnOnce(&[Addr]) -> Result<Neighbours, FsError>,
        serving: impl FnOnce(),
        stop: impl Future<Output = ()>,
    ) -> Result<(), FsError> {
        let Role::Manager { settings, restored, .. } = &self.role else { unreachable!("only a manager gets here") };
        let store = MetaStore::open(directory.path().join(DATABASE))?;
        let known = directory.label().map(|label| (label.cluster, label.store));
        if crate::manager::identity_of(&store)? != known {
            let text = format!("{DATABASE} and the identity beside it are not of one cluster");
            return Err(invalid_directory(directory.path(), &text));
        }
        let (opened, addrs) = self.open_and_listen()?;
        let settings = ManagerSettings { iods: ready(&addrs)?, ..settings.clone() };
        let Opened { first, further, clock } = opened;
        let before = match restored {
            Some(_) => {
                let roll_call = RollCall::new(&store, &settings, clock.now())?;
                let identity = self.manager_identity(roll_call.identity(), addrs.clone());
                Before::RollCall(Arc::new(roll_call), RollCall::standing(identity))
            }
            None => Before::Waiting("the manager does not serve yet".to_owned()),
        };
        let loop_settings = self.loop_settings("manager".to_owned(), before.clone(), clock);
        thread::scope(|scope| {
            let mut loops = Loops::start(scope, &loop_settings, further)?;
            let mut stop = std::pin::pin!(stop.fuse());
            let result = match self.hold_roll_call(&first, &store, &before, stop.as_mut(), &mut loops) {
                Ok(true) => {
                    let opened = (first, addrs);
                    self.run_first_manager_loop(directory, store, settings, opened, serving, stop, &mut loops)
                }
                Ok(false) => Ok(()),
                Err(error) => Err(error),
            };
            loops.end().and(result)
        })
    }

    /// Waits until all I/O servers have reported, if the metadata was restored. Returns false if
    /// `stop` ends before that.
    fn hold_roll_call(
        &self,
        opened: &[OpenEndpoint],
        store: &MetaStore,
        before: &Before,
        stop: impl Future<Output = ()>,
        loops: &mut Loops<'_>,
    ) -> Result<bool, FsError> {
        let (Role::Manager { restored: Some(progress), .. }, Before::RollCall(roll_call, standing)) =
            (&self.role, before)
        else {
            return Ok(true);
        };
        let endpoints: Vec<_> = opened.iter().map(|open| open.endpoint.clone()).collect();
        let failure = Cell::new(None);
        let stop = async {
            tokio::select! {
                () = stop => {}
                error = loops.ended() => failure.set(Some(error)),
            }
        };
        let complete = self.block_on(opened, roll_call.hold(&endpoints, standing, self.limits, progress, stop))?;
        failure.take().map_or(Ok(()), Err)?;
        if complete {
            roll_call.conclude(store)?;
        }
        Ok(complete)
    }

    #[expect(clippy::too_many_arguments, reason = "a step of `run_manager`")]
    fn run_first_manager_loop(
        &self,
        directory: &Directory,
        store: MetaStore,
        settings: ManagerSettings,
        (opened, addrs): (Vec<OpenEndpoint>, Vec<Addr>),
        serving: impl FnOnce(),
        stop: impl Future<Output = ()>,
        loops: &mut Loops<'_>,
    ) -> Result<(), FsError> {
        let Role::Manager { restored, tickets, .. } = &self.role else { unreachable!("only a manager gets here") };
        let manager = Manager::new(opened[0].endpoint.clone(), store, settings, random_number()?, wall_clock)?;
        let manager = if *tickets { manager.with_tickets(random_bytes()?) } else { manager };
        let manager =
            opened.iter().fold(manager, |manager, open| manager.with_endpoint(open.scheme, open.endpoint.clone()));
        let standing = Standing::serving(self.manager_identity(manager.identity(), addrs));
        let work = Work { parts: Parts::Manager(manager.further_loop()), standing };
        self.block_on(&opened, loops.begin(&work))??;
        let fronts: Vec<Front<'_>> =
            opened.iter().map(|open| (open.endpoint.clone(), &manager as &dyn Handler)).collect();
        let (failure, seat) = (Cell::new(None), loops.first_seat());
        let inventory = async {
            if let Some(progress) = restored {
                take_inventory(&manager, directory.path(), *progress).await;
            }
            std::future::pending::<()>().await;
        };
        let serve = async {
            let stop = async {
                let mut stop = pin!(stop);
                // First its signals are caught: who hears that it serves may send one.
                if stop.as_mut().now_or_never().is_none() {
                    serving();
                    tokio::select! {
                        () = stop => {}
                        error = manager.failure() => failure.set(Some(error)),
                        error = loops.ended() => failure.set(Some(error)),
                        () = inventory => {}
                    }
                }
                loops.stop();
            };
            serve_beside(&fronts, &work.standing, self.limits, seat.as_ref(), stop).await;
            // What they have passed on is answered meanwhile.
            loops.all_ended().await;
        };
        self.block_on(&opened, beside(&manager, serve))?;
        loops.end()?;
        failure.take().map_or(Ok(()), Err)
    }

    fn manager_identity(&self, own: ManagerIdentity, addrs: Vec<Addr>) -> Identity {
        let label = Label::new(own.cluster, fs_proto::Role::Manager, own.store);
        self.identity(&label, own.start, addrs)
    }
}
