//! The device and port of a transport: its capabilities, its addresses, its completion queues.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bmi_core::{Addr, Capabilities, Device, Error, ErrorKind, OneSided, Registration};

use crate::config::{COMPLETIONS, IbConfig, MAX_HEAD, MAX_INLINE, MAX_SEGMENTS, MAX_WORK_LEN};
use crate::memory::io_error;
use crate::verbs::{self, Channel, CompletionQueue, Context, DeviceLimits, Domain, Gid, QueuePairLimits, Unavailable};

/// The cost of registering and deregistering, measured on Soft-RoCE: 59 µs for one buffer of 400
/// kB,
/// 2.9 ms for 100 of 4 kB ([PVFS-IB §5] has these for an adapter). Most of it is the system calls.
/// Adapters differ, so this is an order of magnitude. An endpoint that calibrates itself measures
/// its own.
const PER_REGION: Duration = Duration::from_micros(28);
const PER_PAGE: Duration = Duration::from_nanos(300);

/// A completion queue and the number of its free entries.
pub(crate) struct Completions {
    pub(crate) queue: Arc<CompletionQueue>,
    free: usize,
    /// Set while it is armed and its event has not come.
    pub(crate) armed: bool,
}

/// The adapter.
pub(crate) struct Adapter {
    pub(crate) context: Arc<Context>,
    pub(crate) port: u8,
    pub(crate) state: verbs::Port,
    pub(crate) limits: DeviceLimits,
    pub(crate) channel: Arc<Channel>,
    /// The completion queues. Each connection reserves an entry in one of them for every request
    /// that it can have outstanding, so no queue overruns. When all entries are reserved, another
    /// queue is created.
    pub(crate) queues: Vec<Completions>,
    queue_pair: QueuePairLimits,
    gids: Vec<Gid>,
}

impl Adapter {
    pub(crate) fn open(config: &IbConfig) -> Result<Adapter, Error> {
        let unavailable = |why: Unavailable| {
            Error::new(ErrorKind::Unsupported, why.to_string()).during("create an InfiniBand transport")
        };
        let context = Context::open(config.device.as_ref().map(|device| device.name.as_str())).map_err(unavailable)?;
        let failed = |what: &str, error| io_error(&format!("{what} of {}", context.name()), error);
        let limits = context.limits().map_err(|error| failed("the limits", error))?;
        let (port, state) = choose_port(&context, config.device.as_ref().and_then(|device| device.port))?;
        let gids = context.gids(port).map_err(|error| failed("the addresses", error))?;
        let channel = Channel::new(&context).map_err(|error| failed("a completion channel", error))?;
        let mut adapter =
            Adapter { context, port, state, limits, channel, queues: Vec::new(), queue_pair: room(config, 0), gids };
        adapter.check(config)?;
        adapter.probe(config)?;
        Ok(adapter)
    }

    fn check(&self, config: &IbConfig) -> Result<(), Error> {
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        let (room, name) = (room(config, 0), self.context.name());
        if (room.sends.max(room.receives) as usize) > self.limits.queue {
            return invalid(format!(
                "queues of {} and {} requests; {name} has {}",
                room.sends, room.receives, self.limits.queue
            ));
        }
        if (room.segments as usize) > self.limits.segments {
            return invalid(format!("{name} gathers {} pieces, {} are needed", self.limits.segments, room.segments));
        }
        if config.retries > 6 || config.not_ready_retries > 6 {
            return invalid("retries and not_ready_retries go to 6; 7 means for ever".to_owned());
        }
        if config.ack_timeout == 0 || config.ack_timeout > 31 || config.service_level > 15 {
            return invalid("ack_timeout goes from 1 to 31, service_level to 15".to_owned());
        }
        Ok(())
    }

