//! What things cost: every price of the model as a named parameter with its source.
//!
//! Times are in nanoseconds, prices per byte in picoseconds (12.5 GB/s is 80 ps a byte), so that all arithmetic is on integers. MB are 2^20 bytes,
//! as in the papers.
//!
//! **Calibration.** [`Profile::vapi_2003`] and [`Profile::ibnice_2003`] reproduce the first paper's micro-benchmarks end to end, each within 3 %:
//! `tests/table2.rs` runs them. Nothing was fitted to a system result.

use std::time::Duration;

/// The prices of an adapter, a link, a host and a disk. `Profile::default()` is a present-day machine, [`Profile::vapi_2003`] the
/// first paper's, [`Profile::ibnice_2003`] the same machine with TCP over the same network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    // ---- network and adapter ----------------------------------------------------------------------------------------------
    /// One way through cables and switch, first byte, in ns.
    pub link_latency_ns: u64,
    /// The same between two adapters of one node, in ns.
    pub loopback_latency_ns: u64,
    /// Each message occupies the sending and the receiving adapter this long, besides its bytes, in ns.
    pub adapter_message_ns: u64,
    /// Each byte of a send or write occupies the sending and the receiving adapter this long, in ps.
    pub adapter_byte_ps: u64,
    /// The same for each byte that is read, in ps.
    pub read_byte_ps: u64,
    /// Headers that travel with each message, in bytes.
    pub wire_header_bytes: u64,
    /// Messages are cut into units of this many bytes; between two units another queue pair has its turn.
    pub wire_unit_bytes: u64,
    /// A message that consumes a receive occupies the receiving adapter this long, besides, in ns: the descriptor is fetched, the completion written.
    pub receive_ns: u64,
    /// The same for a send, which is scattered as the descriptor says; a write with immediate data is not, in ns.
    pub receive_scatter_ns: u64,
    /// The responder's adapter needs this long to begin a read's reply, in ns.
    pub read_response_ns: u64,
    /// What setting up a connection adds to its first message, in ns.
    pub connection_setup_ns: u64,
    /// How long a peer that no longer answers goes unnoticed, in ns.
    pub detection_ns: u64,
    // ---- host -------------------------------------------------------------------------------------------------------------
    /// Host CPU for posting a send, write or read, in ns.
    pub cpu_post_ns: u64,
    /// Host CPU for posting a receive, in ns.
    pub cpu_post_receive_ns: u64,
    /// Host CPU for taking a completion, in ns.
    pub cpu_completion_ns: u64,
    /// Host CPU for waking a program that sleeps until its adapter has something: interrupt, switch, return from the call, in ns.
    pub cpu_wake_ns: u64,
    /// Host CPU for each byte that is copied, while a copy is short, in ps.
    pub copy_cached_byte_ps: u64,
    /// Up to here a copy is short, in bytes.
    pub copy_cached_bytes: u64,
    /// Host CPU for each byte beyond, in ps.
    pub copy_byte_ps: u64,
    /// Host CPU for each piece that a copy is made of, in ns.
    pub copy_piece_ns: u64,
    /// Host CPU to register and deregister a region, in ns.
    pub register_region_ns: u64,
    /// Host CPU to register and deregister a page of 4 KiB, in ns.
    pub register_page_ns: u64,
    // ---- an adapter in software -------------------------------------------------------------------------------------------
    /// The host's processor moves the bytes, on both sides: TCP.
    pub software: bool,
    /// Host CPU for each byte that is sent, in ps. Software only.
    pub cpu_send_byte_ps: u64,
    /// Host CPU for each message that arrives, in ns. Software only.
    pub cpu_receive_ns: u64,
    /// Host CPU for each byte that arrives, in ps. Software only.
    pub cpu_receive_byte_ps: u64,
    // ---- disk -------------------------------------------------------------------------------------------------------------
    /// The disk is memory, and the host's processor copies from and to it.
    pub disk_is_memory: bool,
    /// Before the first byte of a disk read, in ns.
    pub disk_read_latency_ns: u64,
    /// Before the first byte of a disk write, in ns.
    pub disk_write_latency_ns: u64,
    /// Making written data durable, in ns.
    pub disk_sync_ns: u64,
    /// Each byte read from the disk, in ps.
    pub disk_read_byte_ps: u64,
    /// Each byte written to the disk, in ps.
    pub disk_write_byte_ps: u64,
}

impl Default for Profile {
    /// A 100 Gb/s adapter behind one switch and a flash disk: round numbers in the range of present-day data sheets, not measured.
    fn default() -> Profile {
        Profile {
            link_latency_ns: 1_000,
            loopback_latency_ns: 300,
            adapter_message_ns: 50,
            adapter_byte_ps: 80,
            read_byte_ps: 80,
            wire_header_bytes: 64,
            wire_unit_bytes: 16 << 10,
            receive_ns: 0,
            receive_scatter_ns: 0,
            read_response_ns: 300,
            connection_setup_ns: 50_000,
            detection_ns: 10_000_000,
            cpu_post_ns: 200,
            cpu_post_receive_ns: 20,
            cpu_completion_ns: 200,
            cpu_wake_ns: 3_000,
            copy_cached_byte_ps: 50,
            copy_cached_bytes: 256 << 10,
            copy_byte_ps: 100,
            copy_piece_ns: 5,
            register_region_ns: 1_000,
            register_page_ns: 50,
            software: false,
            cpu_send_byte_ps: 0,
            cpu_receive_ns: 0,
            cpu_receive_byte_ps: 0,
            disk_is_memory: false,
            disk_read_latency_ns: 80_000,
            disk_write_latency_ns: 20_000,
            disk_sync_ns: 100_000,
            disk_read_byte_ps: 333,
            disk_write_byte_ps: 500,
        }
    }
}

