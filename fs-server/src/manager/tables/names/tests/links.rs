//! Links, names that are exchanged, and extended attributes.

use fs_proto::limits::{MAX_LINKS, MAX_XATTRS};
use fs_proto::{BString, Caller, DefaultLayout, XattrName, XattrValue};

use ErrorCode::{Exists, Invalid, NotDirectory, NotFound, Stale};

use super::*;

pub(super) fn symlink(store: &MetaStore, path: &str, target: &str) -> Result<Entry, ErrorCode> {
    change(store, |change| change.symlink(&Place::root(path), &target.into(), (1, 2), false))
}

pub(super) fn link(store: &MetaStore, from: &str, to: &str) -> Result<Entry, ErrorCode> {
    let file = lookup(store, from)?.handle.file().ok_or(ErrorCode::Permission)?;
    change(store, |change| change.hard_link(file, &Place::root(to), false))
}

pub(super) fn exchange(store: &MetaStore, one: &str, other: &str) -> Result<(), ErrorCode> {
    change(store, |change| change.exchange(&Place::root(one), &Place::root(other)))
}

pub(super) fn set_xattr(
    store: &MetaStore,
    path: &str,
    name: &str,
    value: Option<&str>,
    exists: Option<bool>,
) -> Result<(), ErrorCode> {
    let handle = lookup(store, path)?.handle;
    let value = value.map(|value| XattrValue(value.into()));
    change(store, |change| change.set_xattr(handle, &XattrName(name.into()), value.as_ref(), exists))
}

fn xattr_of(store: &MetaStore, path: &str, name: &str) -> Result<BString, ErrorCode> {
    let handle = lookup(store, path)?.handle;
    look(store, |read| xattr(read, &Caller::ROOT, handle, &XattrName(name.into())))
}

#[test]
fn a_file_goes_with_its_last_name() {
    let store = store();
    let file = create(&store, "a").unwrap();
    mkdir(&store, "d").unwrap();
    let linked = link(&store, "a", "d/b").unwrap();
    assert_eq!((linked.handle, linked.attr.nlink, linked.layout.as_ref()), (file.handle, 2, file.layout.as_ref()));
    assert_eq!(link(&store, "a", "d"), Err(Exists));
    assert_eq!(link(&store, "d", "e"), Err(ErrorCode::Permission));
    remove(&store, "a").unwrap();
    assert_eq!(lookup(&store, "d/b").unwrap().attr.nlink, 1);
    check(&store);
    // Two names of one file: the rename does nothing, as POSIX wants it.
    link(&store, "d/b", "c").unwrap();
    rename(&store, "c", "d/b").unwrap();
    assert_eq!(check(&store).len(), 3);
    // Replaced by another file, and by a publication.
    create(&store, "e").unwrap();
    rename(&store, "e", "c").unwrap();
    assert_eq!(lookup(&store, "d/b").unwrap().attr.nlink, 1);
    let new = draft(&store, "d/b").unwrap();
    assert_eq!(
        change(&store, |change| change.hard_link(new, &Place::root("x"), false)),
        Err(NotFound),
        "it has no name"
    );
    publish(&store, new, "d/b").unwrap();
    assert_eq!(look(&store, |read| view(read)?.getattr(file.handle)), Err(Stale));
    check(&store);
}

#[test]
fn a_file_has_a_most_of_names() {
    let store = store();
    let file = create(&store, "a").unwrap().handle;
    change(&store, |change| {
        let mut object = change.view.object(file.raw())?;
        object.attr.nlink = MAX_LINKS;
        change.store(file.raw(), &object)
    })
    .unwrap();
    assert_eq!(link(&store, "a", "b"), Err(ErrorCode::TooManyLinks));
}

#[test]
fn a_symbolic_link_is_not_followed() {
    let store = store();
    mkdir(&store, "d").unwrap();
    create(&store, "d/f").unwrap();
    let made = symlink(&store, "l", "d").unwrap();
    assert_eq!((made.attr.kind, made.attr.size, made.attr.mode), (Kind::Symlink, 1, 0o777));
    assert_eq!(lookup(&store, "l").unwrap().target, Some("d".into()));
    assert_eq!(lookup(&store, "l/f"), Err(NotDirectory));
    assert_eq!((create(&store, "l").err(), mkdir(&store, "l/x").err()), (Some(Exists), Some(NotDirectory)));
    assert_eq!(symlink(&store, "m", ""), Err(Invalid));
    assert_eq!(symlink(&store, "m", "a\0b"), Err(Invalid));
    assert_eq!(symlink(&store, "m", &"x".repeat(4096)), Err(ErrorCode::NameTooLong));
    assert_eq!(rename(&store, "d", "l"), Err(NotDirectory));
    rename(&store, "d/f", "l").unwrap();
    assert_eq!(lookup(&store, "l").unwrap().attr.kind, Kind::File, "a file replaces a link");
    check(&store);
}

#[test]
fn names_are_exchanged() {
    let store = store();
    mkdir(&store, "d").unwrap();
    mkdir(&store, "d/e").unwrap();
    let file = create(&store, "f").unwrap().handle;
    exchange(&store, "f", "d/e").unwrap();
    assert_eq!(lookup(&store, "d/e").unwrap().handle, file);
    assert_eq!((lookup(&store, "").unwrap().attr.nlink, lookup(&store, "d").unwrap().attr.nlink), (4, 2));
    assert_eq!(exchange(&store, "d", "d/e"), Err(Invalid), "a directory in itself");
    assert_eq!(exchange(&store, "d", "none"), Err(NotFound));
    exchange(&store, "d", "d").unwrap();
    check(&store);
}

