//! A program in C: the functions of the shared library `libbmi`, on both sides.
//!
//! **One library for each station.** A process has one state of `libbmi`, whose tests poll all
//! transports that it has opened. So each station loads a copy of the file, which has a state of
//! its own. The file is where cargo leaves it when it builds this program, or else the installed
//! `libbmi.so.0`, which serves one station.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::TcpListener;
use std::path::Path;
use std::ptr::{NonNull, null, null_mut, without_provenance_mut};

use bmi::{Addr, Error, ErrorKind, MemSlice, Memory, Scheme, Time};
use libloading::Library;

use super::{DESCRIPTION, Ended, Opened, Port, produce};
use crate::case::Case;
use crate::work::adapter;

/// Operations that a test tells of at most.
const MOST: usize = 64;
/// Sends after which it is tested, as a polled endpoint is polled.
const SENDS: u32 = 32;

/// Constants of `bmi.h`.
const INIT_SERVER: c_int = 1;
const PRE_ALLOC: c_int = 1;
const OP_SEND: c_int = 1;
const OP_RECV: c_int = 2;

/// The tag of all messages.
const TAG: i32 = 1;

/// What a post passes as `user_ptr`.
const RECEIVE: usize = 0;
const SEND: usize = 1;
const COUNTED_SEND: usize = 2;

/// `struct BMI_unexpected_info`.
#[repr(C)]
struct Unexpected {
    error: c_int,
    addr: i64,
    buffer: *mut c_void,
    size: i64,
    tag: i32,
}

/// Declares the functions of the library, and finds them.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {
        #[expect(non_snake_case, reason = "the names of C")]
        struct Functions { $($name: unsafe extern "C" fn($($argument),*) -> $result,)* }

        impl Functions {
            /// # Safety
            /// The library is `libbmi`, and outlives the functions.
            unsafe fn of(library: &Library) -> Result<Functions, libloading::Error> {
                // SAFETY: the types are those of `bmi.h`. The caller vouches for the rest.
                unsafe { Ok(Functions { $($name: *library.get(concat!(stringify!($name), "\0").as_bytes())?,)* }) }
            }
        }
    };
}

functions! {
    BMI_initialize(*const c_char, *const c_char, c_int, *mut c_char) -> c_int;
    BMI_finalize() -> c_int;
    BMI_open_context(*mut i64) -> c_int;
    BMI_addr_lookup(*mut i64, *const c_char, *mut c_char) -> c_int;
    BMI_memalloc(i64, i64, c_int) -> *mut c_void;
    BMI_post_sendunexpected(*mut i64, i64, *const c_void, i64, c_int, i32, *mut c_void, i64, *mut c_void) -> c_int;
    BMI_post_send(*mut i64, i64, *const c_void, i64, c_int, i32, *mut c_void, i64, *mut c_void) -> c_int;
    BMI_post_recv(*mut i64, i64, *mut c_void, i64, *mut i64, c_int, i32, *mut c_void, i64, *mut c_void) -> c_int;
    BMI_testcontext(c_int, *mut i64, *mut c_int, *mut c_int, *mut i64, *mut usize, c_int, i64) -> c_int;
    BMI_testunexpected(c_int, *mut c_int, *mut Unexpected, c_int) -> c_int;
    BMI_unexpected_free(i64, *mut c_void) -> c_int;
    bmi_status_string(c_int) -> *const c_char;
}

pub(super) struct C {
    functions: Functions,
    context: i64,
    /// 0 before there is one.
    peer: i64,
    ended: Ended,
    /// Sends that have not ended.
    sending: u64,
    /// Sends since the last test.
    unpolled: u32,
    /// What a test tells.
    ids: [i64; MOST],
    errors: [c_int; MOST],
    users: [usize; MOST],
    outgoing: Memory,
    incoming: Memory,
    // The functions are valid while it lives.
    _library: Library,
}

