//! A mount that nobody else changes anything beside of: what is written is kept by the kernel, and
//! reaches the servers later.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use testbed::process::Process;

use crate::support::{Mount, World, is_mounted, shell, try_shell, wait};

const EXCLUSIVE: &str = "hard,coherence=exclusive";
/// Numbers of operations in `linux/fuse.h`.
const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const WRITE: u32 = 16;

/// The requests of the kernel to a mount, by its log.
struct Requests(PathBuf);

impl Requests {
    /// Mounts with a log of the requests. Returns where too.
    fn logged(world: &mut World, options: &str) -> (PathBuf, Requests) {
        let (at, mut command) = world.command(options);
        let log = at.with_extension("log");
        command.env("PVFS_LOG", "fs_mount=trace").stderr(File::create(&log).unwrap());
        let process = Process::start(&mut command).unwrap();
        world.mounts.push(Mount { at: at.clone(), process });
        wait("it is mounted", || is_mounted(&at));
        (at, Requests(log))
    }

    /// Returns how many there were of an operation.
    fn of(&self, op: u32) -> usize {
        let (log, op) = (fs::read_to_string(&self.0).unwrap(), format!(" op={op} "));
        log.lines().filter(|line| line.contains(&op)).count()
    }
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Unmounts the first mount, whose process must end well. Returns where it is mounted again, by a
/// process that knows nothing of before.
fn again(world: &mut World) -> PathBuf {
    // A process that another test has just begun has the files of this one until it executes.
    wait("it is unmounted", || rustix::mount::unmount(world.at(), UnmountFlags::empty()).is_ok());
    assert!(world.mounts[0].process.wait().unwrap().success());
    world.mount("hard")
}

#[test]
fn small_writes_reach_the_servers_in_few_requests_and_are_read_before_that() {
    for (options, least, most) in [("hard", 2_000, 3_000), (EXCLUSIVE, 1, 20)] {
        let mut world = World::unmounted();
        let (at, requests) = Requests::logged(&mut world, options);
        let mut file = File::create(at.join("f")).unwrap();
        let expected: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
        expected.chunks(100).for_each(|bytes| file.write_all(bytes).unwrap());
        assert!(fs::read(at.join("f")).unwrap() == expected, "{options}");
        drop(file);
        let writes = requests.of(WRITE);
        eprintln!("{options}: {writes} requests for 2,000 writes");
        assert!((least..=most).contains(&writes), "{options}: {writes}");
        let other = world.mount("hard");
        assert!(fs::read(other.join("f")).unwrap() == expected, "{options}");
    }
}

#[test]
fn names_that_lead_to_nothing_and_attributes_are_asked_for_once() {
    let mut world = World::unmounted();
    let (at, requests) = Requests::logged(&mut world, EXCLUSIVE);
    let path = |name: &str| at.join(name);
    let is_there = |name: &str| path(name).symlink_metadata().is_ok();
    fs::write(path("f"), "bytes").unwrap();
    let make: [(&str, &dyn Fn()); 5] = [
        ("created", &|| drop(File::create(path("created")).unwrap())),
        ("directory", &|| fs::create_dir(path("directory")).unwrap()),
        ("moved", &|| fs::rename(path("created"), path("moved")).unwrap()),
        ("link", &|| fs::hard_link(path("f"), path("link")).unwrap()),
        ("symlink", &|| symlink("f", path("symlink")).unwrap()),
    ];
    for (name, make) in make {
        let before = requests.of(LOOKUP);
        for _ in 0..3 {
            assert!(!is_there(name));
        }
        assert_eq!(requests.of(LOOKUP), before + 1, "{name}");
        make();
        assert!(is_there(name), "{name}");
    }
    assert!(!is_there("created"));
    fs::remove_file(path("moved")).unwrap();
    assert!(!is_there("moved"));
    fs::metadata(path("f")).unwrap();
    let before = (requests.of(LOOKUP), requests.of(GETATTR));
    for _ in 0..3 {
        assert_eq!(fs::metadata(path("f")).unwrap().nlink(), 2);
    }
    assert_eq!((requests.of(LOOKUP), requests.of(GETATTR)), before);
}

#[test]
fn what_two_processes_append_is_whole_and_in_order() {
    const ROUNDS: usize = 100;
    let mut world = World::with(EXCLUSIVE);
    // Each line with an open of its own, and all with one.
    let each = "for n in $(seq 100); do echo each $n >> log; done";
    let all = "for n in $(seq 100); do echo all $n; done >> log";
    shell(world.at(), &format!("({each}) & one=$!; ({all}) & two=$!; wait $one; wait $two"));
    let log = fs::read_to_string(again(&mut world).join("log")).unwrap();
    for who in ["each ", "all "] {
        let own = log.lines().filter_map(|line| line.strip_prefix(who));
        assert!(own.map(|round| round.parse::<usize>().unwrap()).eq(1..=ROUNDS), "{who}");
    }
    assert_eq!(log.lines().count(), 2 * ROUNDS);
}

#[test]
fn files_that_are_not_written_back_are_cut_off_grown_moved_and_removed() {
    let mut world = World::with(EXCLUSIVE);
    let at = world.at().to_owned();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8 + 1).collect();
    let files = ["cut", "grown", "moved", "removed", "begun"].map(|name| open(&at.join(name)));
    let [cut, grown, moved, removed, begun] = &files;
    files.iter().for_each(|file| file.write_all_at(&bytes, 0).unwrap());
    let mut expected = bytes.clone();
    cut.set_len(1_000_001).unwrap();
    cut.set_len(2_000_000).unwrap();
    expected.truncate(1_000_001);
    expected.resize(2_000_000, 0);
    grown.set_len(5_000_000).unwrap();
    grown.write_all_at(b"end", 4_999_990).unwrap();
    fs::rename(at.join("moved"), at.join("new")).unwrap();
    moved.write_all_at(b"after", 3_000_000).unwrap();
    fs::remove_file(at.join("removed")).unwrap();
    removed.write_all_at(b"after", 3_000_000).unwrap();
    drop(OpenOptions::new().write(true).truncate(true).open(at.join("begun")).unwrap());
    begun.write_all_at(b"begun anew", 0).unwrap();
    let mut found = vec![0; 3_000_005];
    removed.read_exact_at(&mut found, 0).unwrap();
    assert!(found[..3_000_000] == bytes && &found[3_000_000..] == b"after");
    removed.sync_all().unwrap();
    assert_eq!(cut.metadata().unwrap().len(), 2_000_000);
    drop(files);
    let other = again(&mut world);
    assert!(fs::read(other.join("cut")).unwrap() == expected);
    let mut grown = bytes.clone();
    grown.resize(5_000_000, 0);
    grown[4_999_990..4_999_993].copy_from_slice(b"end");
    assert!(fs::read(other.join("grown")).unwrap() == grown);
    assert!(fs::read(other.join("new")).unwrap() == [&bytes[..], b"after"].concat());
    assert_eq!(fs::read(other.join("begun")).unwrap(), b"begun anew");
    assert_eq!(fs::read_dir(&other).unwrap().count(), 4);
}

