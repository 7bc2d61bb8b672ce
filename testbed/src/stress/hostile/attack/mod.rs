//! The program of an attacking process.
//!
//! **Invariant.** It ends when its standard input is closed.

mod hold;
mod mutation;
mod shm;
mod tcp;

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bmi_report::stats::Random;
use rustix::time::{ClockId, clock_gettime};
use testbed::process::{now_us, sleep};
use testbed::{Outcome, named};

use super::spec::{Done, Kind, Over, Spec, Stream, Task};

/// Longest wait for an answer of a server that a stream needs before it goes on.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// Longest wait for an answer within a stream. A changed stream may have none, and the answers to
/// one that is sent again may be shorter.
const TURN_LIMIT: Duration = Duration::from_millis(10);
/// The number of streams of a thread that stay open after their last byte, so that the server reads
/// what they sent.
const LINGERING: usize = 16;
/// The time in which a share of a processor is used once.
const PERIOD: Duration = Duration::from_millis(10);

/// True when the parent wants the process to end.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Returns true when the parent wants the process to end.
fn is_over() -> bool {
    IS_OVER.load(Ordering::Relaxed)
}

/// Runs an attacking process.
pub(crate) fn main(spec: &str) -> Outcome {
    let spec: Spec = serde_json::from_str(spec)?;
    let watch = || {
        // Nothing is sent: a byte, the end and an error are the same here.
        let _ = io::stdin().read(&mut [0]);
        IS_OVER.store(true, Ordering::Relaxed);
    };
    std::thread::Builder::new().spawn(watch)?;
    let recordings = spec.targets.iter().map(|target| read(&target.recording)).collect::<Outcome<Vec<_>>>()?;
    let done = match spec.task {
        Task::Burn { permille } => burn(permille),
        Task::Hold { connections } => hold::hold(&spec, &recordings, connections),
        Task::Streams { streams, least_ms, threads } => {
            let end_us = now_us() + least_ms * 1000;
            send_all(&spec, &recordings, threads, |number| number < streams || now_us() < end_us)?
        }
    };
    println!("{}", serde_json::to_string(&done)?);
    Ok(())
}

fn read(path: &Path) -> Outcome<Vec<Stream>> {
    let text = fs::read(path).map_err(named(path.display()))?;
    serde_json::from_slice(&text).map_err(named(path.display()))
}

/// Sends streams while `goes_on` of their number is true. Several threads do it, so that one that
/// waits does not hold up the others.
fn send_all(
    spec: &Spec,
    recordings: &[Vec<Stream>],
    threads: usize,
    goes_on: impl Fn(u64) -> bool + Sync,
) -> Outcome<Done> {
    let next = AtomicU64::new(0);
    let work = || {
        let (mut done, mut open) = (Done::default(), VecDeque::new());
        while !is_over() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if !goes_on(number) {
                break;
            }
            // Each stream has a seed of its own, whichever thread sends it.
            let mut random = Random::stream(spec.seed, number);
            let target = random.below(spec.targets.len());
            let (addr, streams) = (&spec.targets[target].addr, &recordings[target]);
            let stream = &streams[random.below(streams.len())];
            let stream = &match spec.kind {
                Kind::Cut => mutation::cut(stream, &mut random),
                Kind::Mutate => mutation::changed(stream, &mut random),
                _ => stream.clone(),
            };
            let sent: io::Result<(u64, OwnedFd)> = match spec.over {
                Over::Tcp => tcp::send(spec.kind, addr, stream, &mut random),
                Over::Shm => shm::send(spec.kind, addr, stream, &mut random),
            };
            match sent {
                Ok((bytes, socket)) => {
                    done += Done { streams: 1, bytes, refused: 0 };
                    open.push_back(socket);
                    if open.len() > LINGERING {
                        open.pop_front();
                    }
                }
                Err(_) => done.refused += 1,
            }
        }
        done
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().try_fold(Done::default(), |mut sum, thread| {
            sum += thread.join().map_err(|_| "a thread panicked")?;
            Ok(sum)
        })
    })
}

fn random_bytes(most: usize, random: &mut Random) -> Vec<u8> {
    (0..1 + random.below(most)).map(|_| random.number() as u8).collect()
}

/// Uses `permille` thousandths of a processor until the process shall end, and connects to nobody.
/// More than one processor takes several threads.
fn burn(permille: u64) -> Done {
    let threads = permille.div_ceil(1000).max(1);
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| drop(scope.spawn(|| burn_alone(permille as f64 / threads as f64 / 1000.0))));
    });
    Done::default()
}

fn burn_alone(share: f64) {
    let now = |clock| {
        let now = clock_gettime(clock);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let (began, used_before) = (now(ClockId::Monotonic), now(ClockId::ThreadCPUTime));
    while !is_over() {
        // What was not had in one period is made up for in the next ones, as an attacker's work
        // would wait for the processor too.
        let due = (now(ClockId::Monotonic) - began + PERIOD).mul_f64(share);
        while now(ClockId::ThreadCPUTime) - used_before < due && !is_over() {
            std::hint::black_box((0..2000u64).fold(0, u64::wrapping_add));
        }
        sleep(PERIOD.mul_f64((1.0 - share).max(0.0)));
    }
}
