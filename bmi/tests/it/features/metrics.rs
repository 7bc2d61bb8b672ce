//! What is counted: the table of names, and the values after known calls.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bmi::{Call, Client, Error, ErrorKind, Server};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};

use crate::bed::{Bed, LIMIT, everywhere, start};

/// A recorder for what is made on this thread.
fn recorder() -> PrometheusRecorder {
    PrometheusBuilder::new().build_recorder()
}

/// Returns all values, by name and labels.
fn values(recorder: &PrometheusRecorder) -> BTreeMap<String, f64> {
    let text = recorder.handle().render();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let value = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        (name.to_owned(), value.parse().expect("a number"))
    };
    lines.map(value).collect()
}

/// Returns the names in the table of the document.
fn documented() -> BTreeSet<String> {
    let document = include_str!("../../../../docs/embedding.md");
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `bmi_"));
    rows.map(|row| format!("bmi_{}", row.split('`').next().expect("a name"))).collect()
}

async fn handle(call: Call) -> Result<(), Error> {
    match call.request() {
        b"echo" => {
            let data = call.data().await?;
            call.reply("echo").data(data).await
        }
        b"fail" => Err(Error::new(ErrorKind::Exhausted, "a test")),
        b"never" => std::future::pending().await,
        b"panic" => Ok(()),
        _ => call.refuse("unknown").await,
    }
}

#[test]
fn calls_are_counted_by_their_outcome() {
    everywhere(async |bed: &Bed| {
        let recorder = recorder();
        let _here = metrics::set_default_local_recorder(&recorder);
        let server = Server::builder().max_data(1000).bind(bed.addr()).await.expect("a server");
        let (server, addr) = start(server, handle);
        let client = Client::new(&addr);
        client.call("echo").data(vec![1; 700]).await.expect("a reply");
        client.call("echo").await.expect("a reply");
        for (call, kind) in [
            (client.call("fail"), ErrorKind::Exhausted),
            (client.call("other"), ErrorKind::Invalid),
            (client.call("panic"), ErrorKind::Abandoned),
            (client.call("echo").data(vec![1; 1001]), ErrorKind::TooLarge),
        ] {
            assert_eq!(call.await.expect_err("it fails").kind(), kind);
        }
        // The server counts the end of a call when its client may know of it already.
        while values(&recorder)["bmi_server_calls_in_flight"] > 0.0 {
            bmi::sleep(Duration::from_millis(1)).await;
        }
        // Dropped when its handler runs.
        let begun = async {
            while values(&recorder)["bmi_server_calls_in_flight"] < 1.0 {
                bmi::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            biased;
            reply = client.call("never").timeout(LIMIT).into_future() => panic!("{reply:?}"),
            () = begun => {}
        }
        server.shutdown(Duration::ZERO).await;
        let all = values(&recorder);
        let is = |name: &str, value: f64| assert_eq!(all.get(name), Some(&value), "{name}: {all:#?}");
        for side in ["client", "server"] {
            is(&format!("bmi_{side}_calls_total{{outcome=\"ok\"}}"), 2.0);
            is(&format!("bmi_{side}_calls_total{{outcome=\"Exhausted\"}}"), 1.0);
            is(&format!("bmi_{side}_calls_total{{outcome=\"Invalid\"}}"), 1.0);
            is(&format!("bmi_{side}_calls_in_flight"), 0.0);
        }
        is("bmi_client_calls_total{outcome=\"Abandoned\"}", 1.0);
        // With the one that waited for ever.
        is("bmi_server_calls_total{outcome=\"Abandoned\"}", 2.0);
        is("bmi_client_calls_total{outcome=\"TooLarge\"}", 1.0);
        is("bmi_client_calls_total{outcome=\"dropped\"}", 1.0);
        is("bmi_server_calls_total{outcome=\"TooLarge\"}", 0.0);
        is("bmi_server_refusals_total{outcome=\"TooLarge\"}", 1.0);
        is("bmi_client_sent_bytes_total", (3 * 4 + 4 + 5 + 5 + 5 + 700 + 1001) as f64);
        is("bmi_client_received_bytes_total", 708.0);
        is("bmi_server_received_bytes_total", (2 * 4 + 4 + 5 + 5 + 5 + 700) as f64);
        is("bmi_server_sent_bytes_total", 708.0);
        is("bmi_client_call_seconds_count", 7.0);
        is("bmi_server_call_seconds_count", 6.0);
        client.close().await;
    });
}

#[test]
fn connections_are_counted() {
    everywhere(async |bed: &Bed| {
        let recorder = recorder();
        let _here = metrics::set_default_local_recorder(&recorder);
        let value = |name: &str| values(&recorder)[name];
        let (server, client) = bed.echo().await;
        let addr = server.addrs()[0].to_string();
        client.connect().await.expect("a connection");
        assert_eq!(value("bmi_client_links_up"), 1.0);
        server.shutdown(Duration::ZERO).await;
        drop(server);
        client.call("x").timeout(Duration::from_millis(100)).await.expect_err("nobody is there");
        assert_eq!(value("bmi_client_links_up"), 0.0);
        assert!(value("bmi_client_connects_total{outcome=\"failed\"}") >= 1.0);
        let server = loop {
            match Server::bind(&addr).await {
                Ok(server) => break start(server, crate::bed::echo).0,
                Err(_) => bmi::sleep(Duration::from_millis(10)).await,
            }
        };
        client.call("x").timeout(LIMIT).await.expect("a reply");
        assert_eq!(value("bmi_client_connects_total{outcome=\"first\"}"), 1.0);
        assert_eq!(value("bmi_client_connects_total{outcome=\"again\"}"), 1.0);
        assert_eq!(value("bmi_client_links_up"), 1.0);
        client.close().await;
        drop(client);
        assert_eq!(value("bmi_client_links_up"), 0.0);
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// Every name of the table is there, and no other.
#[test]
fn the_table_has_all_names() {
    everywhere(async |bed: &Bed| {
        let recorder = recorder();
        let _here = metrics::set_default_local_recorder(&recorder);
        let (server, client) = bed.echo().await;
        client.call("x").data(vec![0; 100_000]).await.expect("a reply");
        for _ in 0..2 {
            client.sample();
            server.sample();
        }
        let text = recorder.handle().render();
        let named = |line: &str| {
            let name = line.strip_prefix("# TYPE ")?.split(' ').next()?.to_owned();
            assert!(text.contains(&format!("# HELP {name} ")), "{name} is described");
            Some(name)
        };
        let emitted: BTreeSet<String> = text.lines().filter_map(named).collect();
        assert_eq!(emitted, documented());
        let all = values(&recorder);
        let sent = |side: &str| all[&format!("bmi_engine_unexpected_total{{endpoint=\"{side}\"}}")];
        assert!(sent("client") >= 1.0, "a request is an unexpected message: {text}");
        assert_eq!(all["bmi_engine_peers{endpoint=\"server\"}"], 1.0);
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}
