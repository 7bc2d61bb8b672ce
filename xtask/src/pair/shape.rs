//! Rate, delay and loss in the kernel: what `tc` is told.
//!
//! **Rate: `tbf`.** A token bucket filter sends a packet when the bucket has a token for each byte.
//! Its parameters, after tc-tbf(8):
//! - `burst`, the size of the bucket: "in general, larger shaping rates require a larger buffer",
//!   because tokens that arrive while the kernel is late with its timer must not be lost. It is
//!   what the rate carries in [`LATENESS`], and at least [`FEWEST`] packets and [`LEAST`] bytes,
//!   which is about what that page asks for at 10 Mb/s.
//! - `limit`, the bytes that wait, instead of `latency`, which is another way to say it. TCP halves
//!   its window on loss, so that it fills a path if as much can wait as is in flight. The queue
//!   therefore holds what the rate carries in [`QUEUE`] and in the time of a round trip, and at
//!   least some of the kernel's 64 KiB units (GSO). At 1 Gb/s that is more than the kernel lets one
//!   connection send ahead (4 MiB, `tcp_wmem`), so that a connection alone loses nothing.
//! - no `peakrate`: a packet passes a bucket that is full at once. So the first `burst` bytes after
//!   a pause are faster than the rate.
//!
//! **What is counted.** `tbf` counts the bytes of a packet as the device sees them
//! (`qdisc_pkt_len`), for a GSO unit those of all packets that it becomes. A veth device sees a
//! header of Ethernet (14 bytes), and neither preamble, checksum nor gap. A TUN device sees the IP
//! packet alone. With timestamps TCP carries MTU − 52 bytes in each packet. So an MTU of 1500
//! leaves to TCP 1448/1514 = 95.6 % of the rate over veth, and 1448/1500 = 96.5 % over TUN. (A real
//! cable counts 1538 bytes, and leaves 94.1 %.) [`goodput`] has the formula.
//!
//! **A rate for each flow: `htb`**, which every kernel with `tbf` has; `fq`, which could do it too,
//! is rarer. A flow's class is that of [`FLOWS`] which some bits of the client's port select. Linux
//! gives even ports to connections, one after the other with small steps, so a few connections that
//! are made together have classes of their own. The burst is as in `tbf`.
//!
//! **Delay and loss: `netem`**, where the kernel has it, above `tbf`. Its `limit` is in packets.

use std::time::Duration;

use super::link::{Link, Rate};

/// How late the kernel's timer may be without loss of rate.
const LATENESS: Duration = Duration::from_millis(1);
/// The fewest packets that the bucket holds.
const FEWEST: u64 = 2;
/// The least bytes that it holds: 10 Mb/s in the 10 ms of a kernel's coarsest timer.
const LEAST: u64 = 12_500;
/// The time for which packets wait, beside that of a round trip.
const QUEUE: Duration = Duration::from_millis(50);
/// The fewest bytes that wait: four of the kernel's largest units.
const FEWEST_QUEUED: u64 = 4 * 65_536;
/// Classes of flows.
const FLOWS: u64 = 64;
/// The header of Ethernet.
const ETHERNET: u64 = 14;
/// The headers of IPv4 (20) and of TCP with timestamps (32).
const HEADERS: u64 = 52;

/// The arguments of `tc` behind `qdisc replace dev …` for a token bucket below `parent`.
pub(super) fn tbf(link: &Link, rate: Rate, parent: &str) -> String {
    let burst = burst(link, rate);
    let waiting = rate.bytes_in(QUEUE + 2 * link.delay).max(FEWEST_QUEUED);
    format!("{parent} tbf rate {}bit burst {burst} limit {}", rate.0, burst + waiting)
}

fn burst(link: &Link, rate: Rate) -> u64 {
    let packet = u64::from(link.mtu) + ETHERNET;
    rate.bytes_in(LATENESS).max(FEWEST * packet).max(LEAST)
}

