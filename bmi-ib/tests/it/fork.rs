//! Forking with registered memory. Needs an RDMA device; `cargo xtask rxe` has one.

use crate::support::Pair;
use bmi_core::transport::{WorkId, WorkOptions};
use bmi_core::{Access, Memory, Transport};

/// After a fork the adapter still uses the parent's pages, whichever process writes first. A read
/// brings what the parent writes then, and the parent sees what a write brings.
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn registered_pages_stay_with_the_parent() {
    const LEN: usize = 3 * 4096;
    let mut pair = Pair::new();
    let (here, there) = (Memory::zeroed(LEN).unwrap(), Memory::zeroed(LEN).unwrap());
    let own = pair.a.transport.register(&here).unwrap();
    let other = pair.b.transport.register(&there).unwrap();
    let remote = pair.b.transport.expose(pair.far, &other.segment(0, LEN), Access::READ_WRITE).unwrap();
    there.copy_from(0, &[1; LEN]);
    let (parent_wrote, told) = std::io::pipe().unwrap();
    // SAFETY: the child makes plain system calls, writes to its own copy of a page, and exits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        let mut byte = [0u8; 1];
        let (pipe, page) = (std::os::fd::AsRawFd::as_raw_fd(&parent_wrote), there.as_ptr());
        // SAFETY: the descriptor is open, the buffer is its own, and the page is the child's copy.
        // `_exit` runs none of the parent's code.
        unsafe {
            page.write_volatile(99);
            libc::read(pipe, byte.as_mut_ptr().cast(), 1);
            page.add(4096).write_volatile(99);
            libc::_exit(0);
        }
    }
    there.copy_from(0, &[2; LEN]);
    std::io::Write::write_all(&mut &told, b"x").unwrap();
    let mut status = 0;
    // SAFETY: a plain system call.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child ended in order");
    let list = [own.segment(0, LEN)];
    pair.a.transport.post_read(pair.near, WorkId(1), &list, remote, WorkOptions::SIGNALLED).unwrap();
    let event = pair.a.next_beside(&mut [&mut pair.b], "the read");
    assert!(format!("{event:?}").contains("status: Ok"), "{event:?}");
    assert!(here.to_vec() == [2; LEN], "the adapter reads other pages than the parent writes");
    here.copy_from(0, &[3; LEN]);
    pair.a.transport.post_write(pair.near, WorkId(2), &[], &list, remote.into(), WorkOptions::SIGNALLED).unwrap();
    let event = pair.a.next_beside(&mut [&mut pair.b], "the write");
    assert!(format!("{event:?}").contains("status: Ok"), "{event:?}");
    assert!(there.to_vec() == [3; LEN], "the adapter writes other pages than the parent reads");
}
