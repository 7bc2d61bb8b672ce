//! Compares the namespace with a model, and tests its rules one by one.

mod drafts;
mod links;
mod rights;

use std::collections::BTreeMap;

use proptest::prelude::*;

use fs_proto::{
    BString, Content, DatafileHandle, DirHandle, Entry, ErrorCode, Existing, Extent, FileHandle, FsError, Handle, Kind,
    Layout, PendingTruncate, Place, RemoveKind, Replace, RequestId, SetAttr, handle_number,
};
use redb::{ReadTransaction, ReadableTable, ReadableTableMetadata};

use self::links::{exchange, link, set_xattr, symlink};
use super::truncates::pending;
use super::*;
use crate::manager::Fault;
use crate::manager::tables::placement::Wanted;
use crate::store::{MemDisk, MetaStore};

const CLIENT: u128 = 7;

/// Returns the id of any request of a client.
fn by(client: u128) -> RequestId {
    RequestId { client, seq: 1 }
}
const BIRTH: Birth = Birth { mode: 0o644, uid: 1, gid: 2 };

fn change<R>(store: &MetaStore, f: impl FnOnce(&mut Change<'_>) -> Result<R, Fault>) -> Result<R, ErrorCode> {
    let transaction = store.write().unwrap();
    let result = f(&mut Change::open(&transaction, 5).unwrap());
    // Commit in any case: a refused change must have written nothing.
    transaction.commit().unwrap();
    result.map_err(|fault| fault.into_error().code)
}

fn look<R>(store: &MetaStore, f: impl FnOnce(&ReadTransaction) -> Result<R, Fault>) -> Result<R, ErrorCode> {
    f(&store.read().unwrap()).map_err(|fault| fault.into_error().code)
}

/// Creates datafiles on servers 0 to 2 by their numbers, which differ from all handles.
fn datafiles(created: u64, _: Wanted) -> Result<(Vec<(u32, DatafileHandle)>, u32), Fault> {
    Ok(((0..3).map(|iod| (iod, DatafileHandle(1 << 40 | created << 2 | u64::from(iod)))).collect(), 3))
}

fn store() -> MetaStore {
    let store = MetaStore::in_memory().unwrap();
    change(&store, |_| Ok(())).unwrap();
    store
}

fn mkdir(store: &MetaStore, path: &str) -> Result<Entry, ErrorCode> {
    change(store, |change| change.mkdir(&Place::root(path), BIRTH))
}

fn new(place: &Place, existing: Existing) -> NewFile<'_> {
    let (birth, small, by) = (BIRTH, false, by(CLIENT));
    NewFile { place, birth, strip_size: 0, default_strip: 65536, servers: 0, existing, small, by }
}

fn create(store: &MetaStore, path: &str) -> Result<Entry, ErrorCode> {
    let entry = change(store, |change| change.create(new(&Place::root(path), Existing::Refuse), datafiles));
    entry.map(|(entry, _)| entry)
}

/// Creates a file without a name.
fn draft(store: &MetaStore, path: &str) -> Result<FileHandle, ErrorCode> {
    let draft = change(store, |change| change.create(new(&Place::root(path), Existing::Replace), datafiles));
    draft.map(|(entry, _)| entry.handle.file().unwrap())
}

fn publish(store: &MetaStore, file: FileHandle, path: &str) -> Result<Entry, ErrorCode> {
    let place = Place::root(path);
    let how = Publication {
        file,
        place: &place,
        inherit: false,
        mode: None,
        mtime_ns: None,
        size: None,
        replace: Replace::Anything,
    };
    change(store, |change| change.publish(CLIENT, how))
}

fn remove(store: &MetaStore, path: &str) -> Result<(), ErrorCode> {
    change(store, |change| change.remove(&Place::root(path), RemoveKind::Any))
}

fn rename(store: &MetaStore, from: &str, to: &str) -> Result<(), ErrorCode> {
    change(store, |change| change.rename(&Place::root(from), &Place::root(to), Replace::Anything))
}

