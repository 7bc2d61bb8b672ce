//! The program of an attacking process.
//!
//! **Invariant.** It ends when its standard input is closed, so it does not outlive its parent.

mod burn;
mod hold;
mod mutation;
mod shm;
mod tcp;

use std::fs;
use std::io::Read;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bmi_report::stats::Random;

use super::clock::{now_us, sleep};
use super::spec::{Done, Kind, Over, Recording, Spec, Task};

/// Longest wait for an answer of a server that a stream needs before it goes on.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// Longest wait for an answer within a stream. A changed stream may have none, and the answers to
/// one that is sent again may be shorter.
const TURN_LIMIT: Duration = Duration::from_millis(10);
/// The number of streams of a thread that stay open after their last byte, so that the server reads
/// what they sent.
const LINGERING: usize = 16;

/// True when the parent wants the process to end.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Returns true when the parent wants the process to end.
fn is_over() -> bool {
    IS_OVER.load(Ordering::Relaxed)
}

/// Runs an attacking process.
pub(crate) fn main(spec: &str) -> ExitCode {
    let ended = serde_json::from_str(spec).map_err(|error| error.to_string()).and_then(|spec| run(&spec));
    match ended.and_then(|done| serde_json::to_string(&done).map_err(|error| error.to_string())) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("attacker: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(spec: &Spec) -> Result<Done, String> {
    let watch = || {
        // Nothing is sent: a byte, the end and an error are the same here.
        let _ = std::io::stdin().read(&mut [0]);
        IS_OVER.store(true, Ordering::Relaxed);
    };
    std::thread::Builder::new().spawn(watch).map_err(|error| error.to_string())?;
    let recordings = spec.targets.iter().map(|target| read(&target.recording)).collect::<Result<Vec<_>, _>>()?;
    match spec.task {
        Task::Burn { permille } => Ok(burn::burn(permille)),
        Task::Hold { connections } => hold::hold(spec, &recordings, connections),
        Task::Streams { streams, least_ms, threads } => {
            let end_us = now_us() + least_ms * 1000;
            send_all(spec, &recordings, threads, |number| number < streams || now_us() < end_us)
        }
    }
}

fn read(path: &std::path::Path) -> Result<Recording, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = fs::read(path).map_err(|error| failed(&error))?;
    serde_json::from_slice(&text).map_err(|error| failed(&error))
}

/// Sends streams while `goes_on` of their number is true. Several threads do it, so that one that
/// waits does not hold up the others.
fn send_all(
    spec: &Spec,
    recordings: &[Recording],
    threads: usize,
    goes_on: impl Fn(u64) -> bool + Sync,
) -> Result<Done, String> {
    let next = AtomicU64::new(0);
    let work = || {
        let (mut done, mut open) = (Done::default(), Lingering::default());
        while !is_over() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if !goes_on(number) {
                break;
            }
            // Each stream has a seed of its own, whichever thread sends it.
            let mut random = Random::new(spec.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let target = random.below(spec.targets.len());
            let (addr, recording) = (&spec.targets[target].addr, &recordings[target]);
            let sent = match spec.over {
                Over::Tcp => tcp::send(spec.kind, addr, &recording.tcp, &mut random),
                Over::Shm => shm::send(spec.kind, addr, &recording.shm, &mut random),
            };
            match sent {
                Ok((bytes, socket)) => {
                    done += Done { streams: 1, bytes, refused: 0 };
                    open.add(socket);
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

/// Sockets that stay open until newer ones take their places.
#[derive(Default)]
struct Lingering(std::collections::VecDeque<Open>);

/// A connection after its last byte.
enum Open {
    Tcp { _socket: std::net::TcpStream },
    Shm { _link: shm::Link },
}

impl Lingering {
    fn add(&mut self, open: Open) {
        self.0.push_back(open);
        if self.0.len() > LINGERING {
            self.0.pop_front();
        }
    }
}

/// Draws one of the recorded streams. A recording has at least one.
fn pick<'a, T>(streams: &'a [T], random: &mut Random) -> std::io::Result<&'a T> {
    streams.get(random.below(streams.len().max(1))).ok_or_else(|| std::io::Error::other("nothing was recorded"))
}

/// Returns true for the attacks that end in the middle of a stream.
fn is_cut(kind: Kind) -> bool {
    kind == Kind::Cut
}
