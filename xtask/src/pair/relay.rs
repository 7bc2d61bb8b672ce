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
//! **Time.** It sleeps in `ppoll` until a packet comes or the next one is due, with a timer slack
//! of one nanosecond (prctl(2), *PR_SET_TIMERSLACK*; the kernel's default is 50 µs). Without
//! packets it uses no processor time.
//! - A timer of the kernel is late by the time that a processor takes to wake up. The relay
//!   estimates that ([`Median`]), sets its timers earlier by it, and polls until the packet is due.
//!   A packet that woke the relay came earlier by as much.
//! - The time that a write takes, in which the receiver's kernel gets the packet, is a part of the
//!   delay.
//! - With the program `chrt` the relay asks for a real-time priority, so that it does not wait for
//!   the programs that are measured.
//!
//! **Bounds.** [`MOST`] bytes wait in each direction (`queue`).

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::num::NonZeroU64;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::UnshareFlags;
use serde::{Deserialize, Serialize};

use super::clock::now_ns;
use super::hosts::{DEVICE, run};
use super::link::Loss;
use super::queue::Queue;
use super::tun;
use crate::setup;

/// The most bytes that wait in one direction: 10 Gb/s for 50 ms.
const MOST: usize = 64 << 20;
/// The most packets that are read from a device before due packets are written.
const BATCH: usize = 64;
/// The longest packet of IPv4.
const LONGEST: usize = 65_535;
/// The packets that wait between the kernel and the relay. The default of 500 is less than the
/// bucket of a fast link.
const DEVICE_QUEUE: u32 = 10_000;

/// What the relay is told, as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Spec {
    /// The paths of the namespaces.
    pub(super) server: String,
    pub(super) client: String,
    pub(super) delay_ns: u64,
    pub(super) loss_millionths: u32,
    pub(super) seed: u64,
}

