//! Questions about servers: whether they answer, how they are reached, what they have room for.

use bmi::Options;
use bmi::paths::{self, Calibrations, Plan};
use bmi::threading::Threading;
use fs_proto::{ErrorCode, IodReply, IodRequest, ManagerReply, ManagerRequest, ReplyBody, RequestBody};
use futures_util::future::join_all;

use super::answers::{Latency, Pong, ServerSpace, Space};
use super::handle::Client;
use crate::error::{Error, Failure, ServerName};
use crate::net::{Resend, Route, unexpected};

impl<S: Threading> Client<S> {
    /// Pings every server, the manager first.
    pub async fn ping(&self) -> Vec<Pong> {
        let manager = std::iter::once(self.manager().clone());
        join_all(manager.chain(self.iods()).map(|server| self.ping_server(server))).await
    }

    /// Pings every server `count` times, the manager first. A server that has failed to answer is
    /// not asked again, because each question could take a whole time limit.
    pub async fn latencies(&self, count: u32) -> Vec<(ServerName, Result<Latency, Error>)> {
        let first = self.ping().await.into_iter();
        let mut all: Vec<(ServerName, Result<Latency, Error>)> =
            first.map(|pong| (pong.server, pong.result.map(|took| Latency { least: took, sum: took }))).collect();
        for _ in 1..count {
            let again = all.iter_mut().filter(|(_, result)| result.is_ok());
            join_all(again.map(async |(server, result)| {
                let took = self.ping_server(server.clone()).await.result;
                *result = match (result.clone(), took) {
                    (Ok(Latency { least, sum }), Ok(took)) => Ok(Latency { least: least.min(took), sum: sum + took }),
                    (Err(error), _) | (_, Err(error)) => Err(error),
                };
            }))
            .await;
        }
        all
    }

    /// Pings one server. Takes one time limit at most.
    pub async fn ping_server(&self, server: ServerName) -> Pong {
        let body: RequestBody = match server.iod {
            None => ManagerRequest::Ping.into(),
            Some(_) => IodRequest::Ping.into(),
        };
        let deadline = self.inner().deadline();
        let connected = self.inner().connections.peer(&server, deadline).await;
        let start = self.endpoint().now();
        let result = match connected {
            Err(failure) => Err(failure),
            Ok(_) => self.inner().ask(&server, deadline, Resend::Never, body).await,
        };
        let took = self.endpoint().now().since(start);
        Pong { result: result.map(|_| took).map_err(|failure| Error::from(failure).during("ping")), server }
    }

    /// Returns the route to each server, the manager first, and the reason for its choice. Connects
    /// servers that are not connected yet.
    pub async fn routes(&self) -> Vec<(ServerName, Result<Route, Error>)> {
        let manager = std::iter::once(self.manager().clone());
        let ask = async |server: ServerName| {
            let connected = self.inner().connections.peer(&server, self.inner().deadline()).await;
            let gone = || Failure::at(server.clone(), ErrorCode::Unreachable, "the connection was lost at once");
            let route = connected.and_then(|_| self.inner().connections.route(&server.addr).ok_or_else(gone));
            let failed = |failure| Error::from(failure).during("connect");
            let route = route.map(|route| (*route).clone()).map_err(failed);
            (server, route)
        };
        join_all(manager.chain(self.iods()).map(ask)).await
    }

    /// Returns the plan for each I/O server: which path data of each size takes in each direction,
    /// and why. With `calibrate`, the thresholds are first measured and then used from now on. This
    /// takes some milliseconds for each adapter and each host that it reaches. Otherwise the
    /// thresholds are those of the endpoint.
    pub async fn plans(&self, calibrate: bool) -> Vec<(ServerName, Result<Plan, Error>)> {
        let mut known = Calibrations::default();
        let mut plans = Vec::new();
        for server in self.iods() {
            let plan = self.plan_of(&server, calibrate.then_some(&mut known)).await;
            plans.push((server, plan));
        }
        plans
    }

    async fn plan_of(&self, server: &ServerName, known: Option<&mut Calibrations>) -> Result<Plan, Error> {
        let deadline = self.inner().deadline();
        let failed = |error| Error::from(Failure::transport(server.clone(), error)).during("plan");
        // The reply implies that the server's information sent at connection setup has arrived: its
        // slots.
        let ping = RequestBody::Iod(IodRequest::Ping);
        self.inner()
            .ask(server, deadline, Resend::Repeat, ping)
            .await
            .map_err(|failure| Error::from(failure).during("plan"))?;
        let lost = || bmi::Error::new(bmi::ErrorKind::PeerLost, "the connection was lost at once");
        let peer = self.inner().connections.connected(&server.addr).ok_or_else(|| failed(lost()))?;
        if let Some(known) = known {
            paths::calibrate(&peer, known, Options::by(deadline)).await.map_err(failed)?;
        }
        Ok(peer.endpoint().with(|engine| engine.plan(Some(peer.id()))))
    }

    /// Returns the space in use and free, of the manager and all I/O servers.
    ///
    /// # Errors
    /// If the manager does not answer. If an I/O server does not answer, the result names it.
    pub async fn statfs(&self) -> Result<Space, Error> {
        let reply = self.ask_manager(ManagerRequest::Statfs).await.map_err(|error| error.during("statfs"))?;
        let ManagerReply::Stat(manager) = reply else { return Err(self.odd(reply.into())) };
        let ask = async |server: ServerName| {
            let result =
                match self.inner().ask(&server, self.inner().deadline(), Resend::Repeat, IodRequest::Statfs).await {
                    Ok(ReplyBody::Iod(IodReply::Stat(stat))) => Ok(stat),
                    Ok(other) => Err(Error::from(unexpected(&server, &other)).during("statfs")),
                    Err(failure) => Err(Error::from(failure).during("statfs")),
                };
            ServerSpace { server, result }
        };
        Ok(Space { manager, servers: join_all(self.iods().into_iter().map(ask)).await })
    }
}