/// The arguments of each call to `tc` that gives flows a rate, by their `sport` or `dport`.
pub(super) fn flows(link: &Link, rate: Rate, parent: &str, port: &str, device: &str) -> Vec<String> {
    let burst = burst(link, rate);
    let class = |flow: u64| {
        [
            format!(
                "class add dev {device} parent 2: classid 2:{:x} htb rate {}bit burst {burst} cburst {burst} \
                 quantum 60000",
                flow + 1,
                rate.0
            ),
            // Bit 0 is the same for all.
            format!(
                "filter add dev {device} parent 2: protocol ip u32 match ip protocol 6 0xff match ip {port} {:#x} \
                 {:#x} flowid 2:{:x}",
                flow << 1,
                (FLOWS - 1) << 1,
                flow + 1
            ),
        ]
    };
    let root = format!("qdisc replace dev {device} {parent} handle 2: htb");
    std::iter::once(root).chain((0..FLOWS).flat_map(class)).collect()
}

/// The arguments of `tc` for delay and loss at the root.
pub(super) fn netem(link: &Link) -> String {
    // As many packets as the relay would hold, of the shortest frames.
    let rate = link.rate.unwrap_or(Rate(10_000_000_000));
    let limit = (rate.bytes_in(link.delay + QUEUE) / 64).clamp(1000, 10_000_000);
    // tc reads no nanoseconds.
    let delay_us = link.delay.as_nanos() as f64 / 1e3;
    format!("root handle 1: netem limit {limit} delay {delay_us}us loss {}", link.loss)
}

/// Returns the bits per second that TCP carries at a rate, over a device that sees IP packets
/// (`is_tun`) or frames.
pub(super) fn goodput(rate: Rate, mtu: u32, is_tun: bool) -> f64 {
    let counted = u64::from(mtu) + if is_tun { 0 } else { ETHERNET };
    rate.0 as f64 * (u64::from(mtu) - HEADERS) as f64 / counted as f64
}

#[cfg(test)]
mod tests {
    use super::super::link::{Cable, Loss};
    use super::*;

    fn link(delay_ms: u64) -> Link {
        let delay = Duration::from_millis(delay_ms);
        Link { rate: None, flow_rate: None, delay, loss: Loss(10_000), mtu: 1500, cable: Cable::Auto, seed: 1 }
    }

    #[test]
    fn the_bucket_holds_a_millisecond_and_never_too_little() {
        let fast = tbf(&link(0), Rate(1_000_000_000), "root");
        assert_eq!(fast, "root tbf rate 1000000000bit burst 125000 limit 6375000");
        let slow = tbf(&link(0), Rate(1_000_000), "root");
        assert_eq!(slow, "root tbf rate 1000000bit burst 12500 limit 274644");
        let long = tbf(&Link { mtu: 65_535, ..link(0) }, Rate(1_000_000), "root");
        assert_eq!(long, "root tbf rate 1000000bit burst 131098 limit 393242");
    }

    #[test]
    fn a_longer_way_has_a_longer_queue() {
        let far = tbf(&link(20), Rate(1_000_000_000), "parent 1:");
        assert_eq!(far, "parent 1: tbf rate 1000000000bit burst 125000 limit 11375000");
    }

    #[test]
    fn each_flow_has_a_class() {
        let lines = flows(&link(0), Rate(200_000_000), "root", "sport", "d0");
        assert_eq!(lines.len(), 129);
        assert_eq!(lines[0], "qdisc replace dev d0 root handle 2: htb");
        let last =
            "class add dev d0 parent 2: classid 2:40 htb rate 200000000bit burst 25000 cburst 25000 quantum 60000";
        assert_eq!(lines[127], last);
        let last = "filter add dev d0 parent 2: protocol ip u32 match ip protocol 6 0xff match ip sport 0x7e 0x7e \
                    flowid 2:40";
        assert_eq!(lines[128], last);
    }

    #[test]
    fn netem_is_told_delay_loss_and_a_limit() {
        assert_eq!(netem(&link(1)), "root handle 1: netem limit 996093 delay 1000us loss 1%");
    }

    #[test]
    fn tcp_gets_what_the_headers_leave() {
        let gigabit = Rate(1_000_000_000);
        assert_eq!(goodput(gigabit, 1500, false).round(), 956_406_869.0);
        assert_eq!(goodput(gigabit, 1500, true).round(), 965_333_333.0);
        assert!(goodput(gigabit, 9000, true) > 994e6);
    }
}
