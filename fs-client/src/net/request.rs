//! Sends requests to servers and returns their replies.
//!
//! **Why.** A caller should not have to manage connections, tags and buffers, or handle a server's
//! restart. It passes a request and gets a reply within the deadline, or a failure that names the
//! server.
//!
//! **Invariants**
//! 1. A request that changes the namespace keeps its id whenever it is sent again, so the manager
//!    executes it once.
//! 2. A write is never sent twice, unless the server says that it has not handled it. The first one
//!    might still be on its way to the disk and overwrite what is written there next.
//! 3. Every wait has a deadline, and a caller may drop a request at any time.
//!
//! **Protocol.** See [`fs_proto`]: each request is a call of [`bmi::calls`].

use std::sync::atomic::Ordering;
use std::time::Duration;

use bmi::config::Lists;
use bmi::hooks::mutated;
use bmi::paths::Path;
use bmi::threading::Threading;
use bmi::{Body, ErrorKind, Options, Peer, Reply, Time};
use fs_proto::limits::MAX_SERVERS;
use fs_proto::{
    Caller, ErrorCode, FileHandle, FsError, ManagerReply, ManagerRequest, ReplyBody, Request, RequestBody, RequestId,
    codec,
};

use super::connection::Connections;
use super::numbers::Ticket;
use crate::error::{Failure, ServerName};

/// First pause before retrying a server that was lost. It is doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(320);

/// After this long, a caller is told that a server is waited for.
const NOTICE: Duration = Duration::from_secs(1);

/// Whether a request is sent again if its connection is lost before the reply. A request that was
/// not sent, and one that the server was not ready for, is tried again in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resend {
    /// Fail: the request must not arrive twice.
    Never,
    /// Send it again: repeating it changes nothing.
    Repeat,
    /// Send it again until the deadline. The client does not know whether the change was made, but
    /// the server recognises the request by its id.
    UntilDeadline,
}

/// Why a request was not answered, if it may be tried again.
#[derive(Clone, Copy)]
struct Setback {
    /// The server has answered that it, or another one, is not ready. It did nothing, or it is the
    /// manager, which knows the request again by its id.
    busy: bool,
    /// The connection was lost.
    lost: bool,
    /// The request may have arrived.
    unknown: bool,
}

impl Setback {
    fn of(failure: &Failure, sent: bool) -> Option<Setback> {
        let kind = failure.source.as_ref().map(|error| error.kind());
        let busy = kind.is_none() && matches!(failure.code, ErrorCode::Busy | ErrorCode::Unreachable);
        // A server that refuses what was sent has closed an idle connection, and has done nothing.
        let refused = kind == Some(ErrorKind::Refused);
        let lost = kind == Some(ErrorKind::PeerLost) || refused && sent;
        let setback = Setback { busy, lost, unknown: sent && !busy && !refused };
        let waits = matches!(kind, Some(ErrorKind::Refused | ErrorKind::Cancelled | ErrorKind::Abandoned));
        (busy || lost || waits).then_some(setback)
    }

    /// Returns true if the request may be sent again, given that it may have arrived.
    fn may_repeat(self, resend: Resend, data: &Body) -> bool {
        !self.unknown || (resend != Resend::Never && !may_still_be_written(data))
    }
}

/// The troubles of a request that is tried again.
struct Trouble {
    /// When the first of them was.
    since: Time,
    /// The request may have arrived, and its reply was lost.
    unknown: bool,
    pause: Duration,
    /// The user was told about it.
    told: bool,
    /// The last of them.
    last: Failure,
}

/// A request and the data that belongs to it.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) body: RequestBody,
    pub(crate) data: Body,
    /// The path for the data. `None` leaves it to the endpoint's policy.
    pub(crate) path: Option<Path>,
    /// How the request's list of memory is moved.
    pub(crate) lists: Lists,
    /// For whom, if not for whom the connection was made.
    pub(crate) caller: Option<Caller>,
    /// The file whose datafile it is about, so that a ticket can be had for it.
    pub(crate) file: Option<FileHandle>,
}

