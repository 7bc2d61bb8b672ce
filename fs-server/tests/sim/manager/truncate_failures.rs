//! Changes of size that an I/O server cannot carry out: they harm nothing else, are told to whoever
//! asks, and can be mended.

use fs_client::{CreateOptions, File};
use fs_proto::RemoveKind;
use fs_server::store::DiskStep;

use super::truncate::{contents, left, long_file, options, path, with_fs};
use super::*;

const LONG: usize = 40_000;
const SHORT: usize = 13_000;
/// The length of a strip.
const STRIP: usize = 4096;

/// Lets I/O server 1 fail to change the length of its datafile of this file, for ever.
async fn fail_at_one(cluster: &SimCluster, file: &File) {
    let datafiles = file.datafiles().await.unwrap();
    let bad = datafiles.iter().find(|datafile| datafile.server.iod == Some(1)).unwrap().handle;
    let fault = move |datafile| (datafile == bad).then_some(std::io::ErrorKind::FileTooLarge);
    cluster.refuse(1, DiskStep::Length, fault);
}

fn works_again(cluster: &SimCluster) {
    cluster.refuse(1, DiskStep::Length, |_| None);
}

/// Replays a bug: the manager carried out changes of size before anything else, all of a server at
/// once, and began again with them after a failure. One that could not be carried out, to 100 TB
/// for instance, stopped all others, the removal of datafiles, and the creation of new ones. It was
/// acknowledged all the same.
#[test]
fn a_change_of_size_that_fails_for_ever_stops_nothing_else() {
    with_fs(1, options(2), async |_, cluster, client| {
        let (bad, good) = (long_file(client, "bad", 1).await, long_file(client, "good", 2).await);
        long_file(client, "removed", 3).await;
        fail_at_one(cluster, &bad).await;
        let error = bad.set_len(SHORT as u64).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Unfinished, "{error}");
        good.set_len(SHORT as u64).await.unwrap();
        assert!(contents(client, &good).await == pattern(SHORT, 2));
        client.remove(&path("removed"), RemoveKind::File).await.unwrap();
        client.endpoint().sleep(Duration::from_millis(200)).await;
        assert_eq!(left(client).await, 4);
        // More than are in the pools.
        for number in 0..20 {
            client.create(&path(&format!("new{number}")), CreateOptions::default()).await.unwrap();
        }
    });
}

#[test]
fn a_change_of_size_that_fails_is_told_with_its_reason_until_another_one_mends_it() {
    for how in ["another size", "longer", "removed", "it passes"] {
        with_fs(2, options(2), async |_, cluster, client| {
            let file = long_file(client, "file", 1).await;
            fail_at_one(cluster, &file).await;
            assert_eq!(file.set_len(SHORT as u64).await.unwrap_err().code(), ErrorCode::Unfinished);
            for restart in [false, true] {
                if restart {
                    cluster.restart_manager();
                    cluster.restart_iod(0);
                    cluster.restart_iod(1);
                }
                // It was tried often enough.
                client.endpoint().sleep(Duration::from_secs(2)).await;
                let stat = client.stat(&path("file")).await.unwrap();
                let [one] = &stat.unfinished[..] else { panic!("{stat:?}") };
                assert_eq!((one.server.iod, stat.attr.size), (Some(1), SHORT as u64));
                assert!(one.error.as_ref().is_some_and(|error| error.contains("file too large")), "{one:?}");
                let error = file.set_len(SHORT as u64).await.unwrap_err();
                assert!(
                    error.to_string().contains("file too large") && error.to_string().contains("decided"),
                    "{error}"
                );
            }
            // The rest of the file can be used.
            let server = file.servers().iter().position(|server| server.iod == Some(0)).unwrap();
            let strip = |byte: u8| Memory::from(vec![byte; STRIP]);
            let (at, read) = ((server * STRIP) as u64, strip(0));
            file.write_at(at, &strip(9)).await.unwrap();
            assert_eq!(file.read_at(at, &read).await.unwrap(), STRIP as u64);
            assert!(read.to_vec() == [9; STRIP]);
            let error = file.read_at(((1 - server) * STRIP) as u64, &strip(0)).await.unwrap_err();
            assert!(error.code() == ErrorCode::Unfinished && error.to_string().contains("pvfs stat"), "{error}");
            match how {
                "another size" => {
                    works_again(cluster);
                    file.set_len(0).await.unwrap();
                    assert!(contents(client, &file).await.is_empty());
                }
                "longer" => {
                    // What the first change has cut off does not come back, although it was not
                    // carried out everywhere before this one is decided.
                    assert_eq!(file.set_len(LONG as u64).await.unwrap_err().code(), ErrorCode::Unfinished);
                    works_again(cluster);
                    client.endpoint().sleep(Duration::from_secs(1)).await;
                    let found = contents(client, &file).await;
                    let server = |at: usize| at / STRIP % 2;
                    let is_used = |at: usize| server(at) == usize::from(file.servers()[0].iod != Some(0));
                    let mut expected = pattern(SHORT, 1);
                    expected.resize(LONG, 0);
                    let same = |at: &usize| found[*at] == expected[*at] || is_used(*at);
                    assert!(found.len() == LONG && (0..LONG).all(|at| same(&at)));
                }
                "removed" => client.remove(&path("file"), RemoveKind::File).await.unwrap(),
                _ => {
                    works_again(cluster);
                    client.endpoint().sleep(Duration::from_secs(31)).await;
                    assert_eq!(contents(client, &file).await.len(), SHORT);
                }
            }
            client.endpoint().sleep(Duration::from_millis(200)).await;
            if how == "removed" {
                assert_eq!(left(client).await, 0);
            } else {
                assert!(client.stat(&path("file")).await.unwrap().unfinished.is_empty());
            }
        });
    }
}

/// A change that is to mend another one is given up: its server is down. Then the first one counts.
#[test]
fn a_change_that_would_mend_another_one_and_is_not_decided_changes_nothing() {
    with_fs(3, options(2), async |_, cluster, client| {
        let file = long_file(client, "file", 1).await;
        fail_at_one(cluster, &file).await;
        assert_eq!(file.set_len(SHORT as u64).await.unwrap_err().code(), ErrorCode::Unfinished);
        client.endpoint().sleep(Duration::from_secs(2)).await;
        // It is prepared at one server, and not at the other one.
        cluster.iod_node(0).pause();
        file.set_len(7).await.unwrap_err();
        cluster.iod_node(0).kill();
        cluster.iod_node(0).restart();
        client.endpoint().sleep(Duration::from_secs(2)).await;
        let stat = client.stat(&path("file")).await.unwrap();
        assert!(stat.unfinished.len() == 1 && stat.attr.size == SHORT as u64, "{stat:?}");
        works_again(cluster);
        client.endpoint().sleep(Duration::from_secs(31)).await;
        assert!(contents(client, &file).await == pattern(SHORT, 1));
        file.set_len(7).await.unwrap();
        assert!(contents(client, &file).await == pattern(7, 1));
    });
}

#[test]
fn a_size_that_no_file_can_have_is_refused_by_the_manager() {
    with_fs(4, options(2), async |world, cluster, client| {
        let file = long_file(client, "file", 1).await;
        let raw = Client::new(&world.node("raw"), 9);
        let manager = raw.connect(&cluster.manager()).await;
        let truncate = |size| ManagerRequest::Truncate { file: file.handle(), size };
        assert_eq!(code(raw.manager(manager, truncate(1 << 63)).await), Some(ErrorCode::TooLarge));
        assert!(contents(client, &file).await == pattern(LONG, 1));
    });
}
