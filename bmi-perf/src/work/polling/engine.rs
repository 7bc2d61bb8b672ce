//! An endpoint that its user polls: [`bmi::polled::Engine`], without tasks or wakers.

use bmi::bulk::{Access, BulkDescriptor, Exposure, RemoteSlice};
use bmi::memory::MemoryRegion;
use bmi::polled::{Completion, OpKind, Posted};
use bmi::{Addr, Error, ErrorKind, MemSlice, Memory, Options, PeerEvent, PeerId, Time};

use super::{DESCRIPTION, Ended, Opened, Port, produce};
use crate::case::Case;
use crate::work::library::{DATA, config};

/// Sends after which it is polled, so that credits come back before there are none: a send that
/// waits for credit takes a longer way.
const SENDS: u32 = 32;

pub(super) struct Polled {
    endpoint: bmi::polled::Engine,
    peer: Option<PeerId>,
    is_connected: bool,
    completions: Vec<Completion>,
    ended: Ended,
    /// Sends that have not ended.
    sending: u64,
    /// Sends since the last poll.
    unpolled: u32,
    outgoing: Memory,
    incoming: Memory,
    _registered: [Option<MemoryRegion>; 2],
    exposure: Option<Exposure>,
    /// The peer's `incoming`.
    remote: Option<BulkDescriptor>,
}

impl Polled {
    fn new(with: Opened) -> Result<Polled, Error> {
        let (outgoing, incoming) = (with.memory()?, with.memory()?);
        let config = config("bmi-perf", &with.settings);
        let mut endpoint = bmi::polled::Engine::new(with.transport()?, config, with.now)?;
        // What cannot be registered is copied.
        let registered = [&outgoing, &incoming].map(|memory| endpoint.register(memory).ok());
        Ok(Polled {
            endpoint,
            peer: None,
            is_connected: false,
            completions: Vec::new(),
            ended: Ended::default(),
            sending: 0,
            unpolled: 0,
            outgoing,
            incoming,
            _registered: registered,
            exposure: None,
            remote: None,
        })
    }

    fn peer(&self) -> Result<PeerId, Error> {
        self.peer.ok_or_else(|| Error::new(ErrorKind::Invalid, "there is no connection"))
    }

    #[inline]
    fn posted(&mut self, posted: Posted) -> Result<bool, Error> {
        if let Posted::Done(completion) = posted {
            self.has_ended(completion)?;
        }
        Ok(true)
    }

    #[inline]
    fn has_ended(&mut self, completion: Completion) -> Result<(), Error> {
        if completion.status.is_err() {
            return self.endpoint.explain(&completion).map_or(Ok(()), Err);
        }
        match completion.kind {
            OpKind::Recv => self.ended.receives += 1,
            OpKind::Send => {
                self.sending -= 1;
                self.ended.others += completion.user;
            }
            OpKind::Connect => self.has_connected(completion.peer)?,
            _ => self.ended.others += 1,
        }
        Ok(())
    }

    fn has_connected(&mut self, peer: Option<PeerId>) -> Result<(), Error> {
        (self.peer, self.is_connected) = (peer, true);
        let place = self.place(false, 0, DESCRIPTION);
        (0..2).try_for_each(|_| self.post_recv(Some(&place)))
    }

    fn post_send(&mut self, from: MemSlice, counts: bool) -> Result<bool, Error> {
        if self.unpolled == SENDS {
            return Ok(false);
        }
        (self.sending, self.unpolled) = (self.sending + 1, self.unpolled + 1);
        let options = Options::default().user(counts.into());
        let posted = self.endpoint.post_send(self.peer()?, DATA, from, options)?;
        self.posted(posted)
    }
}

impl Port for Polled {
    type Place = MemSlice;
    const COPIED: usize = 0;

    fn connect(with: Opened, to: &Addr, until: Time) -> Result<Polled, Error> {
        let mut port = Polled::new(with)?;
        port.endpoint.connect(to, Options::by(until))?;
        Ok(port)
    }

