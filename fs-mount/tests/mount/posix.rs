//! What POSIX and Linux say about files, one behaviour in each test.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, FallocateFlags, FileType, Mode, RenameFlags, XattrFlags, fallocate, renameat_with};
use rustix::io::Errno;

use crate::support::{World, pvfs, shell};

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<Errno> {
    Errno::from_io_error(&result.unwrap_err())
}

/// Runs each of them on a mount of each kind that keeps anything.
macro_rules! on_mounts {
    ($($name:ident),* $(,)?) => {
        mod open {
            use crate::support::World;

            $(#[test]
            fn $name() {
                super::$name(World::with("hard,suid"));
            })*
        }

        mod exclusive {
            use crate::support::World;

            $(#[test]
            fn $name() {
                super::$name(World::with("hard,suid,coherence=exclusive"));
            })*
        }
    };
}

on_mounts! {
    names_are_made_moved_and_removed,
    names_are_any_bytes_and_have_up_to_255,
    a_long_directory_is_listed_once_while_it_changes,
    attributes_are_set_and_kept,
    the_length_is_set_and_holes_are_zeros,
    what_is_appended_goes_to_the_end,
    links_lead_to_their_targets_and_share_files,
    extended_attributes_are_kept,
    a_layout_of_a_directory_is_checked_and_taken_over,
    a_file_that_was_removed_is_read_and_written_until_it_is_closed,
    what_is_not_offered_is_refused,
    space_is_reserved_and_given_back,
    direct_access_and_sync_reach_the_servers,
}

fn names_are_made_moved_and_removed(world: World) {
    let at = world.at();
    fs::create_dir(at.join("d")).unwrap();
    assert_eq!(errno(fs::create_dir(at.join("d"))), Some(Errno::EXIST));
    fs::write(at.join("d/f"), "one").unwrap();
    assert_eq!(errno(fs::remove_dir(at.join("d"))), Some(Errno::NOTEMPTY));
    assert_eq!(errno(fs::remove_file(at.join("d"))), Some(Errno::ISDIR));
    assert_eq!(errno(fs::read_dir(at.join("d/f"))), Some(Errno::NOTDIR));
    fs::write(at.join("g"), "two").unwrap();
    let (f, g) = (at.join("d/f"), at.join("g"));
    assert_eq!(renameat_with(CWD, &f, CWD, &g, RenameFlags::NOREPLACE), Err(Errno::EXIST));
    renameat_with(CWD, &f, CWD, &g, RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(&f).unwrap(), fs::read(&g).unwrap()), (b"two".to_vec(), b"one".to_vec()));
    fs::rename(&f, &g).unwrap();
    assert_eq!((f.exists(), fs::read(&g).unwrap()), (false, b"two".to_vec()));
    let excluded = OpenOptions::new().write(true).create_new(true).open(&g);
    assert_eq!(excluded.unwrap_err().kind(), ErrorKind::AlreadyExists);
    fs::remove_file(&g).unwrap();
    fs::remove_dir(at.join("d")).unwrap();
    assert_eq!(fs::read_dir(at).unwrap().count(), 0);
}

fn names_are_any_bytes_and_have_up_to_255(world: World) {
    let name = |bytes: &[u8]| world.at().join(std::ffi::OsStr::from_bytes(bytes));
    for bytes in [&b"\xff\xfe\n"[..], &[b'x'; 255], "é".as_bytes()] {
        fs::write(name(bytes), bytes).unwrap();
        assert_eq!(fs::read(name(bytes)).unwrap(), bytes);
    }
    assert_eq!(errno(fs::write(name(&[b'x'; 256]), "")), Some(Errno::NAMETOOLONG));
    assert_eq!(fs::read_dir(world.at()).unwrap().count(), 3);
}