fn lookup(store: &MetaStore, path: &str) -> Result<Entry, ErrorCode> {
    look(store, |transaction| view(transaction)?.lookup(&Place::root(path)))
}

/// Checks invariants 2 to 4 of the module for everything in the store. Returns every path with its
/// handle.
fn check(store: &MetaStore) -> BTreeMap<String, Handle> {
    let transaction = store.read().unwrap();
    let view = view(&transaction).unwrap();
    let (mut paths, mut todo) = (BTreeMap::new(), vec![(String::new(), DirHandle::ROOT)]);
    let (mut dirs, mut handles, mut datafiles) = (1, vec![1], Vec::new());
    let mut links: BTreeMap<u64, u32> = BTreeMap::new();
    while let Some((path, dir)) = todo.pop() {
        let object = view.object(dir.0).unwrap();
        let (entries, more) = view.readdir(dir, b"", usize::MAX, usize::MAX).unwrap();
        assert!(!more);
        let subdirs = entries.iter().filter(|entry| entry.handle.dir().is_some()).count();
        assert_eq!(object.attr.size, entries.len() as u64, "size of {path:?}");
        assert_eq!(object.attr.nlink as usize, 2 + subdirs, "links of {path:?}");
        dirs += subdirs as u64;
        for entry in entries {
            let child = view.object(entry.handle.raw()).unwrap();
            assert_eq!(view.getattr(entry.handle).unwrap().handle, entry.handle);
            assert!(child.parent == dir.0 || entry.handle.file().is_some(), "parent of {}", entry.name);
            assert_eq!(child.target.is_some(), entry.handle.kind() == Kind::Symlink);
            let names = links.entry(entry.handle.raw()).or_default();
            *names += 1;
            if *names == 1 {
                handles.push(entry.handle.raw());
                datafiles.extend(child.layout.iter().flat_map(|layout| layout.datafiles().to_vec()));
            }
            let path = format!("{path}/{}", entry.name);
            if let Handle::Dir(dir) = entry.handle {
                todo.push((path.clone(), dir));
            }
            paths.insert(path, entry.handle);
        }
    }
    for (raw, names) in &links {
        let attr = view.object(*raw).unwrap().attr;
        assert!(attr.kind == Kind::Dir || attr.nlink == *names, "{} names, not {names}", attr.nlink);
    }
    for row in transaction.open_table(XATTRS).unwrap().iter().unwrap() {
        let (raw, _) = row.unwrap().0.value();
        assert!(view.find(raw).unwrap().is_some(), "an extended attribute of nothing");
    }
    let mut nameless = 0;
    for row in transaction.open_table(NAMELESS).unwrap().iter().unwrap() {
        let (_, raw) = row.unwrap().0.value();
        let object = view.object(raw).unwrap();
        assert!(object.is_nameless() && object.attr.nlink == 0);
        datafiles.extend(object.layout.iter().flat_map(|layout| layout.datafiles().to_vec()));
        handles.push(raw);
        nameless += 1;
    }
    assert_eq!(view.objects.len().unwrap(), handles.len() as u64, "objects without a name");
    assert_eq!(view.names.len().unwrap(), paths.len() as u64, "names in directories that are not there");
    let held = stat(&transaction).unwrap();
    assert_eq!((held.dirs, held.files, held.nameless), (dirs, links.len() as u64 + 1 - dirs, nameless));
    for iod in 0..3 {
        datafiles
            .extend(orphans(&transaction, iod, 0, usize::MAX).unwrap().into_iter().map(|datafile| (iod, datafile)));
    }
    handles.extend(datafiles.iter().map(|(_, datafile)| datafile.0));
    let all = handles.len();
    handles.sort_unstable();
    handles.dedup();
    assert_eq!(handles.len(), all, "a handle is used twice");
    paths
}