#[test]
fn what_is_written_to_a_mapping_after_the_file_was_closed_is_not_lost() {
    const LEN: usize = 1 << 20;
    let mut world = World::with(EXCLUSIVE);
    let file = open(&world.at().join("f"));
    file.set_len(LEN as u64).unwrap();
    let (how, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: it is a new mapping of a whole file, which nothing else refers to.
    let mapped = unsafe { rustix::mm::mmap(std::ptr::null_mut(), LEN, how, flags, &file, 0) }.unwrap();
    drop(file);
    for at in (0..LEN).step_by(1000) {
        // SAFETY: it is within the mapping, which nothing else reads or writes, and whose file
        // nobody cuts off.
        unsafe { mapped.cast::<u8>().add(at).write_volatile(7) };
    }
    assert_eq!(fs::read(world.at().join("f")).unwrap()[1000], 7);
    // SAFETY: nothing uses the mapping any more.
    unsafe { rustix::mm::munmap(mapped, LEN) }.unwrap();
    let found = fs::read(again(&mut world).join("f")).unwrap();
    assert!(found.len() == LEN && found.iter().enumerate().all(|(at, byte)| (*byte == 7) == (at % 1000 == 0)));
}

#[test]
fn a_file_keeps_the_time_at_which_a_program_wrote_it() {
    let mut world = World::with(EXCLUSIVE);
    let at = world.at().to_owned();
    let set = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    fs::write(at.join("closed"), "bytes").unwrap();
    // The kernel may write the time before the bytes.
    let mut early = open(&at.join("early"));
    for _ in 0..20 {
        early.write_all(&[1; 100_000]).unwrap();
        rustix::fs::syncfs(&early).unwrap();
    }
    drop(early);
    let dirty = open(&at.join("set"));
    dirty.write_all_at(b"bytes", 0).unwrap();
    dirty.set_modified(set).unwrap();
    drop(dirty);
    fs::write(at.join("moved"), "bytes").unwrap();
    File::open(at.join("moved")).unwrap().set_modified(set).unwrap();
    fs::rename(at.join("moved"), at.join("new")).unwrap();
    fs::set_permissions(at.join("new"), Permissions::from_mode(0o600)).unwrap();
    let names = ["closed", "early", "set", "new"];
    let of = |at: &Path| names.map(|name| at.join(name).metadata().unwrap().modified().unwrap());
    let known = of(&at);
    assert_eq!(known[2..], [set, set]);
    assert_eq!(of(&again(&mut world)), known);
}

#[test]
fn a_write_of_another_user_takes_the_set_id_bits() {
    let mut world = World::with(&format!("{EXCLUSIVE},suid,allow_other"));
    let path = world.at().join("f");
    fs::set_permissions(world.beside(), Permissions::from_mode(0o755)).unwrap();
    fs::write(&path, "bytes").unwrap();
    let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
    for (line, left) in [("printf more >> $0", 0o777), (": > $0", 0o777), ("cat < $0", 0o6777)] {
        fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
        assert_eq!(mode(), 0o6777);
        let mut command = Command::new("sh");
        let status = command.args(["-c", line]).arg(&path).uid(1).gid(1).current_dir("/").status().unwrap();
        assert!(status.success(), "{line}");
        assert_eq!(mode(), left, "{line}");
    }
    // The user who may set them keeps them.
    fs::write(&path, "bytes").unwrap();
    assert_eq!(mode(), 0o6777);
    assert_eq!(fs::metadata(again(&mut world).join("f")).unwrap().mode() & 0o7777, 0o6777);
}

#[test]
fn bytes_that_are_kept_are_no_hole_for_a_program_that_copies() {
    let world = World::with(EXCLUSIVE);
    let mut file = File::create(world.at().join("f")).unwrap();
    let bytes: Vec<u8> = (0..500_000_u32).map(|at| (at % 251) as u8 + 1).collect();
    file.write_all(&bytes).unwrap();
    assert!(file.metadata().unwrap().blocks() > 0);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(400_000)), Ok(400_000));
    shell(
        world.at(),
        "cp --sparse=auto f copied; tar cSf t.tar f; mkdir d; tar xf t.tar -C d; cmp f copied; cmp f d/f",
    );
    assert!(fs::read(world.at().join("d/f")).unwrap() == bytes);
    file.rewind().unwrap();
    file.sync_all().unwrap();
    assert!(fs::metadata(world.at().join("d/f")).unwrap().blocks() >= 500_000 / 512);
}