impl C {
    /// Initialises a library of its own. `at` is where the server listens.
    fn new(with: &Opened, at: &Addr, is_server: bool) -> Result<C, Error> {
        if with.settings.streams.is_some() {
            return Err(Error::new(ErrorKind::Unsupported, "libbmi has no option for streams: leave out --streams"));
        }
        let device = adapter::options(&with.settings)?.ib.device;
        let at = match with.scheme {
            Scheme::Ib if device.is_some() => Addr::ib(device, at.host(), at.port()),
            _ => at.clone(),
        };
        let text = |text: String| CString::new(text).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()));
        let (method, at) = (text(format!("bmi_{}", with.scheme))?, text(at.to_string())?);
        let library = load()?;
        // SAFETY: the library has just been loaded, and is stored beside the functions.
        let functions = unsafe { Functions::of(&library) }.map_err(not_loaded)?;
        let (methods, listen, flags) =
            if is_server { (method.as_ptr(), at.as_ptr(), INIT_SERVER) } else { (null(), null(), 0) };
        // SAFETY: the texts live during the call.
        let begun = unsafe { (functions.BMI_initialize)(methods, listen, flags, null_mut()) };
        functions.check(begun)?;
        let mut port = C {
            functions,
            context: 0,
            peer: 0,
            ended: Ended::default(),
            sending: 0,
            unpolled: 0,
            ids: [0; MOST],
            errors: [0; MOST],
            users: [0; MOST],
            outgoing: Memory::zeroed(0)?,
            incoming: Memory::zeroed(0)?,
            _library: library,
        };
        let mut addr = 0;
        // SAFETY: the variables and the text live during the calls.
        let (opened, found) = unsafe {
            let opened = (port.functions.BMI_open_context)(&raw mut port.context);
            (opened, (port.functions.BMI_addr_lookup)(&raw mut addr, at.as_ptr(), null_mut()))
        };
        port.functions.check(opened.min(found))?;
        port.outgoing = port.allocate(addr, with.room, OP_SEND)?;
        port.incoming = port.allocate(addr, with.room, OP_RECV)?;
        port.peer = if is_server { 0 } else { addr };
        Ok(port)
    }

    fn allocate(&self, addr: i64, len: usize, op: c_int) -> Result<Memory, Error> {
        // SAFETY: a call without pointers.
        let ptr = unsafe { (self.functions.BMI_memalloc)(addr, len as i64, op) };
        let ptr = NonNull::new(ptr.cast()).ok_or_else(|| Error::new(ErrorKind::Exhausted, "BMI_memalloc"))?;
        // SAFETY: the library keeps these bytes as long as it is loaded, and nobody frees them.
        let memory = unsafe { Memory::from_raw_parts(ptr, len, Box::new(())) };
        memory.copy_from(0, &vec![1; len]);
        Ok(memory)
    }

    /// Notes a post or an end that a test tells of.
    #[inline]
    fn has_ended(&mut self, user: usize) {
        if user == RECEIVE {
            self.ended.receives += 1;
        } else {
            self.sending -= 1;
            self.ended.others += u64::from(user == COUNTED_SEND);
        }
    }

    /// Posts a send, or an unexpected one.
    #[inline]
    fn post(&mut self, is_unexpected: bool, from: &MemSlice, user: usize) -> Result<bool, Error> {
        if self.unpolled == SENDS {
            return Ok(false);
        }
        (self.sending, self.unpolled) = (self.sending + 1, self.unpolled + 1);
        let Functions { BMI_post_send, BMI_post_sendunexpected, .. } = self.functions;
        let post = if is_unexpected { BMI_post_sendunexpected } else { BMI_post_send };
        let (mut id, bytes, user_ptr) = (0, from.as_ptr().cast(), without_provenance_mut(user));
        let (to, len, context) = (self.peer, from.len() as i64, self.context);
        // SAFETY: the memory lives as long as the port. A case leaves a place alone meanwhile, or
        // does not look at its bytes.
        let posted = unsafe { post(&raw mut id, to, bytes, len, PRE_ALLOC, TAG, user_ptr, context, null_mut()) };
        if self.functions.check(posted)? == 1 {
            self.has_ended(user);
        }
        Ok(true)
    }

    fn post_two(&mut self) -> Result<(), Error> {
        let place = self.place(false, 0, DESCRIPTION);
        (0..2).try_for_each(|_| self.post_recv(Some(&place)))
    }

    /// Takes the message of a client that has connected.
    fn meet(&mut self) -> Result<bool, Error> {
        let mut info = Unexpected { error: 0, addr: 0, buffer: null_mut(), size: 0, tag: 0 };
        let mut count = 0;
        // SAFETY: the variables live during the calls. The buffer is the library's.
        unsafe {
            self.functions.check((self.functions.BMI_testunexpected)(1, &raw mut count, &raw mut info, 0))?;
            if count == 1 {
                self.functions.check((self.functions.BMI_unexpected_free)(info.addr, info.buffer))?;
                self.peer = info.addr;
                self.post_two()?;
            }
        }
        Ok(count == 1)
    }
}

