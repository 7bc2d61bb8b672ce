//! Runs the main job in the machine: the same tree over verbs and over TCP, in one run.

use std::fs;
use std::path::Path;

use super::scenario::Scene;

/// Runs `ab` over verbs and TCP. It compares every byte itself, and ends with a bad status if one
/// differs. Its table goes to the report.
pub(crate) fn ib_against_tcp(scene: &Scene<'_>) -> Result<(), String> {
    const TREE: &str = "/tmp/tree";
    plant(Path::new(TREE)).map_err(|error| format!("{TREE}: {error}"))?;
    let table = scene.ok(&["ab", TREE, "--quick", "--processes", "--over", "ib,tcp"])?;
    table.lines().for_each(|line| scene.note(line.to_owned()));
    fs::remove_dir_all(TREE).map_err(|error| format!("{TREE}: {error}"))
}

/// Transfers files of 1 MiB, one after another. The rows show how much processor time the client
/// takes for one file, over verbs and over TCP.
pub(crate) fn stream(scene: &Scene<'_>) -> Result<(), String> {
    const STREAM: &str = "/tmp/stream";
    const FILES: usize = 48;
    let failed = |error: std::io::Error| format!("{STREAM}: {error}");
    fs::create_dir_all(STREAM).map_err(failed)?;
    for file in 0..FILES {
        fs::write(Path::new(STREAM).join(file.to_string()), vec![file as u8; 1 << 20]).map_err(failed)?;
    }
    let table = scene.ok(&["ab", STREAM, "--no-large", "--processes", "--over", "ib,tcp"])?;
    scene.note("Processor time of the client for a file of 1 MiB; the work that Soft-RoCE and TCP leave to the kernel's own threads is not in it.".into());
    table
        .lines()
        .filter(|line| line.starts_with("file size") || line.starts_with("<= 1 MiB"))
        .for_each(|line| scene.note(line.to_owned()));
    fs::remove_dir_all(STREAM).map_err(failed)
}

/// Creates a small tree with files of all size classes except the largest, which `ab` creates
/// itself.
fn plant(root: &Path) -> std::io::Result<()> {
    for folder in 0..4usize {
        let path = root.join(format!("folder-{folder}"));
        fs::create_dir_all(&path)?;
        for file in 0..8usize {
            let len = [0, 100, 3000, 9000, 40_000, 70_000, 150_000, 300_000][file] + folder;
            let bytes: Vec<u8> = (0..len).map(|at| (at * (2 * file + 3) + folder) as u8).collect();
            fs::write(path.join(format!("file-{file}")), bytes)?;
        }
    }
    Ok(())
}
