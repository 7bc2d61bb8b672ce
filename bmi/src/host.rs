//! Which machine this is.

use std::fs;

/// Where Linux says which boot of which machine this is: a random number, drawn when it starts.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A name that all processes of this host, in whatever container, have in common and no other host
/// has; `None` if the system does not say. Two sides with the same one may be able to share memory;
/// whether they see the same files is another question.
pub fn host_id() -> Option<String> {
    let text = fs::read_to_string(BOOT_ID).ok()?;
    let id = text.trim();
    // 36 characters on every Linux; anything else is not what we take it for.
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
