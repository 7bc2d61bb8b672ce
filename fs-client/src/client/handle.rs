//! A client: its connections, its settings, and what it knows of the files that it has open.

use std::sync::Arc;
use std::time::Duration;

use bmi::memory::Foreign;
use bmi::stats::PathCounters;
use bmi::threading::{AnyThread, OneThread, Threading};
use bmi::{Addr, Endpoint, Memory, Time};
use fs_proto::{Access, Caller, ClusterId, Entry, ErrorCode, ManagerReply, ManagerRequest, ReplyBody, RequestBody};

use super::answers::ClientStats;
use super::files::Files;
use super::options::ClientOptions;
use crate::error::{Error, Failure, ServerName};
use crate::net::{Connections, Endpoints, Outgoing, Preference, Resend, unexpected};

/// Pause of a hard client between two time limits.
const PAUSE: Duration = Duration::from_millis(200);

/// A client of one file system. A clone is another handle to the same client. It belongs to the
/// tasks of one thread. A [`SharedClient`] is the same for any thread.
pub struct Client<S: Threading = OneThread> {
    inner: Arc<Inner<S>>,
    /// For whom this handle asks, if not for the client's own caller.
    caller: Option<Arc<Caller>>,
}

/// A client that any thread can use, if the transport is `Send`. Its files, and the futures of
/// both, are `Send` too.
pub type SharedClient = Client<AnyThread>;

pub(crate) struct Inner<S: Threading> {
    pub(crate) connections: Connections<S>,
    pub(crate) options: ClientOptions,
    pub(crate) foreign: Foreign,
    pub(crate) files: Files,
    /// The handle that the client was made over, if any. Its drivers end with the last handle.
    _handle: Option<bmi::Handle>,
}

impl<S: Threading> Clone for Client<S> {
    fn clone(&self) -> Client<S> {
        Client { inner: self.inner.clone(), caller: self.caller.clone() }
    }
}

impl SharedClient {
    /// Creates a client like [`Client::connect`], over a handle, whose drivers drive it. If the
    /// handle has several endpoints, the client uses the first. Other clients and other parts of
    /// the program may use the same handle.
    ///
    /// The client and its files keep the handle. If nothing else has one, their end closes it, and
    /// the connections end in order.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect_through(
        handle: bmi::Handle,
        manager: Addr,
        options: ClientOptions,
    ) -> Result<SharedClient, Error> {
        let endpoint = handle.endpoints().next().expect("a handle has an endpoint").clone();
        let endpoints = Endpoints::one(manager.scheme(), endpoint);
        Client::open_over(endpoints, Some(handle), manager, options, |_, _, _| {}).await
    }
}

impl<S: Threading> Client<S> {
    /// Creates a client of the file system whose manager listens at `manager`. Asks the manager for
    /// the list of I/O servers. They are connected when they are first needed.
    ///
    /// # Errors
    /// If the manager cannot be reached, or uses another version of the protocol; `Invalid` for the
    /// number 0.
    pub async fn connect(endpoint: Endpoint<S>, manager: Addr, options: ClientOptions) -> Result<Client<S>, Error> {
        Client::connect_over(Endpoints::one(manager.scheme(), endpoint), manager, options).await
    }

    /// Creates a client like [`Client::connect`], but with one endpoint for each of several
    /// transports. Each server is reached over the best transport that works, or as
    /// [`ClientOptions::over`] requests.
    ///
    /// # Errors
    /// As [`Client::connect`]; `Unreachable` if a server cannot be reached over the requested
    /// transport.
    pub async fn connect_over(
        endpoints: Endpoints<S>,
        manager: Addr,
        options: ClientOptions,
    ) -> Result<Client<S>, Error> {
        Client::connect_waiting(endpoints, manager, options, |_, _, _| {}).await
    }

