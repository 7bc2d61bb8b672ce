//! Servers that do not answer, processes that are killed, and mounts whose process is gone.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use testbed::process::Process;

use crate::support::{World, is_mounted, shell, try_shell, wait};

/// Programs that wait for a server that does not answer.
const WAITING: [&str; 5] = [
    "dd if=f of=/dev/null bs=4k count=1 status=none",
    "dd if=f of=/dev/null bs=1M iflag=direct status=none",
    "dd if=/dev/zero of=f bs=64k count=1 conv=notrunc,fsync status=none",
    "dd if=/dev/zero of=f bs=1M count=1 oflag=direct conv=notrunc status=none",
    "truncate -s 5 f",
];

fn start(dir: &Path, line: &str) -> Process {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec {line}")]).current_dir(dir).stdin(Stdio::null()).stderr(Stdio::null());
    Process::start(&mut command).unwrap()
}

/// Returns a world whose file `f` is not in the kernel's memory, and whose I/O servers are stopped.
fn stopped(options: &str) -> World {
    let world = World::with(options);
    fs::write(world.at().join("f"), vec![1; 3 << 20]).unwrap();
    fs::create_dir(world.at().join("d")).unwrap();
    world.signal_iods(Signal::STOP);
    world
}

/// Waits until a process sleeps in the kernel's FUSE.
fn until_waiting(process: &Process) {
    let wchan = format!("/proc/{}/stack", process.id());
    wait("it waits", || {
        fs::read_to_string(&wchan).is_ok_and(|stack| stack.contains("fuse") || stack.contains("folio"))
    });
}

/// Waits until a process has a handler for a signal.
fn until_handled(process: &Process, signal: Signal) {
    let status = format!("/proc/{}/status", process.id());
    let handled = |line: &str| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok();
    wait("it handles the signal", || {
        let status = fs::read_to_string(&status).unwrap_or_default();
        status.lines().find_map(handled).is_some_and(|set| set & (1 << (signal.as_raw() - 1)) != 0)
    });
}

#[test]
fn a_process_that_waits_for_a_server_can_be_killed() {
    for options in ["hard,timeo=10m", "soft,timeo=10m"] {
        let world = stopped(options);
        for line in WAITING {
            let mut process = start(world.at(), line);
            until_waiting(&process);
            // One that ends it by default, and one that cannot be handled.
            process.signal(if line.len() % 2 == 0 { Signal::TERM } else { Signal::KILL });
            let killed_us = testbed::process::now_us();
            let status = process.wait().unwrap();
            assert!(status.signal().is_some(), "{line}: {status}");
            eprintln!("{options}: {line}: gone after {} ms", (testbed::process::now_us() - killed_us) / 1000);
        }
    }
}

#[test]
fn what_needs_no_stopped_server_goes_on() {
    let world = stopped("hard,timeo=10m");
    assert_eq!(shell(world.at(), "ls; mkdir e; mv e g; rmdir g; stat -c %F d; df . | wc -l"), "d\nf\ndirectory\n2\n");
    world.signal_iods(Signal::CONT);
}

#[test]
fn open_files_need_no_manager() {
    let mut world = World::with("hard,timeo=10m");
    let file = File::options().read(true).write(true).create_new(true).open(world.at().join("f")).unwrap();
    shell(world.at(), "df .");
    // Only the manager lets it grow behind its first strip.
    rustix::io::pwrite(&file, &[6], 70_000).unwrap();
    world.cluster.signal(0, Signal::STOP);
    rustix::io::pwrite(&file, &[7; 100_000], 0).unwrap();
    rustix::fs::fsync(&file).unwrap();
    let mut bytes = [0; 10];
    rustix::io::pread(&file, &mut bytes, 99_995).unwrap();
    assert_eq!(bytes, [7, 7, 7, 7, 7, 0, 0, 0, 0, 0]);
    let mut waiting = start(world.at(), "mkdir d");
    until_waiting(&waiting);
    shell(world.beside(), "df mount0");
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    drop(file);
    let at = world.at().to_owned();
    world.mounts[0].process.signal(Signal::TERM);
    assert!(world.mounts[0].process.wait().unwrap().success() && !is_mounted(&at));
}