impl Outgoing {
    pub(crate) fn plain(body: impl Into<RequestBody>) -> Outgoing {
        Outgoing { body: body.into(), data: Body::None, path: None, lists: Lists::Auto, caller: None, file: None }
    }

    /// About a datafile of this file.
    pub(crate) fn about(self, file: FileHandle) -> Outgoing {
        Outgoing { file: Some(file), ..self }
    }

    /// For this caller, if not for whom the connection was made.
    pub(crate) fn by(self, caller: Option<&Caller>) -> Outgoing {
        Outgoing { caller: caller.cloned(), ..self }
    }
}

/// A server's reply, with the result of the data transfer.
pub(crate) struct Answer {
    pub(crate) body: ReplyBody,
    /// Bytes of data that the server moved for a read.
    pub(crate) data: u64,
}

impl<S: Threading> Connections<S> {
    /// Asks the manager for the I/O servers and their stores. Returns those that are not up.
    pub(crate) async fn learn_cluster(&self, deadline: Time) -> Result<Vec<ServerName>, Failure> {
        let number = self.servers.with(|servers| servers.ask());
        let mut iods = Vec::new();
        let (mut stores, mut down) = (Vec::new(), Vec::new());
        loop {
            let first = u32::try_from(iods.len()).unwrap_or(u32::MAX);
            let request = Outgoing::plain(ManagerRequest::Cluster { first });
            let reply = self.call(&self.manager, deadline, Resend::Repeat, &request).await?.body;
            let ReplyBody::Manager(ManagerReply::Cluster(info)) = reply else {
                return Err(unexpected(&self.manager, &reply));
            };
            let news = info.iods.len();
            if iods.len() + news > MAX_SERVERS {
                let text = format!("more than {MAX_SERVERS} I/O servers");
                return Err(Failure::at(self.manager.clone(), ErrorCode::Protocol, text));
            }
            for iod in info.iods {
                let number = u32::try_from(iods.len()).unwrap_or(u32::MAX);
                stores.push((iod.addr.clone(), iod.store));
                iods.push(ServerName { addr: iod.addr, iod: Some(number) });
                down.extend(iods.last().filter(|_| !iod.up).cloned());
            }
            if news == 0 || iods.len() >= info.total as usize {
                break;
            }
        }
        self.servers.with(|servers| servers.learn(number, iods, stores));
        Ok(down)
    }

    /// Sends a request to a server and returns the reply. Tries again as `resend` allows.
    pub(crate) async fn call(
        &self,
        server: &ServerName,
        deadline: Time,
        resend: Resend,
        outgoing: &Outgoing,
    ) -> Result<Answer, Failure> {
        self.call_as(&self.ticket(resend), server, deadline, resend, outgoing).await
    }

