//! Makes the same changes once for each change of the manager's disk, with that one failing. A
//! write that fails is half done. A sync that fails drops what it should have written. After a
//! restart and a power failure everything that was acknowledged is there, and nothing is half done.

use std::collections::BTreeSet;
use std::io::ErrorKind;

use fs_proto::{Caller, ManagerReply};

use super::{mkdirs, run};
use crate::manager::*;
use crate::store::MemDisk;

/// Starts a manager. Tries again if the disk fails meanwhile.
fn begin(disk: &MemDisk, instance: u128, failed: &mut u32) -> Manager {
    let attempt = || {
        let store = MetaStore::on(disk.reopen().database())?;
        let endpoint = bmi_sim::World::new(1).node("manager").endpoint(bmi::Config::default()).unwrap();
        Manager::new(endpoint, store, ManagerSettings::new(vec![Addr::tcp("h", 1)]), instance, || 0)
    };
    for _ in 0..3 {
        match attempt() {
            Ok(manager) => return manager,
            Err(_) => *failed += 1,
        }
    }
    panic!("only one change of the disk fails");
}

fn is_there(manager: &Manager, path: &str) -> bool {
    let place = fs_proto::Place::root(path);
    match run(manager, manager.look(&Caller::ROOT, 1, &ManagerRequest::Lookup { place, open: false }, 1 << 20)) {
        Ok(_) => true,
        Err(error) if error.code == ErrorCode::NotFound => false,
        Err(error) => panic!("{path}: {error}"),
    }
}

/// Makes the changes. Returns the number of changes of the disk, and how often something failed.
fn scenario(failure: Option<(u64, ErrorKind)>) -> (u64, u32) {
    let disk = MemDisk::default();
    // What was not formatted to the end is not used: its directory has no label.
    format(&MetaStore::on(disk.database()).unwrap(), ClusterId(1), StoreId(2), &Caller::ROOT, 0).unwrap();
    let formatted = disk.changes();
    disk.fail_at(failure.map(|(change, kind)| (formatted + change, 1, kind)));
    let mut failed = 0;
    let mut manager = begin(&disk, 1, &mut failed);
    let (mut acknowledged, mut all) = (BTreeSet::<&str>::new(), Vec::<&str>::new());
    let groups: [&[&str]; 7] =
        [&["a"], &["b", "c", "a/d"], &["a/e"], &["f"], &["g", "b/h", "b/i"], &["j"], &["k", "l"]];
    for (number, group) in groups.into_iter().enumerate() {
        all.extend_from_slice(group);
        for (name, result) in group.iter().zip(mkdirs(&manager, group)) {
            match result {
                Ok(()) => drop(acknowledged.insert(*name)),
                Err(error) if error.code == ErrorCode::Unreachable => {
                    failed += 1;
                    if manager.failure.borrow().is_some() {
                        drop(manager);
                        manager = begin(&disk, 10 + number as u128, &mut failed);
                    }
                    // The client sends it again, and is told what became of it.
                    mkdirs(&manager, &[name]).remove(0).unwrap();
                    acknowledged.insert(name);
                }
                Err(error) => {
                    failed += 1;
                    let parent = name.rsplit_once('/').map(|(parent, _)| parent);
                    let is_orphan = parent.is_some_and(|parent| !acknowledged.contains(parent));
                    assert!(error.code == ErrorCode::NoSpace || is_orphan, "{failure:?}, {name}: {error}");
                }
            }
        }
        if number == 3 {
            drop(manager);
            manager = begin(&disk, 5, &mut failed);
        }
    }
    drop(manager);
    let changes = disk.changes() - formatted;
    disk.fail_at(None);
    let manager = begin(&disk.crash(), 100, &mut failed);
    let found: Vec<&str> = all.into_iter().filter(|name| is_there(&manager, name)).collect();
    for name in &acknowledged {
        assert!(found.contains(name), "{failure:?}: {name} was acknowledged");
    }
    let stat = run(&manager, manager.look(&Caller::ROOT, 1, &ManagerRequest::Statfs, 4096)).unwrap();
    let ManagerReply::Stat(stat) = stat else { panic!("statfs") };
    assert_eq!(stat.dirs as usize, 1 + found.len(), "{failure:?}: half done");
    assert!(mkdirs(&manager, &["z"])[0].is_ok(), "{failure:?}");
    (changes, failed)
}

#[test]
fn whatever_change_of_the_disk_fails_what_was_acknowledged_is_stored() {
    let (changes, failed) = scenario(None);
    assert_eq!(failed, 0);
    let mut noticed = 0;
    for change in 1..=changes {
        for kind in [ErrorKind::Other, ErrorKind::StorageFull] {
            noticed += u64::from(scenario(Some((change, kind))).1 > 0);
        }
    }
    println!("{changes} changes of the disk, each failed twice; {noticed} of the {} runs noticed it", 2 * changes);
    assert!(changes > 50 && noticed > changes, "{changes} changes, {noticed} noticed");
}
