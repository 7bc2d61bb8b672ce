//! Who may do what.

use fs_proto::{Access, Caller, Handle, Kind, SetAttr, XattrName, XattrValue};

use super::super::{view, xattr};
use super::*;
use crate::manager::tables::Holds;

const ANNA: Caller = Caller { uid: 1000, gid: 100, groups: Vec::new() };
const BOB: Caller = Caller { uid: 1001, gid: 101, groups: Vec::new() };

/// Changes something for somebody.
fn by<T>(
    store: &MetaStore,
    caller: &Caller,
    make: impl FnOnce(&mut Change<'_>) -> Result<T, Fault>,
) -> Result<T, ErrorCode> {
    change(store, |change| {
        change.speak_for(caller, CLIENT);
        make(change)
    })
}

/// Makes a directory or a file of this owner and mode.
fn thing(store: &MetaStore, path: &str, owner: &Caller, mode: u32, kind: Kind) -> Handle {
    let (place, birth) = (Place::root(path), Birth { mode, uid: owner.uid, gid: owner.gid });
    let made = change(store, |change| match kind {
        Kind::Dir => change.mkdir(&place, birth),
        _ => Ok(change.create(NewFile { birth, ..new(&place, Existing::Refuse) }, datafiles)?.0),
    });
    made.unwrap().handle
}

fn lookup(store: &MetaStore, caller: &Caller, path: &str) -> Result<(), ErrorCode> {
    look(store, |read| view(read)?.by(caller, CLIENT).lookup(&Place::root(path)).map(drop))
}

const DENIED: Result<(), ErrorCode> = Err(ErrorCode::Permission);

#[test]
fn a_name_is_looked_up_only_where_one_may_search_and_listed_where_one_may_read() {
    let store = store();
    thing(&store, "d", &ANNA, 0o711, Kind::Dir);
    thing(&store, "d/e", &ANNA, 0o755, Kind::Dir);
    thing(&store, "d/e/f", &ANNA, 0o600, Kind::File);
    let shut = thing(&store, "d/shut", &ANNA, 0o744, Kind::Dir).dir().unwrap();
    thing(&store, "d/shut/f", &ANNA, 0o644, Kind::File);
    assert_eq!(lookup(&store, &BOB, "d/e/f"), Ok(()), "whatever its own mode is");
    assert_eq!((lookup(&store, &ANNA, "d/shut/f"), lookup(&store, &BOB, "d/shut/f")), (Ok(()), DENIED));
    assert_eq!(lookup(&store, &BOB, "d/shut/no"), DENIED, "nor is told what is not there");
    let list = |caller: &Caller, dir| {
        look(&store, |read| view(read)?.by(caller, CLIENT).readdir(dir, b"", 9, 4096)).map(|(entries, _)| entries.len())
    };
    let d = look(&store, |read| view(read)?.lookup(&Place::root("d"))).unwrap().handle.dir().unwrap();
    assert_eq!((list(&ANNA, d), list(&BOB, d), list(&BOB, shut)), (Ok(2), Err(ErrorCode::Permission), Ok(1)));
}

/// Every change of a name is refused to who may not write to the directory, and nothing has
/// changed.
#[test]
fn names_are_changed_only_where_one_may_write_and_in_a_sticky_directory_only_ones_own() {
    let store = store();
    for (dir, mode) in [("own", 0o755), ("open", 0o777), ("sticky", 0o1777)] {
        thing(&store, dir, &ANNA, mode, Kind::Dir);
        for name in ["f", "g"] {
            thing(&store, &format!("{dir}/{name}"), &ANNA, 0o666, Kind::File);
        }
        thing(&store, &format!("{dir}/d"), &ANNA, 0o777, Kind::Dir);
    }
    let place = |dir: &str, name: &str| Place::root(format!("{dir}/{name}"));
    let file = look(&store, |read| view(read)?.lookup(&place("open", "g"))).unwrap().handle.file().unwrap();
    let birth = Birth { mode: 0o755, uid: 1001, gid: 101 };
    let tries = |dir: &str| {
        let (f, g, x) = (place(dir, "f"), place(dir, "g"), place(dir, "x"));
        let kinds = [
            by(&store, &BOB, |change| change.mkdir(&place(dir, "new"), birth).map(drop)),
            by(&store, &BOB, |change| change.create(new(&place(dir, "made"), Existing::Refuse), datafiles).map(drop)),
            by(&store, &BOB, |change| change.symlink(&x, &"y".into(), (1001, 101), false).map(drop)),
            by(&store, &BOB, |change| change.hard_link(file, &place(dir, "link"), false).map(drop)),
            by(&store, &BOB, |change| change.rename(&f, &place(dir, "h"), Replace::Anything)),
            by(&store, &BOB, |change| change.exchange(&g, &place(dir, "h"))),
            by(&store, &BOB, |change| change.hard_link(file, &g, true).map(drop)),
            by(&store, &BOB, |change| change.remove(&place(dir, "d"), RemoveKind::Any)),
        ];
        kinds.map(|result| result == Ok(()))
    };
    assert_eq!(tries("own"), [false; 8]);
    assert_eq!(tries("open"), [true; 8]);
    assert_eq!(tries("sticky"), [true, true, true, true, false, false, false, false], "only what is new");
    let names = |dir: &str| {
        let list = |read: &redb::ReadTransaction| {
            let dir = view(read)?.lookup(&Place::root(dir))?.handle.dir().unwrap();
            view(read)?.readdir(dir, b"", 99, 4096)
        };
        look(&store, list).unwrap().0.iter().map(|entry| entry.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names("own"), ["d", "f", "g"]);
    assert_eq!(names("sticky"), ["d", "f", "g", "link", "made", "new", "x"]);
}

#[test]
fn a_directory_moves_only_if_one_may_write_to_it() {
    let store = store();
    for (path, owner, mode) in [("a", &BOB, 0o755), ("b", &BOB, 0o755), ("a/d", &ANNA, 0o755)] {
        thing(&store, path, owner, mode, Kind::Dir);
    }
    let rename =
        |to: &str| by(&store, &BOB, |change| change.rename(&Place::root("a/d"), &Place::root(to), Replace::Anything));
    assert_eq!((rename("b/d"), rename("a/e")), (DENIED, Ok(())));
}

#[test]
fn new_things_belong_to_who_makes_them_and_only_root_gives_them_away() {
    let store = store();
    thing(&store, "d", &ANNA, 0o777, Kind::Dir);
    thing(&store, "group", &Caller { gid: 7, ..ANNA }, 0o2777, Kind::Dir);
    let made = |caller: &Caller, path: &str, uid, gid| {
        let place = Place::root(path);
        let entry = by(&store, caller, |change| change.mkdir(&place, Birth { mode: 0o755, uid, gid })).unwrap();
        (entry.attr.uid, entry.attr.gid)
    };
    assert_eq!(made(&BOB, "d/1", 0, 0), (1001, 101));
    assert_eq!(made(&Caller { groups: vec![9], ..BOB }, "d/2", 1001, 9), (1001, 9));
    assert_eq!(made(&BOB, "group/3", 1001, 7), (1001, 7), "the group of the directory");
    assert_eq!(made(&BOB, "d/4", 1001, 7), (1001, 101));
    assert_eq!(made(&Caller::ROOT, "d/5", 4, 5), (4, 5));
}

#[test]
fn attributes_are_set_by_the_owner_and_given_away_by_root() {
    let store = store();
    let file = thing(&store, "f", &ANNA, 0o666, Kind::File);
    let set =
        |caller: &Caller, set: SetAttr| by(&store, caller, |change| change.setattr(file, &set)).map(|entry| entry.attr);
    let none = SetAttr::default();
    let code = |result: Result<fs_proto::Attr, ErrorCode>| result.map(drop);
    assert_eq!(code(set(&BOB, SetAttr { mode: Some(0o777), ..none })), DENIED);
    assert_eq!(code(set(&BOB, SetAttr { mtime_ns: Some(5), ..none })), Ok(()), "he may write, which sets it too");
    assert_eq!(code(set(&BOB, SetAttr { mtime_ns: Some(1 << 60), ..none })), DENIED, "not to what he likes");
    assert_eq!(code(set(&ANNA, SetAttr { uid: Some(1001), ..none })), DENIED);
    assert_eq!(code(set(&ANNA, SetAttr { gid: Some(101), ..none })), DENIED);
    let both = Caller { groups: vec![101], ..ANNA };
    assert_eq!(set(&both, SetAttr { uid: Some(1000), gid: Some(101), ..none }).unwrap().gid, 101);
    assert_eq!(set(&ANNA, SetAttr { mode: Some(0o2755), ..none }).unwrap().mode, 0o755, "not a group of hers");
    assert_eq!(set(&both, SetAttr { mode: Some(0o2755), ..none }).unwrap().mode, 0o2755);
    set(&ANNA, SetAttr { mode: Some(0o4777), ..none }).unwrap();
    assert_eq!(set(&BOB, SetAttr { mode: Some(0o777), ..none }).unwrap().mode, 0o777, "as he does who writes to it");
    assert_eq!(code(set(&BOB, SetAttr { mode: Some(0o770), ..none })), DENIED);
    assert_eq!(set(&Caller::ROOT, SetAttr { uid: Some(1001), mode: Some(0o700), ..none }).unwrap().uid, 1001);
    assert_eq!(code(set(&ANNA, SetAttr { mtime_ns: Some(5), ..none })), DENIED, "it is his now");
}

#[test]
fn a_file_is_opened_for_what_its_mode_allows_and_an_open_one_stays_open() {
    let (store, holds) = (store(), Holds::default());
    let opens = |caller: &Caller, path: &str, client| {
        look(&store, |read| {
            let view = view(read)?.by(caller, client);
            let (raw, object) = view.found(&Place::root(path))?;
            view.opened(&object, holds.access(raw, client))
        })
    };
    for (mode, anna, bob) in [
        (0o640, Ok(Access::BOTH), Err(ErrorCode::Permission)),
        (0o604, Ok(Access::BOTH), Ok(Access::READ)),
        (0o402, Ok(Access::READ), Ok(Access::WRITE)),
        (0o711, Ok(Access::BOTH.and(Access::SEARCH)), Ok(Access::READ.and(Access::SEARCH))),
        (0o000, Err(ErrorCode::Permission), Err(ErrorCode::Permission)),
    ] {
        let name = format!("f{mode:o}");
        thing(&store, &name, &ANNA, mode, Kind::File);
        assert_eq!((opens(&ANNA, &name, 8), opens(&BOB, &name, 8)), (anna, bob), "{mode:o}");
        assert_eq!(opens(&Caller::ROOT, &name, 8).map(|access| access.within(Access::BOTH)), Ok(Access::BOTH));
    }
    let file = thing(&store, "f", &ANNA, 0o600, Kind::File).file().unwrap();
    holds.hold(file.0, 20);
    holds.grant(file.0, 20, opens(&ANNA, "f", 20).unwrap());
    by(&store, &ANNA, |change| change.setattr(file.into(), &SetAttr { mode: Some(0), ..SetAttr::default() })).unwrap();
    assert_eq!((opens(&ANNA, "f", 20), opens(&ANNA, "f", 8)), (Ok(Access::BOTH), Err(ErrorCode::Permission)));
    let writes = |client| look(&store, |read| view(read)?.by(&ANNA, client).may_write(file, client, &holds));
    assert_eq!((writes(20), writes(8), writes(CLIENT)), (Ok(()), DENIED, Ok(())), "who has created it writes");
    holds.release(file.0, 20);
    assert_eq!(opens(&ANNA, "f", 20), Err(ErrorCode::Permission));
}

/// Handles are counted, so whoever has been told one can name others.
#[test]
fn a_handle_opens_nothing_below_a_directory_that_one_may_not_search() {
    let store = store();
    let shut = thing(&store, "shut", &ANNA, 0o700, Kind::Dir).dir().unwrap();
    let open = thing(&store, "shut/open", &ANNA, 0o777, Kind::Dir).dir().unwrap();
    let file = thing(&store, "shut/open/f", &ANNA, 0o666, Kind::File);
    let opens = |caller: &Caller, held| {
        look(&store, |read| {
            let view = view(read)?.by(caller, 20);
            view.opened_by_handle(&view.named(file)?, held).map(drop)
        })
    };
    assert_eq!((opens(&ANNA, Access::NONE), opens(&BOB, Access::NONE)), (Ok(()), DENIED));
    assert_eq!(opens(&BOB, Access::READ), Ok(()), "he has it open");
    let list = |dir| look(&store, |read| view(read)?.by(&BOB, 20).readdir(dir, b"", 9, 4096).map(drop));
    assert_eq!((list(shut), list(open)), (DENIED, DENIED));
    let at = Place::at(open, "x");
    assert_eq!(by(&store, &BOB, |change| change.mkdir(&at, BIRTH).map(drop)), DENIED);
    let name = Place::root("link");
    let link =
        |caller: &Caller| by(&store, caller, |change| change.hard_link(file.file().unwrap(), &name, false).map(drop));
    thing(&store, "d", &ANNA, 0o777, Kind::Dir);
    assert_eq!(link(&BOB), DENIED);
    let name = XattrName("user.a".into());
    assert_eq!(look(&store, |read| xattr(read, &BOB, file, &name).map(drop)), DENIED);
    // By a name that he may come to, he may.
    let public = Place::root("d/g");
    by(&store, &ANNA, |change| change.hard_link(file.file().unwrap(), &public, false)).unwrap();
    assert_eq!(opens(&BOB, Access::NONE), Ok(()));
}

/// A chain of directories that somebody has made does not let each request look at all of it.
#[test]
fn what_is_too_deep_is_not_reached_by_its_handle() {
    let store = store();
    thing(&store, "d", &ANNA, 0o777, Kind::Dir);
    let deepest = change(&store, |change| {
        let mut at = change.view.lookup(&Place::root("d"))?.handle.dir().unwrap();
        for _ in 0..2050 {
            at = change.mkdir(&Place::at(at, "d"), Birth { mode: 0o777, ..BIRTH })?.handle.dir().unwrap();
        }
        Ok(at)
    });
    let list = look(&store, |read| view(read)?.by(&ANNA, CLIENT).readdir(deepest.unwrap(), b"", 9, 4096).map(drop));
    assert_eq!(list, Err(ErrorCode::NameTooLong));
}

/// Of a file that has lost its last name, everybody keeps the right that he had.
#[test]
fn who_reads_a_file_without_a_name_does_not_write_it() {
    let store = store();
    let file = thing(&store, "f", &ANNA, 0o644, Kind::File).file().unwrap();
    let holds = Holds::default();
    for client in [20, 21] {
        holds.hold(file.0, client);
    }
    holds.grant(file.0, 20, Access::READ);
    holds.grant(file.0, 21, Access::BOTH);
    change(&store, |change| {
        change.holds = holds.clone();
        change.remove(&Place::root("f"), RemoveKind::File)
    })
    .unwrap();
    let writes = |caller: &Caller, client| {
        change(&store, |change| {
            change.holds = holds.clone();
            change.speak_for(caller, client);
            change.may_write(file, client)
        })
    };
    assert_eq!((writes(&BOB, 20), writes(&ANNA, 21)), (DENIED, Ok(())));
}

/// Who may only write does not read because a file has grown, and programs lose their set-id bits.
#[test]
fn what_is_written_gives_no_other_right() {
    let store = store();
    let file = thing(&store, "log", &ANNA, 0o4777, Kind::File);
    by(&store, &Caller::ROOT, |change| change.setattr(file, &SetAttr { mode: Some(0o4722), ..SetAttr::default() }))
        .unwrap();
    let file = file.file().unwrap();
    let access = change(&store, |change| {
        change.speak_for(&BOB, 20);
        change.may_write(file, 20)?;
        change.writer_access(file, 20)
    });
    assert_eq!(access, Ok(Access::WRITE));
    change(&store, |change| {
        change.speak_for(&BOB, 20);
        change.begin_write(file, RequestId { client: 20, seq: 1 })
    })
    .unwrap();
    assert_eq!(look(&store, |read| view(read)?.getattr(file.into())).unwrap().attr.mode, 0o722);
    // The owner decides anew: it is not enough that he has begun.
    let shut = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    by(&store, &ANNA, |change| change.setattr(file.into(), &shut)).unwrap();
    let writes = look(&store, |read| view(read)?.by(&BOB, 20).may_write(file, 20, &Holds::default()));
    assert_eq!(writes, DENIED);
}

/// Who knows the number of a client can use what that has open.
#[test]
fn nobody_is_told_the_number_of_another_client() {
    let store = store();
    let file = thing(&store, "f", &ANNA, 0o644, Kind::File);
    let told = |client| {
        let read = |read: &redb::ReadTransaction| view(read)?.by(&ANNA, client).getattr(file);
        look(&store, read).unwrap().content
    };
    assert_eq!(told(CLIENT), Content::Written { client: CLIENT, starts: 0 });
    assert_eq!(told(8), Content::Written { client: 0, starts: 0 });
    let listed = |read: &redb::ReadTransaction| view(read)?.by(&BOB, 8).listing(DirHandle::ROOT, b"", 9, 4096);
    assert_eq!(look(&store, listed).unwrap().0[0].entry.content, Content::Written { client: 0, starts: 0 });
    let seen = by(&store, &ANNA, |change| {
        change.speak_for(&ANNA, 8);
        change.hard_link(file.file().unwrap(), &Place::root("f"), true)
    });
    assert_eq!(seen.unwrap().content, Content::Written { client: 0, starts: 0 });
}

#[test]
fn extended_attributes_follow_the_mode_and_those_of_the_system_the_owner() {
    let store = store();
    let file = thing(&store, "f", &ANNA, 0o642, Kind::File);
    let (user, other) = (XattrName("user.a".into()), XattrName("system.b".into()));
    let value = XattrValue("x".into());
    let set = |caller: &Caller, name| by(&store, caller, |change| change.set_xattr(file, name, Some(&value), None));
    assert_eq!((set(&ANNA, &other), set(&BOB, &user), set(&BOB, &other)), (Ok(()), Ok(()), DENIED));
    let get = |caller: &Caller| look(&store, |read| xattr(read, caller, file, &user).map(drop));
    assert_eq!((get(&ANNA), get(&BOB)), (Ok(()), DENIED));
}

/// Taking over owner and mode of what is replaced is not a way to give files away.
#[test]
fn what_is_published_in_place_of_somebody_elses_file_is_ones_own() {
    let store = store();
    thing(&store, "d", &ANNA, 0o777, Kind::Dir);
    thing(&store, "d/f", &ANNA, 0o4711, Kind::File);
    let place = Place::root("d/f");
    let (entry, _) = by(&store, &BOB, |change| change.create(new(&place, Existing::Replace), datafiles)).unwrap();
    let how = Publication {
        file: entry.handle.file().unwrap(),
        place: &place,
        inherit: true,
        mode: None,
        mtime_ns: None,
        size: None,
        replace: Replace::Anything,
    };
    let attr = by(&store, &BOB, |change| change.publish(CLIENT, how)).unwrap().attr;
    assert_eq!((attr.uid, attr.mode), (1001, 0o711));
}
