//! What things cost: every price of the model as a named parameter with its source.
//!
//! Times are in nanoseconds, prices per byte in picoseconds (12.5 GB/s is 80 ps a byte), so that all arithmetic is on integers.

use std::time::Duration;

/// The prices of an adapter, a link, a host and a disk. `Profile::default()` is a present-day machine, [`Profile::vapi_2003`] the
/// first paper's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// One way through cables and switch, first byte, in ns.
    pub link_latency_ns: u64,
    /// The same between two adapters of one node, in ns.
    pub loopback_latency_ns: u64,
    /// Each message occupies the sending and the receiving adapter this long, besides its bytes, in ns.
    pub adapter_message_ns: u64,
    /// Each byte occupies the sending and the receiving adapter this long, in ps.
    pub adapter_byte_ps: u64,
    /// Headers that travel with each message, in bytes.
    pub wire_header_bytes: u64,
    /// The responder's adapter needs this long to begin a read's reply, in ns.
    pub read_response_ns: u64,
    /// What setting up a connection adds to its first message, in ns.
    pub connection_setup_ns: u64,
    /// How long a peer that no longer answers goes unnoticed, in ns.
    pub detection_ns: u64,
    /// Host CPU for posting a send, write or read, in ns.
    pub cpu_post_ns: u64,
    /// Host CPU for taking a completion, in ns.
    pub cpu_completion_ns: u64,
    /// Host CPU for each byte that is copied while posting, in ps.
    pub cpu_copy_byte_ps: u64,
    /// Host CPU to register and deregister a region, in ns.
    pub register_region_ns: u64,
    /// Host CPU to register and deregister a page of 4 KiB, in ns.
    pub register_page_ns: u64,
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
            wire_header_bytes: 64,
            read_response_ns: 300,
            connection_setup_ns: 50_000,
            detection_ns: 10_000_000,
            cpu_post_ns: 200,
            cpu_completion_ns: 200,
            cpu_copy_byte_ps: 100,
            register_region_ns: 1_000,
            register_page_ns: 50,
            disk_read_latency_ns: 80_000,
            disk_write_latency_ns: 20_000,
            disk_sync_ns: 100_000,
            disk_read_byte_ps: 333,
            disk_write_byte_ps: 500,
        }
    }
}

impl Profile {
    /// Roughly the first testbed of paper 000. Bandwidth: 825 MB/s of 2^20 bytes (Table 2) is 1,156 ps a byte. RDMA write at 6.0 µs is
    /// post 600 + adapters 2 × 700 + link 4,000; send/receive at 9.2 µs adds a completion of 3,200; RDMA read at 12.4 µs adds the way
    /// back and 1,000 at the responder. Registration: section 5. Disk: ext3 in Table 3, positioning included in the rates.
    pub fn vapi_2003() -> Profile {
        Profile {
            link_latency_ns: 4_000,
            loopback_latency_ns: 1_000,
            adapter_message_ns: 700,
            adapter_byte_ps: 1_156,
            wire_header_bytes: 0,
            read_response_ns: 1_000,
            connection_setup_ns: 500_000,
            detection_ns: 100_000_000,
            cpu_post_ns: 600,
            cpu_completion_ns: 3_200,
            cpu_copy_byte_ps: 1_600, // memory copy of 596 MB/s: paper 001, Table 1
            register_region_ns: 120_000,
            register_page_ns: 4_100,
            disk_read_latency_ns: 0,
            disk_write_latency_ns: 0,
            disk_sync_ns: 0,
            disk_read_byte_ps: 47_684,
            disk_write_byte_ps: 38_147,
        }
    }

    /// One-way time of a message of `len` bytes through idle adapters, posting and completion aside.
    pub fn one_way(&self, len: u64) -> Duration {
        let bytes = per_bytes(len + self.wire_header_bytes, self.adapter_byte_ps);
        Duration::from_nanos(2 * self.adapter_message_ns + self.link_latency_ns + bytes)
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
