//! Streams over shared memory: packets on the Unix socket, descriptors, and words in the area that
//! the server maps.
//!
//! **Source.** The layouts are those of `life/packet.rs`, `shared` and `records/layout.rs` in
//! `bmi-shm/src`, written here once more: an attacker does not use the library. It never maps its
//! area, but writes to it as to a file. So the order in which the server sees two words is not
//! certain, which is all the better.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use bmi_report::stats::Random;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{RecvFlags, SendFlags};
use testbed::process::sleep;

use super::{ANSWER_LIMIT, random_bytes};
use crate::hostile::recording;
use crate::hostile::spec::{Kind, Part, Stream};

/// Bytes of a hello without its private data.
const HELLO: usize = 48;
/// The offsets of the two numbers that determine the layout of an area, in a hello.
const RING_LEN: usize = 16;
const EXPOSURES: usize = 24;
/// The word of an area that says that its owner has ended the connection.
const GONE: u64 = 448;
/// The end of the words before the table of exposures.
const TABLE: u64 = 512;
/// Bytes of a line of a ring.
const LINE: u64 = 64;
/// Kinds of records and of packets.
const FIRST: u64 = 2;
const MORE: u64 = 4;
const PAGES: u8 = 2;
const WAKE: u8 = 5;
/// The seals that a server asks for.
const GOOD: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Sends one stream. Returns its length and its socket. The error is that nobody accepted it.
pub(super) fn send(kind: Kind, path: &str, stream: &Stream, random: &mut Random) -> io::Result<(u64, OwnedFd)> {
    let mut link = Link::dial(path)?;
    // A server may close the connection at any packet. That is the end of the stream, not an error.
    let _ = match kind {
        Kind::Garbage => garbage(&mut link, stream, random),
        Kind::Lengths => lengths(&mut link, stream, random),
        _ => replay(&mut link, stream),
    };
    Ok((link.sent, link.socket))
}

/// A connection and, once it is greeted, the area of this side.
pub(super) struct Link {
    socket: OwnedFd,
    area: Option<File>,
    ring_at: u64,
    ring_len: u64,
    /// Where the next slow record goes.
    at: u64,
    sent: u64,
}

impl Link {
    pub(super) fn dial(path: &str) -> io::Result<Link> {
        let socket = recording::connect(Path::new(path))?;
        Ok(Link { socket, area: None, ring_at: 0, ring_len: 0, at: 0, sent: 0 })
    }

    /// Greets as a real client did, and waits until the server accepts.
    pub(super) fn establish(&mut self, stream: &Stream) -> io::Result<()> {
        self.greet(stream, stream.area_len)?;
        self.await_packet(ANSWER_LIMIT)
    }

    /// Greets with an area of this length.
    fn greet(&mut self, stream: &Stream, area_len: u64) -> io::Result<()> {
        let hello = &stream.parts[0].sent;
        let word = |at: usize| hello.get(at..at + 8).and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
        self.ring_len = word(RING_LEN).unwrap_or(0);
        self.ring_at = word(EXPOSURES).unwrap_or(0).wrapping_mul(LINE).wrapping_add(TABLE + 4095) & !4095;
        let area = memfd(area_len, GOOD)?;
        self.say(hello, &[area.as_fd()])?;
        self.area = Some(area);
        Ok(())
    }

    /// Sends a packet with descriptors.
    fn say(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.sent += recording::send(&self.socket, bytes, fds, SendFlags::DONTWAIT)? as u64;
        Ok(())
    }

    /// Waits for a packet of the server. Descriptors that come with it are closed by the kernel.
    fn await_packet(&self, limit: Duration) -> io::Result<()> {
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        if poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&limit))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match rustix::net::recv(&self.socket, &mut [0; 512], RecvFlags::DONTWAIT)?.1 {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Reads what has come. Returns false if the server has closed the connection.
    pub(super) fn is_open(&self) -> bool {
        loop {
            match rustix::net::recv(&self.socket, &mut [0; 512], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return false,
                Ok(_) => {}
                Err(error) => return error == rustix::io::Errno::AGAIN,
            }
        }
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.sent += bytes.len() as u64;
        // A changed recording may lie beyond the area. The seals make such a write fail.
        self.area.as_ref().map_or(Ok(()), |area| area.write_all_at(bytes, at))
    }

    /// Writes a record at a line of the ring: its body, and then the word that shows it.
    fn record(&mut self, line: u64, word: u64, body: &[u8]) -> io::Result<()> {
        let at = self.ring_at + line * LINE % self.ring_len.max(LINE);
        self.write(at + 8, body)?;
        self.write(at, &word.to_le_bytes())
    }

    /// Wakes the server, which may sleep.
    fn wake(&mut self) -> io::Result<()> {
        self.say(&[WAKE], &[])
    }

    /// Sends one more byte of a message that is announced as a long one.
    pub(super) fn trickle(&mut self) -> io::Result<()> {
        let line = self.at;
        self.at += 1;
        let (word, body) = match line {
            0 => (FIRST << 32 | 16, [1000u64.to_le_bytes(), [1; 8]].concat()),
            _ => (MORE << 32 | 1, vec![1]),
        };
        self.record(line, word, &body)?;
        self.wake()
    }
}