/// A regression test. In a damaged database, as it may be restored from a backup, directories can
/// be below themselves. A rename into one of them never ended, and the manager served nobody.
#[test]
fn a_rename_below_a_directory_that_is_below_itself_ends() {
    for len in 1..10 {
        let store = store();
        let dirs: Vec<_> = (0..len).map(|at| mkdir(&store, &format!("{at}")).unwrap().handle.raw()).collect();
        mkdir(&store, "moved").unwrap();
        let transaction = store.write().unwrap();
        {
            let mut change = Change::open(&transaction, 5).unwrap();
            for (at, raw) in dirs.iter().enumerate() {
                let mut object = change.view.object(*raw).unwrap();
                object.parent = dirs[(at + 1) % dirs.len()];
                change.store(*raw, &object).unwrap();
            }
        }
        transaction.commit().unwrap();
        let into = change(&store, |change| change.rename(&Place::root("moved"), &Place::root("0/x"), Replace::Nothing));
        assert_eq!(into, Err(ErrorCode::Io), "{len} directories");
    }
}

#[test]
fn what_is_made_is_found() {
    let store = store();
    let dir = mkdir(&store, "/a").unwrap();
    assert_eq!((dir.attr.kind, dir.attr.nlink, dir.attr.mtime_ns), (Kind::Dir, 2, 5));
    let file = create(&store, "a//b/").unwrap();
    assert_eq!(lookup(&store, "/a/b"), Ok(file.clone()));
    assert_eq!(look(&store, |t| view(t)?.lookup(&Place::at(DirHandle(dir.handle.raw()), "b"))), Ok(file.clone()));
    assert_eq!(look(&store, |t| view(t)?.getattr(file.handle)), Ok(file.clone()));
    assert_eq!(file.layout.unwrap().distribution().servers(), 3);
    assert_eq!(lookup(&store, "").unwrap().handle, Handle::Dir(DirHandle::ROOT));
    check(&store);
}

#[test]
fn what_cannot_be_is_refused() {
    use ErrorCode::*;
    let store = store();
    mkdir(&store, "d").unwrap();
    create(&store, "f").unwrap();
    let before = check(&store);
    assert_eq!(mkdir(&store, "d").unwrap_err(), Exists);
    assert_eq!(create(&store, "f").unwrap_err(), Exists);
    assert_eq!(create(&store, "d").unwrap_err(), IsDirectory);
    assert_eq!(mkdir(&store, "x/y").unwrap_err(), NotFound);
    assert_eq!(mkdir(&store, "f/y").unwrap_err(), NotDirectory);
    assert_eq!(lookup(&store, "f/y").unwrap_err(), NotDirectory);
    assert_eq!(mkdir(&store, "").unwrap_err(), Invalid);
    assert_eq!(remove(&store, "/").unwrap_err(), Invalid);
    assert_eq!(mkdir(&store, "d/..").unwrap_err(), Invalid);
    assert_eq!(mkdir(&store, "d/a\0b").unwrap_err(), Invalid);
    assert_eq!(mkdir(&store, &"n".repeat(256)).unwrap_err(), NameTooLong);
    assert_eq!(mkdir(&store, &"n/".repeat(2100)).unwrap_err(), NameTooLong);
    assert_eq!(remove(&store, "x").unwrap_err(), NotFound);
    let as_kind = |path: &str, kind| change(&store, |change| change.remove(&Place::root(path), kind));
    assert_eq!(as_kind("d", RemoveKind::File).unwrap_err(), IsDirectory);
    assert_eq!(as_kind("f", RemoveKind::Dir).unwrap_err(), NotDirectory);
    let place = Place::root("g");
    let refused = new(&place, Existing::Refuse);
    let strip = change(&store, |change| change.create(NewFile { strip_size: 1, ..refused }, datafiles));
    assert_eq!(strip.unwrap_err(), Invalid);
    let later = change(&store, |change| change.create(refused, |_, _| Err(Fault::Later)));
    assert_eq!(later.unwrap_err(), Busy, "no datafiles are ready");
    let stale = look(&store, |t| view(t)?.lookup(&Place::at(DirHandle(999), "f")));
    assert_eq!(stale.unwrap_err(), Stale);
    assert_eq!(check(&store), before, "refused, and yet something changed");
}