    /// Creates a client like [`Client::connect_over`]. Calls `waiting` when a server has been
    /// waited for a second, once for each request at most: with the server, how long it is waited
    /// for in all, and the reason. That time is [`ClientOptions::retry_for`], or the time limit if
    /// the server may have made a change already.
    ///
    /// # Errors
    /// As [`Client::connect_over`].
    pub async fn connect_waiting(
        endpoints: Endpoints<S>,
        manager: Addr,
        options: ClientOptions,
        waiting: impl Fn(&ServerName, Duration, &str) + Send + Sync + 'static,
    ) -> Result<Client<S>, Error> {
        Client::open_over(endpoints, None, manager, options, waiting).await
    }

    async fn open_over(
        endpoints: Endpoints<S>,
        handle: Option<bmi::Handle>,
        manager: Addr,
        options: ClientOptions,
        waiting: impl Fn(&ServerName, Duration, &str) + Send + Sync + 'static,
    ) -> Result<Client<S>, Error> {
        let ClientOptions { id, timeout, retry_for, over, ref host, cluster, .. } = options;
        if id == 0 {
            return Err(Error::new(ErrorCode::Invalid, "the number of a client is drawn at random, and is not 0"));
        }
        let preference = Preference { client: id, timeout, over, host: host.clone(), caller: options.caller.clone() };
        let manager = ServerName { addr: manager, iod: None };
        let inner = Arc::new(Inner {
            connections: Connections::new(endpoints, preference, manager, cluster, retry_for, Box::new(waiting)),
            options,
            foreign: Foreign::new(),
            files: Files::default(),
            _handle: handle,
        });
        let client = Client { inner, caller: None };
        client.refresh().await?;
        Ok(client)
    }

    /// Asks the manager again for the list of I/O servers.
    ///
    /// # Errors
    /// If the manager cannot be reached.
    pub async fn refresh(&self) -> Result<(), Error> {
        let learned = self.inner.connections.learn_cluster(self.inner.deadline()).await;
        learned.map(drop).map_err(|failure| Error::from(failure).during("connect"))
    }

    /// Returns another handle to the same client, which asks for somebody else: for the user of a
    /// mount who makes a call. The manager decides whether this client may ask for him. Data is
    /// read and written by the client's own right to the file, whoever has opened it.
    #[must_use]
    pub fn for_caller(&self, caller: Caller) -> Client<S> {
        let other = (caller != self.inner.options.caller).then(|| Arc::new(caller));
        Client { inner: self.inner.clone(), caller: other }
    }

    /// Returns for whom this handle asks.
    pub fn caller(&self) -> &Caller {
        self.caller.as_deref().unwrap_or(&self.inner.options.caller)
    }

    /// Returns for whom this handle asks, if not for the client's own caller.
    pub(crate) fn named_caller(&self) -> Option<&Caller> {
        self.caller.as_deref()
    }

    /// Returns the endpoint that the client uses. If there are several, returns the first.
    pub fn endpoint(&self) -> &Endpoint<S> {
        self.inner.connections.endpoint()
    }

    /// Returns all endpoints that the client uses.
    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint<S>> {
        self.inner.connections.endpoints()
    }

    /// Allocates `len` zero bytes of the kind of memory that the client's transports move best. Use
    /// it for data that is read or written often. Any other memory works too. Between processes of
    /// one host, other memory costs one more copy.
    ///
    /// # Errors
    /// `Exhausted` if there is not enough memory.
    pub fn memory(&self, len: usize) -> Result<Memory, bmi::Error> {
        if self.inner.connections.shares_memory() { Memory::shareable(len) } else { Memory::zeroed(len) }
    }

    /// Returns the client's settings.
    pub fn options(&self) -> &ClientOptions {
        &self.inner.options
    }

    /// Returns the manager.
    pub fn manager(&self) -> &ServerName {
        self.inner.connections.manager()
    }

