//! The identity of this machine.

use std::fs;

/// The file in which Linux has a random number that it draws when the machine starts.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns a name of this host that no other host has. All processes of the host get the same name,
/// in all containers. Returns `None` if the system has no such name. Two sides with the same name
/// may be able to share memory. They need not see the same files.
pub fn host_id() -> Option<String> {
    let text = fs::read_to_string(BOOT_ID).ok()?;
    let id = text.trim();
    // The number has 36 characters on every Linux. Another text is not that number.
    (id.len() == 36 && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_host_has_one_name() {
        let name = super::host_id().unwrap();
        assert_eq!(super::host_id(), Some(name));
    }
}
