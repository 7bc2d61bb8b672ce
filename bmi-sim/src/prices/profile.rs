//! The price of each operation: every price of the model is a named parameter, kept in files that
//! name its source.
//!
//! Times are in nanoseconds (`_ns`). Prices per byte are in picoseconds (`_ps_per_byte`; 12.5 GB/s
//! is 80), so that all arithmetic is on integers. MB are 2^20 bytes, as in the papers. A resource
//! with price 0 is never waited for and costs no events.
//!
//! | profile | machine | source |
//! |---|---|---|
//! | [`Profile::default`] | a 100 Gb/s adapter and a flash disk, round numbers | none |
//! | `vapi-2003` | InfiniHost on PCI-X, the machines of [PVFS-IB] | [PVFS-IB, Table 2, §5] |
//! | `ibnice-2003` | the same with TCP | [PVFS-IB, Table 2] |
//! | `ibnice-uncached-2003` | the same, with the program's buffers in no cache | [Unifier-PVFS, Table 1] |
//! | `elan4-2005` | QsNet II, no registration | [Quadrics-PVFS2], figures at second hand |
//! | `gige-2008` | TCP over gigabit Ethernet | [pNFS-Lustre]; mostly assumed |
//! | `cx7-400` | a 400 Gb/s adapter on PCIe 5.0 | port and bus rates: the vendor; the rest assumed |
//!
//! | disks | source |
//! |---|---|
//! | `ramfs-2003`, `ext3-ide-2003` | [PVFS-IB, Table 3] |
//! | `ramfs-uncached-2003`, `ramfs-uncached-2005` | [Unifier-PVFS, Table 1] |
//! | `nvme` | press reports |
//!
//! The files are in `bmi-sim/profiles/`. The comment of each parameter names its source.
//!
//! **Calibration.** `vapi-2003` and `ibnice-2003` reproduce the micro-benchmarks of [PVFS-IB] end
//! to end, each within 3 %; `tests/it/profiles/table2.rs` runs them. Nothing was fitted to a system
//! result.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The prices of an adapter, a link, a host and a disk. [`Profile::default`] is a present-day
/// machine, [`Profile::named`] returns others, [`Profile::load`] reads one from a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    // ---- network --------------------------------------------------------------------------------
    /// One-way latency of the first byte through cables and switch.
    pub link_latency_ns: u64,
    /// The same between two adapters of one node.
    pub loopback_latency_ns: u64,
    /// Bytes of headers that travel with each message.
    pub wire_header_bytes: u64,
    /// Messages are cut into units of this many bytes. Between two units another queue pair has its
    /// turn.
    pub wire_unit_bytes: u64,
    /// Number of bytes that may wait in the switch for one adapter, besides one unit; 0 for no
    /// limit.
    pub switch_port_bytes: u64,
    /// If true, a full port of the switch loses what arrives (Ethernet). Otherwise its senders wait
    /// (InfiniBand).
    pub switch_port_drops: bool,
    /// A lost unit is sent again after this time.
    pub retransmit_ns: u64,
    /// Additional time of a connection's first message, for setting the connection up.
    pub connection_setup_ns: u64,
    /// Time until a peer that no longer answers is noticed.
    pub detection_ns: u64,
    // ---- adapter and bus ------------------------------------------------------------------------
    /// Each message occupies the sending and the receiving adapter this long, in addition to its
    /// bytes: the gap between messages.
    pub adapter_message_ns: u64,
    /// Each piece of a gather list beyond the first occupies the sending adapter this long.
    pub adapter_segment_ns: u64,
    /// Each byte of a send or write occupies the sending and the receiving adapter this long.
    pub adapter_ps_per_byte: u64,
    /// The same for each byte that is read.
    pub read_ps_per_byte: u64,
    /// A message that consumes a receive occupies the receiving adapter this long, in addition: the
    /// descriptor is fetched and the completion is written.
    pub receive_ns: u64,
    /// The same for a send, which is scattered as the descriptor says. A write with immediate data
    /// is not scattered.
    pub receive_scatter_ns: u64,
    /// The responder's adapter needs this long to begin a read's reply.
    pub read_response_ns: u64,
    /// Number of reads that a connection may have outstanding; 0 for the contract's own limit.
    pub outstanding_reads: u64,
    /// Each byte occupies the host's bus this long; 0 for a bus that is never the limit.
    pub bus_ps_per_byte: u64,
    /// If true, both directions share the bus (PCI-X). Otherwise each has its own (PCIe).
    pub bus_half_duplex: bool,
    // ---- host -----------------------------------------------------------------------------------
    /// Cores of a node's processor. Tasks and the work of interrupts spread over them.
    pub cpu_cores: u64,
    /// Host CPU for posting a send, write or read.
    pub cpu_post_ns: u64,
    /// Host CPU for posting a receive.
    pub cpu_post_receive_ns: u64,
    /// Host CPU for taking a completion.
    pub cpu_completion_ns: u64,
    /// Host CPU for entering the kernel and coming back: once when a program goes to sleep, and
    /// with an adapter in software once for each post.
    pub system_call_ns: u64,
    /// Host CPU for an interrupt: when the adapter wakes a program that sleeps, and with an adapter
    /// in software also when something arrives at an idle one.
    pub interrupt_ns: u64,
    /// Host CPU for switching to a program that slept.
    pub context_switch_ns: u64,
    // ---- locks ----------------------------------------------------------------------------------
    /// How long a core holds a lock of the program, if it also was the last one to hold it
    /// ([`crate::Node::locked`]).
    pub lock_hold_ns: u64,
    /// Number of cache lines that a core fetches when another core was the last one to hold the
    /// lock: the lock's own line, and those of what it protects. It holds the lock meanwhile.
    pub lock_lines: u64,
    /// Time to fetch a cache line that another core has changed.
    pub cache_line_ns: u64,
    // ---- copies ---------------------------------------------------------------------------------
    /// Host CPU for each copied byte, while a copy is short.
    pub copy_cached_ps_per_byte: u64,
    /// A copy of up to this many bytes is short.
    pub copy_cached_bytes: u64,
    /// Host CPU for each byte beyond that.
    pub copy_ps_per_byte: u64,
    /// Host CPU for each piece of a copy.
    pub copy_piece_ns: u64,
    /// Each byte that crosses the memory bus occupies it this long; 0 for a bus that is never the
    /// limit. A byte that the adapter moves crosses it once. A byte of a short copy crosses it
    /// once: its source is out of the cache, its target in it. A byte beyond that crosses it three
    /// times: the source is read, and the target's line is read and written back. The adapter has
    /// priority. This does not apply to an adapter in software, whose prices contain it.
    pub memory_ps_per_byte: u64,
    // ---- registration ---------------------------------------------------------------------------
    /// Host CPU to register a region. If [`Profile::register_page_ns`] is 0 too, there is no
    /// registration.
    pub register_region_ns: u64,
    /// Host CPU to register a page of 4 KiB.
    pub register_page_ns: u64,
    /// Host CPU for a batch of deregistrations, however many.
    pub deregister_batch_ns: u64,
    /// Host CPU for each region of a batch.
    pub deregister_region_ns: u64,
    /// Host CPU for each page of a batch.
    pub deregister_page_ns: u64,
    // ---- an adapter in software -----------------------------------------------------------------
    /// If true, the host's processor moves the bytes, on both sides: TCP.
    pub software: bool,
    /// Maximum bytes of a packet. Software only.
    pub packet_bytes: u64,
    /// Host CPU for each sent byte, which is copied. Software only.
    pub cpu_send_ps_per_byte: u64,
    /// Host CPU for each packet that is sent. Software only.
    pub cpu_send_packet_ns: u64,
    /// Host CPU for each message that arrives. Software only.
    pub cpu_receive_ns: u64,
    /// Host CPU for each byte that arrives, which is copied. Software only.
    pub cpu_receive_ps_per_byte: u64,
    /// Host CPU for each packet that arrives. Software only.
    pub cpu_receive_packet_ns: u64,
    // ---- disk -----------------------------------------------------------------------------------
    /// The prices of the disk.
    pub disk: DiskProfile,
}

