//! Files without a name, and what they replace.

use super::*;

#[test]
fn a_draft_replaces_a_file_when_it_is_published() {
    let store = store();
    let old = create(&store, "f").unwrap();
    let owner = SetAttr { mode: Some(0o640), uid: Some(5), gid: Some(6), ..SetAttr::default() };
    change(&store, |change| change.setattr(old.handle, &owner)).unwrap();
    let file = draft(&store, "f").unwrap();
    assert_eq!(lookup(&store, "f").unwrap().handle, old.handle);
    let place = Place::root("f");
    let how = Publication {
        file,
        place: &place,
        inherit: true,
        mode: None,
        mtime_ns: Some(77),
        size: Some(9),
        replace: Replace::Anything,
    };
    let stranger = change(&store, |change| change.publish(CLIENT + 1, how));
    assert_eq!(stranger.unwrap_err(), ErrorCode::Stale);
    change(&store, |change| change.abandon(CLIENT + 1, file)).unwrap();
    let new = change(&store, |change| change.publish(CLIENT, how)).unwrap();
    assert_eq!(lookup(&store, "f"), Ok(new.clone()));
    assert_eq!((new.attr.mode, new.attr.uid, new.attr.gid, new.attr.nlink), (0o640, 5, 6, 1));
    assert_eq!((new.attr.mtime_ns, new.recorded_size(), new.handle), (77, Some(9), Handle::File(file)));
    assert_eq!(change(&store, |change| change.publish(CLIENT, how)).unwrap_err(), ErrorCode::Stale, "once");
    change(&store, |change| change.abandon(CLIENT, file)).unwrap();
    assert_eq!(lookup(&store, "f"), Ok(new), "a file with a name cannot be abandoned");
    assert_eq!(look(&store, |t| orphans(t, 0, 0, 9)).unwrap().len(), 1, "the datafile of the old one");
    check(&store);
}

#[test]
fn what_is_replaced_is_what_was_required() {
    use ErrorCode::{Exists, NotFound};
    let store = store();
    let put = |path: &str, replace, size| {
        let (file, place) = (draft(&store, path)?, Place::root(path));
        let how = Publication { file, place: &place, inherit: false, mode: None, mtime_ns: None, size, replace };
        change(&store, |change| change.publish(CLIENT, how)).map(|_| file)
    };
    let first = put("f", Replace::Nothing, Some(1)).unwrap();
    assert_eq!(put("f", Replace::Nothing, Some(1)), Err(Exists));
    assert_eq!(put("x", Replace::File(first), Some(1)), Err(NotFound));
    let second = put("f", Replace::File(first), Some(1)).unwrap();
    assert_eq!(put("f", Replace::File(first), Some(1)), Err(Exists), "it was replaced");
    change(&store, |change| change.begin_write(second, by(CLIENT + 1))).unwrap();
    assert_eq!(put("f", Replace::File(second), Some(1)), Err(Exists), "it was written since");
    let other = put("g", Replace::Anything, None).unwrap();
    let mv = |replace| change(&store, |change| change.rename(&Place::root("f"), &Place::root("g"), replace));
    assert_eq!(mv(Replace::Nothing), Err(Exists));
    assert_eq!(mv(Replace::File(second)), Err(Exists));
    change(&store, |change| change.record_size(other, by(CLIENT), 1)).unwrap();
    assert_eq!(mv(Replace::File(other)), Ok(()));
    assert_eq!(lookup(&store, "g").unwrap().handle, Handle::File(second));
    mkdir(&store, "f").unwrap();
    assert_eq!(
        change(&store, |change| change.rename(&Place::root("g"), &Place::root("f"), Replace::Nothing)),
        Err(Exists)
    );
    check(&store);
}

#[test]
fn a_draft_takes_over_the_striping_of_the_file_that_it_replaces() {
    let store = store();
    let place = Place::root("f");
    let asked = NewFile { strip_size: 8192, servers: 2, ..new(&place, Existing::Refuse) };
    let two = |created: u64, wanted| datafiles(created, wanted).map(|(all, _)| (all[..2].to_vec(), 2));
    change(&store, |change| change.create(asked, two)).unwrap();
    let (mut seen, plain) = (None, new(&place, Existing::Replace));
    let place_datafiles = |created: u64, wanted| {
        seen = Some(wanted);
        two(created, wanted)
    };
    let (entry, _) = change(&store, |change| change.create(plain, place_datafiles)).unwrap();
    assert_eq!((seen, entry.layout.unwrap().distribution().strip_size()), (Some(Wanted::AtMost(2)), 8192));
    let told = NewFile { strip_size: 4096, servers: 3, ..plain };
    let (entry, _) = change(&store, |change| change.create(told, datafiles)).unwrap();
    let layout = entry.layout.unwrap();
    assert_eq!((layout.distribution().strip_size(), layout.datafiles().len()), (4096, 3));
}

#[test]
fn drafts_of_a_client_go_together() {
    let store = store();
    for _ in 0..5 {
        draft(&store, "f").unwrap();
    }
    assert_eq!(look(&store, owners), Ok(vec![CLIENT]));
    assert_eq!(change(&store, |change| change.abandon_all(CLIENT, 3)), Ok(3));
    check(&store);
    assert_eq!(change(&store, |change| change.abandon_all(CLIENT, 3)), Ok(2));
    assert_eq!(look(&store, owners), Ok(vec![]));
    assert_eq!(look(&store, |t| orphans(t, 1, 0, 9)).unwrap().len(), 5);
    check(&store);
}
