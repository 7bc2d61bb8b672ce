//! The library of a process: its transports, contexts and memory, between `BMI_initialize` and the
//! last `BMI_finalize`.

use std::collections::BTreeSet;
use std::ffi::{CString, c_int};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bmi::config::Security;
use bmi::driver::MonotonicClock;
use bmi::{Addr, Clock, OpenOptions, Options, PeerEvent, Scheme, Time};

use crate::address::{self, Addresses};
use crate::handle::{Contexts, Key};
use crate::memory::Allocations;
use crate::number::{Number, Outcome};
use crate::port::Port;
use crate::turn::Turn;

/// The transports, in the order in which an address of several is tried.
pub(crate) const SCHEMES: [Scheme; 3] = [Scheme::Tcp, Scheme::Shm, Scheme::Ib];
/// How long `BMI_finalize` waits until what was posted has left.
const LEAVE: Duration = Duration::from_secs(2);
/// How long it waits for a peer that has not answered the last message to leave first.
const LINGER: Duration = Duration::from_secs(1);

/// A flag of `BMI_initialize`: this process listens.
pub(crate) const INIT_SERVER: c_int = 1;
/// A flag of `BMI_initialize`: each unexpected message counts its address up.
pub(crate) const AUTO_REF_COUNT: c_int = 4;

const DOWN: u8 = 0;
const UP: u8 = 1;
/// This is a child of the process that initialised the library.
const FORKED: u8 = 2;

/// The state of the process.
pub(crate) static LIBRARY: Library = Library {
    state: AtomicU8::new(DOWN),
    initialised: Mutex::new(0),
    slots: [const { Slot { is_open: AtomicBool::new(false), port: Mutex::new(None) } }; SCHEMES.len()],
    counts: AtomicBool::new(false),
    contexts: Contexts::new(),
    orphans: Mutex::new(Allocations::new()),
    messages: Mutex::new(BTreeSet::new()),
    parts: OnceLock::new(),
};

pub(crate) struct Library {
    state: AtomicU8,
    /// How often `BMI_initialize` was called more than `BMI_finalize`.
    initialised: Mutex<u32>,
    slots: [Slot; SCHEMES.len()],
    /// Unexpected messages count addresses up.
    counts: AtomicBool,
    pub(crate) contexts: Contexts,
    /// Memory of `BMI_memalloc` whose transports have ended.
    pub(crate) orphans: Mutex<Allocations>,
    /// The buffers of unexpected messages that the program has.
    pub(crate) messages: Mutex<BTreeSet<usize>>,
    parts: OnceLock<Parts>,
}

struct Slot {
    is_open: AtomicBool,
    port: Mutex<Option<Port>>,
}

/// What is made by the first `BMI_initialize`.
pub(crate) struct Parts {
    pub(crate) turn: Turn,
    pub(crate) clock: MonotonicClock,
}

impl Library {
    /// Checks that this process has initialised the library.
    #[inline]
    pub(crate) fn parts(&self) -> Outcome<&Parts> {
        match self.state.load(Ordering::Acquire) {
            UP => self.parts.get().ok_or(Number::ENETDOWN),
            FORKED => Err(Number::EDEVINIT),
            _ => Err(Number::ENETDOWN),
        }
    }

    /// Initialises the library, or counts one more use of it.
    pub(crate) fn initialize(&self, methods: Option<&str>, listen: Option<&str>, flags: c_int) -> Outcome<()> {
        let mut initialised = self.initialised.lock().map_err(|_| Number::EIO)?;
        if self.state.load(Ordering::Acquire) == FORKED {
            return Err(Number::EDEVINIT);
        }
        if *initialised > 0 {
            *initialised += 1;
            return Ok(());
        }
        let is_server = flags & INIT_SERVER != 0;
        if is_server != listen.is_some() || (is_server && methods.is_none()) {
            return Err(Number::EINVAL);
        }
        if self.parts.get().is_none() {
            // SAFETY: the function takes no lock and allocates nothing.
            if unsafe { libc::pthread_atfork(None, None, Some(after_fork)) } != 0 {
                return Err(Number::ENOMEM);
            }
            let parts = Parts { turn: Turn::new()?, clock: MonotonicClock::new() };
            self.parts.get_or_init(|| parts);
        }
        self.state.store(UP, Ordering::Release);
        self.counts.store(flags & AUTO_REF_COUNT != 0, Ordering::Relaxed);
        let opened = methods.map_or(Ok(()), |methods| self.open_methods(methods, listen));
        match opened {
            Ok(()) => *initialised = 1,
            Err(_) => self.close(),
        }
        opened
    }