/// The relay's program. It prints a line when the devices are where they belong.
pub(crate) fn main(spec: &str) -> ExitCode {
    let spec = serde_json::from_str::<Spec>(spec).map_err(|error| error.to_string());
    match spec.and_then(|spec| carry(start(&spec)?, &spec)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: the cable: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Makes the devices and moves them to their namespaces.
fn start(spec: &Spec) -> Result<[File; 2], String> {
    let failed = |error: std::io::Error| format!("no TUN device: {error}");
    tun::leave(UnshareFlags::NEWNET).map_err(failed)?;
    let devices = [tun::open("server").map_err(failed)?, tun::open("client").map_err(failed)?];
    for (device, path) in [("server", &spec.server), ("client", &spec.client)] {
        run("ip", &format!("link set {device} txqueuelen {DEVICE_QUEUE}"))?;
        run("ip", &format!("link set {device} netns {path} name {DEVICE}"))?;
    }
    hurry();
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    println!("ready");
    Ok(devices)
}

/// Asks for a priority above that of other programs. Where that is refused, the delay is less
/// exact.
fn hurry() {
    let _ = rustix::process::setpriority_process(None, -20);
    let own = std::process::id().to_string();
    if let Some(chrt) = setup::program("chrt") {
        let mut command = Command::new(chrt);
        command.args(["--fifo", "--pid", "1", &own]).stdin(Stdio::null());
        let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// Carries packets until a device is gone.
fn carry(devices: [File; 2], spec: &Spec) -> Result<(), String> {
    let new = |seed| Queue::new(Duration::from_nanos(spec.delay_ns), Loss(spec.loss_millionths), seed, MOST);
    let mut queues = [new(spec.seed), new(!spec.seed)];
    let result = exchange(devices, &mut queues);
    let dropped: u64 = queues.iter().map(|queue| queue.counts().dropped).sum();
    if dropped > 0 {
        eprintln!("the cable: {dropped} packets found no room, because the sender was faster than the receiver");
    }
    result
}

fn exchange(mut devices: [File; 2], queues: &mut [Queue; 2]) -> Result<(), String> {
    let (mut wakes, mut writes) = (Median::default(), Median::default());
    let mut buffer = vec![0; LONGEST];
    let mut woken_ns = 0;
    loop {
        for (device, queue) in devices.iter_mut().zip(queues.iter_mut()) {
            match take(device, queue, woken_ns, &mut buffer) {
                Ok(()) => {}
                Err(error) if is_gone(&error) => return Ok(()),
                Err(error) => return Err(format!("read: {error}")),
            }
        }
        let [server, client] = &mut devices;
        for (queue, to) in queues.iter_mut().zip([client, server]) {
            match give(queue, to, &mut writes) {
                Ok(()) => {}
                Err(error) if is_gone(&error) => return Ok(()),
                Err(error) => return Err(format!("write: {error}")),
            }
        }
        let due = queues.iter().filter_map(Queue::due_ns).min();
        woken_ns = sleep(&devices, due.map(|due| due.saturating_sub(writes.ns())), &mut wakes)
            .map_err(|error| format!("poll: {error}"))?;
    }
}

/// Reads the packets of a device, at most [`BATCH`]. The first one came `woken_ns` ago.
fn take(device: &mut File, queue: &mut Queue, woken_ns: u64, buffer: &mut [u8]) -> std::io::Result<()> {
    let mut ago_ns = woken_ns;
    for _ in 0..BATCH {
        match device.read(buffer) {
            Ok(len) => queue.push(now_ns() - ago_ns, &buffer[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        ago_ns = 0;
    }
    Ok(())
}

/// Writes the packets that are due. A packet has arrived at the end of the write, so that each
/// write begins earlier by the time that it takes.
fn give(queue: &mut Queue, device: &mut File, writes: &mut Median) -> std::io::Result<()> {
    let mut now = now_ns();
    while let Some(packet) = queue.pop(now + writes.ns()) {
        match device.write(&packet) {
            Err(error) if is_gone(&error) => return Err(error),
            // The device is down, or the kernel has no memory: a cable loses such a packet.
            Ok(_) | Err(_) => {}
        }
        let end = now_ns();
        writes.add(end - now);
        now = end;
    }
    Ok(())
}

/// Returns true for the error of a device that was removed, EBADFD.
fn is_gone(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::BADFD.raw_os_error())
}

/// Sleeps until a packet comes or one is due. Returns how long ago the packet came that woke it.
fn sleep(devices: &[File; 2], due: Option<u64>, wakes: &mut Median) -> rustix::io::Result<u64> {
    let [server, client] = devices;
    let mut fds = [PollFd::new(server, PollFlags::IN), PollFd::new(client, PollFlags::IN)];
    let now = now_ns();
    let left = due.map(|due| due.saturating_sub(now).saturating_sub(wakes.ns()));
    let limit =
        left.map(|left| Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 });
    let ready = match poll(&mut fds, limit.as_ref()) {
        Err(rustix::io::Errno::INTR) => return Ok(0),
        ready => ready?,
    };
    let slept = now_ns() - now;
    match left {
        Some(left) if ready == 0 && left > 0 => wakes.add(slept.saturating_sub(left)),
        _ => {}
    }
    // A poll that returned at once woke nobody.
    Ok(if ready > 0 && slept > 2 * wakes.ns() { wakes.ns() } else { 0 })
}

/// An estimate of the median of some times. It moves by a fixed step towards each value, so that a
/// long pause of the machine counts no more than any other value.
#[derive(Debug, Default)]
struct Median {
    ns: u64,
}

impl Median {
    /// How far one value moves the estimate.
    const STEP: u64 = 500;
    /// The most that it is. The relay polls for as long.
    const MOST: u64 = 60_000;

    fn add(&mut self, ns: u64) {
        let moved = if ns > self.ns { self.ns + Self::STEP } else { self.ns.saturating_sub(Self::STEP) };
        self.ns = moved.min(Self::MOST);
    }

    fn ns(&self) -> u64 {
        self.ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_moves_to_the_median() {
        let mut median = Median::default();
        assert_eq!(median.ns(), 0);
        (0..200).for_each(|_| median.add(40_000));
        assert!((39_000..=41_000).contains(&median.ns()), "{}", median.ns());
        median.add(1_000_000_000);
        assert!(median.ns() <= 41_000, "{}", median.ns());
        (0..200).for_each(|_| median.add(u64::MAX));
        assert_eq!(median.ns(), Median::MOST);
        (0..200).for_each(|_| median.add(0));
        assert_eq!(median.ns(), 0);
    }

    #[test]
    fn a_spec_survives_the_command_line() {
        let spec = Spec { server: "a".into(), client: "b".into(), delay_ns: 1, loss_millionths: 2, seed: 3 };
        let text = serde_json::to_string(&spec).unwrap();
        let read: Spec = serde_json::from_str(&text).unwrap();
        assert_eq!(format!("{read:?}"), format!("{spec:?}"));
    }
}