#[test]
fn a_close_and_a_sync_tell_that_a_server_is_gone() {
    let mut world = World::with("soft,timeo=300ms,coherence=exclusive");
    let at = world.at().to_owned();
    let (file, other) = (open(&at.join("f")), open(&at.join("other")));
    (1..=2).for_each(|server| world.cluster.kill(server));
    file.write_all_at(&[1; 10_000], 0).unwrap();
    assert_eq!(rustix::fs::fsync(&file), Err(Errno::IO));
    let closed = try_shell(&at, "dd if=/dev/zero of=other bs=4k count=3 conv=notrunc status=none");
    let text = String::from_utf8_lossy(&closed.stderr);
    assert!(!closed.status.success() && text.contains("Input/output error"), "{text}");
    (1..=2).for_each(|server| world.start_server(server));
    // What was not written is gone, and the program was told. It can be written again.
    for file in [&file, &other] {
        wait("the servers are found again", || {
            file.write_all_at(&[2; 12_288], 0).unwrap();
            rustix::fs::fsync(file).is_ok()
        });
    }
    drop((file, other));
    let found = again(&mut world);
    assert!(["f", "other"].iter().all(|name| fs::read(found.join(name)).unwrap() == [2; 12_288]));
}

#[test]
fn a_sync_fails_if_a_server_was_restarted_since_the_kernel_wrote_back() {
    let mut world = World::with(EXCLUSIVE);
    let path = world.at().join("f");
    let file = open(&path);
    // The close of another handle writes back, and does not sync.
    open(&path).write_all_at(&[1; 200_000], 0).unwrap();
    for server in 1..=2 {
        world.cluster.kill(server);
        world.start_server(server);
    }
    assert_eq!(rustix::fs::fsync(&file), Err(Errno::IO));
    file.write_all_at(&[1; 200_000], 0).unwrap();
    rustix::fs::fsync(&file).unwrap();
}

