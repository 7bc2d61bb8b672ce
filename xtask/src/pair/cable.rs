//! A pair of hosts, made and joined.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::hosts::{self, DEVICE, Host};
use super::isolation::{self, OWN_PROGRAM};
use super::link::{Cable, Link, Loss};
use super::{clock, relay, shape};

/// The addresses of the two hosts, from the range for benchmarks (RFC 2544, appendix C.2.2).
pub(super) const SERVER: &str = "198.18.0.1";
/// The other host.
pub(super) const CLIENT: &str = "198.18.0.2";
/// The length of the network's prefix: two hosts.
const PREFIX: u8 = 30;

/// How long a serve command may take until it listens.
const LISTEN_LIMIT: Duration = Duration::from_secs(2);

/// Two hosts joined by a cable. What runs for them ends when this is dropped.
pub(super) struct Pair {
    pub(super) server: Host,
    pub(super) client: Host,
    relay: Option<Child>,
    servers: Vec<Child>,
    /// The sockets that listened in the server when the last of them was started.
    listening: usize,
}

impl Pair {
    /// Makes the hosts and the cable. A cable that is to be kept writes nothing to the terminal.
    pub(super) fn make(link: &Link, is_kept: bool) -> Result<Pair, String> {
        let (server, client) = (Host::make()?, Host::make()?);
        let mut pair = Pair { server, client, relay: None, servers: Vec::new(), listening: 0 };
        let has_netem = match link.cable {
            Cable::Relay => false,
            Cable::Auto => link.needs_more_than_a_rate() && has_netem(&pair.server),
            Cable::Netem if has_netem(&pair.server) => true,
            Cable::Netem => return Err("this kernel has no netem; --cable relay does without it".to_owned()),
        };
        match link.cable {
            Cable::Auto if !link.needs_more_than_a_rate() => pair.join_by_veth()?,
            _ if has_netem => pair.join_by_veth()?,
            _ => pair.join_by_relay(link, is_kept)?,
        }
        for (host, address) in [(&pair.server, SERVER), (&pair.client, CLIENT)] {
            // No addresses of IPv6: their discovery would be packets that nobody asked for.
            host.run("ip", &format!("link set {DEVICE} mtu {} addrgenmode none", link.mtu))?;
            host.run("ip", &format!("addr add {address}/{PREFIX} dev {DEVICE}"))?;
            let mut parent = "root";
            if has_netem {
                host.run("tc", &format!("qdisc replace dev {DEVICE} {}", shape::netem(link)))?;
                parent = "parent 1:";
            }
            if let Some(rate) = link.rate {
                let tbf = shape::tbf(link, rate, parent);
                host.run("tc", &format!("qdisc replace dev {DEVICE} {tbf}"))?;
            }
            // The port of a flow that differs from those of others is the client's.
            let port = if address == CLIENT { "sport" } else { "dport" };
            for line in link.flow_rate.iter().flat_map(|rate| shape::flows(link, *rate, parent, port, DEVICE)) {
                host.run("tc", &line)?;
            }
        }
        for host in [&pair.server, &pair.client] {
            host.run("ip", &format!("link set {DEVICE} up"))?;
        }
        Ok(pair)
    }

    fn join_by_veth(&self) -> Result<(), String> {
        let client = self.client.path();
        self.server.run("ip", &format!("link add {DEVICE} type veth peer name {DEVICE} netns {client}"))
    }

    fn join_by_relay(&mut self, link: &Link, is_kept: bool) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("the cable cannot be started: {error}");
        let spec = relay::Spec {
            server: self.server.path(),
            client: self.client.path(),
            delay_ns: link.delay.as_nanos() as u64,
            loss_millionths: link.loss.0,
            seed: link.seed,
        };
        let spec = serde_json::to_string(&spec).map_err(|error| error.to_string())?;
        let mut command = Command::new(OWN_PROGRAM);
        // A process group of its own: Ctrl-C, which a command may handle, does not end the cable.
        command.arg0("xtask").args(["pair-relay", &spec]).process_group(0);
        let errors = if is_kept { Stdio::null() } else { Stdio::inherit() };
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).spawn().map_err(failed)?;
        let out = child.stdout.take();
        self.relay = Some(child);
        let mut line = String::new();
        if let Some(out) = out {
            BufReader::new(out).read_line(&mut line).map_err(failed)?;
        }
        match line.trim() {
            "ready" => Ok(()),
            _ => Err("the cable ended before it was ready".to_owned()),
        }
    }

    /// Returns a command that runs a program in one of the hosts.
    pub(super) fn command(&self, host: &Host, program: &str, args: &[String]) -> Command {
        let mut command = host.command(program, args);
        command.env("PAIR_SERVER", SERVER).env("PAIR_CLIENT", CLIENT);
        command
    }

    /// Starts a shell command in the server, and waits until it listens.
    pub(super) fn serve(&mut self, line: &str) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("`{line}` cannot be started: {error}");
        let mut command = self.command(&self.server, "sh", &["-c".to_owned(), line.to_owned()]);
        // Standard output is the client's.
        let out = std::io::stderr().as_fd().try_clone_to_owned().map_err(failed)?;
        let mut child = command.stdin(Stdio::null()).stdout(out).spawn().map_err(failed)?;
        let (mut ended, mut listening) = (None, self.listening);
        clock::until(LISTEN_LIMIT, || {
            ended = child.try_wait().ok().flatten();
            if self.server.has(child.id()) {
                listening = hosts::listeners(child.id());
            }
            ended.is_some() || listening > self.listening
        });
        self.listening = listening;
        self.servers.push(child);
        match ended {
            Some(status) if !status.success() => Err(format!("`{line}` failed: {status}")),
            _ => Ok(()),
        }
    }

    /// Returns how serve commands ended that failed.
    pub(super) fn failed(&mut self) -> Vec<ExitStatus> {
        let ends = self.servers.iter_mut().filter_map(|server| server.try_wait().ok().flatten());
        ends.filter(|status| !status.success()).collect()
    }

    /// Returns true if the cable is a TUN device.
    pub(super) fn is_relayed(&self) -> bool {
        self.relay.is_some()
    }

    /// Returns the process of the cable.
    pub(super) fn relay_id(&self) -> Option<u32> {
        self.relay.as_ref().map(Child::id)
    }

    /// Gives the hosts these names, and leaves them there with the cable.
    pub(super) fn keep(mut self, [server, client]: [&str; 2]) -> Result<(), String> {
        self.server.keep(server)?;
        self.client.keep(client)?;
        self.relay = None;
        Ok(())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.servers.iter_mut().for_each(isolation::end);
        if let Some(relay) = &mut self.relay {
            // It ends with its device, and says what it could not carry.
            if self.server.run("ip", &format!("link delete {DEVICE}")).is_err() {
                let _ = relay.kill();
            }
            let _ = relay.wait();
        }
    }
}

impl Link {
    /// Returns true if it asks for more than `tbf` gives.
    fn needs_more_than_a_rate(&self) -> bool {
        !self.delay.is_zero() || self.loss != Loss(0)
    }
}

/// Returns true if the kernel has `netem`: the loopback device of a new namespace gets one.
fn has_netem(host: &Host) -> bool {
    let has = host.run("tc", "qdisc add dev lo root netem delay 1us").is_ok();
    if has {
        let _ = host.run("tc", "qdisc delete dev lo root");
    }
    has
}