    /// Opens the transports of `bmi_tcp,bmi_shm`, and listens at the address of each.
    fn open_methods(&self, methods: &str, listen: Option<&str>) -> Outcome<()> {
        for method in methods.split(',') {
            let name = method.trim().strip_prefix("bmi_").ok_or(Number::EINVAL)?;
            let found = SCHEMES.iter().position(|scheme| scheme.as_str() == name);
            let index = found.ok_or(Number::ENOPROTOOPT)?;
            let of_scheme = |addr: &Outcome<Addr>| addr.as_ref().is_ok_and(|addr| addr.scheme() == SCHEMES[index]);
            match listen {
                Some(listen) => {
                    let addr = address::parse(listen).find(of_scheme).ok_or(Number::EINVAL)??;
                    self.open(index, &addr)?;
                    self.with(index, |port| port.engine.listen(&addr).map(|_| ()).map_err(Number::from))?;
                }
                None => self.open(index, &Addr::tcp("localhost", 0))?,
            }
        }
        Ok(())
    }

    /// Opens a transport, on the adapter that `addr` names, if it is not open.
    fn open(&self, index: usize, addr: &Addr) -> Outcome<()> {
        let mut slot = self.slots[index].port.lock().map_err(|_| Number::EIO)?;
        if slot.is_none() {
            let parts = self.parts()?;
            let options = Security::from_env()?.iter().fold(OpenOptions::default(), OpenOptions::secure).at(addr);
            *slot = Some(Port::open(SCHEMES[index], &options, parts.clock)?);
            self.slots[index].is_open.store(true, Ordering::Release);
            drop(slot);
            parts.turn.announce();
        }
        Ok(())
    }

    /// Counts one use of the library less, and ends it with the last.
    pub(crate) fn finalize(&self) -> Outcome<()> {
        let mut initialised = self.initialised.lock().map_err(|_| Number::EIO)?;
        self.parts()?;
        *initialised -= 1;
        if *initialised == 0 {
            self.close();
        }
        Ok(())
    }

    fn close(&self) {
        self.state.store(DOWN, Ordering::Release);
        self.contexts.close_all();
        for slot in &self.slots {
            slot.is_open.store(false, Ordering::Release);
        }
        let Some(parts) = self.parts.get() else { return };
        parts.turn.announce();
        let until = parts.clock.now() + LEAVE;
        let ports: Vec<_> = self.slots.iter().filter_map(|slot| slot.port.lock().ok()?.take()).collect();
        for mut port in ports {
            let allocations = leave(&mut port, parts.clock, until);
            locked(&self.orphans).take_over(allocations);
        }
    }

    /// Returns whether unexpected messages count addresses up.
    pub(crate) fn counts(&self) -> bool {
        self.counts.load(Ordering::Relaxed)
    }

    /// Returns the transports that are open.
    pub(crate) fn open_ports(&self) -> impl Iterator<Item = usize> {
        let is_open = |index: &usize| self.slots[*index].is_open.load(Ordering::Acquire);
        (0..SCHEMES.len()).filter(is_open)
    }

    /// Calls `act` with a transport.
    ///
    /// # Errors
    /// `ENETDOWN` if it is not open, `EIO` after a panic.
    #[inline]
    pub(crate) fn with<R>(&self, index: usize, act: impl FnOnce(&mut Port) -> Outcome<R>) -> Outcome<R> {
        let slot = self.slots.get(index).ok_or(Number::EINVAL)?;
        let mut port = slot.port.lock().map_err(|_| Number::EIO)?;
        act(port.as_mut().ok_or(Number::ENETDOWN)?)
    }