fn a_long_directory_is_listed_once_while_it_changes(world: World) {
    let name = |number: usize| world.at().join(format!("f{number:04}"));
    (0..1500).for_each(|number| drop(File::create(name(number)).unwrap()));
    let mut seen: Vec<_> = Vec::new();
    for entry in fs::read_dir(world.at()).unwrap() {
        seen.push(entry.unwrap().file_name());
        // An entry that was there before and after is listed once.
        let removed = 2 * seen.len() + 1;
        if removed < 1500 {
            let _ = fs::remove_file(name(removed));
        }
    }
    let even = |number: usize| (number * 2 < 1500).then(|| name(number * 2).file_name().unwrap().to_owned());
    for stays in (0..750).filter_map(even) {
        assert_eq!(seen.iter().filter(|name| **name == stays).count(), 1, "{stays:?}");
    }
}

fn attributes_are_set_and_kept(world: World) {
    let file = world.at().join("f");
    shell(world.at(), "umask 027; echo hello > f; mkdir d; chmod 750 f");
    let stat = || fs::metadata(&file).unwrap();
    assert_eq!((stat().mode() & 0o7777, stat().len(), stat().blocks(), stat().nlink()), (0o750, 6, 1, 1));
    assert_eq!(fs::metadata(world.at().join("d")).unwrap().mode() & 0o7777, 0o750);
    shell(world.at(), "touch -d @1000000000.123456789 f");
    assert_eq!((stat().mtime(), stat().mtime_nsec()), (1_000_000_000, 123_456_789));
    // Set-id bits go with a change of the owner, and with a write of others.
    for line in ["chown 1:1 f", "chown 1 f"] {
        fs::set_permissions(&file, Permissions::from_mode(0o6755)).unwrap();
        assert_eq!(stat().mode() & 0o7777, 0o6755);
        shell(world.at(), line);
        assert_eq!(stat().mode() & 0o7777, 0o755, "{line}");
    }
    assert_eq!((stat().uid(), stat().gid()), (1, 1));
    shell(world.at(), "chgrp 5 d; chmod 2775 d; mkdir d/e; touch d/f");
    let inherited = |name| fs::metadata(world.at().join(name)).unwrap();
    assert_eq!((inherited("d/e").gid(), inherited("d/e").mode() & 0o7777, inherited("d/f").gid()), (5, 0o2755, 5));
    assert!(rustix::fs::statvfs(world.at()).unwrap().f_blocks > 0);
}

fn the_length_is_set_and_holes_are_zeros(world: World) {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(world.at().join("f")).unwrap();
    file.write_all_at(b"end", 3 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (3 << 20) + 3);
    let mut bytes = [1; 10];
    file.read_exact_at(&mut bytes, (3 << 20) - 7).unwrap();
    assert_eq!(&bytes, b"\0\0\0\0\0\0\0end");
    file.set_len(5).unwrap();
    file.set_len(8).unwrap();
    assert_eq!((file.metadata().unwrap().len(), fs::read(world.at().join("f")).unwrap()), (8, vec![0; 8]));
    drop(OpenOptions::new().write(true).truncate(true).open(world.at().join("f")).unwrap());
    assert_eq!(file.metadata().unwrap().len(), 0);
}

fn what_is_appended_goes_to_the_end(world: World) {
    let append = || OpenOptions::new().append(true).create(true).open(world.at().join("f")).unwrap();
    let (mut one, mut other) = (append(), append());
    for _ in 0..100 {
        one.write_all(b"one\n").unwrap();
        other.write_all(b"other\n").unwrap();
    }
    assert_eq!(fs::read(world.at().join("f")).unwrap(), b"one\nother\n".repeat(100));
}

fn links_lead_to_their_targets_and_share_files(world: World) {
    let at = |name: &str| world.at().join(name);
    fs::write(at("f"), "bytes").unwrap();
    symlink("f", at("s")).unwrap();
    assert_eq!(
        (fs::read_link(at("s")).unwrap().as_path(), fs::read(at("s")).unwrap()),
        (Path::new("f"), b"bytes".to_vec())
    );
    fs::hard_link(at("f"), at("h")).unwrap();
    let both = (fs::metadata(at("f")).unwrap(), fs::metadata(at("h")).unwrap());
    assert_eq!((both.0.ino(), both.0.nlink()), (both.1.ino(), 2));
    fs::remove_file(at("f")).unwrap();
    assert_eq!((fs::read(at("h")).unwrap(), fs::read(at("s")).is_err()), (b"bytes".to_vec(), true));
    assert!(fs::hard_link(world.at(), at("d")).is_err());
}