#[test]
fn removing_makes_orphans() {
    let store = store();
    let file = create(&store, "f").unwrap();
    assert_eq!(remove(&store, "f"), Ok(()));
    assert_eq!(lookup(&store, "f").unwrap_err(), ErrorCode::NotFound);
    assert_eq!(look(&store, |t| view(t)?.getattr(file.handle)).unwrap_err(), ErrorCode::Stale);
    for (iod, datafile) in file.layout.unwrap().datafiles() {
        assert_eq!(look(&store, |t| orphans(t, *iod, 0, 10)), Ok(vec![*datafile]));
        change(&store, |change| change.forget(*iod, &[*datafile])).unwrap();
        assert_eq!(look(&store, |t| orphans(t, *iod, 0, 10)), Ok(vec![]));
    }
    check(&store);
}

#[test]
fn renaming_moves_and_replaces() {
    use ErrorCode::*;
    let store = store();
    for dir in ["a", "a/b", "c", "c/full"] {
        mkdir(&store, dir).unwrap();
    }
    create(&store, "c/full/x").unwrap();
    let (f, g) = (create(&store, "f").unwrap(), create(&store, "g").unwrap());
    assert_eq!(rename(&store, "f", "g"), Ok(()));
    assert_eq!((lookup(&store, "f").unwrap_err(), lookup(&store, "g").unwrap().handle), (NotFound, f.handle));
    assert_eq!(look(&store, |t| view(t)?.getattr(g.handle)).unwrap_err(), Stale);
    assert_eq!(look(&store, stat).unwrap().orphans, 3);
    assert_eq!(rename(&store, "a", "a/b/a").unwrap_err(), Invalid, "into itself");
    assert_eq!(rename(&store, "a", "a/b").unwrap_err(), Invalid);
    assert_eq!(rename(&store, "a", "a"), Ok(()), "onto itself");
    assert_eq!(rename(&store, "g", "a").unwrap_err(), IsDirectory);
    assert_eq!(rename(&store, "a", "g").unwrap_err(), NotDirectory);
    assert_eq!(rename(&store, "a", "c/full").unwrap_err(), NotEmpty);
    assert_eq!(rename(&store, "x", "y").unwrap_err(), NotFound);
    assert_eq!(rename(&store, "c", "a/b"), Ok(()), "over an empty directory");
    let paths: Vec<String> = check(&store).into_keys().collect();
    assert_eq!(paths, ["/a", "/a/b", "/a/b/full", "/a/b/full/x", "/g"]);
}

fn content(store: &MetaStore, path: &str) -> Content {
    lookup(store, path).unwrap().content
}

#[test]
fn a_size_is_recorded_for_the_only_client_that_writes() {
    let store = store();
    let file = create(&store, "f").unwrap().handle.file().unwrap();
    let record = |client, size| change(&store, |change| change.record_size(file, by(client), size));
    let begin = |client| change(&store, |change| change.begin_write(file, by(client))).unwrap();
    record(CLIENT + 1, 1).unwrap();
    assert_eq!(content(&store, "f"), Content::Written { client: CLIENT, starts: 0 });
    record(CLIENT, 1000).unwrap();
    record(CLIENT, 2000).unwrap();
    assert_eq!(content(&store, "f"), Content::Recorded(1000), "it has to say that it writes");
    begin(CLIENT + 1);
    record(CLIENT, 2000).unwrap();
    assert_eq!(content(&store, "f"), Content::Written { client: CLIENT + 1, starts: 0 });
    begin(CLIENT);
    record(CLIENT, 2000).unwrap();
    record(CLIENT + 1, 2000).unwrap();
    assert_eq!(content(&store, "f"), Content::Shared);
    remove(&store, "f").unwrap();
    assert_eq!(record(CLIENT, 1).unwrap_err(), ErrorCode::Stale);
    check(&store);
}