fn memfd(len: u64, seals: SealFlags) -> io::Result<File> {
    let fd = rustix::fs::memfd_create("hostile", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&fd, len)?;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    Ok(File::from(fd))
}

/// Sends a stream: the hello, the area as it was at the end, and the other packets.
fn replay(link: &mut Link, stream: &Stream) -> io::Result<()> {
    link.establish(stream)?;
    let mut lines = stream.lines.iter().filter(|(at, _)| *at != GONE);
    lines.try_for_each(|(at, bytes)| link.write(*at, bytes))?;
    for Part { sent, passed, .. } in &stream.parts[1..] {
        let memory = passed.iter().map(|len| memfd(*len, GOOD)).collect::<io::Result<Vec<_>>>()?;
        let fds: Vec<_> = memory.iter().map(AsFd::as_fd).collect();
        link.say(sent, &fds)?;
    }
    link.wake()
}

/// Descriptors that no server may take, each with the length that is claimed for it.
fn wrong_descriptors(len: u64, random: &mut Random) -> io::Result<Vec<OwnedFd>> {
    Ok(match random.below(8) {
        0 => Vec::new(),
        1 => vec![File::open("/dev/zero")?.into()],
        2 => vec![File::open("/")?.into()],
        3 => vec![std::os::unix::net::UnixDatagram::unbound()?.into()],
        4 => vec![memfd(len, SealFlags::empty())?.into()],
        5 => vec![memfd(len, SealFlags::GROW)?.into()],
        6 => vec![memfd(len.saturating_sub(1), GOOD)?.into()],
        _ => (0..8).map(|_| Ok(memfd(len, GOOD)?.into())).collect::<io::Result<_>>()?,
    })
}

/// Sends random packets, wrong descriptors, or random words in the area.
fn garbage(link: &mut Link, stream: &Stream, random: &mut Random) -> io::Result<()> {
    match random.below(5) {
        0 => link.say(&random_bytes(400, random), &[]),
        1 => {
            let fds = wrong_descriptors(stream.area_len, random)?;
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            link.say(&stream.parts[0].sent, &fds)
        }
        2 => {
            link.establish(stream)?;
            let fds = wrong_descriptors(8192, random)?;
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            link.say(&[&[PAGES, 0, 0, 0, 0][..], &8192u64.to_le_bytes()].concat(), &fds)
        }
        3 => {
            link.establish(stream)?;
            for _ in 0..1 + random.below(3) {
                let mut packet = random_bytes(40, random);
                packet[0] = random.below(10) as u8;
                link.say(&packet, &[])?;
            }
            Ok(())
        }
        _ => {
            link.establish(stream)?;
            scribble(link, random)
        }
    }
}

/// Writes random words to the ring, the positions, the claims and the table.
fn scribble(link: &mut Link, random: &mut Random) -> io::Result<()> {
    for _ in 0..1 + random.below(40) {
        let word = match random.below(5) {
            0 => 0,
            1 => (random.below(10) as u64) << 32 | random.below(200) as u64,
            2 => 0xff << 32,
            3 => random.below(1 << 18) as u64,
            _ => random.number(),
        };
        if random.below(3) == 0 {
            let at = random.below(link.ring_at.max(8) as usize / 8) as u64 * 8;
            link.write(at, &word.to_le_bytes())?;
        } else {
            let body = random_bytes(56, random);
            link.record(random.below(8) as u64, word, &body)?;
        }
        if random.below(8) == 0 {
            link.wake()?;
        }
    }
    link.wake()
}

/// Sends a hello, a packet or a record with a huge length.
fn lengths(link: &mut Link, stream: &Stream, random: &mut Random) -> io::Result<()> {
    let huge = [u64::MAX, 1 << 63, 1 << 46, 1 << 32, 64 << 20][random.below(5)];
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    if random.below(4) == 0 {
        let mut stream = stream.clone();
        let at = [8, RING_LEN, EXPOSURES][random.below(3)];
        if let Some(field) = stream.parts[0].sent[..HELLO].get_mut(at..at + 8) {
            field.copy_from_slice(&huge.to_le_bytes());
        }
        return link.greet(&stream, stream.area_len);
    }
    link.establish(stream)?;
    match random.below(6) {
        0 => {
            let memory = memfd(4096, GOOD)?;
            link.say(&[&[PAGES, 0, 0, 0, 0][..], &huge.to_le_bytes()].concat(), &[memory.as_fd()])?;
        }
        1 => link.record(0, 1 << 32 | 0xffff_ffff, &[1; 56])?,
        2 => link.record(0, FIRST << 32 | 16, &words(&[huge, 1]))?,
        3 => link.record(0, 3 << 32 | 40, &words(&[random.number(), 0, huge, 0, 1]))?,
        4 => link.record(0, 6 << 32 | 32, &words(&[random.number(), huge, huge, 1]))?,
        _ => link.record(0, 9 << 32 | 40, &words(&[huge, huge, 1, huge, huge]))?,
    }
    link.wake()?;
    if random.below(16) == 0 {
        // The server gets the record in any case, also if it does not look before the next one.
        sleep(Duration::from_millis(1));
    }
    Ok(())
}
