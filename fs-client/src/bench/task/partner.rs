//! What a plain program does in the place of a phase: the partner of its row.
//!
//! | phase | partner |
//! |---|---|
//! | read, write | an exchange over a TCP connection of this host: a request and the data, one at a time |
//! | create, stat, remove | an exchange of a request and a reply, one at a time |
//! | put, get | a copy of a local file of the same length, as `cp` makes it |
//!
//! One at a time, also beside rows with several operations in flight: their aim is a multiple of
//! it. Each side of an exchange is a thread that sleeps in `recv`.

use std::fs::{self, File};
use std::io::{Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use tempfile::TempDir;

use crate::bench::job::{Job, Phase, Work};

/// About the length of a request, and of a reply that says only how it ended.
const REQUEST: usize = 40;
const REPLY: usize = 8;
/// The bytes that exchanges move, and the least and the greatest number of them.
const MOVED: usize = 64 << 20;
const EXCHANGES: (usize, usize) = (4, 4096);
/// A file system in memory.
const MEMORY: &str = "/dev/shm";

/// What a partner did.
pub(in crate::bench) struct Partner {
    /// Bytes that were moved, or exchanges that were made.
    pub(in crate::bench) amount: u64,
    /// How it is named in the report.
    pub(in crate::bench) over: &'static str,
    /// Its files. To remove them is not part of the time.
    _files: Option<TempDir>,
}

/// The work that is timed.
pub(in crate::bench) type Prepared = Box<dyn FnOnce() -> Result<Partner>>;

/// Prepares the partner of a phase, if it has one.
pub(in crate::bench) fn prepare(job: &Job, work: Work, phase: Phase) -> Result<Option<Prepared>> {
    let exchange = |out: usize, back: usize, amount: u64| -> Result<Option<Prepared>> {
        let count = (MOVED / (out + back)).clamp(EXCHANGES.0, EXCHANGES.1);
        let stream = echo(out, back, count)?;
        Ok(Some(Box::new(move || {
            exchanges(stream, out, back, count)?;
            Ok(Partner { amount: count as u64 * amount, over: "sockets", _files: None })
        })))
    };
    match (work, phase) {
        (Work::Io(io), Phase::Read) => exchange(REQUEST, io.transfer as usize, io.transfer),
        (Work::Io(io), Phase::Write) => exchange(REQUEST + io.transfer as usize, REPLY, io.transfer),
        (Work::Meta(_), Phase::Create | Phase::Stat | Phase::Remove) => exchange(REQUEST, REQUEST, 1),
        (Work::Copy(copy), Phase::Put | Phase::PutSynced | Phase::Get) => {
            let dir = job.local.as_deref().unwrap_or(MEMORY);
            let dir = tempfile::Builder::new().prefix("pvfs-bench-").tempdir_in(Path::new(dir))?;
            let (from, to) = (dir.path().join("source"), dir.path().join("copy"));
            let mut file = File::create_new(&from)?;
            std::io::copy(&mut std::io::repeat(7).take(copy.size), &mut file)?;
            let synced = phase == Phase::PutSynced;
            Ok(Some(Box::new(move || {
                let amount = fs::copy(&from, &to)?;
                if synced {
                    File::open(&to)?.sync_all()?;
                }
                Ok(Partner { amount, over: "cp", _files: Some(dir) })
            })))
        }
        _ => Ok(None),
    }
}

/// Starts the other side of `count` exchanges, and connects to it.
fn echo(out: usize, back: usize, count: usize) -> Result<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let (mut other, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    other.set_nodelay(true)?;
    thread::Builder::new().spawn(move || -> Result<()> {
        let (mut request, reply) = (vec![0; out], vec![1; back]);
        for _ in 0..count {
            other.read_exact(&mut request)?;
            other.write_all(&reply)?;
        }
        Ok(())
    })?;
    Ok(stream)
}

fn exchanges(mut stream: TcpStream, out: usize, back: usize, count: usize) -> Result<()> {
    let (request, mut reply) = (vec![1; out], vec![0; back]);
    for _ in 0..count {
        stream.write_all(&request)?;
        stream.read_exact(&mut reply)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::job::tests::job;
    use crate::bench::job::{Copying, Meta};

    #[test]
    fn each_measured_phase_but_a_listing_has_a_partner_that_moves_what_it_does() {
        let job = job();
        let meta = Work::Meta(Meta { files: 9, unique: false, depth: 0, in_flight: 64, bytes: 0 });
        let copy = Work::Copy(Copying { size: 12_345 });
        let most = EXCHANGES.1 as u64;
        for (work, phase, amount, over) in [
            (job.works[0], Phase::Read, 10 * most, "sockets"),
            (job.works[0], Phase::Write, 10 * most, "sockets"),
            (meta, Phase::Stat, most, "sockets"),
            (copy, Phase::Put, 12_345, "cp"),
            (copy, Phase::PutSynced, 12_345, "cp"),
            (copy, Phase::Get, 12_345, "cp"),
        ] {
            let done = prepare(&job, work, phase).unwrap().unwrap()().unwrap();
            assert_eq!((done.amount, done.over), (amount, over), "{phase:?}");
        }
        assert!(prepare(&job, meta, Phase::List).unwrap().is_none());
        assert!(prepare(&job, job.works[0], Phase::Fill).unwrap().is_none());
    }
}
