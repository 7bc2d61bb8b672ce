//! The baseline of shared memory: what two processors of this host can do without any library.
//!
//! **Latency.** Two threads hand a buffer over: one copies a message into it and sets a flag in a
//! cache line of its own, the other one sees the flag and copies the message out, and back. This is
//! the least that a transport over shared memory which copies can take.
//!
//! **Bandwidth.** `memcpy` from one set of buffers into another one, by one processor.
//!
//! It runs on the client alone: the server has nothing to do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Builder;

use bmi::{Error, Memory};

use crate::case::{Case, Test};
use crate::measured::{Measured, Stopwatch};
use crate::stop::Stop;

/// A flag in cache lines of its own: processors fetch pairs of lines of 64 bytes.
#[repr(align(128))]
struct Flag(AtomicU64);

/// Runs a case.
pub(crate) fn measure(case: &Case, count: u64, stop: &Stop) -> Result<Measured, Error> {
    match case.test {
        Test::Latency => hand_over(case, count, stop),
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
    std::thread::scope(|scope| {
        let other = Builder::new().name("hand-over".to_owned()).spawn_scoped(scope, || {
            let mut own = vec![1; case.len()];
            for number in 1..=count {
                await_flag(&went, number)?;
                there.copy_to(0, &mut own);
                back.copy_from(0, &own);
                came.0.store(number, Ordering::Release);
            }
            Ok::<_, Error>(())
        })?;
        let mut own = vec![1; case.len()];
        let mut measured = Measured::of_each(case);
        let watch = Stopwatch::start();
        let mut last = watch.begin;
        for number in 1..=count {
            there.copy_from(0, &own);
            went.0.store(number, Ordering::Release);
            await_flag(&came, number)?;
            back.copy_to(0, &mut own);
            last = measured.lap(last);
        }
        let measured = measured.ended(watch, count);
        other.join().map_err(|_| Error::new(bmi::ErrorKind::Io, "the other thread failed"))??;
        Ok(measured)
    })
}

fn copies(case: &Case, count: u64, stop: &Stop) -> Result<Measured, Error> {
    let from = vec![1; case.len() * case.buffers()];
    let to = Memory::zeroed(from.len())?;
    to.copy_from(0, &from);
    let watch = Stopwatch::start();
    for number in 0..count {
        let at = (number % case.buffers() as u64) as usize * case.len();
        to.copy_from(at, &from[at..][..case.len()]);
        if number % 1024 == 0 && stop.is_set() {
            return Err(stop.error());
        }
    }
    Ok(Measured::in_all(case).ended(watch, count))
}
