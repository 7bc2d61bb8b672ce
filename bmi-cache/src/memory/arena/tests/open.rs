//! Which files are taken over, and which are made anew or refused.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

use bmi_core::ErrorKind;

use super::*;
use crate::memory::arena::layout::{SUPERBLOCK, VERSION_AT};

const OTHER: ArenaSettings = ArenaSettings { bytes: 2 << 20, chunk: 1 << 20 };

/// Makes an arena of one chunk. If it shall be dirty, it has one record.
fn leave(path: &Path, is_dirty: bool) {
    let (mut arena, recovered) = Arena::adopt(open(path));
    assert!(recovered.is_empty() && arena.grow().unwrap());
    arena.slice(place(3, 1), 0, 5).copy_from(b"bytes");
    arena.record(place(3, 1), Some(&record(9, 4096, &[0..5])));
    if !is_dirty {
        arena.record(place(3, 1), None);
    }
}

fn set_version(path: &Path, version: u64) {
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(&version.to_ne_bytes(), VERSION_AT as u64).unwrap();
}

#[test]
fn a_restarted_server_has_its_bytes_and_records() {
    let _guard = no_new_process();
    let dir = folder();
    let path = dir.path().join("arena");
    leave(&path, true);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    let frames = open(&path);
    assert!(frames.is_dirty());
    let (mut arena, recovered) = Arena::adopt(frames.clone());
    assert_eq!(recovered, [Recovered { place: place(3, 1), record: record(9, 4096, &[0..5]) }]);
    assert_eq!(arena.slice(place(3, 1), 0, 5).to_vec(), b"bytes");
    assert_eq!(arena.blocks(), 2);
    assert_eq!(frames.clone().remove().unwrap_err().kind(), ErrorKind::Invalid, "it is needed");
    arena.record(place(3, 1), None);
    drop(arena);
    frames.remove().unwrap();
    assert!(!path.exists());
    assert!(Arena::adopt(open(&path)).1.is_empty());
}

#[test]
fn a_file_is_one_servers_as_long_as_it_uses_the_bytes() {
    let _guard = no_new_process();
    let dir = folder();
    let path = dir.path().join("arena");
    leave(&path, true);
    let frames = open(&path);
    let refused = || {
        let error = Frames::open(&path, SETTINGS, OWNER).unwrap_err();
        assert!(error.kind() == ErrorKind::Refused && error.is_retryable(), "{error}");
    };
    refused();
    let (arena, _) = Arena::adopt(frames);
    let bytes = arena.slice(place(0, 1), 0, 1);
    drop(arena);
    // An adapter may still be at work.
    refused();
    drop(bytes);
    open(&path);
}

#[test]
fn only_the_own_file_is_removed() {
    let _guard = no_new_process();
    let dir = folder();
    let path = dir.path().join("arena");
    let frames = open(&path);
    fs::rename(&path, dir.path().join("elsewhere")).unwrap();
    frames.clone().remove().unwrap();
    fs::write(&path, "another").unwrap();
    frames.remove().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"another");
    assert!(Frames::anonymous(SETTINGS).unwrap().remove().is_ok());
}

#[test]
fn another_store_or_version_is_replaced_only_if_it_holds_nothing() {
    let _guard = no_new_process();
    for version in [None, Some(0), Some(1)] {
        let dir = folder();
        let path = dir.path().join("arena");
        let store = if version.is_none() { STORE + 1 } else { STORE };
        let other = |path| Frames::open(path, SETTINGS, Owner { store, ..OWNER });
        leave(&path, true);
        version.iter().for_each(|version| set_version(&path, *version));
        let before = fs::read(&path).unwrap();
        let error = other(&path).unwrap_err();
        assert!(error.kind() == ErrorKind::Incompatible && error.to_string().contains("start"), "{error}");
        assert!(fs::read(&path).unwrap() == before, "it was left alone");
        // The server that wrote it writes the data back.
        version.iter().for_each(|_| set_version(&path, 2));
        let (mut arena, recovered) = Arena::adopt(open(&path));
        arena.record(recovered[0].place, None);
        drop(arena);
        version.iter().for_each(|version| set_version(&path, *version));
        let (mut arena, recovered) = Arena::adopt(other(&path).unwrap());
        assert!(recovered.is_empty() && arena.blocks() == 0 && arena.grow().unwrap());
        assert_eq!(arena.slice(place(3, 1), 0, 5).to_vec(), [0; 5], "nothing of the other store is left");
    }
}

