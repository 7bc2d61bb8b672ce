//! Bytes that a store has in memory: they are sent from there, and are an error if they change
//! meanwhile.

use bmi_sim::SimConfig;
use fs_server::iod::IodSettings;
use fs_server::store::Lends;

use super::server::{Server, file};
use super::*;

/// A store that has the bytes in memory lends them, and has them back when they are sent.
#[test]
fn bytes_that_a_store_lends_are_sent_from_there() {
    let server = Server::start(SimConfig::seeded(3), IodSettings::default());
    let client = Client::new(&server.world.node("client"), 1);
    let (bytes, owner) = (pattern(10_000, 4), Rc::new(()));
    *server.store.lends.borrow_mut() = Some((Memory::from(bytes.clone()), owner.clone(), Ok(())));
    server.store.kind.set(Lends::Cache);
    server.world.block_on(async {
        let iod = client.connect(&server.addr).await;
        for path in [Path::Inline, Path::FastRdma] {
            client.forced.set(Some(path));
            let found = client.read(iod, file(0), &regions(&[(4000, 3000), (0, 100)])).await.unwrap();
            assert!(found == [&bytes[4000..7000], &bytes[..100]].concat(), "{path}");
        }
        assert_eq!(server.store.moved(file(0)), 0, "nothing was read");
        client.endpoint.sleep(Duration::from_millis(1)).await;
        assert_eq!(Rc::strong_count(&owner), 2, "the loans have ended");
    });
}

/// Bytes that may change while they are sent are lent where an error can still be reported, and
/// only there.
#[test]
fn bytes_that_changed_while_they_were_sent_are_an_error() {
    let server = Server::start(SimConfig::seeded(3), IodSettings::default());
    let client = Client::new(&server.world.node("client"), 1);
    let (bytes, owner) = (pattern(200_000, 4), Rc::new(()));
    let lend = |answer| *server.store.lends.borrow_mut() = Some((Memory::from(bytes.clone()), owner.clone(), answer));
    server.store.kind.set(Lends::Reads);
    server.world.block_on(async {
        let iod = client.connect(&server.addr).await;
        let all = regions(&[(0, 200_000)]);
        client.forced.set(Some(Path::ServerBased));
        lend(Ok(()));
        assert!(client.read(iod, file(0), &all).await.unwrap() == bytes);
        assert_eq!(server.store.moved(file(0)), 0, "nothing was read");
        let error = FsError::new(ErrorCode::Io, "gone").with_ranges([Region::new(7, 9)]);
        lend(Err(error.clone()));
        let found = client.read(iod, file(0), &all).await.unwrap_err();
        assert_eq!((found.code, &found.ranges[0]), (ErrorCode::Io, &Region::new(7, 9)));
        for path in [Path::Inline, Path::ClientBased] {
            client.forced.set(Some(path));
            let found = client.read(iod, file(0), &regions(&[(0, 3000)])).await.unwrap();
            assert!(found.len() == 3000 && server.store.moved(file(0)) > 0, "{path}: they are read");
        }
    });
    assert_eq!(Rc::strong_count(&owner), 2, "the loans have ended");
}
