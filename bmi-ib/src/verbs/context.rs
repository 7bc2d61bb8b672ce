//! Devices, their ports and addresses, and their asynchronous events.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Unavailable, check_destroyed, library, loaded, sys};

/// `IBV_QPF_GRH_REQUIRED` of the header, an anonymous constant.
const GRH_REQUIRED: u32 = 1;

struct DeviceList {
    list: NonNull<*mut sys::ibv_device>,
    len: usize,
}

impl DeviceList {
    fn new() -> Result<DeviceList, Unavailable> {
        let library = library()?;
        let mut len = 0;
        // SAFETY: `len` is a valid place for the count.
        let list = NonNull::new(unsafe { (library.ibv_get_device_list)(&mut len) });
        // Without uverbs in the kernel the call fails with ENOSYS: there is no device.
        let list = list.ok_or_else(|| match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENOSYS) => {
                Unavailable::Device("the kernel has no RDMA (module ib_uverbs)".to_owned())
            }
            error => Unavailable::Device(error.to_string()),
        })?;
        let list = DeviceList { list, len: usize::try_from(len).unwrap_or(0) };
        if list.len == 0 {
            return Err(Unavailable::Device("the system knows none".to_owned()));
        }
        Ok(list)
    }

    fn iter(&self) -> impl Iterator<Item = *mut sys::ibv_device> {
        // SAFETY: the library returned that many entries, which live until `drop`.
        (0..self.len).map(|at| unsafe { *self.list.as_ptr().add(at) })
    }

    fn names(&self) -> impl Iterator<Item = String> {
        self.iter().map(|device| {
            // SAFETY: the device belongs to this list, and its name is a C string.
            unsafe { CStr::from_ptr((loaded().ibv_get_device_name)(device)) }.to_string_lossy().into_owned()
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: returned by the library, and freed once.
        unsafe { (loaded().ibv_free_device_list)(self.list.as_ptr()) }
    }
}

/// The limits of a device that this backend uses.
#[derive(Clone, Copy, Debug)]
pub struct DeviceLimits {
    /// Most work requests of a queue.
    pub queue: usize,
    /// Most entries of a completion queue.
    pub completions: usize,
    /// Most scatter/gather entries of a work request.
    pub segments: usize,
    /// Most reads that a queue pair answers at a time.
    pub reads_answered: u8,
    /// Most reads that a queue pair may have outstanding.
    pub reads_begun: u8,
}

/// The state of a port when it was queried.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// Set if it can carry traffic.
    pub active: bool,
    /// Its active MTU in the numbering of verbs: from 1 for 256 bytes to 5 for 4096.
    pub mtu: u8,
    /// Its LID on InfiniBand.
    pub lid: u16,
    /// Longest message, in bytes.
    pub max_message: u32,
    /// Set for Ethernet, that is RoCE; otherwise it is InfiniBand.
    pub ethernet: bool,
    /// Set if a global route header is needed even within the subnet.
    pub needs_grh: bool,
}

/// An entry of a port's table of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its bytes.
    pub raw: [u8; 16],
    /// Its index in the table.
    pub index: u8,
    /// Set for RoCE version 2.
    pub roce_v2: bool,
}

impl Gid {
    /// Returns the IP address that it represents, on RoCE.
    pub fn ip(&self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.raw);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }
}

/// An asynchronous event of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// A port went down.
    PortDown(u8),
    /// A port came up.
    PortUp(u8),
    /// A port's addresses changed.
    Addresses(u8),
    /// The device is gone or unusable.
    Fatal,
    /// A queue pair failed.
    QueuePair {
        /// Its number.
        number: u32,
        /// Set if it failed because the peer's access was refused.
        access: bool,
    },
    /// A completion queue overran: all completions in it are lost.
    Overrun,
    /// An event that does not concern this backend.
    Other,
}

/// An open device.
#[derive(Debug)]
pub struct Context {
    raw: NonNull<sys::ibv_context>,
    name: String,
}

