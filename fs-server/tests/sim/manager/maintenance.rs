//! Work of the manager at an I/O server that fails for ever: it stops no other.

use fs_client::CreateOptions;
use fs_proto::RemoveKind;
use fs_server::store::DiskStep;

use super::truncate::{left, long_file, options, path, with_fs};
use super::*;

/// Replays a bug: the manager lets a server remove up to 256 datafiles at once, those of the lowest
/// handles first. One that could not be removed kept all others there for ever.
#[test]
fn a_datafile_that_cannot_be_removed_stops_nothing_else() {
    const FILES: u64 = 20;
    with_fs(1, options(2), async |_, cluster, client| {
        let (bad, cut) = (long_file(client, "bad", 1).await, long_file(client, "cut", 2).await);
        long_file(client, "good", 3).await;
        let datafiles = bad.datafiles().await.unwrap();
        let lasting = datafiles.iter().find(|datafile| datafile.server.iod == Some(1)).unwrap().handle;
        let fault = move |datafile| (datafile == lasting).then_some(std::io::ErrorKind::Other);
        cluster.refuse(1, DiskStep::Names, fault);
        for name in ["bad", "good"] {
            client.remove(&path(name), RemoveKind::File).await.unwrap();
        }
        // It was tried often enough, so that its pause is longer than a request may take.
        client.endpoint().sleep(Duration::from_secs(4)).await;
        assert_eq!(client.statfs().await.unwrap().manager.orphans, 1, "all others are removed");
        cut.set_len(10).await.unwrap();
        // More than are in the pools.
        for number in 0..FILES {
            client.create(&path(&format!("new{number}")), CreateOptions::default()).await.unwrap();
        }
        cluster.refuse(1, DiskStep::Names, |_| None);
        client.endpoint().sleep(Duration::from_secs(31)).await;
        assert_eq!(left(client).await, 2 * (1 + FILES));
    });
}

/// Replays a bug: as many datafiles as one request names, none of which could be removed, kept all
/// others of their server.
#[test]
fn very_many_datafiles_that_cannot_be_removed_stop_nothing_else() {
    const BAD: usize = 260;
    with_fs(1, options(2), async |_, cluster, client| {
        let mut bad = 0;
        for number in 0..BAD {
            let file = long_file(client, &format!("bad{number}"), 1).await;
            bad += file.datafiles().await.unwrap().iter().filter(|datafile| datafile.server.iod == Some(1)).count();
        }
        let good = long_file(client, "good", 2).await.datafiles().await.unwrap();
        let first = good.iter().find(|datafile| datafile.server.iod == Some(1)).unwrap().handle;
        let fault = move |datafile| (datafile < first).then_some(std::io::ErrorKind::Other);
        cluster.refuse(1, DiskStep::Names, fault);
        for name in (0..BAD).map(|number| format!("bad{number}")).chain(["good".to_owned()]) {
            client.remove(&path(&name), RemoveKind::File).await.unwrap();
        }
        client.endpoint().sleep(Duration::from_secs(10)).await;
        assert_eq!((bad, client.statfs().await.unwrap().manager.orphans), (BAD, BAD as u64), "all others are removed");
        cluster.refuse(1, DiskStep::Names, |_| None);
        client.endpoint().sleep(Duration::from_secs(61)).await;
        assert_eq!(client.statfs().await.unwrap().manager.orphans, 0);
    });
}
