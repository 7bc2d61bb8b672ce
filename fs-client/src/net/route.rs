//! Chooses the transport for a server. By default it is the best one that both sides have and that
//! provably leads to the same server.
//!
//! **Why a proof.** The addresses of a cluster are shared by all its machines, and a path like
//! `/run/pvfs/iod-1` exists on many of them. A socket at the right path may belong to another
//! server, of another host or another cluster. Using it would destroy data. So a client begins with
//! the address that the server is known by, and says there which server it expects. It does the
//! same at the end of any other route.
//!
//! **Protocol**
//!
//! ```text
//!   connect to the known address ──▶ Hello: the expected server? ──▶ identity: start, host, addresses
//!     for each address of a better transport (shm, then ib, then tcp):
//!        shm only if the host is ours            else: next, and the reason is kept
//!        connect, Hello: the same instance?      else: disconnect, next
//!        yes: take it, leave the known address
//!     none: stay with the known address
//! ```
//!
//! **Invariants**
//! 1. Requests go to the expected server: the one with the cluster, role and store that the client
//!    expects, and no older than the client has seen it.
//! 2. Another address is used only if the same instance answers there.
//! 3. A route that does not work costs at most [`PATIENCE`] and is not tried again until the
//!    connection is lost.
//! 4. A connection that is not taken is closed, also if the future is dropped.
//! 5. An explicitly requested transport ([`TransportChoice::Only`]) is used, or the connection
//!    fails. It is never replaced by another one.
//!
//! `tests/it/simulated/routes.rs` checks these invariants.

use std::fmt;
use std::time::Duration;

use bmi::threading::{OneThread, Threading};
use bmi::{Addr, Body, Endpoint, ErrorKind, Options, Peer, PeerIdentity, Scheme, Time};
use fs_proto::{Caller, Claims, ErrorCode, Hello, Identity, Reply, ReplyBody, Request, RequestBody, RequestId, codec};

use crate::error::{Failure, ServerName};

/// Time limit for connecting and for the Hello, where there is an alternative route.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a client waits for a server that does not serve yet.
const STARTING: Duration = Duration::from_secs(2);
/// Pause before such a server is asked again.
const PAUSE: Duration = Duration::from_millis(10);

/// The transports that a client uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// The best working one for each server.
    #[default]
    Auto,
    /// This one only. A server that cannot be reached over it is an error.
    Only(Scheme),
}

/// A client's endpoints: one for each transport that it may use.
pub struct Endpoints<S: Threading = OneThread> {
    open: Vec<(Scheme, Endpoint<S>)>,
    absent: Vec<(Scheme, String)>,
}

impl<S: Threading> Endpoints<S> {
    /// Creates a set with a single endpoint, for addresses of one scheme.
    pub fn one(scheme: Scheme, endpoint: Endpoint<S>) -> Endpoints<S> {
        Endpoints { open: vec![(scheme, endpoint)], absent: Vec::new() }
    }

    /// Adds another endpoint. All endpoints must use the same clock.
    #[must_use]
    pub fn and(mut self, scheme: Scheme, endpoint: Endpoint<S>) -> Endpoints<S> {
        self.open.push((scheme, endpoint));
        self
    }

    /// Records why there is no endpoint for `scheme`. Routes report this reason for not using it.
    #[must_use]
    pub fn without(mut self, scheme: Scheme, why: impl Into<String>) -> Endpoints<S> {
        self.absent.push((scheme, why.into()));
        self
    }

    /// Returns the endpoints.
    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint<S>> {
        self.open.iter().map(|(_, endpoint)| endpoint)
    }

    /// Returns true if one of the endpoints works best with memory that can be shared with another
    /// process.
    pub(crate) fn shares_memory(&self) -> bool {
        self.open.iter().any(|(scheme, _)| *scheme == Scheme::Shm)
    }

    /// Returns the first endpoint.
    pub(crate) fn first(&self) -> &Endpoint<S> {
        &self.open[0].1
    }

    /// Returns the endpoint for addresses of `scheme`.
    fn find(&self, scheme: Scheme) -> Result<&Endpoint<S>, String> {
        let here = self.open.iter().find(|(own, _)| *own == scheme);
        here.map(|(_, endpoint)| endpoint).ok_or_else(|| match self.absent.iter().find(|(own, _)| *own == scheme) {
            Some((_, why)) => why.clone(),
            None => format!("this client has no endpoint for {scheme}://"),
        })
    }
}

