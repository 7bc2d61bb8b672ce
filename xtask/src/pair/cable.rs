//! A pair of namespaces, made and joined.
//!
//! **Invariant.** The guard is there before the first namespace is.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::guard::{Guard, OWN_PROGRAM};
use super::link::{Cable, Link, Loss};
use super::namespaces::{self, DEVICE, Names, run};
use super::{clock, relay, shape};
use crate::command::Invocation;
use crate::setup;

/// The addresses of the two hosts, from the range for benchmarks (RFC 2544, appendix C.2.2).
pub(super) const SERVER: &str = "198.18.0.1";
/// The other host.
pub(super) const CLIENT: &str = "198.18.0.2";
/// The length of the network's prefix: two hosts.
const PREFIX: u8 = 30;

/// How long a serve command may take until it listens.
const LISTEN_LIMIT: Duration = Duration::from_secs(2);

/// Two namespaces joined by a cable. They are removed when this is dropped, unless they are kept.
pub(super) struct Pair {
    guard: Guard,
    names: Names,
    relay: Option<Child>,
    servers: Vec<Child>,
    /// The sockets that listened in the server when the last of them was started.
    listening: usize,
}

impl Pair {
    /// Makes the namespaces and the cable.
    pub(super) fn make(link: &Link, keep: bool) -> Result<Pair, String> {
        let names = Names::new(keep);
        let guard = Guard::start(&names)?;
        let mut pair = Pair { guard, names, relay: None, servers: Vec::new(), listening: 0 };
        pair.names.both().into_iter().try_for_each(namespaces::make)?;
        let has_netem = match link.cable {
            Cable::Relay => false,
            Cable::Auto => link.needs_more_than_a_rate() && has_netem(&pair.names.server),
            Cable::Netem if has_netem(&pair.names.server) => true,
            Cable::Netem => return Err("this kernel has no netem; --cable relay does without it".to_owned()),
        };
        match link.cable {
            Cable::Auto if !link.needs_more_than_a_rate() => pair.join_by_veth()?,
            _ if has_netem => pair.join_by_veth()?,
            _ => pair.join_by_relay(link, keep)?,
        }
        for (name, address) in [(&pair.names.server, SERVER), (&pair.names.client, CLIENT)] {
            // No addresses of IPv6: their discovery would be packets that nobody asked for.
            run("ip", &format!("-n {name} link set {DEVICE} mtu {} addrgenmode none", link.mtu))?;
            run("ip", &format!("-n {name} addr add {address}/{PREFIX} dev {DEVICE}"))?;
            let mut parent = "root";
            if has_netem {
                run("tc", &format!("-n {name} qdisc replace dev {DEVICE} {}", shape::netem(link)))?;
                parent = "parent 1:";
            }
            if let Some(rate) = link.rate {
                let tbf = shape::tbf(link, rate, parent);
                run("tc", &format!("-n {name} qdisc replace dev {DEVICE} {tbf}"))?;
            }
        }
        for name in pair.names.both() {
            run("ip", &format!("-n {name} link set {DEVICE} up"))?;
        }
        if keep {
            pair.guard.keep()?;
        }
        Ok(pair)
    }

    fn join_by_veth(&self) -> Result<(), String> {
        let Names { server, client } = &self.names;
        run("ip", &format!("-n {server} link add {DEVICE} type veth peer name {DEVICE} netns {client}"))
    }

    fn join_by_relay(&mut self, link: &Link, keep: bool) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("the cable cannot be started: {error}");
        let Names { server, client } = self.names.clone();
        let spec = relay::Spec {
            server,
            client,
            delay_ns: link.delay.as_nanos() as u64,
            loss_millionths: link.loss.0,
            seed: link.seed,
        };
        let spec = serde_json::to_string(&spec).map_err(|error| error.to_string())?;
        let mut command = Command::new(OWN_PROGRAM);
        // A process group of its own: the guard ends it, and not Ctrl-C, which a command may
        // handle.
        command.arg0("xtask").args(["pair-relay", &spec]).process_group(0);
        // A relay that is kept must not keep the terminal open.
        let errors = if keep { Stdio::null() } else { Stdio::inherit() };
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

    /// Returns a command that runs a program on one of the hosts.
    pub(super) fn command(&self, host: &str, program: &str, args: &[String]) -> Command {
        let name = if host == SERVER { &self.names.server } else { &self.names.client };
        let mut command = namespaces::inside(name, program, args);
        command.env("PAIR_SERVER", SERVER).env("PAIR_CLIENT", CLIENT);
        command
    }

    /// Returns a program of the client whose time is limited.
    pub(super) fn measured(&self, program: &str, args: &[String]) -> Invocation {
        let ip = setup::program("ip").unwrap_or_else(|| "ip".into());
        let client = &self.names.client;
        Invocation::new(Path::new("."), ip, &format!("netns exec {client} {program}")).args(args)
    }

    /// Starts a shell command in the server, and waits until it listens.
    pub(super) fn serve(&mut self, line: &str) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("`{line}` cannot be started: {error}");
        let mut command = self.command(SERVER, "sh", &["-c".to_owned(), line.to_owned()]);
        // Standard output is the client's.
        let out = std::io::stderr().as_fd().try_clone_to_owned().map_err(failed)?;
        let mut child = command.stdin(Stdio::null()).stdout(out).spawn().map_err(failed)?;
        let (mut ended, mut listening) = (None, self.listening);
        clock::until(LISTEN_LIMIT, || {
            ended = child.try_wait().ok().flatten();
            if namespaces::is_inside(child.id(), &self.names.server) {
                listening = namespaces::listeners(child.id());
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

    pub(super) fn names(&self) -> &Names {
        &self.names
    }

    /// Returns true if the cable is a TUN device.
    pub(super) fn is_relayed(&self) -> bool {
        self.relay.is_some()
    }

    /// Returns the process of the cable.
    pub(super) fn relay_id(&self) -> Option<u32> {
        self.relay.as_ref().map(Child::id)
    }

    /// Leaves a pair that is kept as it is.
    pub(super) fn leave(mut self) {
        self.relay = None;
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.guard.finish();
        if let Some(relay) = &mut self.relay {
            let _ = relay.kill();
            let _ = relay.wait();
        }
        // The guard has ended them.
        for server in &mut self.servers {
            let _ = server.wait();
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
fn has_netem(name: &str) -> bool {
    let has = run("tc", &format!("-n {name} qdisc add dev lo root netem delay 1us")).is_ok();
    if has {
        let _ = run("tc", &format!("-n {name} qdisc delete dev lo root"));
    }
    has
}