/// The prices of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskProfile {
    /// If true, the disk is memory, and the host's processor copies from and to it.
    pub memory: bool,
    /// Number of requests whose latencies may overlap. Their bytes pass one after the other.
    pub queue_depth: u64,
    /// Time before the first byte of a read.
    pub read_latency_ns: u64,
    /// Time before the first byte of a write.
    pub write_latency_ns: u64,
    /// Time for making written data durable, in addition to writing it.
    pub sync_ns: u64,
    /// Time for each byte read.
    pub read_ps_per_byte: u64,
    /// Time for each byte written.
    pub write_ps_per_byte: u64,
    /// Bytes of the host's cache that written data may take before it is on the disk; 0 for writes
    /// that go through.
    pub cache_bytes: u64,
    /// Host CPU for each byte that is copied to the cache.
    pub cache_ps_per_byte: u64,
    /// Where the disk is memory: how often each byte of a read crosses the memory bus
    /// ([`Profile::memory_ps_per_byte`]).
    pub read_crossings: u64,
    /// The same for each byte of a write.
    pub write_crossings: u64,
}

impl Default for DiskProfile {
    /// Returns a flash disk, in round numbers.
    fn default() -> DiskProfile {
        DiskProfile {
            memory: false,
            queue_depth: 1,
            read_latency_ns: 80_000,
            write_latency_ns: 20_000,
            sync_ns: 100_000,
            read_ps_per_byte: 333,
            write_ps_per_byte: 500,
            cache_bytes: 0,
            cache_ps_per_byte: 0,
            read_crossings: 0,
            write_crossings: 0,
        }
    }
}