#[test]
fn the_extent_of_a_closed_file_is_known_until_an_io_server_is_started() {
    let store = store();
    let [file, other] = ["f", "g"].map(|path| create(&store, path).unwrap().handle.file().unwrap());
    let (old, new) = (Extent { size: 5, written_ns: 50 }, Extent { size: 6, written_ns: 60 });
    let close = |client, files: &[_]| change(&store, |change| change.close(files, by(client))).unwrap();
    let start = || change(&store, |change| change.iod_started()).unwrap();
    let begin = |client| change(&store, |change| change.begin_write(file, by(client))).unwrap();
    close(CLIENT + 1, &[(file, old)]);
    assert_eq!(content(&store, "f"), Content::Written { client: CLIENT, starts: 0 }, "another client's");
    close(CLIENT, &[(FileHandle(999), old), (file, old), (other, old)]);
    close(CLIENT, &[(file, new)]);
    assert_eq!(content(&store, "f"), Content::Closed { last: Some(old), starts: 0 }, "once");
    assert_eq!(lookup(&store, "f").unwrap().known_attr().unwrap().size, 5);
    start();
    assert_eq!(content(&store, "f"), Content::Closed { last: None, starts: 1 });
    begin(CLIENT + 1);
    start();
    close(CLIENT + 1, &[(file, new)]);
    assert_eq!(content(&store, "f"), Content::Closed { last: None, starts: 2 }, "started while it was written");
    begin(CLIENT);
    close(CLIENT, &[(file, new)]);
    assert_eq!(content(&store, "f"), Content::Closed { last: Some(new), starts: 2 });
    assert_eq!(content(&store, "g"), Content::Closed { last: None, starts: 2 });
    check(&store);
}

/// A Close over a lost connection came after the client had begun to write again.
#[test]
fn what_comes_late_ends_nothing() {
    let store = store();
    let file = create(&store, "f").unwrap().handle.file().unwrap();
    let request = |seq| RequestId { client: CLIENT, seq };
    let extent = Extent { size: 5, written_ns: 50 };
    change(&store, |change| change.begin_write(file, request(9))).unwrap();
    change(&store, |change| change.begin_write(file, request(8))).unwrap();
    change(&store, |change| change.close(&[(file, extent)], request(8))).unwrap();
    change(&store, |change| change.record_size(file, request(8), 5)).unwrap();
    assert_eq!(content(&store, "f"), Content::Written { client: CLIENT, starts: 0 });
    let too_long = Extent { size: u64::MAX, ..extent };
    change(&store, |change| change.close(&[(file, too_long)], request(10))).unwrap();
    assert_eq!(
        change(&store, |change| change.record_size(file, request(10), u64::MAX)).unwrap_err(),
        ErrorCode::TooLarge
    );
    assert_eq!(content(&store, "f"), Content::Written { client: CLIENT, starts: 0 });
    change(&store, |change| change.close(&[(file, extent)], request(11))).unwrap();
    assert_eq!(content(&store, "f"), Content::Closed { last: Some(extent), starts: 0 });
}

#[test]
fn a_listing_has_what_lookups_have() {
    let store = store();
    mkdir(&store, "d").unwrap();
    let names: Vec<String> = (0..20).map(|at| format!("d/{at:02}")).collect();
    names.iter().for_each(|name| drop(create(&store, name).unwrap()));
    let dir = lookup(&store, "d").unwrap().handle.dir().unwrap();
    for (max, room) in [(3, 1 << 20), (100, 400), (100, 1)] {
        let (mut after, mut listed) = (BString::default(), Vec::new());
        loop {
            let (entries, more) = look(&store, |read| view(read)?.listing(dir, &after, max, room)).unwrap();
            let bytes: usize = entries.iter().map(|listed| postcard::to_stdvec(listed).unwrap().len()).sum();
            assert!(entries.len() <= max && (bytes <= room || entries.len() == 1), "{bytes} bytes");
            after = entries.last().unwrap().name.clone();
            listed.extend(entries);
            if !more {
                break;
            }
        }
        assert_eq!(listed.len(), names.len());
        for (listed, name) in listed.iter().zip(&names) {
            assert_eq!(lookup(&store, name).as_ref(), Ok(&listed.entry));
            assert!(name.ends_with(&listed.name.to_string()));
        }
    }
}