/// A cache file that a killed server had left was adopted by any later start of the store, although
/// the store had gone on with another one in between. Newer bytes were overwritten by older ones.
#[test]
fn frames_that_the_owner_has_not_noted_are_refused_while_they_hold_something() {
    let _guard = no_new_process();
    for noted in [None, Some(7)] {
        let dir = folder();
        let path = dir.path().join("arena");
        leave(&path, true);
        let before = fs::read(&path).unwrap();
        let owner = Owner { noted, next: 8, ..OWNER };
        let error = Frames::open(&path, SETTINGS, owner).unwrap_err();
        assert!(error.kind() == ErrorKind::Incompatible && error.to_string().contains("gone on"), "{error}");
        assert!(fs::read(&path).unwrap() == before, "it was left alone");
        // It can be looked at, and discarded if somebody says so.
        assert!(Frames::refused(&path, OWNER).unwrap().is_none(), "this owner has noted it");
        let refused = Frames::refused(&path, owner).unwrap().unwrap();
        let (arena, recovered) = Arena::adopt(refused.clone());
        assert_eq!((refused.number(), recovered.len()), (1, 1));
        drop(arena);
        refused.discard().unwrap();
        assert!(!path.exists() && Frames::refused(&path, owner).unwrap().is_none());
        // Without anything dirty there is nothing to lose.
        leave(&path, false);
        assert!(Frames::refused(&path, owner).unwrap().is_none());
        let frames = Frames::open(&path, SETTINGS, owner).unwrap();
        assert_eq!((frames.number(), Arena::adopt(frames).0.blocks()), (8, 0), "it was made anew");
    }
}

#[test]
fn other_sizes_wait_until_nothing_is_dirty() {
    let _guard = no_new_process();
    let dir = folder();
    let path = dir.path().join("arena");
    leave(&path, true);
    let frames = Frames::open(&path, OTHER, OWNER).unwrap();
    assert_eq!(frames.settings(), SETTINGS);
    let (mut arena, recovered) = Arena::adopt(frames);
    assert_eq!((recovered.len(), arena.max_blocks()), (1, 8));
    arena.record(recovered[0].place, None);
    drop(arena);
    let frames = Frames::open(&path, OTHER, OWNER).unwrap();
    assert_eq!(frames.settings(), OTHER);
    assert_eq!(Arena::adopt(frames).0.max_blocks(), 32);
}

#[test]
fn a_clean_file_of_the_same_store_keeps_its_chunks() {
    let _guard = no_new_process();
    let dir = folder();
    let path = dir.path().join("arena");
    leave(&path, false);
    let frames = open(&path);
    assert!(!frames.is_dirty());
    let (arena, recovered) = Arena::adopt(frames);
    assert_eq!((arena.blocks(), recovered.len()), (2, 0));
}

#[test]
fn a_file_that_is_no_arena_is_refused_and_left_alone() {
    let _guard = no_new_process();
    let dir = folder();
    let path = dir.path().join("arena");
    for bytes in [&b"x"[..], &[0; 5000], b"bmiarena", &[7; SUPERBLOCK]] {
        drop(open(&path));
        fs::write(&path, bytes).unwrap();
        let error = Frames::open(&path, SETTINGS, OWNER).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("choose another path"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), bytes);
        fs::remove_file(&path).unwrap();
    }
}

/// A kill while a file is made leaves an empty file, or one whose length was not set yet.
#[test]
fn a_file_that_was_being_made_is_made() {
    let _guard = no_new_process();
    let dir = folder();
    let path = dir.path().join("arena");
    drop(open(&path));
    for len in [0, SUPERBLOCK as u64] {
        File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
        let (mut arena, _) = Arena::adopt(open(&path));
        assert!(arena.blocks() == 0 && arena.grow().unwrap());
        arena.slice(place(31, 1), 4095, 1).copy_from(&[1]);
        drop(arena);
        fs::remove_file(&path).unwrap();
        drop(open(&path));
    }
}

#[test]
fn settings_without_sense_are_refused() {
    let dir = folder();
    let path = dir.path().join("arena");
    for bad in [ArenaSettings { bytes: 1 << 20, chunk: 0 }, ArenaSettings { bytes: 1 << 20, chunk: 4096 }] {
        assert_eq!(Frames::anonymous(bad).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(Frames::open(&path, bad, OWNER).unwrap_err().kind(), ErrorKind::Invalid);
        assert!(!path.exists());
    }
    let least = Frames::anonymous(ArenaSettings::new(0)).unwrap();
    assert_eq!(least.settings(), ArenaSettings { bytes: 1 << 20, chunk: 1 << 20 });
}
