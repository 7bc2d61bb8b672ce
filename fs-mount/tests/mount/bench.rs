//! The benchmark of a mounted directory: `pvfs bench mount`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use testbed::process::Process;

use crate::support::{World, is_mounted, pvfs, wait};

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn a_mount_is_measured_beside_a_pass_through_and_nothing_is_left() {
    let world = World::with("hard");
    let beside = world.beside().join("beside");
    fs::create_dir(&beside).unwrap();
    let bench = |rounds: &str| {
        let mut command = Command::new(pvfs());
        command.args(["bench", "mount"]).arg(world.at()).arg("--beside").arg(&beside);
        command.args(["--block", "8K", "--files", "20", "--tasks", "2", "--rounds", rounds]);
        command
    };
    let output = bench("1").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let rows = |of: &str| text.lines().filter(|line| line.contains(of)).count();
    assert_eq!((rows("tasks 1 "), rows("tasks 2 ")), (17, 17), "{text}");
    let lacks = |line: &&str| line.contains(" tasks ") && !line.contains("O_DIRECT") && line.contains(" - ");
    assert_eq!(text.lines().find(lacks), None, "{text}");
    assert!(is_empty(world.at()) && is_empty(&beside));

    let run = Process::start(bench("100000").stdout(Stdio::null()).stderr(Stdio::null())).unwrap();
    let through = || Some(fs::read_dir(&beside).unwrap().next()?.unwrap().path().join("through"));
    wait("the pass-through is mounted", || through().is_some_and(|at| at.exists() && is_mounted(&at)));
    let at = through().unwrap();
    run.signal(Signal::INT);
    wait("it ends", || run.has_ended());
    assert!(!is_mounted(&at) && is_empty(world.at()) && is_empty(&beside));
}