    /// Draws the number of a request.
    pub(crate) fn ticket(&self, resend: Resend) -> Ticket<'_> {
        Ticket::new(&self.numbers, resend == Resend::UntilDeadline)
    }

    /// Sends a request like [`Connections::call`], under a number that it may have been sent with
    /// before.
    pub(crate) async fn call_as(
        &self,
        ticket: &Ticket<'_>,
        server: &ServerName,
        deadline: Time,
        resend: Resend,
        outgoing: &Outgoing,
    ) -> Result<Answer, Failure> {
        let (mut trouble, mut asked, mut renewed) = (None::<Trouble>, false, false);
        loop {
            let again = trouble.is_some();
            let seq = if again && mutated("client/sent-again-under-a-new-number") {
                self.numbers.with(|numbers| numbers.draw(false))
            } else {
                ticket.seq
            };
            let mut sent = false;
            let failure = match self.attempt(server, deadline, seq, outgoing, &mut sent).await.and_then(|reply| {
                self.servers.with(|servers| servers.answered(&server.addr));
                interpret(server, reply)
            }) {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            if failure.code == ErrorCode::WrongServer && server.iod.is_some() && !asked && !sent {
                // The store may have been replaced.
                asked = true;
                let before = self.servers.with(|servers| servers.store_of(server));
                Box::pin(self.learn_cluster(deadline)).await?;
                if self.servers.with(|servers| servers.store_of(server)) != before {
                    continue;
                }
            }
            if failure.code == ErrorCode::NoTicket {
                // The server has done nothing.
                if Box::pin(self.has_another_ticket(outgoing, &mut renewed, deadline)).await? {
                    continue;
                }
                return Err(Failure { code: ErrorCode::Permission, ..failure });
            }
            let setback = Setback::of(&failure, sent).filter(|setback| setback.may_repeat(resend, &outgoing.data));
            let again = match setback {
                Some(setback) => self.try_again(server, deadline, resend, setback, &failure, &mut trouble).await,
                None => false,
            };
            if !again {
                // What kept the server from answering says more than that the time is over.
                let earlier = trouble.filter(|_| failure.code == ErrorCode::Timeout && !sent);
                return Err(earlier.map_or(failure, |trouble| trouble.last));
            }
            self.resent.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns true if a server that has asked for a ticket is to be sent the request again: with
    /// one that was not shown, or with a new one of the manager.
    async fn has_another_ticket(
        &self,
        outgoing: &Outgoing,
        renewed: &mut bool,
        deadline: Time,
    ) -> Result<bool, Failure> {
        let RequestBody::Iod(request) = &outgoing.body else { return Ok(false) };
        let (Some((datafile, _)), Some(file)) = (request.needs(), outgoing.file) else { return Ok(false) };
        if self.tickets.show_again(datafile) {
            return Ok(true);
        }
        if std::mem::replace(renewed, true) {
            return Ok(false);
        }
        let open = ManagerRequest::Getattr { handle: file.into(), open: true };
        let asked = Outgoing::plain(open).by(outgoing.caller.as_ref());
        match self.call(&self.manager, deadline, Resend::Repeat, &asked).await?.body {
            ReplyBody::Manager(ManagerReply::Opened { entry, grant: Some(grant), .. }) => {
                entry.layout.iter().for_each(|layout| self.tickets.learn(file, layout, &grant));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Waits until a request may be tried again. Returns false if it may not.
    async fn try_again(
        &self,
        server: &ServerName,
        deadline: Time,
        resend: Resend,
        setback: Setback,
        failure: &Failure,
        trouble: &mut Option<Trouble>,
    ) -> bool {
        let now = self.endpoint().now();
        let first = trouble.is_none();
        let fresh = || Trouble { since: now, unknown: false, pause: FIRST_PAUSE, told: false, last: failure.clone() };
        let trouble = trouble.get_or_insert_with(fresh);
        trouble.last = failure.clone();
        trouble.unknown |= setback.unknown;
        if first && setback.lost {
            // A connection that was not used for a while may be dead. The next one is made at once.
            return true;
        }
        let resolves = trouble.unknown && resend == Resend::UntilDeadline;
        if !resolves && !setback.busy && self.servers.with(|servers| servers.is_given_up(&server.addr)) {
            return false;
        }
        let until = if resolves { deadline } else { deadline.min(trouble.since + self.retry_for) };
        if now + trouble.pause >= until {
            if !setback.busy {
                self.servers.with(|servers| servers.give_up(&server.addr));
            }
            return false;
        }
        let is_due = now.since(trouble.since) >= NOTICE && !trouble.told;
        // A server that is busy has answered, and is told about once for each request.
        if is_due && self.servers.with(|servers| servers.await_server(&server.addr)) {
            trouble.told = true;
            (self.waiting)(server, until.since(trouble.since), &failure.detail);
        }
        tracing::debug!(%server, failure.detail, "trying again");
        self.endpoint().sleep(trouble.pause).await;
        trouble.pause = (trouble.pause * 2).min(LONGEST_PAUSE);
        true
    }

    async fn attempt(
        &self,
        server: &ServerName,
        deadline: Time,
        seq: u64,
        outgoing: &Outgoing,
        sent: &mut bool,
    ) -> Result<Reply, Failure> {
        let peer = self.peer(server, deadline).await?;
        let result = self.exchange(server, &peer, deadline, seq, outgoing, sent).await;
        if matches!(&result, Err(error) if matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Refused)) {
            // The adapter may know of the loss before the endpoint does. Make sure that the next
            // attempt uses a new connection.
            self.servers.with(|servers| servers.lost(&server.addr, &peer));
        }
        result.map_err(|error| Failure::transport(server.clone(), error))
    }

    async fn exchange(
        &self,
        server: &ServerName,
        peer: &Peer<S>,
        deadline: Time,
        seq: u64,
        outgoing: &Outgoing,
        sent: &mut bool,
    ) -> Result<Reply, bmi::Error> {
        let left = deadline.since(peer.endpoint().now()).as_millis().max(1);
        let needed = if let RequestBody::Iod(request) = &outgoing.body { request.needs() } else { None };
        let shown = needed.and_then(|(datafile, _)| self.tickets.to_show(datafile, peer.id()));
        let request = codec::encode_request(&Request {
            id: RequestId { client: self.preference.client, seq },
            unanswered: self.numbers.with(|numbers| numbers.unanswered.first().copied()).unwrap_or(seq),
            timeout_ms: u32::try_from(left).unwrap_or(u32::MAX),
            caller: outgoing.caller.clone().filter(|_| matches!(outgoing.body, RequestBody::Manager(_))),
            ticket: shown,
            body: outgoing.body.clone(),
        });
        let options = Options::by(deadline).lists(outgoing.lists).path(outgoing.path);
        let call = peer.call(&request, outgoing.data.clone(), options)?;
        *sent = true;
        self.note_used(&server.addr, peer);
        let reply = call.reply().await?;
        self.note_used(&server.addr, peer);
        if let (Some((datafile, _)), Some(ticket)) = (needed, shown)
            && !codec::is_error(&reply.bytes)
        {
            self.tickets.accepted(datafile, &ticket, peer.id());
        }
        Ok(reply)
    }
}

/// Returns true if a lost server's kernel may still write into the memory of a read. A second read
/// into it could be overwritten after its reply.
fn may_still_be_written(data: &Body) -> bool {
    matches!(data, Body::In(memory) if memory.pieces().iter().any(|piece| piece.memory().is_retired()))
}

fn interpret(server: &ServerName, reply: Reply) -> Result<Answer, Failure> {
    let decoded = codec::decode_reply(&reply.bytes)
        .map_err(|error| Failure::at(server.clone(), ErrorCode::Protocol, error.to_string()))?;
    match decoded.result {
        Ok(body) => Ok(Answer { body, data: reply.data }),
        Err(FsError { code, detail, ranges, .. }) => {
            let mut failure = Failure::at(server.clone(), code, detail);
            failure.physical = ranges;
            Err(failure)
        }
    }
}

/// Returns the failure for a reply of a kind that does not match the request.
pub(crate) fn unexpected(server: &ServerName, reply: &ReplyBody) -> Failure {
    let text = match reply {
        ReplyBody::Manager(_) => "a manager's reply that does not fit the request",
        ReplyBody::Iod(_) => "an I/O server's reply that does not fit the request",
        ReplyBody::Identity(_) => "an answer to a Hello that was not sent",
    };
    Failure::at(server.clone(), ErrorCode::Protocol, text)
}

#[cfg(test)]
mod tests {
    use bmi::Addr;

    use super::*;

    /// A write that crossed the eviction of its idle connection failed.
    #[test]
    fn a_write_is_sent_again_if_the_server_says_that_it_has_done_nothing() {
        let server = ServerName { addr: Addr::tcp("10.0.0.3", 7001), iod: Some(1) };
        for (kind, again) in [(ErrorKind::Refused, true), (ErrorKind::PeerLost, false)] {
            let failure = Failure::transport(server.clone(), bmi::Error::new(kind, ""));
            let setback = Setback::of(&failure, true).expect("such a request may be tried again");
            assert!(setback.lost && setback.may_repeat(Resend::Never, &Body::None) == again, "{kind:?}");
        }
    }
}