#[test]
fn a_hard_mount_waits_and_goes_on_and_a_handled_signal_disturbs_nothing() {
    let world = stopped("hard,timeo=1s");
    let mut writer = start(world.at(), "dd if=/dev/zero of=f bs=64k count=4 conv=notrunc,fsync");
    // `dd` opens the file before it handles the signal, for which the I/O servers are not needed.
    until_handled(&writer, Signal::USR1);
    until_waiting(&writer);
    for _ in 0..3 {
        writer.signal(Signal::USR1);
    }
    testbed::process::sleep(std::time::Duration::from_millis(1500));
    assert!(!writer.has_ended());
    world.signal_iods(Signal::CONT);
    assert!(writer.wait().unwrap().success());
    assert_eq!(
        fs::read(world.at().join("f")).unwrap()[..4 * 65_536 + 1].iter().filter(|byte| **byte == 0).count(),
        4 * 65_536
    );
}

#[test]
fn a_soft_mount_gives_up_with_an_error() {
    let world = stopped("soft,timeo=300ms");
    for line in WAITING {
        let output = try_shell(world.at(), line);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains("Input/output error"), "{line}: {text}");
    }
    world.signal_iods(Signal::CONT);
    shell(world.at(), "cat f > /dev/null");
}

#[test]
fn a_sync_fails_if_a_server_was_restarted_since_the_write() {
    let mut world = World::with("hard");
    let file = File::create(world.at().join("f")).unwrap();
    rustix::io::write(&file, &[1; 200_000]).unwrap();
    for server in 1..=2 {
        world.cluster.kill(server);
        world.start_server(server);
    }
    assert_eq!(rustix::fs::fsync(&file), Err(rustix::io::Errno::IO));
    rustix::io::pwrite(&file, &[1; 200_000], 0).unwrap();
    rustix::fs::fsync(&file).unwrap();
}

#[test]
fn a_mount_whose_process_was_killed_is_replaced_and_one_that_is_served_is_not() {
    let mut world = World::with("hard");
    let at = world.at().to_owned();
    fs::write(at.join("f"), "here").unwrap();
    let again = |world: &World| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pvfs-mount"));
        command.arg(&world.cluster.tcp[0]).arg(&at).args(["-o", "over=tcp"]).output().unwrap()
    };
    let refused = again(&world);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("mounted there already"), "{refused:?}");
    world.mounts[0].process.kill().unwrap();
    wait("it is stale", || fs::metadata(&at).is_err());
    // It returns when the daemon has mounted.
    let mounted = again(&world);
    assert!(mounted.status.success(), "{mounted:?}");
    assert_eq!(fs::read_to_string(at.join("f")).unwrap(), "here");
    let unmounted = Command::new(env!("CARGO_BIN_EXE_pvfs-mount")).arg("--unmount").arg(&at).status().unwrap();
    assert!(unmounted.success() && !is_mounted(&at));
    let none = Command::new(env!("CARGO_BIN_EXE_pvfs-mount")).arg("--unmount").arg(&at).output().unwrap();
    assert!(String::from_utf8_lossy(&none.stderr).contains("no pvfs is mounted"));
}

#[test]
fn a_signal_unmounts_and_what_is_open_is_served_until_it_is_closed() {
    let mut world = World::with("hard");
    let file = File::create(world.at().join("f")).unwrap();
    let at = world.at().to_owned();
    world.mounts[0].process.signal(Signal::TERM);
    wait("it is unmounted", || !is_mounted(&at));
    rustix::io::write(&file, b"still served").unwrap();
    rustix::fs::fsync(&file).unwrap();
    drop(file);
    assert!(world.mounts[0].process.wait().unwrap().success());
    let second = world.mount("hard");
    assert_eq!(fs::read_to_string(second.join("f")).unwrap(), "still served");
}