// SAFETY: verbs may be called from any thread; the library locks where it must.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device of this name, or the first one.
    ///
    /// # Errors
    /// There is no library or no such device, or the device cannot be opened. The text says what is
    /// missing.
    pub fn open(name: Option<&str>) -> Result<Arc<Context>, Unavailable> {
        let list = DeviceList::new()?;
        let known: Vec<String> = list.names().collect();
        let at = match name {
            None => 0,
            Some(name) => known.iter().position(|known| known == name).ok_or_else(|| {
                Unavailable::Device(format!("none is called {name}; this host has {}", known.join(", ")))
            })?,
        };
        let device = list.iter().nth(at).expect("as many names as devices");
        // SAFETY: the device belongs to a list that still exists.
        let raw = NonNull::new(unsafe { (loaded().ibv_open_device)(device) });
        let name = known[at].clone();
        let raw = raw
            .ok_or_else(|| Unavailable::Device(format!("{name} cannot be opened ({})", io::Error::last_os_error())))?;
        let context = Context { raw, name };
        set_nonblocking(context.async_fd()).map_err(|error| Unavailable::Device(error.to_string()))?;
        Ok(Arc::new(context))
    }

    /// Returns the device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_context {
        self.raw.as_ptr()
    }

    /// Returns the descriptor that becomes readable when [`Context::next_async`] has an event.
    pub fn async_fd(&self) -> RawFd {
        // SAFETY: the context is open.
        unsafe { self.raw.as_ref() }.async_fd
    }

    /// Queries the device's limits.
    ///
    /// # Errors
    /// The driver's error.
    pub fn limits(&self) -> io::Result<DeviceLimits> {
        let mut attr = MaybeUninit::<sys::ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and `attr` has room for the answer.
        check(unsafe { (loaded().ibv_query_device)(self.raw(), attr.as_mut_ptr()) })?;
        // SAFETY: all fields are integers, zeroed and then filled.
        let attr = unsafe { attr.assume_init() };
        let small = |value: i32| u8::try_from(value.max(0)).unwrap_or(u8::MAX);
        let count = |value: i32| usize::try_from(value).unwrap_or(0);
        Ok(DeviceLimits {
            queue: count(attr.max_qp_wr),
            completions: count(attr.max_cqe),
            segments: count(attr.max_sge),
            reads_answered: small(attr.max_qp_rd_atom),
            reads_begun: small(attr.max_qp_init_rd_atom),
        })
    }

    /// Queries how many ports the device has.
    ///
    /// # Errors
    /// The driver's error.
    pub fn ports(&self) -> io::Result<u8> {
        let mut attr = MaybeUninit::<sys::ibv_device_attr>::zeroed();
        // SAFETY: as in `limits`.
        check(unsafe { (loaded().ibv_query_device)(self.raw(), attr.as_mut_ptr()) })?;
        // SAFETY: as in `limits`.
        Ok(unsafe { attr.assume_init() }.phys_port_cnt)
    }

    /// Queries the state of a port.
    ///
    /// # Errors
    /// The driver's error; there may be no such port.
    pub fn port(&self, number: u8) -> io::Result<Port> {
        let mut attr = MaybeUninit::<sys::ibv_port_attr>::zeroed();
        // SAFETY: the context is open. The call fills the older, shorter structure, which begins
        // like this one. The rest stays zero.
        check(unsafe { (loaded().ibv_query_port)(self.raw(), number, attr.as_mut_ptr().cast()) })?;
        // SAFETY: all fields are integers, zeroed and then filled.
        let attr = unsafe { attr.assume_init() };
        Ok(Port {
            active: attr.state == sys::IBV_PORT_ACTIVE,
            mtu: attr.active_mtu.clamp(1, 5) as u8,
            lid: attr.lid,
            max_message: attr.max_msg_sz,
            ethernet: u32::from(attr.link_layer) == sys::IBV_LINK_LAYER_ETHERNET,
            needs_grh: u32::from(attr.flags) & GRH_REQUIRED != 0,
        })
    }

    /// Returns the addresses of a port.
    ///
    /// # Errors
    /// The driver's error.
    pub fn gids(&self, port: u8) -> io::Result<Vec<Gid>> {
        const MOST: usize = 1024;
        // SAFETY: all fields are integers.
        let mut entries = vec![unsafe { MaybeUninit::<sys::ibv_gid_entry>::zeroed().assume_init() }; MOST];
        let size = size_of::<sys::ibv_gid_entry>();
        // SAFETY: the context is open, and there is room for `MOST` entries of `size` bytes.
        let count = unsafe { (loaded()._ibv_query_gid_table)(self.raw(), entries.as_mut_ptr(), MOST, 0, size) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        let ours = entries.into_iter().take(count).filter(|entry| entry.port_num == u32::from(port));
        Ok(ours
            .filter_map(|entry| {
                let index = u8::try_from(entry.gid_index).ok()?;
                // SAFETY: every byte pattern is an address.
                let raw = unsafe { entry.gid.raw };
                Some(Gid { raw, index, roce_v2: entry.gid_type == sys::IBV_GID_TYPE_ROCE_V2 })
            })
            .collect())
    }

    /// Returns the next event of the device, or `None` if there is none now.
    pub fn next_async(&self) -> Option<AsyncEvent> {
        let mut event = MaybeUninit::<sys::ibv_async_event>::zeroed();
        // SAFETY: the context is open and its descriptor does not block.
        if unsafe { (loaded().ibv_get_async_event)(self.raw(), event.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: filled by the call.
        let mut event = unsafe { event.assume_init() };
        let meaning = meaning_of(&event);
        // SAFETY: taken above, and acknowledged once.
        unsafe { (loaded().ibv_ack_async_event)(&mut event) };
        Some(meaning)
    }
}

fn meaning_of(event: &sys::ibv_async_event) -> AsyncEvent {
    // SAFETY: events of ports carry a port.
    let port = || u8::try_from(unsafe { event.element.port_num }).unwrap_or(0);
    // SAFETY: events of queue pairs carry one. It is not destroyed before its events are
    // acknowledged.
    let number = || unsafe { (*event.element.qp).qp_num };
    match event.event_type {
        sys::IBV_EVENT_PORT_ERR => AsyncEvent::PortDown(port()),
        sys::IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortUp(port()),
        sys::IBV_EVENT_GID_CHANGE | sys::IBV_EVENT_LID_CHANGE => AsyncEvent::Addresses(port()),
        sys::IBV_EVENT_DEVICE_FATAL => AsyncEvent::Fatal,
        sys::IBV_EVENT_QP_FATAL | sys::IBV_EVENT_QP_REQ_ERR => {
            AsyncEvent::QueuePair { number: number(), access: false }
        }
        sys::IBV_EVENT_QP_ACCESS_ERR => AsyncEvent::QueuePair { number: number(), access: true },
        sys::IBV_EVENT_CQ_ERR => AsyncEvent::Overrun,
        _ => AsyncEvent::Other,
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened here, and closed once, after everything that was made from it.
        check_destroyed("device", unsafe { (loaded().ibv_close_device)(self.raw()) });
    }
}

impl AsRawFd for Context {
    fn as_raw_fd(&self) -> RawFd {
        self.async_fd()
    }
}

/// Converts the result of a verb, which is an error number, or -1 with `errno` set.
pub(super) fn check(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        errno => Err(io::Error::from_raw_os_error(errno.abs())),
    }
}

pub(super) fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: plain system calls on a descriptor that the caller owns.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
