//! A client of another version of the protocol is told so.

use std::time::Duration;

use bmi::OpenOptions;
use bmi_core::comm::{Body, Caller};
use bmi_core::{Config, Scheme, driver};
use fs_proto::{ErrorCode, Hello, ManagerRequest, ReplyBody, Request, RequestBody, RequestId, Role, codec};
use fs_server::embedded::{ClusterOptions, EmbeddedCluster};

fn request(body: impl Into<RequestBody>) -> Vec<u8> {
    let id = RequestId { client: 1, seq: 1 };
    codec::encode_request(&Request { id, unanswered: 1, timeout_ms: 5000, body: body.into() })
}

#[test]
fn a_request_of_version_4_is_answered_with_an_error_about_versions() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = EmbeddedCluster::start(dir.path().join("data"), ClusterOptions::with_iods(1)).unwrap();
    let clock = driver::MonotonicClock::new();
    let endpoint = bmi::endpoint(Scheme::Tcp, &OpenOptions::default(), Config::named("old"), clock).unwrap();
    let caller = Caller::new(endpoint.clone());
    let patience = Duration::from_secs(20);
    let work = async {
        let peer = endpoint.connect(cluster.manager(), endpoint.within(patience)).await.unwrap();
        let ask = async |bytes: &[u8]| {
            let call = caller.call(peer, bytes, Body::None, None, endpoint.within(patience)).unwrap();
            codec::decode_reply(&call.reply().await.unwrap().bytes).unwrap().result
        };
        // Version 4 began without a Hello.
        let mut old = request(ManagerRequest::Ping);
        old[0] = 4;
        let error = ask(&old).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Protocol);
        assert!(error.detail.contains("version 4") && error.detail.contains("version 7"), "{error}");
        // The connection goes on, and serves this version.
        let identity = ask(&request(RequestBody::Hello(Hello::to(Role::Manager)))).await.unwrap();
        assert!(matches!(identity, ReplyBody::Identity(_)));
        ask(&request(ManagerRequest::Ping)).await.unwrap();
    };
    driver::event::block_on(endpoint.clone(), work).unwrap();
    drop((caller, endpoint));
    cluster.stop().unwrap();
}