    fn listen(with: Opened, at: &Addr, listening: &dyn Fn(Addr)) -> Result<Polled, Error> {
        let mut port = Polled::new(with)?;
        listening(port.endpoint.listen(at)?);
        Ok(port)
    }

    fn is_connected(&self) -> bool {
        self.is_connected
    }

    #[inline]
    fn poll(&mut self, now: Time) -> Result<bool, Error> {
        self.unpolled = 0;
        let has_moved = self.endpoint.poll(now);
        if self.endpoint.poll_all(&mut self.completions) > 0 {
            let mut completions = std::mem::take(&mut self.completions);
            completions.drain(..).try_for_each(|completion| self.has_ended(completion))?;
            self.completions = completions;
        }
        if !self.is_connected
            && let Some(PeerEvent::Connected { peer, outgoing: false, .. }) = self.endpoint.poll_event()
        {
            self.has_connected(Some(peer))?;
        }
        Ok(has_moved)
    }

    #[inline]
    fn ended(&mut self) -> &mut Ended {
        &mut self.ended
    }

    fn is_idle(&self) -> bool {
        self.sending == 0
    }

    fn outgoing(&self) -> &Memory {
        &self.outgoing
    }

    fn incoming(&self) -> &Memory {
        &self.incoming
    }

    fn place(&self, is_outgoing: bool, at: usize, len: usize) -> MemSlice {
        if is_outgoing { &self.outgoing } else { &self.incoming }.slice(at, len)
    }

    fn produce(case: &Case, place: &MemSlice) {
        produce(case.station.over, place);
    }

    #[inline]
    fn post_recv(&mut self, into: Option<&MemSlice>) -> Result<(), Error> {
        let into = into.cloned().unwrap_or_else(|| self.place(false, 0, 0));
        let posted = self.endpoint.post_recv(self.peer()?, DATA, into, Options::default())?;
        self.posted(posted).map(drop)
    }

    fn tell(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        self.outgoing.copy_from(0, bytes);
        self.post_send(self.place(true, 0, bytes.len()), false)
    }

    #[inline]
    fn send(&mut self, from: &MemSlice, counts: bool) -> Result<bool, Error> {
        self.post_send(from.clone(), counts)
    }

    fn write(&mut self, from: &MemSlice, at: u64, immediate: Option<u32>, _counts: bool) -> Result<bool, Error> {
        if immediate.is_some() {
            return Err(Error::new(ErrorKind::Unsupported, "an endpoint writes with immediate data only by grants"));
        }
        let remote = self.remote.as_ref().ok_or_else(nothing_exposed)?;
        let posted = self.endpoint.post_push(self.peer()?, remote, at, from, Options::default());
        self.posted(posted?)
    }

    fn read(&mut self, into: &MemSlice, at: u64) -> Result<bool, Error> {
        let remote = self.remote.as_ref().ok_or_else(nothing_exposed)?;
        let posted = self.endpoint.post_pull(self.peer()?, remote, at, into, Options::default());
        self.posted(posted?)
    }

    fn expose(&mut self) -> Result<[u8; DESCRIPTION], Error> {
        let exposure = self.endpoint.expose(self.peer()?, self.incoming.all(), Access::READ_WRITE)?;
        let [piece] = exposure.descriptor().pieces() else {
            return Err(Error::new(ErrorKind::Invalid, "the memory is exposed in several pieces"));
        };
        let wire = piece.to_wire();
        self.exposure = Some(exposure);
        Ok(wire)
    }

    fn set_remote(&mut self, remote: RemoteSlice) -> Result<(), Error> {
        let bad = |_| Error::new(ErrorKind::Protocol, "the peer's description of its memory");
        self.remote = Some(BulkDescriptor::try_from(vec![remote]).map_err(bad)?);
        Ok(())
    }
}

fn nothing_exposed() -> Error {
    Error::new(ErrorKind::Invalid, "the peer has exposed nothing")
}
