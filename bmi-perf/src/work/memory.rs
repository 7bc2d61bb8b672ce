//! The baseline of shared memory: what two processors of this host can do without any library.
//!
//! **Latency.** Two threads hand a buffer over: one copies a message into it and sets a flag in a
//! cache line of its own, the other one sees the flag and copies the message out, and back. This is
//! the least that a transport over shared memory which copies can take. For a write that the peer
//! sees, the message is copied once: nobody copies it out.
//!
//! **Bandwidth.** `memcpy` from one set of buffers into another one, by one processor. Where the
//! library writes a message before it sends it, so does this.
//!
//! It runs on the client alone: the server has nothing to do. The second thread may use all
//! processors but the first one's, also if the client keeps to one.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Builder;

use bmi::{Error, Memory};

use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

use super::produce::produce;
use crate::case::{Case, Test};
use crate::measured::{Measured, Stopwatch};
use crate::stop::Stop;

/// A flag in cache lines of its own: processors fetch pairs of lines of 64 bytes.
#[repr(align(128))]
struct Flag(AtomicU64);

/// Runs a case.
pub(super) fn measure(case: &Case, count: u64, stop: &Stop) -> Result<Measured, Error> {
    match case.test {
        Test::Latency | Test::WriteSeen => hand_over(case, count, stop),
        _ => copies(case, count, stop),
    }
}

fn hand_over(case: &Case, count: u64, stop: &Stop) -> Result<Measured, Error> {
    let (there, back) = (Memory::zeroed(case.len())?, Memory::zeroed(case.len())?);
    let (went, came) = (Flag(AtomicU64::new(0)), Flag(AtomicU64::new(0)));
    // Waits for a flag. Looks at the stop only now and then.
    let await_flag = |flag: &Flag, value: u64| -> Result<(), Error> {
        loop {
            for _ in 0..10_000 {
                if flag.0.load(Ordering::Acquire) >= value {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            if stop.is_set() {
                return Err(stop.error());
            }
        }
    };
    let copies_out = case.test == Test::Latency;
    let here = sched_getcpu();
    // The other thread begins on this thread's processor, and cannot leave it while this one spins:
    // at real-time priority that takes the whole time slice of 100 ms.
    let ready = Barrier::new(2);
    std::thread::scope(|scope| {
        let other = Builder::new().name("hand-over".to_owned()).spawn_scoped(scope, || {
            leave(here);
            let mut own = vec![1; case.len()];
            ready.wait();
            for number in 1..=count {
                await_flag(&went, number)?;
                if copies_out {
                    there.copy_to(0, &mut own);
                }
                back.copy_from(0, &own);
                came.0.store(number, Ordering::Release);
            }
            Ok::<_, Error>(())
        })?;
        let mut own = vec![1; case.len()];
        let mut measured = Measured::of_each();
        ready.wait();
        let watch = Stopwatch::start();
        let mut last = watch.begin;
        for number in 1..=count {
            there.copy_from(0, &own);
            went.0.store(number, Ordering::Release);
            await_flag(&came, number)?;
            if copies_out {
                back.copy_to(0, &mut own);
            }
            last = measured.lap(last);
        }
        let measured = measured.ended(watch, count);
        other.join().map_err(|_| Error::new(bmi::ErrorKind::Io, "the other thread failed"))??;
        Ok(measured)
    })
}

/// Lets this thread use all processors but one. If there is no other one, it stays.
fn leave(processor: usize) {
    const MOST: usize = 1024;
    let mut set = CpuSet::new();
    (0..MOST).filter(|other| *other != processor).for_each(|other| set.set(other));
    // The kernel refuses if none of them exists.
    let _ = sched_setaffinity(None, &set);
}

fn copies(case: &Case, count: u64, stop: &Stop) -> Result<Measured, Error> {
    let from = Memory::zeroed(case.len() * case.buffers())?;
    let to = Memory::zeroed(from.len())?;
    for memory in [&from, &to] {
        memory.copy_from(0, &vec![1; from.len()]);
    }
    let writes = case.test != Test::ReadBandwidth;
    let messages: Vec<_> = (0..case.buffers()).map(|turn| from.slice(turn * case.len(), case.len())).collect();
    let watch = Stopwatch::start();
    for number in 0..count {
        let turn = (number % messages.len() as u64) as usize;
        let (message, at) = (&messages[turn], turn * case.len());
        if writes {
            produce(case.station.over, message);
        }
        to.slice(at, case.len()).copy_from_slice_of(message);
        if number % 1024 == 0 && stop.is_set() {
            return Err(stop.error());
        }
    }
    Ok(Measured::in_all().ended(watch, count))
}