/// The route that a client took to a server, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The server, by the address that it is known by.
    pub server: ServerName,
    /// The address that was used.
    pub addr: Addr,
    /// The reason for the choice.
    pub reason: String,
    /// The server's other addresses, each with the reason why it was not used.
    pub passed_over: Vec<(Addr, String)>,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: over {}: {}", self.server, self.addr.scheme(), self.reason)?;
        if self.addr != self.server.addr {
            write!(f, " ({})", self.addr)?;
        }
        for (addr, why) in &self.passed_over {
            write!(f, "; not {addr}: {why}")?;
        }
        Ok(())
    }
}

/// The inputs of the choice.
#[derive(Clone, Debug)]
pub(crate) struct Preference {
    /// The client's id.
    pub(crate) client: u128,
    /// Time limit of a request.
    pub(crate) timeout: Duration,
    pub(crate) over: TransportChoice,
    /// The client's name for the machine that it runs on.
    pub(crate) host: Option<String>,
    /// For whom it asks.
    pub(crate) caller: Caller,
}

/// Returns the rank of a transport; faster ones come first.
fn rank(scheme: Scheme) -> u8 {
    match scheme {
        Scheme::Shm => 0,
        Scheme::Ib => 1,
        Scheme::Tcp => 2,
        Scheme::Sim | Scheme::Custom(_) => 3,
    }
}

impl Preference {
    /// Returns true if a server known by an address of `scheme` could be reached over another
    /// transport.
    fn has_choice<S: Threading>(&self, endpoints: &Endpoints<S>, scheme: Scheme) -> bool {
        match self.over {
            TransportChoice::Auto => endpoints.open.iter().any(|(other, _)| rank(*other) < rank(scheme)),
            TransportChoice::Only(only) => only != scheme,
        }
    }

    /// Returns the addresses to try, best first.
    fn candidates(&self, known: &Addr, offered: &[Addr]) -> Vec<Addr> {
        let wanted = |addr: &&Addr| match self.over {
            TransportChoice::Auto => rank(addr.scheme()) < rank(known.scheme()),
            TransportChoice::Only(only) => addr.scheme() == only,
        };
        let mut all: Vec<Addr> = offered.iter().filter(wanted).cloned().collect();
        all.sort_by_key(|addr| rank(addr.scheme()));
        all
    }
}