impl Default for Profile {
    /// Returns a 100 Gb/s adapter behind one switch, and a flash disk. The values are round numbers
    /// in the range of present-day data sheets, not measured. One core: what a program gives to its
    /// transport.
    fn default() -> Profile {
        Profile {
            link_latency_ns: 1_000,
            loopback_latency_ns: 300,
            wire_header_bytes: 64,
            wire_unit_bytes: 16 << 10,
            switch_port_bytes: 0,
            switch_port_drops: false,
            retransmit_ns: 0,
            connection_setup_ns: 50_000,
            detection_ns: 10_000_000,
            adapter_message_ns: 50,
            adapter_segment_ns: 0,
            adapter_ps_per_byte: 80,
            read_ps_per_byte: 80,
            receive_ns: 0,
            receive_scatter_ns: 0,
            read_response_ns: 300,
            outstanding_reads: 0,
            bus_ps_per_byte: 0,
            bus_half_duplex: false,
            cpu_cores: 1,
            cpu_post_ns: 200,
            cpu_post_receive_ns: 20,
            cpu_completion_ns: 200,
            system_call_ns: 500,
            interrupt_ns: 1_000,
            context_switch_ns: 1_500,
            lock_hold_ns: 100,
            lock_lines: 3,
            cache_line_ns: 60,
            copy_cached_ps_per_byte: 50,
            copy_cached_bytes: 256 << 10,
            copy_ps_per_byte: 100,
            copy_piece_ns: 5,
            memory_ps_per_byte: 0,
            register_region_ns: 1_000,
            register_page_ns: 50,
            deregister_batch_ns: 0,
            deregister_region_ns: 0,
            deregister_page_ns: 0,
            software: false,
            packet_bytes: 1 << 12,
            cpu_send_ps_per_byte: 0,
            cpu_send_packet_ns: 0,
            cpu_receive_ns: 0,
            cpu_receive_ps_per_byte: 0,
            cpu_receive_packet_ns: 0,
            disk: DiskProfile::default(),
        }
    }
}

impl Profile {
    /// Returns the first testbed of [PVFS-IB] over VAPI: `vapi-2003` on ext3.
    pub fn vapi_2003() -> Profile {
        Profile::named("vapi-2003").expect("a test reads every file of the crate")
    }

    /// Returns the same machines with TCP over the same network: `ibnice-2003`.
    pub fn ibnice_2003() -> Profile {
        Profile::named("ibnice-2003").expect("a test reads every file of the crate")
    }

    /// Returns the same profile with files in memory: ramfs writes 556 and reads 1,057 MB/s, by the
    /// processor's copies ([PVFS-IB, Table 3]).
    pub fn on_ramfs(self) -> Profile {
        self.with_disk(DiskProfile::named("ramfs-2003").expect("a test reads every file of the crate"))
    }

    /// Returns the same profile with another disk.
    pub fn with_disk(self, disk: DiskProfile) -> Profile {
        Profile { disk, ..self }
    }

    /// Returns the one-way time of a message of `len` bytes through idle adapters, without posting
    /// and completion.
    pub fn one_way(&self, len: u64) -> Duration {
        let bytes = per_bytes(len + self.wire_header_bytes, self.adapter_ps_per_byte);
        Duration::from_nanos(2 * self.adapter_message_ns + self.link_latency_ns + bytes)
    }

    /// Returns the host CPU for a copy of `bytes` bytes in `pieces` pieces.
    pub fn copy(&self, bytes: u64, pieces: u64) -> Duration {
        Duration::from_nanos(self.copy_ns(bytes, pieces))
    }

    pub(crate) fn copy_ns(&self, bytes: u64, pieces: u64) -> u64 {
        let short = bytes.min(self.copy_cached_bytes);
        let (cached, rest) =
            (per_bytes(short, self.copy_cached_ps_per_byte), per_bytes(bytes - short, self.copy_ps_per_byte));
        cached + rest + pieces.saturating_mul(self.copy_piece_ns)
    }

    /// Returns how long a copy of `bytes` bytes needs the memory bus.
    pub(crate) fn copy_bus_ns(&self, bytes: u64) -> u64 {
        let short = bytes.min(self.copy_cached_bytes);
        per_bytes(short + 3 * (bytes - short), self.memory_ps_per_byte)
    }
}

/// Returns the time of `bytes` at `ps` each, in whole nanoseconds, rounded up.
pub(crate) fn per_bytes(bytes: u64, ps: u64) -> u64 {
    bytes.saturating_mul(ps).div_ceil(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_round_up() {
        assert_eq!((per_bytes(0, 80), per_bytes(1, 80), per_bytes(25, 80), per_bytes(1 << 20, 80)), (0, 1, 2, 83_887));
    }
}