#[test]
fn extended_attributes_are_set_and_go_with_their_object() {
    let store = store();
    create(&store, "a").unwrap();
    assert_eq!(set_xattr(&store, "a", "user.x", Some("1"), Some(true)), Err(NotFound));
    set_xattr(&store, "a", "user.x", Some("1"), Some(false)).unwrap();
    assert_eq!(set_xattr(&store, "a", "user.x", Some("2"), Some(false)), Err(Exists));
    set_xattr(&store, "a", "user.x", Some("2"), None).unwrap();
    assert_eq!(xattr_of(&store, "a", "user.x"), Ok("2".into()));
    for number in 1..MAX_XATTRS {
        set_xattr(&store, "a", &format!("user.{number}"), Some(""), None).unwrap();
    }
    assert_eq!(set_xattr(&store, "a", "user.more", Some(""), None), Err(ErrorCode::NoSpace));
    let handle = lookup(&store, "a").unwrap().handle;
    assert_eq!(look(&store, |read| xattrs(read, &Caller::ROOT, handle)).unwrap().len(), MAX_XATTRS);
    set_xattr(&store, "a", "user.x", None, None).unwrap();
    assert_eq!(set_xattr(&store, "a", "user.x", None, None), Err(NotFound));
    assert_eq!(xattr_of(&store, "a", "user.x"), Err(NotFound));
    assert_eq!(set_xattr(&store, "a", "", Some(""), None), Err(Invalid));
    remove(&store, "a").unwrap();
    check(&store);
}

#[test]
fn who_gets_a_program_does_not_get_its_owners_rights() {
    let store = store();
    let file = create(&store, "a").unwrap().handle;
    let set = |set: SetAttr| change(&store, |change| change.setattr(file, &set)).unwrap().attr.mode;
    let (mode, uid) = (|mode| SetAttr { mode: Some(mode), ..SetAttr::default() }, Some(9));
    assert_eq!(set(mode(0o6755)), 0o6755);
    assert_eq!(set(SetAttr { uid, ..SetAttr::default() }), 0o755);
    // Without the right to run it, the bit of the group means something else.
    assert_eq!(set(mode(0o6705)), 0o6705);
    assert_eq!(set(SetAttr { uid, ..SetAttr::default() }), 0o2705);
}

#[test]
fn a_name_is_bytes() {
    let store = store();
    let place = Place::root(b"\xff\n\xc3".as_slice());
    change(&store, |change| change.mkdir(&place, BIRTH)).unwrap();
    let (entries, _) = look(&store, |read| view(read)?.readdir(DirHandle::ROOT, b"", 10, 1000)).unwrap();
    assert_eq!(entries[0].name, b"\xff\n\xc3");
    assert!(look(&store, |read| view(read)?.lookup(&place)).is_ok());
    assert_eq!(lookup(&store, "a\0b"), Err(Invalid));
}

#[test]
fn a_link_replaces_anything_but_a_directory() {
    let store = store();
    let file = create(&store, "a").unwrap().handle.file().unwrap();
    let old = create(&store, "b").unwrap().handle;
    mkdir(&store, "d").unwrap();
    let over = |place: &str| change(&store, |change| change.hard_link(file, &Place::root(place), true));
    assert_eq!(over("b").unwrap().attr.nlink, 2);
    assert_eq!(look(&store, |read| view(read)?.getattr(old)), Err(Stale), "the datafiles are orphans");
    assert_eq!(over("b").unwrap().attr.nlink, 2, "it has that name");
    assert_eq!(over("d").err(), Some(ErrorCode::IsDirectory));
    let link =
        |place: &str| change(&store, |change| change.symlink(&Place::root(place), &"x".into(), (1, 2), true)).map(drop);
    link("b").unwrap();
    link("b").unwrap();
    assert_eq!(link("d"), Err(ErrorCode::IsDirectory));
    assert_eq!((lookup(&store, "a").unwrap().attr.nlink, check(&store).len()), (1, 3));
}

#[test]
fn new_files_are_striped_as_their_directory_says() {
    let store = store();
    let name = DefaultLayout::XATTR;
    mkdir(&store, "d").unwrap();
    create(&store, "f").unwrap();
    assert_eq!(set_xattr(&store, "f", name, Some("servers=2"), None), Err(Invalid), "of a file");
    assert_eq!(set_xattr(&store, "d", name, Some("servers=0"), None), Err(Invalid));
    set_xattr(&store, "d", name, Some("strip=8K servers=2"), None).unwrap();
    mkdir(&store, "d/e").unwrap();
    let made = |place: &str, strip_size: u64, servers: u32, existing: Existing| {
        let (place, mut wanted) = (Place::root(place), Wanted::All);
        let new = NewFile { strip_size, servers, ..new(&place, existing) };
        let entry = change(&store, |change| {
            change.create(new, |created, asked| {
                wanted = asked;
                datafiles(created, asked)
            })
        });
        (entry.unwrap().0.layout.unwrap().distribution().strip_size(), wanted)
    };
    assert_eq!(made("d/e/inherited", 0, 0, Existing::Refuse), (8 << 10, Wanted::AtMost(2)));
    assert_eq!(made("d/asked", 4096, 1, Existing::Refuse), (4096, Wanted::Exactly(1)));
    assert_eq!(made("d/half", 4096, 0, Existing::Refuse), (4096, Wanted::AtMost(2)));
    assert_eq!(made("d/asked", 0, 0, Existing::Replace), (4096, Wanted::AtMost(3)), "as what it replaces");
    assert_eq!(made("beside", 0, 0, Existing::Refuse), (65536, Wanted::All));
    set_xattr(&store, "d", name, None, None).unwrap();
    assert_eq!(made("d/later", 0, 0, Existing::Refuse), (65536, Wanted::All));
    check(&store);
}