    /// Returns the cluster that the client is connected to.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.inner.connections.cluster()
    }

    /// Returns the I/O servers, in the order in which layouts number them.
    pub fn iods(&self) -> Vec<ServerName> {
        self.inner.connections.iods().to_vec()
    }

    /// Returns the record of the program's own memory that was used in
    /// [`File::read_extended_raw`](crate::File::read_extended_raw) and
    /// [`File::write_extended_raw`](crate::File::write_extended_raw). Memory must be forgotten
    /// there before it is freed or unmapped.
    pub fn foreign(&self) -> &Foreign {
        &self.inner.foreign
    }

    /// Returns the counters of the client's activity.
    pub fn stats(&self) -> ClientStats {
        let each = self.endpoints().map(|endpoint| endpoint.with(|engine| engine.path_counters()));
        let paths = each.fold(PathCounters::default(), |sum, paths| sum.plus(&paths));
        ClientStats { paths, resent: self.inner.connections.resent() }
    }

    pub(crate) fn inner(&self) -> &Inner<S> {
        &self.inner
    }

    pub(crate) async fn ask_manager(&self, request: ManagerRequest) -> Result<ManagerReply, Error> {
        let resend = if request.changes() { Resend::UntilDeadline } else { Resend::Repeat };
        let (connections, outgoing) = (&self.inner.connections, Outgoing::plain(request).by(self.caller.as_deref()));
        let ticket = connections.ticket(resend);
        loop {
            let answer = connections.call_as(&ticket, self.manager(), self.inner.deadline(), resend, &outgoing).await;
            match answer.map(|answer| answer.body).map_err(Error::from) {
                Ok(ReplyBody::Manager(reply)) => return Ok(reply),
                Ok(other) => return Err(self.odd(other)),
                Err(error) if self.insists(&error).await => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns true, after a pause, if the manager has not answered and is to be asked again.
    pub(super) async fn insists(&self, error: &Error) -> bool {
        let insists = self.inner.options.hard && error.is_retryable();
        if insists {
            tracing::info!(%error, "asking again");
            self.endpoint().sleep(PAUSE).await;
        }
        insists
    }

    pub(crate) async fn ask_entry(&self, request: ManagerRequest) -> Result<Entry, Error> {
        match self.ask_manager(request).await? {
            ManagerReply::Entry(entry) | ManagerReply::Opened { entry, .. } => Ok(entry),
            other => Err(self.odd(other.into())),
        }
    }

    /// Asks the manager to open something.
    pub(crate) async fn ask_opened(&self, request: ManagerRequest) -> Result<(Entry, Access), Error> {
        match self.ask_manager(request).await? {
            ManagerReply::Opened { entry, access, grant } => {
                if let Some(file) = entry.handle.file() {
                    self.inner.files.granted(file, access);
                    let both = grant.as_ref().zip(entry.layout.as_ref());
                    both.inspect(|(grant, layout)| self.inner.connections.tickets.learn(file, layout, grant));
                }
                Ok((entry, access))
            }
            other => Err(self.odd(other.into())),
        }
    }

    pub(crate) async fn ask_done(&self, request: ManagerRequest) -> Result<(), Error> {
        match self.ask_manager(request).await? {
            ManagerReply::Done => Ok(()),
            other => Err(self.odd(other.into())),
        }
    }

    pub(crate) fn odd(&self, reply: ReplyBody) -> Error {
        unexpected(self.manager(), &reply).into()
    }
}

impl<S: Threading> Inner<S> {
    /// Returns the deadline of a request that begins now.
    pub(crate) fn deadline(&self) -> Time {
        self.connections.endpoint().now() + self.options.timeout
    }

    /// Sends a request without data.
    pub(crate) async fn ask(
        &self,
        server: &ServerName,
        deadline: Time,
        resend: Resend,
        body: impl Into<RequestBody>,
    ) -> Result<ReplyBody, Failure> {
        Ok(self.connections.call(server, deadline, resend, &Outgoing::plain(body)).await?.body)
    }
}
