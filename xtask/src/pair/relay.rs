//! The cable where the kernel has no `netem`: a process that carries packets between two TUN
//! devices, one in each namespace.
//!
//! ```text
//!   server ── tbf ── TUN ══ read ══> queue: loss, delay ══ write ══> TUN ── client
//! ```
//!
//! **How.** The process is in a network namespace of its own, without a name. It makes both devices
//! there and moves each to its place. So it holds no reference to the namespaces of the pair: when
//! these are removed, the devices are gone, reads fail, and the process ends.
//!
//! **Time.** It sleeps in `ppoll` until a packet comes or the next one is due, with a timer slack of
//! one nanosecond (prctl(2), *PR_SET_TIMERSLACK*; the kernel's default is 50 µs). Without packets
//! it uses no processor time. A timer of the kernel is late by the time that the processor takes to
//! wake up. The relay measures that and sets its timers earlier by it ([`Lateness`]).
//!
//! **Bounds.** [`MOST`] bytes wait in each direction (`queue`).

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::clock::now_ns;
use super::link::Loss;
use super::namespaces::{DEVICE, run};
use super::queue::Queue;
use super::tun;

/// The most bytes that wait in one direction: 10 Gb/s for 50 ms.
const MOST: usize = 64 << 20;
/// The most packets that are read from a device before due packets are written.
const BATCH: usize = 64;
/// The longest packet of IPv4.
const LONGEST: usize = 65_535;
/// The packets that wait between the kernel and the relay. The default of 500 is less than the
/// bucket of a fast link.
const DEVICE_QUEUE: u32 = 10_000;

/// What the relay is told.
#[derive(Args, Debug)]
pub(crate) struct RelayArgs {
    server: String,
    client: String,
    #[arg(long)]
    delay_ns: u64,
    #[arg(long)]
    loss_ppm: u32,
    #[arg(long)]
    seed: u64,
}

/// The relay's program. It prints a line when the devices are where they belong.
pub(crate) fn main(args: &RelayArgs) -> ExitCode {
    match start(args).and_then(|devices| carry(devices, args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: the cable: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Makes the devices and moves them to their namespaces.
fn start(args: &RelayArgs) -> Result<[File; 2], String> {
    let failed = |error: std::io::Error| format!("no TUN device: {error}");
    tun::leave_network().map_err(failed)?;
    let devices = [tun::open("server").map_err(failed)?, tun::open("client").map_err(failed)?];
    for (device, name) in [("server", &args.server), ("client", &args.client)] {
        run("ip", &format!("link set {device} txqueuelen {DEVICE_QUEUE}"))?;
        run("ip", &format!("link set {device} netns {name} name {DEVICE}"))?;
    }
    // An ordinary user may not, and then the delay is less exact.
    let _ = rustix::process::setpriority_process(None, -20);
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    println!("ready");
    Ok(devices)
}

/// Carries packets until a device is gone.
fn carry(devices: [File; 2], args: &RelayArgs) -> Result<(), String> {
    let new = |seed| Queue::new(Duration::from_nanos(args.delay_ns), Loss(args.loss_ppm), seed, MOST);
    let mut queues = [new(args.seed), new(!args.seed)];
    let result = exchange(devices, &mut queues);
    let dropped: u64 = queues.iter().map(|queue| queue.counts().dropped).sum();
    if dropped > 0 {
        eprintln!("the cable: {dropped} packets found no room, because the sender was faster than the receiver");
    }
    result
}

fn exchange(mut devices: [File; 2], queues: &mut [Queue; 2]) -> Result<(), String> {
    let mut lateness = Lateness::default();
    let mut buffer = vec![0; LONGEST];
    loop {
        for (device, queue) in devices.iter_mut().zip(queues.iter_mut()) {
            match take(device, queue, &mut buffer) {
                Ok(()) => {}
                Err(error) if is_gone(&error) => return Ok(()),
                Err(error) => return Err(format!("read: {error}")),
            }
        }
        let [server, client] = &mut devices;
        for (queue, to) in queues.iter_mut().zip([client, server]) {
            match give(queue, to) {
                Ok(()) => {}
                Err(error) if is_gone(&error) => return Ok(()),
                Err(error) => return Err(format!("write: {error}")),
            }
        }
        let due = queues.iter().filter_map(Queue::due_ns).min();
        sleep(&devices, due, &mut lateness).map_err(|error| format!("poll: {error}"))?;
    }
}

/// Reads the packets of a device, at most [`BATCH`].
fn take(device: &mut File, queue: &mut Queue, buffer: &mut [u8]) -> std::io::Result<()> {
    for _ in 0..BATCH {
        match device.read(buffer) {
            Ok(len) => queue.push(now_ns(), &buffer[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes the packets that are due.
fn give(queue: &mut Queue, device: &mut File) -> std::io::Result<()> {
    while let Some(packet) = queue.pop(now_ns()) {
        match device.write(&packet) {
            Err(error) if is_gone(&error) => return Err(error),
            // The device is down, or the kernel has no memory: a cable loses such a packet.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

/// Returns true for the error of a device that was removed, EBADFD.
fn is_gone(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::BADFD.raw_os_error())
}

/// Sleeps until a packet comes or one is due.
fn sleep(devices: &[File; 2], due: Option<u64>, lateness: &mut Lateness) -> rustix::io::Result<()> {
    let [server, client] = devices;
    let mut fds = [PollFd::new(server, PollFlags::IN), PollFd::new(client, PollFlags::IN)];
    let Some(due) = due else {
        return retried(poll(&mut fds, None)).map(drop);
    };
    let now = now_ns();
    let left = due.saturating_sub(now).saturating_sub(lateness.ns());
    let limit = Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 };
    let ready = retried(poll(&mut fds, Some(&limit)))?;
    if ready == 0 && left > 0 {
        lateness.add(now_ns().saturating_sub(now + left));
    }
    Ok(())
}

/// A signal that interrupts a wait is no error.
fn retried(result: rustix::io::Result<usize>) -> rustix::io::Result<usize> {
    if result == Err(rustix::io::Errno::INTR) { Ok(1) } else { result }
}

/// How late timers are: a moving average, over about eight of them.
#[derive(Debug, Default)]
struct Lateness {
    eighths_ns: u64,
}

/// The most that a timer is set earlier.
const MOST_EARLY: u64 = 200_000;

impl Lateness {
    fn add(&mut self, late_ns: u64) {
        // One long pause of the machine must not make the next timers early.
        self.eighths_ns = self.eighths_ns - self.eighths_ns / 8 + late_ns.min(MOST_EARLY);
    }

    fn ns(&self) -> u64 {
        self.eighths_ns / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_are_set_earlier_by_as_much_as_they_are_late() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.ns(), 0);
        (0..100).for_each(|_| lateness.add(40_000));
        assert!((39_900..=40_000).contains(&lateness.ns()), "{}", lateness.ns());
        lateness.add(1_000_000_000);
        assert!(lateness.ns() <= 60_000, "{}", lateness.ns());
        (0..100).for_each(|_| lateness.add(u64::MAX));
        assert!(lateness.ns() <= MOST_EARLY);
    }
}
