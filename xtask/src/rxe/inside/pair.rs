//! The test with two machines. One serves; the other one stores files there and reads them back,
//! over a link that loses packets.
//!
//! **Protocol.** The serving machine has a cluster. It is done when it finds the directory
//! `/finished`.

use std::fs;
use std::time::Duration;

use super::files::{Cluster, pause};
use super::scenario::Scene;
use super::{ADDRESS_FILE, DEVICE};

/// The directory with which the using machine says that it is done.
const FINISHED: &str = "/finished";

/// Serves the other machine.
pub(crate) fn serve(scene: &Scene<'_>) -> Result<(), String> {
    const LOOKS: u32 = 240;
    const BETWEEN: Duration = Duration::from_millis(500);
    let cluster = Cluster::start(scene, &own_address()?)?;
    for _ in 0..LOOKS {
        if cluster.ok(&["ls", FINISHED]).is_ok() {
            // The other machine may still be waiting for the answer, if a packet of it was lost.
            pause(4 * BETWEEN);
            return Ok(());
        }
        pause(BETWEEN);
    }
    Err(cluster.explain("the other machine was not done in time"))
}

/// Returns the counters of the device that are not zero: retries, sequence errors, duplicates.
fn counters() -> String {
    let folder = format!("/sys/class/infiniband/{DEVICE}/ports/1/hw_counters");
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let counts = files.filter_map(|file| {
        let count = fs::read_to_string(file.path()).ok()?;
        let name = file.file_name().to_string_lossy().into_owned();
        (count.trim() != "0" && name != "lifespan").then(|| format!("{name} {}", count.trim()))
    });
    counts.collect::<Vec<_>>().join(", ")
}

/// Calls `ask` until it succeeds, because the other machine may not have booted yet. Returns the
/// last error if it never does.
fn await_ok(mut ask: impl FnMut() -> Result<String, String>) -> Result<(), String> {
    const TRIES: u32 = 120;
    const BETWEEN: Duration = Duration::from_millis(500);
    for _ in 1..TRIES {
        if ask().is_ok() {
            return Ok(());
        }
        pause(BETWEEN);
    }
    ask().map(drop)
}

/// Stores files on the other machine and reads them back.
pub(crate) fn transfer(scene: &Scene<'_>) -> Result<(), String> {
    let cluster = Cluster::of_another(scene, &server()?);
    // Until the other machine is up, there is no server to connect to.
    await_ok(|| cluster.ok(&["ping"]))?;
    for (name, len) in [("small", 1000), ("middle", 60_000), ("large", 4 << 20)] {
        cluster.there_and_back(name, len).map_err(|why| format!("{why}\n{}", counters()))?;
    }
    let statistics = scene.ok(&["/usr/bin/tc", "-s", "qdisc", "show", "dev", "eth0"])?;
    let dropped = dropped(&statistics).ok_or(statistics)?;
    scene.note(format!("packets dropped on the way to the servers: {dropped}"));
    cluster.ok(&["mkdir", FINISHED])?;
    // The link loses one packet in two hundred, of several thousand.
    if dropped == 0 { Err("nothing was lost, so nothing was shown".into()) } else { Ok(()) }
}

/// Returns this machine's own address on the link of the device.
fn own_address() -> Result<String, String> {
    let address = fs::read_to_string(ADDRESS_FILE).map_err(|error| format!("{ADDRESS_FILE}: {error}"))?;
    Ok(address.trim().to_owned())
}

/// Returns the address of the serving machine. The two machines have the first two addresses of one
/// network.
fn server() -> Result<String, String> {
    let own = own_address()?;
    own.rsplit_once('.').map(|(network, _)| format!("{network}.1")).ok_or_else(|| format!("an odd address: {own}"))
}

/// Returns how many packets the link has dropped, from the output of `tc -s`:
/// `Sent 9 bytes 1 pkt (dropped 5, overlimits …`.
fn dropped(statistics: &str) -> Option<u64> {
    statistics.split_once("(dropped ")?.1.split(',').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_count_of_lost_packets_is_found() {
        let statistics = "qdisc netem 8001: root limit 1000 loss 0.5%\n Sent 4492282 bytes 3472 pkt (dropped 5, overlimits 0 requeues 0)\n";
        assert_eq!(super::dropped(statistics), Some(5));
        assert_eq!(super::dropped("Cannot find device"), None);
    }
}
