//! The ids of work requests: they name the connection and the request.

use bmi_core::transport::ConnId;

/// Set in the id of a receive.
pub(super) const RECV: u64 = 1 << 63;

/// Returns the part of a work request's id that names the connection. The rest is the request's
/// number.
pub(crate) fn tag(conn: ConnId) -> u64 {
    (u64::from(conn.slot) & 0xf_ffff) << 43 | (u64::from(conn.generation) & 0x7ff) << 32
}

/// Splits an id into the slot, the tag, whether it is a receive, and the number.
pub(crate) fn parse_name(id: u64) -> (u32, u64, bool, u32) {
    (((id >> 43) & 0xf_ffff) as u32, id & !RECV & !0xffff_ffff, id & RECV != 0, id as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_back() {
        for (slot, generation) in [(0, 0), (5, 2047), (0xf_ffff, 1)] {
            let conn = ConnId { slot, generation };
            for number in [0, 7, u32::MAX] {
                let id = tag(conn) | u64::from(number);
                assert_eq!(parse_name(id), (slot, tag(conn), false, number));
                assert_eq!(parse_name(id | RECV), (slot, tag(conn), true, number));
            }
        }
    }
}