    /// Finds out how many bytes the adapter takes inline, by asking for less and less.
    fn probe(&mut self, config: &IbConfig) -> Result<(), Error> {
        let domain = Domain::new(&self.context).map_err(|error| io_error("no protection domain", error))?;
        let mut inline = config.tuning.adapter_inline;
        loop {
            let wanted = room(config, inline);
            let queue = self.take_completions(wanted)?;
            let made = verbs::QueuePair::new(&domain, &queue, wanted);
            self.give_completions(&queue);
            match made {
                Ok(_) => {
                    self.queue_pair = wanted;
                    return Ok(());
                }
                Err(error) if inline == 0 => return Err(io_error("the adapter makes no queue pair", error)),
                Err(_) => inline /= 2,
            }
        }
    }

    pub(crate) fn capabilities(&self, config: &IbConfig) -> Capabilities {
        let reads = config.tuning.max_outstanding_reads.min(self.limits.reads_begun).min(self.limits.reads_answered);
        let mut capabilities = Capabilities::minimal();
        capabilities.one_sided = OneSided::Native;
        capabilities.rdma_read = reads > 0;
        capabilities.write_with_immediate = true;
        capabilities.registration = Registration::Pins { per_region: PER_REGION, per_page: PER_PAGE };
        capabilities.max_segments = MAX_SEGMENTS;
        capabilities.max_head = MAX_HEAD;
        capabilities.max_inline = MAX_INLINE;
        capabilities.max_work_len = MAX_WORK_LEN.min(self.state.max_message.into());
        capabilities.send_queue_depth = config.tuning.send_queue_depth;
        capabilities.recv_queue_depth = config.tuning.recv_queue_depth;
        capabilities.max_outstanding_reads = reads.into();
        // A queue pair has one service level, and its order binds a connection to one queue pair.
        capabilities.service_levels = 1;
        capabilities.event_fd = true;
        capabilities
    }

    /// Refuses an address that names another adapter of this host.
    pub(crate) fn check_device(&self, addr: &Addr) -> Result<(), Error> {
        let ours =
            |device: &Device| device.name == self.context.name() && device.port.is_none_or(|port| port == self.port);
        match addr.device() {
            Some(device) if !ours(device) => {
                let own = format!("{}:{}", self.context.name(), self.port);
                Err(Error::new(ErrorKind::Invalid, format!("{addr} names {device}; this transport is on {own}")))
            }
            _ => Ok(()),
        }
    }

    /// Reads the adapter's addresses and its port's state again.
    pub(crate) fn refresh(&mut self) {
        match self.context.gids(self.port) {
            Ok(gids) => self.gids = gids,
            Err(error) => tracing::warn!(%error, "cannot read the adapter's addresses"),
        }
        if let Ok(state) = self.context.port(self.port) {
            self.state = state;
        }
    }

    /// Returns this side's address for a connection whose side channel is at `local`.
    pub(crate) fn gid(&self, local: Option<IpAddr>) -> Option<Gid> {
        choose_gid(&self.gids, self.state.ethernet, local)
    }

    pub(crate) fn make_queue_pair(&mut self) -> Result<(verbs::QueuePair, Arc<Domain>), Error> {
        let domain = Domain::new(&self.context).map_err(|error| io_error("no protection domain left", error))?;
        let queue = self.take_completions(self.queue_pair)?;
        let made = verbs::QueuePair::new(&domain, &queue, self.queue_pair);
        let made = made.and_then(|made| made.init(self.port).map(|()| made));
        match made {
            Ok(made) => Ok((made, domain)),
            Err(error) => {
                self.give_completions(&queue);
                Err(io_error("no queue pair left", error))
            }
        }
    }

    fn take_completions(&mut self, room: QueuePairLimits) -> Result<Arc<CompletionQueue>, Error> {
        let need = (room.sends + room.receives) as usize;
        if let Some(found) = self.queues.iter_mut().find(|queue| queue.free >= need) {
            found.free -= need;
            return Ok(Arc::clone(&found.queue));
        }
        let size = COMPLETIONS.min(self.limits.completions).max(need);
        let queue = CompletionQueue::new(&self.channel, size);
        let queue = queue.map_err(|error| io_error("no completion queue left", error))?;
        self.queues.push(Completions { queue: Arc::clone(&queue), free: size - need, armed: false });
        Ok(queue)
    }

