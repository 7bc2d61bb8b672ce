//! File systems without room. That is an error when a chunk is made, and never a signal when its
//! bytes are touched.

use std::process::Command;

use bmi_core::ErrorKind;

use super::*;

/// The folder of a small file system in memory, for the process that has it.
const SMALL: &str = "BMI_CACHE_SMALL";
/// Bytes of that file system.
const ROOM: usize = 3 << 20;
/// The exit code of a shell that could not mount it.
const NO_MOUNT: i32 = 77;
const CHUNK: usize = 4 * BLOCK;

#[test]
fn a_chunk_larger_than_its_file_system_is_an_error() {
    let _guard = no_new_process();
    let dir = folder();
    let space = rustix::fs::statvfs(dir.path()).unwrap();
    let total = space.f_blocks * space.f_frsize;
    if !dir.path().starts_with("/dev/shm") || total == 0 {
        println!("skipped: there is no /dev/shm with a bound");
        return;
    }
    let chunk = (total as usize + 1).next_multiple_of(BLOCK);
    let settings = ArenaSettings { bytes: 2 * chunk as u64, chunk };
    let path = dir.path().join("arena");
    let (mut arena, _) = Arena::adopt(Frames::open(&path, settings, OWNER).unwrap());
    let error = arena.grow().unwrap_err();
    assert!(error.kind() == ErrorKind::Exhausted && error.to_string().contains("arena"), "{error}");
    assert_eq!(arena.blocks(), 0);
}

/// Runs in a file system with little room.
fn fill(folder: &Path) {
    let path = folder.join("arena");
    let settings = ArenaSettings { bytes: 2 * ROOM as u64, chunk: CHUNK };
    let (mut arena, _) = Arena::adopt(Frames::open(&path, settings, OWNER).unwrap());
    let ballast = folder.join("ballast");
    std::fs::write(&ballast, vec![1; CHUNK]).unwrap();
    let error = loop {
        match arena.grow() {
            Ok(has_grown) => assert!(has_grown, "the bound was reached first"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    let chunks = arena.blocks() as usize / 4;
    assert!((ROOM / CHUNK - 3..ROOM / CHUNK).contains(&chunks), "{chunks}");
    let mut records = Vec::new();
    let mut write = |arena: &mut Arena| {
        for block in records.len() as u32..arena.blocks() {
            let unit = place(block * 16, 16);
            arena.slice(unit, 0, 65_536).copy_from(&[block as u8; 65_536]);
            records.push(Recovered { place: unit, record: record(1, u64::from(block) << 16, &[0..65_536]) });
            arena.record(unit, Some(&records[block as usize].record));
        }
        records.clone()
    };
    write(&mut arena);
    assert!(arena.grow().is_err(), "it is still full");
    std::fs::remove_file(&ballast).unwrap();
    assert!(arena.grow().unwrap(), "there is room now");
    let left = write(&mut arena);
    drop(arena);
    let (arena, recovered) = Arena::adopt(Frames::open(&path, settings, OWNER).unwrap());
    assert_eq!(recovered, left);
    for unit in recovered {
        let bytes = arena.slice(unit.place, 0, 65_536).to_vec();
        assert!(bytes.iter().all(|byte| u32::from(*byte) == unit.place.frame / 16));
    }
    // No room for the superblock of another one.
    std::fs::write(&ballast, vec![1; ROOM]).unwrap_err();
    let error = Frames::open(&folder.join("another"), settings, OWNER).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
}

#[test]
fn a_full_file_system_is_an_error_and_never_a_signal() {
    if let Some(folder) = std::env::var_os(SMALL) {
        return fill(Path::new(&folder));
    }
    let dir = tempfile::tempdir().unwrap();
    let test = "memory::arena::tests::full::a_full_file_system_is_an_error_and_never_a_signal";
    let script = format!(r#"mount -t tmpfs -o size={ROOM} none "${SMALL}" || exit {NO_MOUNT}; exec "$@""#);
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads", "1"]).env(SMALL, dir.path());
    let process = {
        let _guard = new_process();
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn()
    };
    let Ok(output) = process.and_then(|process| process.wait_with_output()) else {
        println!("skipped: there is no program unshare");
        return;
    };
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // The program's own code is 1 as well, but then the test has begun.
    if output.status.code() == Some(NO_MOUNT) || (output.status.code() == Some(1) && !text.contains("running")) {
        println!("skipped: no file system can be mounted: {errors}");
        return;
    }
    assert!(output.status.success() && text.contains("1 passed"), "{}\n{text}\n{errors}", output.status);
}