impl Profile {
    /// The first testbed of paper 000 over VAPI.
    ///
    /// | what | how it comes about | source |
    /// |---|---|---|
    /// | RDMA write 6.0 µs | post 600, adapters 2 × 700, link 4,000 | Table 2; the split is ours |
    /// | send/receive 9.2 µs | and receive 1,000, scatter 1,000, completion 800, the receive posted again 400 | Table 2; the split is ours |
    /// | RDMA read 12.4 µs | post 600, there and back 2 × 5,400, response 200, completion 800 | Table 2 |
    /// | 827, 825, 816 MB/s | 1,153 ps a byte, for a read 1,169; sends lose 0.2 % to their receives | Table 2 |
    /// | register 400 kB 530 µs, 100 × 4 kB 12,400 µs | 120 µs a region and 4.1 µs a page | section 5 |
    /// | copy out of cache 596 MB/s | 1,600 ps a byte | paper 001, Table 1 |
    /// | short copies 1,057 MB/s | 902 ps a byte: ramfs read, whose target is in the cache | Table 3 |
    /// | short up to 8 KiB | the Xeon's first cache; a longer buffer that an adapter or a program has just filled is elsewhere | assumed |
    /// | disk 25 and 20 MB/s | ext3, positioning included | Table 3 |
    /// | units of 8 KiB, wake-up 10 µs, 50 ns a piece | in the range of such machines; no figure of the papers | assumed |
    pub fn vapi_2003() -> Profile {
        Profile {
            link_latency_ns: 4_000,
            loopback_latency_ns: 1_000,
            adapter_message_ns: 700,
            adapter_byte_ps: 1_153,
            read_byte_ps: 1_169,
            wire_header_bytes: 0,
            wire_unit_bytes: 8 << 10,
            receive_ns: 1_000,
            receive_scatter_ns: 1_000,
            read_response_ns: 200,
            connection_setup_ns: 500_000,
            detection_ns: 100_000_000,
            cpu_post_ns: 600,
            cpu_post_receive_ns: 400,
            cpu_completion_ns: 800,
            cpu_wake_ns: 10_000,
            copy_cached_byte_ps: 902,
            copy_cached_bytes: 8 << 10,
            copy_byte_ps: 1_600,
            copy_piece_ns: 50,
            register_region_ns: 120_000,
            register_page_ns: 4_100,
            software: false,
            cpu_send_byte_ps: 0,
            cpu_receive_ns: 0,
            cpu_receive_byte_ps: 0,
            disk_is_memory: false,
            disk_read_latency_ns: 0,
            disk_write_latency_ns: 0,
            disk_sync_ns: 0,
            disk_read_byte_ps: 47_684,
            disk_write_byte_ps: 38_147,
        }
    }

    /// The same machines with TCP over the same network (IBNice): an adapter in software, so that every byte costs both processors.
    ///
    /// 185 MB/s (paper 000, Table 2) are 5,155 ps a byte at the busier processor; which side that is the paper does not say, so both pay it. Of the
    /// 40.1 µs one way, 5 µs each are the processors' for a message, so that messages of 64 KiB still come near the stream's bandwidth; the rest is
    /// latency: interrupts, scheduling, cables. That split is ours. Memory needs no registration.
    pub fn ibnice_2003() -> Profile {
        Profile {
            link_latency_ns: 27_700,
            read_byte_ps: 1_153,
            receive_ns: 0,
            receive_scatter_ns: 0,
            read_response_ns: 0,
            cpu_post_ns: 5_000,
            cpu_post_receive_ns: 0,
            cpu_completion_ns: 1_000,
            register_region_ns: 0,
            register_page_ns: 0,
            software: true,
            cpu_send_byte_ps: 5_155,
            cpu_receive_ns: 5_000,
            cpu_receive_byte_ps: 5_155,
            ..Profile::vapi_2003()
        }
    }

    /// The same with files in memory: ramfs writes 556 and reads 1,057 MB/s, by the processor's copies (paper 000, Table 3).
    pub fn on_ramfs(self) -> Profile {
        Profile {
            disk_is_memory: true,
            disk_read_latency_ns: 0,
            disk_write_latency_ns: 0,
            disk_sync_ns: 0,
            disk_read_byte_ps: 902,
            disk_write_byte_ps: 1_715,
            ..self
        }
    }

    /// One-way time of a message of `len` bytes through idle adapters, posting and completion aside.
    pub fn one_way(&self, len: u64) -> Duration {
        let bytes = per_bytes(len + self.wire_header_bytes, self.adapter_byte_ps);
        Duration::from_nanos(2 * self.adapter_message_ns + self.link_latency_ns + bytes)
    }

    /// Host CPU for a copy of `bytes` bytes in `pieces` pieces.
    pub fn copy(&self, bytes: u64, pieces: u64) -> Duration {
        Duration::from_nanos(self.copy_ns(bytes, pieces))
    }

    pub(crate) fn copy_ns(&self, bytes: u64, pieces: u64) -> u64 {
        let short = bytes.min(self.copy_cached_bytes);
        let (cached, rest) = (per_bytes(short, self.copy_cached_byte_ps), per_bytes(bytes - short, self.copy_byte_ps));
        cached + rest + pieces.saturating_mul(self.copy_piece_ns)
    }
}

/// `bytes` at `ps` each, in whole nanoseconds, rounded up.
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
