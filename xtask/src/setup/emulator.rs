//! QEMU, which emulates the machine.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::programs::program;

/// Returns why QEMU, which is installed, cannot emulate here; `None` if it can.
pub(crate) fn obstacle() -> Option<String> {
    let output = Command::new(path()).args(["-accel", "help"]).stdin(Stdio::null()).output();
    let said = match output {
        Ok(output) => [output.stdout, output.stderr].concat(),
        Err(error) => return Some(format!("qemu cannot be started: {error}")),
    };
    lacks(&String::from_utf8_lossy(&said))
}

/// Returns what is missing in QEMU's list of accelerators.
fn lacks(accelerators: &str) -> Option<String> {
    let has_tcg = accelerators.lines().any(|line| line.trim() == "tcg");
    (!has_tcg).then(|| format!("this QEMU does not emulate (tcg): {}", accelerators.trim()))
}

/// Returns the path of the emulator.
pub(crate) fn path() -> PathBuf {
    const EMULATOR: &str = "qemu-system-x86_64";
    program(EMULATOR).unwrap_or_else(|| EMULATOR.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qemu_that_cannot_emulate_says_why() {
        assert_eq!(lacks("Accelerators supported in QEMU binary:\ntcg\nxen\nkvm\n"), None);
        let why = lacks("Accelerators supported in QEMU binary:\nkvm\n").unwrap();
        assert!(why.contains("kvm"), "{why}");
        assert!(lacks("error while loading shared libraries: libfdt.so.1").unwrap().contains("libfdt"));
    }
}
