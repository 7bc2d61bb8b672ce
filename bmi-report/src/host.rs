//! What this host is, as far as it matters to a measurement.
//!
//! **Why.** A figure without the machine that it was measured on says little. Every program that
//! writes a report describes its hosts with the same names, so reports can be compared.
//!
//! **Source.** proc(5), sysfs(5): the files are named where they are read. What the kernel does not
//! tell is left out.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use crate::report::Host;
use crate::units;

/// Describes this host. `role` is what it does in the run.
///
/// `peer` is the host that it talks to, if there is one: the interface by which packets leave to it
/// is described, too.
pub fn describe(role: &str, peer: Option<IpAddr>) -> Host {
    let mut facts: Vec<(String, String)> = Vec::new();
    let mut add = |name: &str, value: Option<String>| facts.extend(value.map(|value| (name.to_owned(), value)));
    let processors = read("/proc/cpuinfo").unwrap_or_default();
    add("processor", field(&processors, "model name"));
    let number = std::thread::available_parallelism().map_or(1, usize::from);
    add("processors", Some(number.to_string()));
    add("frequency", field(&processors, "cpu MHz").map(|mhz| format!("{mhz} MHz")));
    add("governor", read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
    add("memory", memory());
    add("NUMA nodes", read("/sys/devices/system/node/online"));
    add("load", load());
    add("kernel", read("/proc/sys/kernel/osrelease"));
    if let Some(peer) = peer {
        facts.extend(path_to(peer));
    }
    facts.extend(names("/sys/class/infiniband").into_iter().map(device));
    Host { role: role.to_owned(), name: name(), facts }
}

/// Returns the name of this host.
pub fn name() -> String {
    read("/proc/sys/kernel/hostname").unwrap_or_else(|| "a host".to_owned())
}

/// Returns the load average over the last minute.
pub fn load() -> Option<String> {
    read("/proc/loadavg")?.split(' ').next().map(str::to_owned)
}

/// Returns the size of the memory.
fn memory() -> Option<String> {
    let total = field(&read("/proc/meminfo")?, "MemTotal")?;
    let kib: u64 = total.split(' ').next()?.parse().ok()?;
    Some(units::amount(kib << 10))
}

/// Describes how packets get from this host to `peer`.
fn path_to(peer: IpAddr) -> Vec<(String, String)> {
    let control = read("/proc/sys/net/ipv4/tcp_congestion_control");
    let mut facts: Vec<(&str, Option<String>)> = vec![("congestion control", control)];
    if let Some(interface) = interface_to(peer) {
        let of = |file: &str| read(&format!("/sys/class/net/{interface}/{file}"));
        let speed = of("speed").filter(|speed| !speed.starts_with('-')).map(|speed| format!("{speed} Mb/s"));
        facts.extend([("MTU", of("mtu")), ("link rate", speed), ("interface's NUMA node", of("device/numa_node"))]);
        facts.insert(1, ("interface", Some(interface)));
    }
    facts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// Describes an RDMA device.
fn device(device: String) -> (String, String) {
    let of = |file: &str| read(&format!("/sys/class/infiniband/{device}/{file}"));
    let port = [of("ports/1/state"), of("ports/1/rate"), of("ports/1/link_layer")];
    let firmware = of("fw_ver").map(|version| format!("firmware {version}"));
    let words: Vec<String> = port.into_iter().chain([firmware]).flatten().collect();
    (format!("device {device}"), words.join(", "))
}

fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns the names in a directory, in order.
fn names(path: &str) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Returns the first value of a name in a file of lines `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    let of = |line: &str| {
        line.split_once(':').filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
    };
    text.lines().find_map(of)
}

/// Returns the interface by which packets to `peer` leave.
fn interface_to(peer: IpAddr) -> Option<String> {
    match peer {
        peer if peer.is_loopback() => Some("lo".to_owned()),
        IpAddr::V4(peer) => route(&read("/proc/net/route")?, peer),
        IpAddr::V6(_) => None,
    }
}

/// Returns the interface of the most specific route in the text of `/proc/net/route`.
fn route(table: &str, peer: Ipv4Addr) -> Option<String> {
    let parse = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // The kernel prints addresses as numbers in its own order of bytes.
        let number = |index: usize| u32::from_str_radix(words.get(index)?, 16).ok().map(u32::to_ne_bytes);
        Some((words.first()?.to_string(), u32::from_be_bytes(number(1)?), u32::from_be_bytes(number(7)?)))
    };
    let routes = table.lines().skip(1).filter_map(parse);
    let fitting = routes.filter(|(_, to, mask)| peer.to_bits() & mask == *to);
    fitting.max_by_key(|(_, _, mask)| *mask).map(|(name, ..)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_tells_what_it_is() {
        let host = describe("client", Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        let fact = |name: &str| host.facts.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        assert_eq!(fact("interface").as_deref(), Some("lo"));
        assert!(fact("processors").is_some() && fact("kernel").is_some() && fact("MTU").is_some(), "{host:?}");
        assert!(fact("load").is_some() && fact("memory").is_some(), "{host:?}");
        assert!(!describe("client", None).facts.iter().any(|(known, _)| known == "interface"));
        assert_eq!((host.role.as_str(), host.name), ("client", name()));
    }

    #[test]
    fn the_most_specific_route_counts() {
        let native = |address: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(address));
        let line = |name: &str, to: [u8; 4], mask: [u8; 4]| {
            format!("{name}\t{}\t00000000\t0001\t0\t0\t0\t{}\t0\t0\t0\n", native(to), native(mask))
        };
        let table = format!(
            "Iface\tDestination\n{}{}",
            line("wide", [0, 0, 0, 0], [0, 0, 0, 0]),
            line("near", [198, 18, 0, 0], [255, 255, 0, 0])
        );
        assert_eq!(route(&table, Ipv4Addr::new(198, 18, 3, 4)).as_deref(), Some("near"));
        assert_eq!(route(&table, Ipv4Addr::new(198, 19, 3, 4)).as_deref(), Some("wide"));
        assert_eq!(route("nothing", Ipv4Addr::LOCALHOST), None);
        assert_eq!(field("model name\t: A B\nmodel name : C", "model name").as_deref(), Some("A B"));
    }
}
