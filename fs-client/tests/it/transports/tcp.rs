//! The whole file system over TCP on loopback, with the real client and real servers. The test
//! bodies are those of the simulator, unchanged.

use std::fs;
use std::path::Path;
use std::time::Duration;

use bmi::{Body, Config, OpenOptions, Scheme, driver};
use fs_client::copy::Copier;
use fs_client::{Client, ClientOptions, ErrorCode};
use fs_proto::{Hello, ManagerRequest, ReplyBody, Request, RequestBody, RequestId, Role, codec};
use fs_server::embedded::{ClusterOptions, EmbeddedCluster};

use crate::support::bodies::{self, path, pattern, striped};
use crate::support::{recycled, typed};

/// Runs `body` with a client of a new cluster.
fn with_client(iods: usize, busy: bool, body: impl AsyncFnOnce(Client, &mut EmbeddedCluster, &Path)) {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = EmbeddedCluster::start(dir.path().join("data"), ClusterOptions::with_iods(iods)).unwrap();
    let clock = driver::MonotonicClock::new();
    let endpoint = bmi::endpoint(Scheme::Tcp, &OpenOptions::default(), Config::named("test"), clock).unwrap();
    let work = async {
        let options = ClientOptions { timeout: Duration::from_secs(20), ..ClientOptions::new(11) };
        let client = Client::connect(endpoint.clone(), cluster.manager().clone(), options).await.unwrap();
        body(client, &mut cluster, dir.path()).await;
    };
    if busy {
        driver::busy::block_on(std::slice::from_ref(&endpoint), work);
    } else {
        driver::event::block_on(endpoint.clone(), work).unwrap();
    }
    drop(endpoint);
    cluster.stop().unwrap();
}

#[test]
fn the_whole_interface() {
    with_client(4, false, async |client, _, _| {
        bodies::everything(&client, 4, 300).await;
    });
}

#[test]
fn types_and_views() {
    with_client(3, false, async |client, _, _| {
        typed::everything(&client, 3).await;
        typed::lists(&client, 3, 12).await;
    });
}

#[test]
fn the_busy_driver_does_the_same() {
    with_client(2, true, async |client, _, _| {
        bodies::striping(&client, 2).await;
    });
}

#[test]
fn servers_give_nothing_of_one_client_to_another() {
    with_client(1, false, async |client, cluster, _| {
        recycled::a_lying_client_stores_nothing_of_others(&client, &cluster.iods()[0]).await;
    });
}

#[test]
fn short_reads_bring_nothing_of_others() {
    with_client(1, false, async |client, cluster, _| {
        recycled::short_reads_bring_nothing_of_others(&client, &cluster.iods()[0]).await;
    });
}

#[test]
fn trees_come_back_as_they_were() {
    with_client(3, false, async |client, _, dir| {
        let (source, target) = (dir.join("source"), dir.join("target"));
        fs::create_dir_all(source.join("a/b")).unwrap();
        fs::create_dir_all(source.join("empty")).unwrap();
        let files = [("zero", 0), ("one", 1), ("a/page", 4096), ("a/b/block", 65536), ("a/b/large", 3_000_001)];
        for (name, len) in files {
            fs::write(source.join(name), pattern(len, len as u64)).unwrap();
        }
        let copier = Copier::new(client.clone(), 256 << 10, 3, |_| ()).unwrap();
        let put = copier.put(&source, &path("/tree")).await.unwrap();
        assert_eq!((put.files, put.directories), (5, 4));
        assert_eq!(put.bytes, files.iter().map(|(_, len)| *len as u64).sum::<u64>());
        let got = copier.get_tree(&path("/tree"), &target).await;
        assert_eq!(got, put);
        for (name, len) in files {
            assert!(fs::read(target.join(name)).unwrap() == pattern(len, len as u64), "{name}");
        }
        assert!(target.join("empty").is_dir());
        // A shorter file replaces a longer one completely.
        fs::write(source.join("short"), b"short").unwrap();
        copier.put(&source.join("short"), &path("/tree/a/b/large")).await.unwrap();
        copier.get_file(&path("/tree/a/b/large"), &target.join("a/b/large")).await.unwrap();
        assert_eq!(fs::read(target.join("a/b/large")).unwrap(), b"short");
        let error = copier.put(&source.join("none"), &path("/x")).await.unwrap_err();
        assert!(error.to_string().contains("source/none: No such file"), "{error}");
        assert_eq!(bodies::code(client.lookup(&path("/x"))).await, ErrorCode::NotFound, "nothing was created for it");
    });
}

#[test]
fn a_server_that_is_away_is_named_and_what_was_synced_comes_back_with_it() {
    with_client(3, false, async |client, cluster, _| {
        let file = client.create(&path("/f"), striped(65536, 3)).await.unwrap();
        file.write_at(0, pattern(1 << 20, 1)).await.unwrap();
        file.sync().await.unwrap();
        cluster.stop_iod(1).unwrap();
        let error = file.write_at(0, pattern(1 << 20, 2)).await.unwrap_err();
        assert!(error.failures().iter().all(|failure| failure.server.as_ref().unwrap().iod == Some(1)), "{error}");
        assert_eq!(error.failures()[0].ranges[0], 65536..131_072, "{error}");
        cluster.start_iod(1).unwrap();
        let found = bodies::read(&file, 0, 1 << 20).await;
        let (old, new) = (pattern(1 << 20, 1), pattern(1 << 20, 2));
        assert!(found[..65536] == new[..65536] && found[65536..131_072] == old[65536..131_072]);
    });
}

fn request(body: impl Into<RequestBody>) -> Vec<u8> {
    let id = RequestId { client: 1, seq: 1 };
    codec::encode_request(&Request {
        id,
        unanswered: 1,
        timeout_ms: 5000,
        caller: None,
        ticket: None,
        body: body.into(),
    })
}

/// A client of another version of the protocol is told so.
#[test]
fn a_request_of_version_4_is_answered_with_an_error_about_versions() {
    with_client(1, false, async |client, cluster, _| {
        let endpoint = client.endpoint();
        let patience = Duration::from_secs(20);
        let peer = endpoint.connect(cluster.manager(), endpoint.within(patience)).await.unwrap();
        let ask = async |bytes: &[u8]| {
            let call = peer.call(bytes, Body::None, endpoint.within(patience)).unwrap();
            codec::decode_reply(&call.reply().await.unwrap().bytes).unwrap().result
        };
        // Version 4 began without a Hello.
        let mut old = request(ManagerRequest::Ping);
        old[0] = 4;
        let error = ask(&old).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Protocol);
        assert!(error.detail.contains("version 4") && error.detail.contains("version 17"), "{error}");
        // The connection goes on, and serves this version.
        let identity = ask(&request(RequestBody::Hello(Hello::to(Role::Manager)))).await.unwrap();
        assert!(matches!(identity, ReplyBody::Identity(_)));
        ask(&request(ManagerRequest::Ping)).await.unwrap();
    });
}
