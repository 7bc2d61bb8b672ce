//! The table of answers.

use fs_proto::{ErrorCode, RequestId};

use super::dedup::{CLIENTS, Dedup, WINDOW};
use super::*;
use crate::store::SharedBackend;

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

#[test]
fn answers_are_kept_until_confirmed() {
    let store = MetaStore::in_memory().unwrap();
    with(&store, CLIENTS, |dedup| {
        assert_eq!(recall(dedup, 1, 1), Ok(None));
        dedup.remember(id(1, 1), 1, b"one").unwrap();
        dedup.remember(id(1, 2), 1, b"two").unwrap();
        assert_eq!(recall(dedup, 1, 1), Ok(Some(b"one".to_vec())));
        assert_eq!(recall(dedup, 2, 1), Ok(None), "another client's numbers are its own");
        dedup.remember(id(1, 3), 2, b"three").unwrap();
        assert_eq!(recall(dedup, 1, 1), Err(ErrorCode::Invalid), "confirmed, so this is an old copy");
        assert_eq!(recall(dedup, 1, 2), Ok(Some(b"two".to_vec())));
        // A client that confirms what it has not asked yet confirms what it has.
        dedup.remember(id(1, 4), 1000, b"four").unwrap();
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
            dedup.remember(id(1, seq), 1, b"x").unwrap();
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
            dedup.remember(id(1, seq), 1, b"x").unwrap();
        }
        let next = WINDOW + 1;
        assert_eq!(dedup.recall(id(1, next), next).map_err(|fault| fault.into_error().code), Ok(None));
        dedup.remember(id(1, next), next, b"x").unwrap();
        assert_eq!(dedup.sizes().unwrap(), (1, 1));
    });
}

#[test]
fn the_client_silent_longest_is_forgotten() {
    let store = MetaStore::in_memory().unwrap();
    with(&store, 3, |dedup| {
        for client in [1, 2, 3, 1, 4] {
            let seq = dedup.sizes().unwrap().0 + 1;
            dedup.remember(id(client, seq), 0, b"x").unwrap();
        }
        assert_eq!(dedup.sizes().unwrap().1, 3);
        assert_eq!(recall(dedup, 2, 2), Ok(None), "forgotten");
        assert_eq!(recall(dedup, 1, 1), Ok(Some(b"x".to_vec())), "spoke later");
    });
}

#[test]
fn answers_survive_a_crash_with_their_changes() {
    let backend = SharedBackend::default();
    let store = MetaStore::on(backend.clone()).unwrap();
    with(&store, CLIENTS, |dedup| dedup.remember(id(1, 1), 1, b"one").unwrap());
    let store = MetaStore::on(backend.crash()).unwrap();
    with(&store, CLIENTS, |dedup| assert_eq!(recall(dedup, 1, 1), Ok(Some(b"one".to_vec()))));
}
