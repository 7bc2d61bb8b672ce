//! Tests of labels and of the directories that have one.

use std::fs;
use std::path::{Path, PathBuf};

use fs_proto::{ClusterId, DatafileHandle, ErrorCode, Role, Start, StoreId};

use super::directory::*;
use super::identity::*;
use super::replace::LABEL_BYTES;
use crate::store::disk::SystemDir;

fn label(role: Role) -> Label {
    let start = |epoch| Some(Start { epoch, instance: 0xabc });
    let (offered, confirmed, manager) = (start(5), start(4), start(3));
    Label {
        epoch: 5,
        offered,
        confirmed,
        manager,
        highest: DatafileHandle(0x77),
        ..Label::new(ClusterId(9), role, StoreId(7))
    }
}

fn names(dir: &Path) -> Vec<String> {
    others(dir).unwrap()
}

#[test]
fn a_directory_is_one_servers() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("made/here");
    let mut blank = Directory::open(&dir, Role::Iod(2)).unwrap();
    assert!(blank.label().is_none() && !blank.exists() && !dir.exists(), "asking changes nothing");
    blank.establish(&label(Role::Iod(2))).unwrap();
    let busy = Directory::open(&dir, Role::Iod(2)).unwrap_err();
    assert!(busy.code == ErrorCode::Busy && busy.detail.contains("another server"), "{busy}");
    drop(blank);
    let again = Directory::open(&dir, Role::Iod(2)).unwrap();
    assert_eq!(again.label(), Some(&label(Role::Iod(2))));
    drop(again);
    for (role, name) in [(Role::Iod(1), "iod 1"), (Role::Manager, "the manager")] {
        let other = Directory::open(&dir, role).unwrap_err();
        let both = other.detail.contains("iod 2") && other.detail.contains(name);
        assert!(other.code == ErrorCode::Invalid && both, "{other}");
    }
}

/// Replays a bug: on a full disk no label could be written, so the server could not start, and
/// nothing could be removed. A label takes the place of a file that is there already.
#[test]
fn a_label_needs_no_more_space_than_the_first_one() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = SystemDir::open(temporary.path()).unwrap();
    let inode = |name: &str| {
        let file = fs::metadata(temporary.path().join(name)).unwrap();
        (std::os::unix::fs::MetadataExt::ino(&file), file.len())
    };
    write_label(&dir, &label(Role::Iod(1))).unwrap();
    let (first, spare) = (inode(IDENTITY), inode(NEW));
    assert_eq!((first.1, spare.1), (LABEL_BYTES as u64, LABEL_BYTES as u64));
    for epoch in [6, 7, 8] {
        let newer = Label { epoch, ..label(Role::Iod(1)) };
        write_label(&dir, &newer).unwrap();
        assert_eq!(read_label(&dir).unwrap(), Some(Ok(newer)));
        let now = [inode(IDENTITY), inode(NEW)];
        assert!(now == [first, spare] || now == [spare, first], "no other file");
    }
}

/// Replays a bug: a directory that was refused had a file `lock` in it afterwards.
#[test]
fn a_directory_of_other_things_is_refused_and_left_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("lost+found")).unwrap();
    assert!(Directory::open(dir.path(), Role::Manager).unwrap().label().is_none(), "a new file system is empty");
    fs::write(dir.path().join("metadata.redb"), "").unwrap();
    let error = Directory::open(dir.path(), Role::Manager).unwrap_err();
    assert!(error.code == ErrorCode::Invalid && error.detail.contains("metadata.redb"), "{error}");
    assert_eq!(names(dir.path()), ["metadata.redb"]);
}

#[test]
fn a_label_that_cannot_be_read_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let digits = "0".repeat(31);
    for (text, why) in [
        ("".to_owned(), "missing field"),
        ("nonsense".to_owned(), "identity.toml"),
        ("format = 1\nrole = \"iod\"\nindex = 0\nstore = \"1\"\n".to_owned(), "format 1"),
        ("format = 1\nrole = \"manager\"\nstore = \"1\"\n".to_owned(), "pvfsd restore"),
        ("format = 3\nrole = \"manager\"\nstore = \"1\"\n".to_owned(), "pvfsd restore"),
        ("format = 5\nrole = \"iod\"\nindex = 0\nstore = \"1\"\n".to_owned(), "newer program"),
        (
            format!("format = 2\ncluster = \"{digits}1\"\nrole = \"iod\"\nindex = 0\nstore = \"x\"\nhighest = \"0\"\n"),
            "32 hex",
        ),
        (
            format!(
                "format = {FORMAT}\ncluster = \"{digits}1\"\nrole = \"x\"\nstore = \"{digits}1\"\nhighest = \"0\"\n"
            ),
            "role",
        ),
    ] {
        fs::write(dir.path().join(IDENTITY), &text).unwrap();
        let error = Directory::open(dir.path(), Role::Iod(0)).unwrap_err();
        assert!(error.detail.contains(why) && !error.detail.contains('\n'), "{error}");
        assert_eq!(fs::read_to_string(dir.path().join(IDENTITY)).unwrap(), text);
    }
}

/// Data that is synced in a directory is lost if the directory's name never reached the disk.
#[test]
fn a_new_directory_is_durable_by_its_name_up_to_what_was_there() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    let synced = |dir: &str| {
        let mut synced = Vec::new();
        durable_dir_by(&root.join(dir), |above| {
            synced.push(above.strip_prefix(&root).unwrap().to_owned());
            Ok(())
        })
        .unwrap();
        synced
    };
    assert_eq!(synced("a/b/c"), ["a/b", "a", ""].map(PathBuf::from));
    assert_eq!(synced("a/b/d"), ["a/b"].map(PathBuf::from));
    assert_eq!(synced("a/b/d"), ["a/b"].map(PathBuf::from), "whoever made it may not have come so far");
    let full = durable_dir_by(&root.join("x"), |_| Err(std::io::ErrorKind::StorageFull.into()));
    assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
}