    /// Gives back the entries of a queue pair that is gone.
    pub(crate) fn give_completions(&mut self, queue: &Arc<CompletionQueue>) {
        if let Some(found) = self.queues.iter_mut().find(|known| Arc::ptr_eq(&known.queue, queue)) {
            found.free += (self.queue_pair.sends + self.queue_pair.receives) as usize;
        }
    }
}

/// Returns the limits of a queue pair. There is room for two requests more than the depth: one for
/// the marker, and a spare one.
fn room(config: &IbConfig, inline: u32) -> QueuePairLimits {
    QueuePairLimits {
        sends: config.tuning.send_queue_depth as u32 + 2,
        receives: config.tuning.recv_queue_depth as u32,
        segments: MAX_SEGMENTS as u32 + 1,
        inline,
    }
}

fn choose_port(context: &Context, wanted: Option<u8>) -> Result<(u8, verbs::Port), Error> {
    let name = context.name();
    let ask = |port: u8| context.port(port).map_err(|error| io_error(&format!("{name} has no port {port}"), error));
    let shown = format!("`ibv_devinfo -d {name}` shows its ports");
    if let Some(port) = wanted {
        let state = ask(port)?;
        return match state.active {
            true => Ok((port, state)),
            false => Err(no_link(&format!("port {port} of {name} is not active; {shown}"))),
        };
    }
    let ports = context.ports().map_err(|error| io_error(&format!("the ports of {name}"), error))?;
    for port in 1..=ports {
        let state = ask(port)?;
        if state.active {
            return Ok((port, state));
        }
    }
    Err(no_link(&format!("no port of {name} is active; {shown}")))
}

fn no_link(text: &str) -> Error {
    Error::new(ErrorKind::Unsupported, text).during("create an InfiniBand transport")
}

/// Chooses an address by its content, never by its position. On RoCE only version 2 entries count.
/// The best is the side channel's own address, then IPv4, then global IPv6, then link-local. On
/// InfiniBand it is the first entry.
fn choose_gid(gids: &[Gid], ethernet: bool, local: Option<IpAddr>) -> Option<Gid> {
    if !ethernet {
        return gids.first().copied();
    }
    let rank = |gid: &Gid| match gid.ip() {
        ip if Some(ip) == local => 0,
        IpAddr::V4(_) => 1,
        IpAddr::V6(ip) if !ip.is_unicast_link_local() => 2,
        IpAddr::V6(_) => 3,
    };
    gids.iter().filter(|gid| gid.roce_v2).min_by_key(|gid| rank(gid)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, ip: &str, roce_v2: bool) -> Gid {
        let raw = match ip.parse().unwrap() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        Gid { raw, index, roce_v2 }
    }

    #[test]
    fn gids_are_chosen_by_content() {
        let table = [
            gid(0, "fe80::1", false),
            gid(1, "fe80::1", true),
            gid(2, "10.0.0.1", false),
            gid(3, "2001:db8::1", true),
            gid(4, "10.0.0.1", true),
            gid(5, "10.0.1.1", true),
        ];
        let chosen = |table: &[Gid], local: Option<&str>| {
            choose_gid(table, true, local.map(|ip| ip.parse().unwrap())).map(|gid| gid.index)
        };
        assert_eq!(chosen(&table, None), Some(4));
        assert_eq!(chosen(&table, Some("10.0.1.1")), Some(5));
        assert_eq!(chosen(&table, Some("127.0.0.1")), Some(4));
        assert_eq!(chosen(&table[..4], None), Some(3));
        assert_eq!(chosen(&table[..2], None), Some(1));
        assert_eq!(chosen(&table[..1], None), None, "version 1 is not spoken");
        assert_eq!(choose_gid(&table, false, None).map(|gid| gid.index), Some(0), "on InfiniBand the first");
    }
}
