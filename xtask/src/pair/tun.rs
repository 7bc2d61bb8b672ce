//! TUN devices: a file whose reads and writes are the packets of a network device.
//!
//! **Source.** The kernel's `Documentation/networking/tuntap.rst` and
//! `include/uapi/linux/if_tun.h`.
//!
//! This is the only module of `pair` with `unsafe`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;
use rustix::ioctl::{Updater, ioctl};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// `_IOW('T', 202, int)`: makes the file a device. The kernel reads and writes a whole `ifreq`.
const TUNSETIFF: rustix::ioctl::Opcode = 0x4004_54ca;
/// IP packets, without headers of Ethernet.
const IFF_TUN: i16 = 0x0001;
/// Nothing before the packet.
const IFF_NO_PI: i16 = 0x1000;

/// `struct ifreq`, with the fields that TUNSETIFF uses. It has 40 bytes on a 64-bit machine, and
/// the kernel copies no more than that on any other.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<Request>() == 40);

/// Makes a TUN device in this thread's network namespace. It exists until the file is closed.
pub(super) fn open(name: &str) -> io::Result<File> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).write(true).custom_flags(nonblocking).open("/dev/net/tun")?;
    let mut request = Request { name: [0; 16], flags: IFF_TUN | IFF_NO_PI, rest: [0; 22] };
    // The last byte stays 0.
    for (to, from) in request.name[..15].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: TUNSETIFF takes a pointer to an `ifreq`, which it reads and writes during the call.
    // `Request` is as large as that, all of its bytes may have any value, and it is borrowed
    // exclusively for the call.
    unsafe { ioctl(&file, Updater::<TUNSETIFF, Request>::new(&mut request)) }?;
    Ok(file)
}

/// Moves this thread to new namespaces without names, or for [`UnshareFlags::NEWPID`] its children.
pub(super) fn leave(namespaces: UnshareFlags) -> io::Result<()> {
    // SAFETY: only `UnshareFlags::FILES` is unsafe, and it is not among the flags.
    unsafe { unshare_unsafe(namespaces - UnshareFlags::FILES) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The opcode, as `if_tun.h` writes it.
    #[test]
    fn the_opcode_is_that_of_the_header() {
        assert_eq!(TUNSETIFF, rustix::ioctl::opcode::write::<std::ffi::c_int>(b'T', 202));
    }
}