#[test]
fn a_mount_waits_for_the_servers_and_tells_it() {
    let mut world = World::unmounted();
    world.cluster.kill(0);
    let (at, mut command) = world.command("hard,timeo=500ms");
    let mut process = Process::start(command.stderr(Stdio::piped())).unwrap();
    let mut line = String::new();
    let mut errors = std::io::BufReader::new(process.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut errors, &mut line).unwrap();
    assert!(line.contains("waiting"), "{line}");
    world.mounts.push(crate::support::Mount { at: at.clone(), process });
    assert!(!is_mounted(&at));
    world.start_server(0);
    wait("it is mounted", || is_mounted(&at));
    shell(&at, "echo hello > f; cat f");
}

/// A small disk, unmounted at the end.
struct SmallDisk(PathBuf);

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Puts the second I/O server on a small disk.
fn with_a_small_disk() -> (SmallDisk, World) {
    let mut world = World::unmounted();
    world.cluster.kill(2);
    let disk = "mv iod1 old; mkdir iod1; mount -t tmpfs -o size=4m none iod1; cp -a old/. iod1";
    shell(world.beside(), disk);
    let disk = SmallDisk(world.beside().join("iod1"));
    world.start_server(2);
    (disk, world)
}

#[test]
fn an_exclusive_mount_tells_of_a_full_server_at_sync_and_close() {
    let (_disk, mut world) = with_a_small_disk();
    let at = world.mount("hard,coherence=exclusive");
    let mut full = File::create(at.join("full")).unwrap();
    // More than a server has room for, and less than the kernel keeps.
    full.write_all(&vec![1; 12 << 20]).unwrap();
    assert_eq!(rustix::fs::fsync(&full), Err(Errno::NOSPC));
    let closed = try_shell(&at, "dd if=/dev/zero of=closed bs=1M count=12 status=none");
    let text = String::from_utf8_lossy(&closed.stderr);
    assert!(!closed.status.success() && text.contains("No space left"), "{text}");
    drop(full);
    fs::remove_file(at.join("full")).unwrap();
    fs::remove_file(at.join("closed")).unwrap();
    wait("there is room", || {
        let mut file = File::create(at.join("after")).unwrap();
        file.write_all(&[1; 1 << 20]).unwrap();
        rustix::fs::fsync(&file).is_ok()
    });
}

#[test]
fn a_full_server_ends_writes_with_an_error_until_there_is_room_and_disturbs_no_other_file() {
    let (_disk, mut world) = with_a_small_disk();
    let at = world.mount("hard");
    let (before, bytes) = (at.join("before"), vec![1; 1 << 20]);
    fs::write(&before, &bytes).unwrap();
    // Of this file every second strip is on the small disk.
    let mut full = File::create(at.join("full")).unwrap();
    let written = std::iter::repeat_with(|| full.write(&bytes)).take(20).find_map(Result::err);
    assert_eq!(written.unwrap().raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    let synced = rustix::fs::fsync(&full);
    assert!(matches!(synced, Ok(()) | Err(Errno::NOSPC)), "{synced:?}");
    // What the full disk has is read and overwritten, and half of the small files are not there.
    assert!(fs::read(&before).unwrap() == bytes);
    let changed = vec![2; 1 << 20];
    rustix::io::pwrite(File::options().write(true).open(&before).unwrap(), &changed, 0).unwrap();
    let small = (0..10).filter(|n| match fs::write(at.join(format!("small{n}")), "small") {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
            false
        }
    });
    assert!(small.count() >= 5);
    drop(full);
    fs::remove_file(at.join("full")).unwrap();
    wait("there is room", || match fs::write(at.join("after"), &bytes) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
            false
        }
    });
    rustix::fs::fsync(File::open(at.join("after")).unwrap()).unwrap();
    assert!(fs::read(at.join("after")).unwrap() == bytes && fs::read(&before).unwrap() == changed);
}