    /// Calls `act` with the addresses of the transport of an address.
    pub(crate) fn with_address<R>(&self, id: i64, act: impl FnOnce(&mut Addresses, Key) -> Outcome<R>) -> Outcome<R> {
        let (index, key) = Key::of_id(id).ok_or(Number::EINVAL)?;
        self.with(index, |port| act(&mut port.addresses, key))
    }

    /// Returns the number of an address. Opens its transport if that is not open.
    pub(crate) fn look_up(&self, text: CString) -> Outcome<i64> {
        let addrs: Vec<Addr> = address::parse(text.to_str().map_err(|_| Number::EINVAL)?).flatten().collect();
        if addrs.is_empty() {
            return Err(Number::EINVAL);
        }
        let of = |index: usize| addrs.iter().find(|addr| addr.scheme() == SCHEMES[index]);
        let is_open = |index: usize| self.slots[index].is_open.load(Ordering::Acquire);
        let open = (0..SCHEMES.len()).filter(|index| is_open(*index));
        let others = (0..SCHEMES.len()).filter(|index| !is_open(*index));
        let mut failed = Number::ENOPROTOOPT;
        for index in open.chain(others).collect::<Vec<_>>() {
            let Some(addr) = of(index) else { continue };
            let added = self.open(index, addr).and_then(|()| {
                self.with(index, |port| {
                    let addresses = &mut port.addresses;
                    let known = addresses.of_text(&text);
                    Ok(known.unwrap_or_else(|| addresses.add(text.clone(), addr.clone())))
                })
            });
            match added {
                Ok(key) => return Ok(key.to_id(index)),
                Err(number) => failed = number,
            }
        }
        Err(failed)
    }

    /// Waits until `look` has found something, for `idle_ms` at most, or until the library ends.
    pub(crate) fn wait(&self, idle_ms: c_int, look: impl FnMut() -> Outcome<bool>) -> Outcome<()> {
        let idle_ms = u32::try_from(idle_ms).map_err(|_| Number::EINVAL)?;
        let Parts { turn, clock } = self.parts()?;
        turn.wait(*clock, idle_ms, look, |until| self.arm(turn, until))
    }

    /// Gets all transports ready for a sleep. Returns their descriptors, and when to wake. `None`
    /// if there is something to do.
    fn arm(&self, turn: &Turn, until: Time) -> Option<(Vec<libc::pollfd>, Time)> {
        let mut fds = Vec::with_capacity(SCHEMES.len() + 1);
        let mut wake_at = until;
        for index in self.open_ports() {
            let armed = self.with(index, |port| Ok(port.arm(&turn.waker, until)));
            let (fd, at) = armed.ok()??;
            fds.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            wake_at = wake_at.min(at);
        }
        Some((fds, wake_at))
    }
}

/// Ends the connections of a transport, after what was posted has left. A peer loses messages that
/// its program has not taken when the connection ends. So a peer that has not answered the last
/// message may leave first, for a while. Returns the memory of the program.
fn leave(port: &mut Port, clock: MonotonicClock, until: Time) -> Allocations {
    let linger = (clock.now() + LINGER).min(until);
    while port.addresses.await_one()
        && let Ok(event) = port.engine.wait_until(&clock, linger, |engine| engine.poll_event())
    {
        if let PeerEvent::Lost { peer, .. } = event {
            port.addresses.lose(peer);
        }
    }
    let peers = port.addresses.peers();
    let ending: Vec<_> =
        peers.into_iter().filter_map(|peer| port.engine.disconnect(peer, Options::by(until)).ok()).collect();
    for op in ending {
        // The connection may be gone already.
        let _ = port.engine.wait(op, &clock, until);
    }
    std::mem::take(&mut port.allocations)
}

/// Notes in a child that its parent had initialised the library.
extern "C" fn after_fork() {
    if LIBRARY.state.load(Ordering::Acquire) == UP {
        LIBRARY.state.store(FORKED, Ordering::Release);
    }
}

/// Returns what a lock has, also after a panic of another thread.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