fn extended_attributes_are_kept(world: World) {
    let file = world.at().join("f");
    fs::write(&file, "").unwrap();
    let mut value = [0; 64];
    let get = |name: &str, value: &mut [u8]| rustix::fs::getxattr(&file, name, value);
    assert_eq!(get("user.a", &mut value), Err(Errno::NODATA));
    rustix::fs::setxattr(&file, "user.a", b"value", XattrFlags::CREATE).unwrap();
    assert_eq!(rustix::fs::setxattr(&file, "user.a", b"", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(rustix::fs::setxattr(&file, "user.b", b"", XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!((get("user.a", &mut value), &value[..5]), (Ok(5), &b"value"[..]));
    assert_eq!(get("user.a", &mut value[..2]), Err(Errno::RANGE));
    assert_eq!((rustix::fs::listxattr(&file, &mut value), &value[..7]), (Ok(7), &b"user.a\0"[..]));
    rustix::fs::removexattr(&file, "user.a").unwrap();
    assert_eq!(rustix::fs::removexattr(&file, "user.a"), Err(Errno::NODATA));
}

fn a_layout_of_a_directory_is_checked_and_taken_over(world: World) {
    let at = |name: &str| world.at().join(name);
    let (name, text) = ("user.pvfs.layout", b"strip=8K servers=1");
    let set = |path: &str, text: &[u8]| rustix::fs::setxattr(at(path), name, text, XattrFlags::empty());
    fs::create_dir(at("d")).unwrap();
    fs::write(at("f"), "").unwrap();
    assert_eq!((set("d", b"servers=x"), set("f", text)), (Err(Errno::INVAL), Err(Errno::INVAL)));
    set("d", text).unwrap();
    fs::create_dir(at("d/e")).unwrap();
    let mut value = [0; 64];
    assert_eq!(rustix::fs::getxattr(at("d/e"), name, &mut value), Ok(text.len()));
    assert_eq!(&value[..text.len()], text);
    let bytes = vec![7; 100_000];
    fs::write(at("d/e/f"), &bytes).unwrap();
    assert_eq!(fs::read(at("d/e/f")).unwrap(), bytes);
    let stat = format!("{} --manager {} stat /d/e/f", pvfs().display(), world.cluster.tcp[0]);
    let stat = shell(Path::new("/"), &stat);
    assert!(stat.contains("strips of 8K, 1 servers"), "{stat}");
}

fn a_file_that_was_removed_is_read_and_written_until_it_is_closed(world: World) {
    let at = |name: &str| world.at().join(name);
    let open =
        |name: &str| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(at(name)).unwrap();
    let (mut removed, mut replaced) = (open("removed"), open("replaced"));
    replaced.write_all(b"old").unwrap();
    fs::remove_file(at("removed")).unwrap();
    fs::write(at("new"), "new").unwrap();
    fs::rename(at("new"), at("replaced")).unwrap();
    removed.write_all(b"still here").unwrap();
    let mut text = String::new();
    removed.seek(SeekFrom::Start(0)).unwrap();
    removed.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), at("removed").exists()), ("still here", false));
    let mut old = [0; 3];
    replaced.read_exact_at(&mut old, 0).unwrap();
    assert_eq!((&old, fs::read(at("replaced")).unwrap()), (b"old", b"new".to_vec()));
    drop((removed, replaced));
    crate::support::wait("they are gone", || fs::read_dir(world.at()).unwrap().count() == 1);
}

fn what_is_not_offered_is_refused(mut world: World) {
    let at = |name: &str| world.at().join(name);
    for kind in [FileType::Fifo, FileType::CharacterDevice, FileType::Socket] {
        assert_eq!(rustix::fs::mknodat(CWD, at("n"), kind, Mode::RUSR, 0x103), Err(Errno::PERM), "{kind:?}");
    }
    let file = File::create(at("f")).unwrap();
    assert_eq!(fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
    let acl = rustix::fs::setxattr(at("f"), "system.posix_acl_access", b"\x02\0\0\0", XattrFlags::empty());
    assert!(acl.is_err(), "{acl:?}");
    let read_only = world.mount("ro");
    assert_eq!(errno(fs::write(read_only.join("f"), "")), Some(Errno::ROFS));
}

fn space_is_reserved_and_given_back(world: World) {
    const MIB: u64 = 1 << 20;
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(world.at().join("f")).unwrap();
    let len = || file.metadata().unwrap().len();
    let all = || fs::read(world.at().join("f")).unwrap();
    let keep = FallocateFlags::KEEP_SIZE;
    fallocate(&file, keep, 0, MIB).unwrap();
    assert_eq!(len(), 0);
    fallocate(&file, FallocateFlags::empty(), 0, MIB).unwrap();
    assert_eq!((len(), all()), (MIB, vec![0; MIB as usize]));
    let bytes: Vec<u8> = (0..MIB).map(|at| (at % 251) as u8 + 1).collect();
    file.write_all_at(&bytes, 0).unwrap();
    // Within strips, over several, and beyond the end.
    let mut expected = bytes;
    for (how, from, to) in [
        (FallocateFlags::PUNCH_HOLE | keep, 100, 70_000),
        (FallocateFlags::PUNCH_HOLE | keep, 256 << 10, 512 << 10),
        (FallocateFlags::ZERO_RANGE | keep, 700_001, 700_003),
        (FallocateFlags::PUNCH_HOLE | keep, MIB - 1, 1 << 50),
        (FallocateFlags::ZERO_RANGE, MIB - 5, MIB + 5),
    ] {
        fallocate(&file, how, from, to - from).unwrap();
        expected[from as usize..(to.min(MIB)) as usize].fill(0);
    }
    expected.resize(MIB as usize + 5, 0);
    assert_eq!(len(), MIB + 5);
    assert!(all() == expected);
    assert_eq!(fallocate(&file, FallocateFlags::empty(), i64::MAX as u64, 1), Err(Errno::FBIG));
}

#[test]
fn holes_are_found() {
    const MIB: u64 = 1 << 20;
    let world = World::with("hard");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(world.at().join("f")).unwrap();
    file.write_all_at(&[1; 200_000], 4 * MIB).unwrap();
    file.write_all_at(&[1; 1], 8 * MIB).unwrap();
    file.set_len(16 * MIB).unwrap();
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(4 * MIB));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(4 * MIB + 5)), Ok(4 * MIB + 5));
    let hole = seek(rustix::fs::SeekFrom::Hole(4 * MIB)).unwrap();
    assert!((4 * MIB + 200_000..5 * MIB).contains(&hole), "{hole}");
    assert_eq!(seek(rustix::fs::SeekFrom::Data(hole)), Ok(8 * MIB));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(3)), Ok(3));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(9 * MIB)), Err(Errno::NXIO));
    assert_eq!(
        (seek(rustix::fs::SeekFrom::Hole(16 * MIB - 1)), seek(rustix::fs::SeekFrom::Hole(16 * MIB))),
        (Ok(16 * MIB - 1), Err(Errno::NXIO))
    );
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4 * MIB, MIB).unwrap();
    assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(8 * MIB));
    // A copy keeps the holes.
    shell(world.at(), "cp --sparse=always f g; cmp f g");
}

fn direct_access_and_sync_reach_the_servers(world: World) {
    /// `O_DIRECT` on this architecture and others.
    const O_DIRECT: i32 = if cfg!(target_arch = "aarch64") { 0o200_000 } else { 0o40_000 };
    let path = world.at().join("f");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).custom_flags(O_DIRECT).open(&path).unwrap();
    file.write_all(&[7; 3 << 20]).unwrap();
    file.sync_all().unwrap();
    let mut bytes = Vec::new();
    OpenOptions::new().read(true).custom_flags(O_DIRECT).open(&path).unwrap().read_to_end(&mut bytes).unwrap();
    assert!(bytes == [7; 3 << 20]);
}