impl Functions {
    #[inline]
    fn check(&self, result: c_int) -> Result<c_int, Error> {
        if result >= 0 {
            return Ok(result);
        }
        // SAFETY: the texts of the library are constants.
        let name = unsafe { CStr::from_ptr((self.bmi_status_string)(result)) };
        Err(Error::new(ErrorKind::Invalid, format!("libbmi: {}", name.to_string_lossy())))
    }
}

impl Drop for C {
    fn drop(&mut self) {
        // SAFETY: a call without pointers. What it cannot end, ends with the process.
        unsafe { (self.functions.BMI_finalize)() };
    }
}

impl Port for C {
    type Place = MemSlice;
    const COPIED: usize = 0;

    fn connect(with: Opened, to: &Addr, _until: Time) -> Result<C, Error> {
        let mut port = C::new(&with, to, false)?;
        port.post_two()?;
        port.post(true, &port.place(true, 0, 1), SEND)?;
        Ok(port)
    }

    fn listen(with: Opened, at: &Addr, listening: &dyn Fn(Addr)) -> Result<C, Error> {
        // The functions do not tell a port that the system has chosen.
        let at = match with.scheme {
            Scheme::Shm => at.clone(),
            _ => at.with_port(TcpListener::bind((at.host(), 0)).and_then(|free| free.local_addr())?.port()),
        };
        let port = C::new(&with, &at, true)?;
        listening(at);
        Ok(port)
    }

    fn is_connected(&self) -> bool {
        self.peer != 0
    }

    #[inline]
    fn poll(&mut self, _now: Time) -> Result<bool, Error> {
        if self.peer == 0 {
            return self.meet();
        }
        self.unpolled = 0;
        let (mut count, test, most, context) = (0, self.functions.BMI_testcontext, MOST as c_int, self.context);
        let (ids, errors, users) = (self.ids.as_mut_ptr(), self.errors.as_mut_ptr(), self.users.as_mut_ptr());
        // SAFETY: the arrays have `MOST` elements and live during the call.
        let told = unsafe { test(most, ids, &raw mut count, errors, null_mut(), users, 0, context) };
        self.functions.check(told)?;
        for at in 0..count as usize {
            self.functions.check(self.errors[at])?;
            self.has_ended(self.users[at]);
        }
        Ok(count > 0)
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
        let (mut id, mut size) = (0, 0);
        let (bytes, len) = into.map_or((self.incoming.as_ptr(), 0), |into| (into.as_ptr(), into.len() as i64));
        let (post, from, user) = (self.functions.BMI_post_recv, self.peer, without_provenance_mut(RECEIVE));
        let (id, size, bytes) = (&raw mut id, &raw mut size, bytes.cast());
        // SAFETY: as in `post`.
        let posted = unsafe { post(id, from, bytes, len, size, PRE_ALLOC, TAG, user, self.context, null_mut()) };
        if self.functions.check(posted)? == 1 {
            self.has_ended(RECEIVE);
        }
        Ok(())
    }

    fn tell(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        self.outgoing.copy_from(0, bytes);
        self.post(false, &self.place(true, 0, bytes.len()), SEND)
    }

    #[inline]
    fn send(&mut self, from: &MemSlice, counts: bool) -> Result<bool, Error> {
        self.post(false, from, if counts { COUNTED_SEND } else { SEND })
    }

    fn write(&mut self, _: &MemSlice, _: u64, _: Option<u32>, _: bool) -> Result<bool, Error> {
        Err(no_rdma())
    }

    fn read(&mut self, _: &MemSlice, _: u64) -> Result<bool, Error> {
        Err(no_rdma())
    }

    fn expose(&mut self) -> Result<[u8; DESCRIPTION], Error> {
        Ok([0; DESCRIPTION])
    }

    fn set_remote(&mut self, _: bmi::bulk::RemoteSlice) -> Result<(), Error> {
        Ok(())
    }
}

fn no_rdma() -> Error {
    Error::new(ErrorKind::Unsupported, "BMI has no RDMA reads and writes")
}

/// Loads a copy of the library.
fn load() -> Result<Library, Error> {
    // SAFETY: `libbmi` has no constructors but those of Rust's library.
    let load = |path: &Path| unsafe { Library::new(path) }.map_err(not_loaded);
    let built = std::env::current_exe()?.with_file_name("deps/libbmi_c.so");
    if !built.exists() {
        return load(Path::new("libbmi.so.0"));
    }
    let copy = tempfile::NamedTempFile::new()?;
    std::fs::copy(built, copy.path())?;
    load(copy.path())
}

fn not_loaded(error: libloading::Error) -> Error {
    Error::new(ErrorKind::Unsupported, format!("no libbmi, which `cargo build --release -p bmi-c` builds: {error}"))
}
