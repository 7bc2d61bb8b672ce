//! What two mounts see of each other.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::support::World;

#[test]
fn an_open_sees_what_was_closed_before_on_another_mount() {
    let mut world = World::with("hard");
    let (one, other) = (world.at().to_owned(), world.mount("hard"));
    for round in 0..20 {
        // Longer and shorter, and under the same name as another file.
        let text = format!("{round}").repeat(1 + 997 * (round % 3));
        if round % 4 == 3 {
            fs::write(one.join("new"), &text).unwrap();
            fs::rename(one.join("new"), one.join("f")).unwrap();
        } else {
            fs::write(one.join("f"), &text).unwrap();
        }
        assert_eq!(fs::read_to_string(other.join("f")).unwrap(), text, "round {round}");
        // What is known from a listing is looked at again.
        assert!(fs::read_dir(&other).unwrap().all(|entry| entry.unwrap().metadata().is_ok()));
    }
    fs::remove_file(one.join("f")).unwrap();
    assert!(File::open(other.join("f")).is_err());
}

#[test]
fn a_strict_mount_sees_each_write_at_once() {
    let mut world = World::with("hard");
    let (one, other) = (world.at().to_owned(), world.mount("hard,coherence=strict"));
    let written = OpenOptions::new().write(true).create(true).truncate(true).open(one.join("f")).unwrap();
    let read = File::open(other.join("f")).unwrap();
    for round in 1..=50_u8 {
        written.write_all_at(&[round; 100], 0).unwrap();
        written.set_len(100 + u64::from(round)).unwrap();
        let mut bytes = [0; 100];
        read.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!((bytes, read.metadata().unwrap().len()), ([round; 100], 100 + u64::from(round)));
        assert_eq!(fs::metadata(other.join("f")).unwrap().len(), 100 + u64::from(round));
    }
}

#[test]
fn what_two_mounts_append_is_whole_and_in_order() {
    const ROUNDS: usize = 150;
    let mut world = World::with("hard");
    let mounts = [world.at().to_owned(), world.mount("hard")];
    fs::write(mounts[0].join("log"), "").unwrap();
    std::thread::scope(|scope| {
        for (who, at) in mounts.iter().enumerate() {
            scope.spawn(move || {
                let mut log = OpenOptions::new().append(true).open(at.join("log")).unwrap();
                (0..ROUNDS).for_each(|round| log.write_all(format!("{who} {round:0900}\n").as_bytes()).unwrap());
            });
        }
    });
    let log = fs::read_to_string(mounts[0].join("log")).unwrap();
    for who in 0..2 {
        let own = log.lines().filter_map(|line| line.strip_prefix(&format!("{who} ")));
        assert!(own.map(|round| round.parse::<usize>().unwrap()).eq(0..ROUNDS), "mount {who}");
    }
    assert_eq!(log.lines().count(), 2 * ROUNDS);
}

#[test]
fn a_file_that_another_mount_removes_stays_while_it_is_open() {
    let mut world = World::with("hard");
    let (one, other) = (world.at().to_owned(), world.mount("hard"));
    let bytes = vec![7; 3_000_000];
    fs::write(one.join("f"), &bytes).unwrap();
    fs::write(one.join("g"), "other").unwrap();
    let (read, replaced) = (File::open(one.join("f")).unwrap(), File::open(one.join("g")).unwrap());
    fs::remove_file(other.join("f")).unwrap();
    fs::write(other.join("new"), "new").unwrap();
    fs::rename(other.join("new"), other.join("g")).unwrap();
    let mut found = vec![0; bytes.len()];
    read.read_exact_at(&mut found, 0).unwrap();
    assert!(found == bytes && read.metadata().unwrap().nlink() == 0);
    assert_eq!(std::io::read_to_string(replaced).unwrap(), "other");
    assert!(fs::metadata(one.join("f")).is_err());
    assert_eq!(fs::read_to_string(one.join("g")).unwrap(), "new");
}