/// Connects to a server over the best suitable transport. `hello` names the expected server.
/// A server that does not serve yet is waited for, for a while.
pub(crate) async fn reach<S: Threading>(
    endpoints: &Endpoints<S>,
    preference: &Preference,
    server: &ServerName,
    hello: &Hello,
) -> Result<(Peer<S>, Route, Identity), Failure> {
    let failed = |error| Failure::transport(server.clone(), error);
    let endpoint = endpoints.find(server.addr.scheme()).map_err(|why| {
        failed(bmi::Error::new(ErrorKind::Unsupported, why).during("connect").with_peer(&server.addr))
    })?;
    let begun = endpoint.now();
    let mut waited = false;
    loop {
        let peer = endpoint.connect(&server.addr.without_device(), Options::default()).await.map_err(failed);
        // A server that was starting closes its connections when it begins to serve.
        let starting = |failure: &Failure| {
            let lost = failure.source.as_ref().is_some_and(|error| error.kind() == ErrorKind::PeerLost);
            failure.code == ErrorCode::Busy || (waited && lost)
        };
        let newcomer = Newcomer(Some(peer?));
        let deadline = endpoint.now() + preference.timeout;
        match greet(newcomer.peer(), server, preference.client, hello, deadline).await {
            Ok(identity) => return choose(endpoints, preference, server, hello, newcomer, identity).await,
            Err(failure)
                if starting(&failure) && endpoint.now().since(begun) < STARTING.min(preference.timeout / 2) =>
            {
                drop(newcomer);
                waited = true;
                endpoint.sleep(PAUSE).await;
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// A connection, until it is taken. Dropping it ends the connection.
struct Newcomer<S: Threading>(Option<Peer<S>>);

impl<S: Threading> Newcomer<S> {
    fn peer(&self) -> &Peer<S> {
        self.0.as_ref().expect("it is there until it is taken")
    }

    /// Takes the connection.
    fn take(mut self) -> Peer<S> {
        self.0.take().expect("it is taken once")
    }
}

impl<S: Threading> Drop for Newcomer<S> {
    fn drop(&mut self) {
        self.0.iter().for_each(leave);
    }
}

/// Takes a better route to the server that a connection over an endpoint leads to, if there is one.
async fn choose<S: Threading>(
    endpoints: &Endpoints<S>,
    preference: &Preference,
    server: &ServerName,
    hello: &Hello,
    newcomer: Newcomer<S>,
    identity: Identity,
) -> Result<(Peer<S>, Route, Identity), Failure> {
    let known = &server.addr;
    let mut route =
        Route { server: server.clone(), addr: known.clone(), reason: String::new(), passed_over: Vec::new() };
    // It knows this client by its certificate, for which tickets are made.
    let is_known = server.iod.is_none() && matches!(newcomer.peer().identity(), PeerIdentity::Names(_));
    if is_known && preference.over == TransportChoice::Auto {
        "its certificate counts here".clone_into(&mut route.reason);
        return Ok((newcomer.take(), route, identity));
    }
    if !preference.has_choice(endpoints, known.scheme()) {
        let asked = preference.over == TransportChoice::Only(known.scheme());
        route.reason = if asked { "as asked for".to_owned() } else { "nothing better here".to_owned() };
        return Ok((newcomer.take(), route, identity));
    }
    for addr in preference.candidates(known, &identity.addrs) {
        match try_way(endpoints, preference, server, hello, &identity, &addr).await {
            Ok(other) => {
                let why = if addr.scheme() == Scheme::Shm { "on this host" } else { "both have it" };
                (route.addr, route.reason) = (addr, why.to_owned());
                return Ok((other, route, identity));
            }
            Err(why) => route.passed_over.push((addr, why)),
        }
    }
    if let TransportChoice::Only(only) = preference.over {
        let why = match route.passed_over.as_slice() {
            [] => format!("the server does not offer {only}://"),
            [(addr, why)] => format!("{addr}: {why}"),
            several => several.iter().map(|(addr, why)| format!("{addr}: {why}")).collect::<Vec<_>>().join("; "),
        };
        let refused = bmi::Error::new(ErrorKind::Refused, why).during("connect").with_peer(known);
        return Err(Failure::transport(server.clone(), refused));
    }
    route.reason = match route.passed_over.is_empty() {
        true => "nothing better is offered".to_owned(),
        false => "nothing better works".to_owned(),
    };
    Ok((newcomer.take(), route, identity))
}

/// Connects to another address of a server and checks that the same server answers there. Returns
/// the reason if it fails.
async fn try_way<S: Threading>(
    endpoints: &Endpoints<S>,
    preference: &Preference,
    server: &ServerName,
    hello: &Hello,
    identity: &Identity,
    addr: &Addr,
) -> Result<Peer<S>, String> {
    let endpoint = endpoints.find(addr.scheme())?;
    if addr.scheme() == Scheme::Shm && preference.host.as_deref().is_none_or(|host| host != identity.host) {
        return Err("another host".to_owned());
    }
    let deadline = endpoint.now() + PATIENCE;
    let peer =
        endpoint.connect(&addr.without_device(), Options::by(deadline)).await.map_err(|error| error.to_string())?;
    let newcomer = Newcomer(Some(peer));
    match greet(newcomer.peer(), server, preference.client, hello, deadline).await {
        Ok(found) if found.is_same(identity) => Ok(newcomer.take()),
        Ok(_) => Err("another server is there".to_owned()),
        Err(failure) => Err(failure.detail),
    }
}

/// Opens a connection: says which server is expected, and checks the answer. The request has the
/// sequence number 0, which no other request has.
async fn greet<S: Threading>(
    peer: &Peer<S>,
    server: &ServerName,
    client: u128,
    hello: &Hello,
    deadline: Time,
) -> Result<Identity, Failure> {
    let failed = |error| Failure::transport(server.clone(), error);
    let left = deadline.since(peer.endpoint().now()).as_millis().max(1);
    let timeout_ms = u32::try_from(left).unwrap_or(u32::MAX);
    let id = RequestId { client, seq: 0 };
    let body = RequestBody::Hello(hello.clone());
    let request = codec::encode_request(&Request { id, unanswered: 0, timeout_ms, caller: None, ticket: None, body });
    let call = peer.call(&request, Body::None, Options::by(deadline)).map_err(failed)?;
    let reply = call.reply().await.map_err(failed)?;
    match codec::decode_reply(&reply.bytes) {
        Ok(Reply { result: Ok(ReplyBody::Identity(identity)) }) => {
            match identity.check(hello).and_then(|()| Claims::check_server(&peer.identity(), identity.role)) {
                Ok(()) => Ok(identity),
                Err(error) => Err(Failure::at(server.clone(), error.code, error.detail)),
            }
        }
        Ok(Reply { result: Err(error) }) => Err(Failure::at(server.clone(), error.code, error.detail)),
        Ok(_) => Err(Failure::at(server.clone(), ErrorCode::Protocol, "a reply that does not fit a Hello")),
        Err(error) => Err(Failure::at(server.clone(), ErrorCode::Protocol, error.to_string())),
    }
}

/// Ends a connection without waiting for the end.
pub(crate) fn leave<S: Threading>(peer: &Peer<S>) {
    peer.endpoint().with(|engine| {
        // An error means that the connection has ended already.
        if let Ok(op) = engine.disconnect(peer.id(), Options::default()) {
            engine.abandon(op);
        }
    });
}