#[test]
fn handles_have_the_epoch_of_their_start() {
    let store = store();
    let number = |path: &str| mkdir(&store, path).unwrap().handle.raw();
    let first = number("a");
    assert_eq!(change(&store, |change| change.begin_epoch()), Ok(1));
    assert_eq!(number("b"), handle_number(1, first + 1), "the count goes on");
    assert_eq!(change(&store, |change| change.begin_epoch()), Ok(2));
    assert_eq!(number("c"), handle_number(2, first + 2));
    assert_eq!(change(&store, |change| change.assigned()), Ok(first + 3));
    check(&store);
}

#[test]
fn attributes_change_and_stay() {
    let store = store();
    let file = create(&store, "f").unwrap();
    let set = SetAttr { mode: Some(0o107_777), mtime_ns: Some(9), ..SetAttr::default() };
    let entry = change(&store, |change| change.setattr(file.handle, &set)).unwrap();
    assert_eq!((entry.attr.mode, entry.attr.mtime_ns, entry.attr.uid), (0o7777, 9, 1));
    assert_eq!(lookup(&store, "f"), Ok(entry));
    let wrong = Handle::Dir(DirHandle(file.handle.raw()));
    assert_eq!(change(&store, |change| change.setattr(wrong, &set)).unwrap_err(), ErrorCode::Stale);
}

#[test]
fn pages_end_where_they_should() {
    let store = store();
    for name in ["a", "b", "c", "d"] {
        create(&store, name).unwrap();
    }
    let page = |after: &str, max, room| {
        let (entries, more) = look(&store, |t| view(t)?.readdir(DirHandle::ROOT, after.as_bytes(), max, room)).unwrap();
        (entries.into_iter().map(|entry| entry.name.to_string()).collect::<String>(), more)
    };
    assert_eq!(page("", 10, 1000), ("abcd".to_owned(), false));
    assert_eq!(page("", 2, 1000), ("ab".to_owned(), true));
    assert_eq!(page("b", 2, 1000), ("cd".to_owned(), false));
    assert_eq!(page("bb", 1, 1000), ("c".to_owned(), true), "the name need not be there any more");
    assert_eq!(page("", 10, 40), ("ab".to_owned(), true), "no room for more");
    assert_eq!(page("", 10, 0), ("a".to_owned(), true), "one always goes");
}

#[test]
fn a_crash_keeps_what_was_committed() {
    let disk = MemDisk::default();
    let store = MetaStore::on(disk.database()).unwrap();
    mkdir(&store, "kept").unwrap();
    // This transaction is not committed when the power fails.
    let transaction = store.write().unwrap();
    Change::open(&transaction, 6).unwrap().mkdir(&Place::root("lost"), BIRTH).unwrap();
    let after = MetaStore::on(disk.crash().database()).unwrap();
    assert_eq!(check(&after).into_keys().collect::<Vec<_>>(), ["/kept"]);
    drop(transaction);
}

#[test]
fn a_file_opened_again_has_what_was_committed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metadata.redb");
    let store = MetaStore::open(&path).unwrap();
    create(&store, "kept").unwrap();
    assert_eq!(MetaStore::open(&path).err().map(|error| error.code), Some(ErrorCode::Busy), "two managers");
    drop(store);
    assert_eq!(check(&MetaStore::open(&path).unwrap()).into_keys().collect::<Vec<_>>(), ["/kept"]);
}

