//! Servers that may have few file descriptors, with many connections beside their work.

use std::fs;
use std::time::Duration;

use bmi::{Config, OpenOptions, Scheme, driver};
use fs_client::{Client, CreateOptions};

use crate::support::bodies::{in_own_process, options, path, pattern, read};
use crate::support::cluster::Cluster;

/// Returns the warnings in the log of a server.
fn warnings(cluster: &Cluster, server: usize) -> Vec<String> {
    let log = fs::read_to_string(cluster.path(&format!("log-{server}"))).unwrap();
    log.lines().filter(|line| line.contains("WARN")).map(str::to_owned).collect()
}

/// Replays a bug: with many idle connections an I/O server could not open datafiles any more, and
/// the requests of all clients failed. The server may have 256 descriptors, and 300 connections and
/// 300 datafiles are tried.
#[test]
fn idle_connections_take_no_descriptor_of_the_datafiles() {
    let name = "commands::descriptors::idle_connections_take_no_descriptor_of_the_datafiles";
    in_own_process(name, crowded_with_idle_connections);
}

/// This process needs more than 400 descriptors itself.
fn crowded_with_idle_connections() {
    let mut cluster = Cluster::start(1);
    cluster.kill_server(1);
    cluster.try_start_server_after("ulimit -n 256", 1, &[]).unwrap();
    let [warning] = &warnings(&cluster, 1)[..] else { panic!("one warning") };
    for part in ["256 file descriptors", "64 for open datafiles", "128 for connections", "ulimit -n"] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
    let clock = driver::MonotonicClock::new();
    let open = |name| bmi::endpoint(Scheme::Tcp, &OpenOptions::default(), Config::named(name), clock).unwrap();
    let (endpoint, crowd) = (open("client"), open("crowd"));
    let endpoints = [endpoint.clone(), crowd.clone()];
    let work = async {
        let client: Client = Client::connect(endpoint, cluster.manager.parse().unwrap(), options()).await.unwrap();
        // The client has its connection.
        client.statfs().await.unwrap();
        let iod = client.iods()[0].addr.clone();
        let (mut idle, mut refused) = (Vec::new(), 0);
        for _ in 0..300 {
            match crowd.connect(&iod, crowd.within(Duration::from_secs(20))).await {
                Ok(peer) => idle.push(peer),
                Err(_) => refused += 1,
            }
        }
        assert!((70..=128).contains(&idle.len()) && refused + idle.len() == 300, "{} connections", idle.len());
        let name = |number: usize| path(&format!("/f{number}"));
        for number in 0..300 {
            let file = client.create(&name(number), CreateOptions::default()).await.unwrap();
            file.write_at(0, pattern(5000, number as u64)).await.unwrap();
            if number % 3 == 0 {
                file.sync().await.unwrap();
            }
        }
        for number in 0..300 {
            let file = client.open(&name(number)).await.unwrap();
            assert!(read(&file, 0, 6000).await == pattern(5000, number as u64), "{number}");
        }
        for number in (0..300).step_by(2) {
            client.remove(&name(number), fs_client::RemoveKind::File).await.unwrap();
        }
    };
    driver::event::block_on_all_with(&endpoints, driver::Waiting::default(), work).unwrap();
    assert!(!warnings(&cluster, 1).iter().any(|line| line.contains("no file descriptor")), "the server had enough");
}

#[test]
fn a_limit_that_is_large_enough_needs_no_warning() {
    let mut cluster = Cluster::start(1);
    for server in [0, 1] {
        cluster.kill_server(server);
        cluster.try_start_server_after("ulimit -n 6000; ulimit -Sn 100", server, &[]).unwrap();
        assert_eq!(warnings(&cluster, server), [""; 0], "the soft limit is raised");
        let pid = cluster.servers[server].as_ref().unwrap().id();
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let files: Vec<&str> =
            limits.lines().find(|line| line.starts_with("Max open files")).unwrap().split_whitespace().collect();
        assert_eq!(files[3..5], ["6000", "6000"]);
    }
}
