//! Tests of the table of replies and of a failing store.

mod every_change;
mod stalled_disk;

use fs_proto::{Caller, DatafileHandle, ErrorCode, ManagerReply, RequestId, Start, codec};
use futures_util::FutureExt;
use futures_util::future::join_all;
use redb::{StorageBackend, WriteTransaction};

use super::tables::{CLIENTS, Dedup, WINDOW, names};
use super::*;
use crate::store::MemDisk;

fn with<R>(store: &MetaStore, keep: u64, f: impl FnOnce(&mut Dedup<'_>) -> R) -> R {
    let transaction = store.write().unwrap();
    let result = f(&mut Dedup::open(&transaction, keep).unwrap());
    transaction.commit().unwrap();
    result
}

fn id(client: u128, seq: u64) -> RequestId {
    RequestId { client, seq }
}

fn recall(dedup: &Dedup<'_>, client: u128, seq: u64) -> Result<Option<Vec<u8>>, ErrorCode> {
    dedup.recall(id(client, seq), 0).map_err(|fault| fault.into_error().code)
}

fn nobody(_client: u128) -> bool {
    false
}

#[test]
fn answers_are_kept_until_confirmed() {
    let store = MetaStore::in_memory().unwrap();
    with(&store, CLIENTS, |dedup| {
        assert_eq!(recall(dedup, 1, 1), Ok(None));
        dedup.remember(id(1, 1), 1, b"one", u64::MAX, nobody).unwrap();
        dedup.remember(id(1, 2), 1, b"two", u64::MAX, nobody).unwrap();
        assert_eq!(recall(dedup, 1, 1), Ok(Some(b"one".to_vec())));
        assert_eq!(recall(dedup, 2, 1), Ok(None), "another client's numbers are its own");
        dedup.remember(id(1, 3), 2, b"three", u64::MAX, nobody).unwrap();
        assert_eq!(recall(dedup, 1, 1), Err(ErrorCode::Invalid), "confirmed, so this is an old copy");
        assert_eq!(recall(dedup, 1, 2), Ok(Some(b"two".to_vec())));
        // A confirmation beyond the client's last request confirms only up to that request.
        dedup.remember(id(1, 4), 1000, b"four", u64::MAX, nobody).unwrap();
        assert_eq!(recall(dedup, 1, 4), Ok(Some(b"four".to_vec())));
        assert_eq!(recall(dedup, 1, 5), Ok(None));
        assert_eq!(dedup.sizes().unwrap(), (1, 1));
    });
}

#[test]
fn a_client_that_never_confirms_is_stopped() {
    let store = MetaStore::in_memory().unwrap();
    with(&store, CLIENTS, |dedup| {
        for seq in 1..=WINDOW {
            assert_eq!(recall(dedup, 1, seq), Ok(None));
            dedup.remember(id(1, seq), 1, b"x", u64::MAX, nobody).unwrap();
        }
        assert_eq!(recall(dedup, 1, WINDOW + 1), Err(ErrorCode::Busy));
        assert_eq!(recall(dedup, 1, 7), Ok(Some(b"x".to_vec())), "but has its answers");
    });
}

#[test]
fn a_client_with_a_full_window_gets_on_by_confirming() {
    let store = MetaStore::in_memory().unwrap();
    with(&store, CLIENTS, |dedup| {
        for seq in 1..=WINDOW {
            dedup.remember(id(1, seq), 1, b"x", u64::MAX, nobody).unwrap();
        }
        let next = WINDOW + 1;
        assert_eq!(dedup.recall(id(1, next), next).map_err(|fault| fault.into_error().code), Ok(None));
        dedup.remember(id(1, next), next, b"x", u64::MAX, nobody).unwrap();
        assert_eq!(dedup.sizes().unwrap(), (1, 1));
    });
}

#[test]
fn the_client_silent_longest_is_forgotten() {
    let store = MetaStore::in_memory().unwrap();
    with(&store, 3, |dedup| {
        for client in [1, 2, 3, 1, 4] {
            let seq = dedup.sizes().unwrap().0 + 1;
            dedup.remember(id(client, seq), 0, b"x", u64::MAX, nobody).unwrap();
        }
        assert_eq!(dedup.sizes().unwrap().1, 3);
        assert_eq!(recall(dedup, 2, 2), Ok(None), "forgotten");
        assert_eq!(recall(dedup, 1, 1), Ok(Some(b"x".to_vec())), "spoke later");
    });
}

/// Replays a bug: a peer that invented thousands of clients could make the manager forget the
/// replies of all others, so that their changes were made twice.
#[test]
fn clients_that_are_connected_are_not_forgotten_for_others() {
    let store = MetaStore::in_memory().unwrap();
    with(&store, 3, |dedup| {
        for client in 1..=20 {
            dedup.remember(id(client, 1), 0, b"x", u64::MAX, |client| client <= 4).unwrap();
        }
        assert_eq!(dedup.sizes().unwrap(), (5, 5), "those that are connected, and the one that spoke last");
        for client in [1, 2, 3, 4, 20] {
            assert_eq!(recall(dedup, client, 1), Ok(Some(b"x".to_vec())), "client {client}");
        }
        dedup.remember(id(4, 2), 0, b"x", u64::MAX, nobody).unwrap();
        assert_eq!(dedup.sizes().unwrap().1, 3, "when they are gone there is room again");
    });
}

/// Replays a bug: a client whose reply was lost, and that connected after thousands of others, had
/// been forgotten for them. Its change was made again: *Exists*.
#[test]
fn a_client_that_made_a_change_lately_is_not_forgotten_for_others() {
    let manager = start(&MemDisk::default().database(), 1);
    assert_eq!(mkdirs(&manager, &["a"]), [Ok(())]);
    let others: Vec<String> = (0..CLIENTS + 100).map(|other| other.to_string()).collect();
    for some in others.chunks(100) {
        let names: Vec<&str> = some.iter().map(String::as_str).collect();
        assert!(mkdirs(&manager, &names).iter().all(Result::is_ok));
    }
    assert_eq!(mkdirs(&manager, &["a"]), [Ok(())], "the same request");
}

#[test]
fn clients_beyond_the_limit_are_forgotten_when_their_changes_are_long_ago() {
    let store = MetaStore::in_memory().unwrap();
    with(&store, 3, |dedup| {
        for client in 1..=10 {
            dedup.remember(id(client, 1), 0, b"x", 0, nobody).unwrap();
        }
        assert_eq!((dedup.sizes().unwrap().1, dedup.turn().unwrap()), (10, 10));
        dedup.remember(id(11, 1), 0, b"x", 5, nobody).unwrap();
        assert_eq!(dedup.sizes().unwrap().1, 6);
        dedup.remember(id(11, 2), 0, b"x", 11, nobody).unwrap();
        assert_eq!(dedup.sizes().unwrap().1, 3);
    });
    let (queue, at) = (Queue::default(), |seconds| bmi::Time::ZERO + Duration::from_secs(seconds));
    for (seconds, turn) in [(0, 3), (20, 5), (50, 8)] {
        queue.note_turn(at(seconds), turn);
    }
    let known = [59, 60, 79, 80, 109, 200].map(|seconds| queue.turn_before(at(seconds)));
    assert_eq!(known, [0, 3, 3, 5, 5, 8]);
}

/// Starts a manager on a disk.
pub(super) fn start(disk: &(impl StorageBackend + Clone), instance: u128) -> Manager {
    let endpoint = bmi_sim::World::new(1).node("manager").endpoint(bmi::Config::default()).unwrap();
    let store = MetaStore::on(disk.clone()).unwrap();
    if instance == 1 {
        format(&store, ClusterId(1), StoreId(2), &fs_proto::Caller::ROOT, 0).unwrap();
    }
    Manager::new(endpoint, store, ManagerSettings::new(vec![Addr::tcp("h", 1)]), instance, || 0).unwrap()
}

#[test]
fn a_manager_learns_that_it_has_gone_back_in_time_from_a_start_that_it_does_not_know() {
    let manager = start(&MemDisk::default().database(), 1);
    let Start { epoch, instance } = manager.identity.start;
    let seen = |epoch, instance| manager.check_own_time(0, Some(Start { epoch, instance }), DatafileHandle(0));
    assert_eq!((seen(epoch, instance), manager.check_own_time(0, None, DatafileHandle(0))), (Ok(()), Ok(())));
    let (later, other) = (seen(epoch + 1, instance).unwrap_err(), seen(epoch, instance + 1).unwrap_err());
    assert!(later.contains("which it does not know") && other.contains("which it does not know"), "{later} {other}");
}

/// Runs a future beside the manager's work on the database, which is done at once.
pub(super) fn run<F: Future>(manager: &Manager, future: F) -> F::Output {
    let both = async {
        tokio::select! {
            biased;
            output = future => output,
            () = manager.work() => unreachable!("it never ends"),
        }
    };
    let mut both = std::pin::pin!(both);
    let mut attempts = (0..100).filter_map(|_| both.as_mut().now_or_never());
    attempts.next().expect("it waits for nothing else")
}

/// Makes a change, requested by a client.
pub(super) async fn mkdir(manager: &Manager, id: RequestId, name: &str) -> Result<(), FsError> {
    let place = fs_proto::Place::root(name);
    let request = ManagerRequest::Mkdir { place, mode: 0o755, uid: 0, gid: 0 };
    let deadline = manager.endpoint.now() + Duration::from_secs(60);
    let change = Requested { id, unanswered: id.seq, caller: Caller::ROOT, request };
    match manager.carry_out(change, deadline, 4096, 100).await {
        Answer::Encoded(answer) => codec::decode_reply(&answer).unwrap().result.map(drop),
        Answer::Reply(reply, _) => reply.result.map(drop),
    }
}

/// Makes directories below the root in one commit, each requested by a client of its own.
pub(super) fn mkdirs(manager: &Manager, names: &[&str]) -> Vec<Result<(), FsError>> {
    let client = |name: &str| u128::from_be_bytes(std::array::from_fn(|at| *name.as_bytes().get(at).unwrap_or(&0)));
    run(manager, join_all(names.iter().map(|name| mkdir(manager, id(client(name), 1), name))))
}

/// Replays a bug: a change that met an object which could not be read failed all changes of its
/// commit, those of other clients too.
#[test]
fn a_damaged_object_fails_only_the_changes_that_need_it() {
    let disk = MemDisk::default();
    let manager = start(&disk.database(), 1);
    assert_eq!(mkdirs(&manager, &["a", "b", "b/c"]), [Ok(()), Ok(()), Ok(())]);
    let lookup = |manager: &Manager, path: &str| {
        let look = |read: &_| names::view(read)?.lookup(&fs_proto::Place::root(path));
        run(manager, manager.read(look)).map(|entry| entry.handle.raw())
    };
    let damaged = lookup(&manager, "b").unwrap();
    let damage = move |transaction: &WriteTransaction| {
        transaction.open_table(names::OBJECTS)?.insert(damaged, [0xff; 5].as_slice())?;
        Ok(())
    };
    run(&manager, manager.transact(damage)).unwrap();
    for round in 0..2 {
        let names = ["d", "b/e", "a/f", "b/c/g", "b/h", "i"].map(|name| format!("{name}{round}"));
        let results = mkdirs(&manager, &names.each_ref().map(String::as_str));
        for (name, result) in names.iter().zip(results) {
            match result {
                Ok(()) => assert!(!name.starts_with("b/e") && !name.starts_with("b/h"), "{name}"),
                Err(error) => {
                    assert!(name.starts_with("b/") && error.code == ErrorCode::Io, "{name}: {error}");
                    assert!(error.detail.contains(&format!("damaged: object {damaged}")), "{error}");
                }
            }
        }
    }
    assert!(manager.failure.borrow().is_none());
    let manager = start(&disk.crash().database(), 2);
    assert_eq!(names(&manager).unwrap(), ["a", "b", "d0", "d1", "i0", "i1"]);
    let there = |path: &str| lookup(&manager, path).is_ok();
    assert!(there("a/f0") && there("a/f1") && there("b/c/g0") && !there("b/e0"));
    // The root, a, b, c, and four in each round.
    let stat = run(&manager, manager.look(&Caller::ROOT, 1, &ManagerRequest::Statfs, 4096)).unwrap();
    let ManagerReply::Stat(stat) = stat else { panic!("statfs") };
    assert_eq!(stat.dirs, 4 + 2 * 4, "a change that failed has written nothing");
}

/// Returns the names in the root.
fn names(manager: &Manager) -> Result<Vec<String>, FsError> {
    let list = ManagerRequest::Readdir {
        dir: fs_proto::DirHandle::ROOT,
        after: fs_proto::BString::default(),
        max: 100,
        attributes: false,
    };
    match run(manager, manager.look(&Caller::ROOT, 1, &list, 1 << 20))? {
        ManagerReply::Entries { entries, .. } => Ok(entries.into_iter().map(|entry| entry.name.to_string()).collect()),
        other => panic!("{other:?}"),
    }
}

/// Replays a bug: after a failed sync the database was opened again, from pages that the system had
/// in memory and never wrote. A change that had been refused was there, and later changes built on
/// it until the power failed.
#[test]
fn a_manager_stops_after_a_failed_sync_and_its_next_start_reads_the_disk() {
    let disk = MemDisk::default();
    let mut manager = start(&disk.database(), 1);
    assert_eq!(mkdirs(&manager, &["a"]), [Ok(())]);
    for round in 2..5 {
        let name = format!("d{round}");
        disk.fail_syncs(true);
        let error = mkdirs(&manager, &[&name]).remove(0).unwrap_err();
        disk.fail_syncs(false);
        assert!(error.code == ErrorCode::Unreachable && error.detail.contains("a sync of its file failed"), "{error}");
        let stopped = manager.failure.borrow().clone().unwrap();
        assert!(stopped.code == ErrorCode::Io && stopped.detail.contains("start the manager again"), "{stopped}");
        let after = disk.changes();
        assert_eq!(mkdirs(&manager, &["never"]).remove(0).unwrap_err().code, ErrorCode::Unreachable);
        assert_eq!(names(&manager).unwrap_err().code, ErrorCode::Unreachable);
        drop(manager);
        assert_eq!(disk.changes(), after, "it does not note that the database was closed");
        manager = start(&disk.reopen().database(), round);
        let found = names(&manager).unwrap();
        assert!(found.contains(&"a".to_owned()) && !found.contains(&"never".to_owned()), "{found:?}");
        // The request comes again, under the same number.
        assert_eq!(mkdirs(&manager, &[&name]), [Ok(())]);
        drop(manager);
        manager = start(&disk.crash().database(), round + 100);
        assert!(names(&manager).unwrap().contains(&name));
    }
}

#[test]
fn a_database_is_formatted_once_and_counts_its_starts() {
    let store = MetaStore::in_memory().unwrap();
    let world = bmi_sim::World::new(1);
    let endpoint = world.node("manager").endpoint(bmi::Config::default()).unwrap();
    let settings = ManagerSettings::new(vec![Addr::tcp("h", 1)]);
    let begin = |store: &MetaStore| begin(store, &settings, 7, endpoint.now(), 0).map(|begun| begun.identity);
    let error = begin(&store).map_err(Fault::into_error).unwrap_err();
    assert!(error.code == ErrorCode::Invalid && error.detail.contains("pvfsd format"), "{error}");
    format(&store, ClusterId(1), StoreId(2), &fs_proto::Caller::ROOT, 0).unwrap();
    for epoch in 1..=3 {
        let identity = begin(&store).unwrap();
        let start = Start { epoch, instance: 7 };
        assert_eq!(identity, ManagerIdentity { cluster: ClusterId(1), store: StoreId(2), start });
    }
    let again = format(&store, ClusterId(3), StoreId(4), &fs_proto::Caller::ROOT, 0).unwrap_err();
    assert_eq!(again.code, ErrorCode::Invalid);
    assert_eq!(begin(&store).unwrap().cluster, ClusterId(1));
}

#[test]
fn a_store_in_a_file_can_be_opened_anew() {
    let dir = tempfile::tempdir().unwrap();
    let store = MetaStore::open(dir.path().join("metadata.redb")).unwrap();
    with(&store, CLIENTS, |dedup| dedup.remember(id(1, 1), 1, b"one", u64::MAX, nobody).unwrap());
    store.close_failed();
    with(&store, CLIENTS, |dedup| assert_eq!(recall(dedup, 1, 1), Ok(Some(b"one".to_vec()))));
}