#[test]
fn a_truncation_is_decided_for_all_datafiles_or_for_none() {
    let store = store();
    let file = create(&store, "f").unwrap().handle.file().unwrap();
    let begin = || change(&store, |change| change.begin_truncate(file, 0, 10)).map(|layout| layout.is_some());
    let decide = |size| change(&store, |change| change.truncate(by(CLIENT), file, size));
    let rows = |iod| look(&store, |t| truncates(t, iod)).unwrap();
    let all = |iod| rows(iod).decided.into_iter().map(|one| (one.datafile, one.again)).collect::<Vec<_>>();
    assert_eq!(decide(5), Err(ErrorCode::Busy), "it was not begun");
    assert_eq!((begin(), begin()), (Ok(true), Ok(false)));
    assert_eq!(((0..3).map(|iod| rows(iod).undecided.len()).sum::<usize>(), rows(0).decided.len()), (3, 0));
    change(&store, |change| change.record_size(file, by(CLIENT), 7)).unwrap();
    decide(65536 + 10).unwrap();
    let sizes = |iod| rows(iod).decided.iter().map(|one| one.size).collect::<Vec<_>>();
    assert_eq!((sizes(0), sizes(1), sizes(2)), (vec![65536], vec![10], vec![0]));
    assert_eq!(content(&store, "f"), Content::Written { client: CLIENT, starts: 0 });
    assert_eq!((begin(), decide(5)), (Ok(false), Err(ErrorCode::Busy)));
    for iod in 0..2 {
        let done = all(iod);
        change(&store, |change| change.end_truncates(iod, done)).unwrap();
    }
    assert_eq!(begin(), Ok(false), "one server has not carried it out");
    // It cannot. Then another change may begin, and until it is decided the first one counts.
    let failed = rows(2).decided[0];
    let error = FsError::new(ErrorCode::TooLarge, "a bad place");
    let fail = |one| change(&store, |change| change.fail_truncate(2, one, &error)).unwrap();
    let stored = || look(&store, |t| pending(t, lookup(&store, "f").unwrap().layout.as_ref().unwrap())).unwrap();
    fail(failed);
    let told = PendingTruncate { iod: 2, datafile: failed.datafile, size: 0, error: Some(error.clone()) };
    assert_eq!(stored(), std::slice::from_ref(&told));
    assert_eq!((begin(), begin(), sizes(2), stored()), (Ok(true), Ok(false), vec![0], vec![told.clone()]));
    let before = all(2);
    fail(failed);
    change(&store, |change| change.end_truncates(2, [(failed.datafile, false)])).unwrap();
    assert_eq!((all(2), stored()), (before, vec![told]), "an answer from before it was begun");
    decide(65536 * 2 + 7).unwrap();
    assert_eq!((sizes(2), stored().len(), stored()[0].error.clone()), (vec![7], 3, None));
    assert_eq!(rows(2).decided[0].cut, 0, "what was behind does not come back");
    remove(&store, "f").unwrap();
    assert!(rows(2).decided.is_empty(), "nothing is left to be cut off");
    check(&store);
}