#[test]
fn a_hard_mount_waits_at_close_and_loses_nothing() {
    let mut world = World::with("hard,timeo=1s,coherence=exclusive");
    fs::write(world.at().join("f"), "").unwrap();
    world.signal_iods(Signal::STOP);
    let mut command = Command::new("dd");
    command.args(["if=/dev/zero", "of=f", "bs=64k", "count=4", "conv=notrunc"]).current_dir(world.at());
    let mut writer = Process::start(&mut command).unwrap();
    let stack = format!("/proc/{}/stack", writer.id());
    wait("it closes the file", || fs::read_to_string(&stack).is_ok_and(|stack| stack.contains("fuse_flush")));
    assert!(!writer.has_ended());
    world.signal_iods(Signal::CONT);
    assert!(writer.wait().unwrap().success());
    assert!(fs::read(again(&mut world).join("f")).unwrap() == [0; 4 << 16]);
}

#[test]
fn a_signal_unmounts_and_what_is_kept_of_open_files_reaches_the_servers() {
    let mut world = World::with(EXCLUSIVE);
    let at = world.at().to_owned();
    fs::write(at.join("closed"), "closed").unwrap();
    let file = open(&at.join("open"));
    file.write_all_at(&[1; 300_000], 0).unwrap();
    world.mounts[0].process.signal(Signal::TERM);
    wait("it is unmounted", || !is_mounted(&at));
    file.write_all_at(&[2; 300_000], 300_000).unwrap();
    drop(file);
    assert!(world.mounts[0].process.wait().unwrap().success());
    let other = world.mount("hard");
    assert_eq!(fs::read(other.join("closed")).unwrap(), b"closed");
    assert!(fs::read(other.join("open")).unwrap() == [[1; 300_000], [2; 300_000]].concat());
}

#[test]
fn a_second_signal_ends_a_mount_whose_servers_do_not_answer() {
    let world = World::with(EXCLUSIVE);
    let file = open(&world.at().join("f"));
    file.write_all_at(&[1; 300_000], 0).unwrap();
    world.signal_iods(Signal::STOP);
    wait("it ends", || {
        world.mounts[0].process.signal(Signal::TERM);
        world.mounts[0].process.has_ended()
    });
    assert!(rustix::fs::fsync(&file).is_err());
    world.signal_iods(Signal::CONT);
}

#[test]
fn another_mount_sees_all_after_it_was_unmounted() {
    let mut world = World::with(EXCLUSIVE);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fs-client/src");
    let source = source.display();
    shell(world.at(), &format!("cp -rp {source} tree; diff -r {source} tree; mv tree moved; chmod -R o-r moved"));
    let list = "find . -type f -printf '%P %s %m %T@\\n' | sort";
    let listed = shell(world.at(), list);
    let other = again(&mut world);
    assert_eq!(shell(&other, &format!("diff -r {source} moved; {list}")), listed);
}