/// A step of the random sequence. There are only a few short names, so that they collide.
#[derive(Clone, Debug)]
enum Step {
    Mkdir(String),
    Create(String),
    Remove(String),
    Rename(String, String),
    Symlink(String),
    /// Gives a file one more name.
    Link(String, String),
    Exchange(String, String),
    /// Gives what is there an extended attribute.
    SetXattr(String),
    /// Creates a file without a name.
    Draft(String),
    /// Publishes the oldest one.
    Publish(String),
    /// Abandons the oldest one.
    Abandon,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let path = || "[ab](/[ab]){0,2}";
    let step = prop_oneof![
        path().prop_map(Step::Mkdir),
        path().prop_map(Step::Create),
        path().prop_map(Step::Remove),
        (path(), path()).prop_map(|(from, to)| Step::Rename(from, to)),
        path().prop_map(Step::Symlink),
        (path(), path()).prop_map(|(from, to)| Step::Link(from, to)),
        (path(), path()).prop_map(|(one, other)| Step::Exchange(one, other)),
        path().prop_map(Step::SetXattr),
        path().prop_map(Step::Draft),
        path().prop_map(Step::Publish),
        Just(Step::Abandon),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_sequence_keeps_the_invariants(steps in steps()) {
        let store = store();
        let mut drafts = Vec::new();
        for step in steps {
            let before = check(&store);
            let oldest = drafts.first().copied().unwrap_or(FileHandle(999));
            let ok = match &step {
                Step::Mkdir(path) => mkdir(&store, path).is_ok(),
                Step::Create(path) => create(&store, path).is_ok(),
                Step::Remove(path) => remove(&store, path).is_ok(),
                Step::Rename(from, to) => rename(&store, from, to).is_ok(),
                Step::Symlink(path) => symlink(&store, path, "target").is_ok(),
                Step::Link(from, to) => link(&store, from, to).is_ok(),
                Step::Exchange(one, other) => exchange(&store, one, other).is_ok(),
                Step::SetXattr(path) => set_xattr(&store, path, "user.a", Some("1"), None).is_ok(),
                Step::Draft(path) => draft(&store, path).map(|file| drafts.push(file)).is_ok(),
                Step::Publish(path) => publish(&store, oldest, path).is_ok(),
                Step::Abandon => change(&store, |change| change.abandon(CLIENT, oldest)).is_ok(),
            };
            if ok && matches!(step, Step::Publish(_) | Step::Abandon) {
                drafts.retain(|draft| *draft != oldest);
            }
            let after = check(&store);
            let at = |path: &String| after.get(&format!("/{path}")).copied();
            match &step {
                _ if !ok => prop_assert_eq!(&before, &after),
                Step::Mkdir(path) => prop_assert!(matches!(at(path), Some(Handle::Dir(_)))),
                Step::Create(path) => prop_assert!(matches!(at(path), Some(Handle::File(_)))),
                Step::Remove(path) => prop_assert!(at(path).is_none()),
                Step::Rename(from, to) => prop_assert_eq!(at(to), before.get(&format!("/{from}")).copied()),
                Step::Publish(path) => prop_assert_eq!(at(path), Some(Handle::File(oldest))),
                Step::Symlink(path) => prop_assert!(matches!(at(path), Some(Handle::Symlink(_)))),
                Step::Link(from, to) => prop_assert!(at(from).is_some() && at(from) == at(to)),
                Step::Exchange(one, other) => {
                    let before = |path: &String| before.get(&format!("/{path}")).copied();
                    prop_assert_eq!((at(one), at(other)), (before(other), before(one)));
                }
                Step::Draft(_) | Step::Abandon | Step::SetXattr(_) => prop_assert_eq!(&before, &after),
            }
        }
    }
}

#[test]
fn a_small_file_grows_once_and_not_while_its_size_is_being_changed() {
    let store = store();
    let place = Place::root("f");
    let small = NewFile { small: true, ..new(&place, Existing::Refuse) };
    let first = |created, wanted| datafiles(created, wanted).map(|(all, servers)| (all[..1].to_vec(), servers));
    let (entry, _) = change(&store, |change| change.create(small, first)).unwrap();
    let (file, layout) = (entry.handle.file().unwrap(), entry.layout.unwrap());
    assert_eq!((layout.limit(), layout.most_servers()), (Some(65536), 3));
    let others = vec![(1, DatafileHandle(7)), (2, DatafileHandle(8))];
    let grow = || {
        let others = others.clone();
        change(&store, |change| {
            change.grow(file, |iod, most| {
                assert_eq!((iod, most), (0, 2));
                Ok(others)
            })
        })
    };
    let begin = |size| change(&store, |change| change.begin_truncate(file, size, 10)).map(|layout| layout.is_some());
    assert_eq!(begin(65537), Err(ErrorCode::Invalid), "it would be longer than a small file may be");
    assert_eq!((begin(65536), grow().err()), (Ok(true), Some(ErrorCode::Busy)));
    change(&store, |change| change.truncate(by(CLIENT), file, 65536)).unwrap();
    let grown = grow().unwrap().layout.unwrap();
    let servers = |layout: &Layout| layout.datafiles().iter().map(|(iod, _)| *iod).collect::<Vec<_>>();
    assert_eq!((grown.limit(), servers(&grown), grown.datafiles()[0]), (None, vec![0, 1, 2], layout.datafiles()[0]));
    assert_eq!(change(&store, |change| change.grow(file, |_, _| panic!("again"))).unwrap().layout, Some(grown));
    change(&store, |change| change.remove(&place, RemoveKind::File)).unwrap();
    assert_eq!(look(&store, |t| orphans(t, 2, 0, 9)), Ok(vec![DatafileHandle(8)]));
    assert_eq!(grow().err(), Some(ErrorCode::Stale));
    check(&store);
}
