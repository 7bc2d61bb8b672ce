//! Hints for the caches of I/O servers, and questions to them.

use std::collections::BTreeSet;

use bmi_cache::Settings;
use fs_proto::{
    AccessPattern, CacheCoverage, CacheHints, CachePolicy, CacheState, CachedFile, ServiceKind, ViewRefusal,
};
use fs_server::store::{CacheSettings, Service};

use super::*;

/// Returns options for a cluster of one I/O server with a cache.
fn unifier(bytes: u64) -> ClusterOptions {
    let settings = CacheSettings::for_bytes(bytes);
    // What is dirty stays so, and nothing is read that nobody asked for.
    let cache = Settings { age: Duration::from_secs(600), read_ahead: 0, dirty: bytes, ..settings.cache.clone() };
    let service = Service::Unifier(CacheSettings { cache, ..settings });
    ClusterOptions { service, ..ClusterOptions::with_iods(1) }
}

fn file(index: u64) -> DatafileHandle {
    DatafileHandle(index)
}

async fn advise(client: &Client, iod: PeerId, datafile: DatafileHandle, hints: CacheHints) {
    assert_eq!(client.iod(iod, IodRequest::Advise { datafile, hints }).await, Ok(IodReply::Done), "{hints:?}");
}

async fn state(client: &Client, iod: PeerId, after: Option<DatafileHandle>, files: u32) -> CacheState {
    match client.iod(iod, IodRequest::CacheState { after, files }).await.unwrap() {
        IodReply::CacheState(state) => *state,
        other => panic!("{other:?}"),
    }
}

async fn page(
    client: &Client,
    iod: PeerId,
    datafile: DatafileHandle,
    offset: u64,
    len: u64,
) -> (CacheCoverage, Option<u64>) {
    match client.iod(iod, IodRequest::CacheCoverage { datafile, offset, len }).await.unwrap() {
        IodReply::CacheCoverage { coverage, next } => (coverage.expect("it has a cache"), next),
        other => panic!("{other:?}"),
    }
}

#[test]
fn hints_take_effect_and_nonsense_is_counted() {
    with_client(1, unifier(8 << 20), async |_, cluster, client| {
        let iod = client.connect(&cluster.iods()[0]).await;
        let hints = CacheHints {
            unit: Some(8192),
            policy: CachePolicy::Keep,
            pattern: AccessPattern::Random,
            write_through: true,
        };
        advise(client, iod, file(1), hints).await;
        for index in [1, 2] {
            client.write(iod, file(index), &regions(&[(0, 100)]), &vec![1; 100].into()).await.unwrap();
        }
        let found = state(client, iod, None, 10).await;
        let seen = |file: &CachedFile| (file.datafile, file.unit, file.hints, file.dirty);
        let expected = [(file(1), 8192, hints, 0), (file(2), 65536, CacheHints::default(), 100)];
        assert_eq!(found.files.iter().map(seen).collect::<Vec<_>>(), expected);
        let cache = found.cache.unwrap();
        assert_eq!((found.service, cache.written, cache.dirty, cache.flushed), (ServiceKind::Unifier, 200, 100, 100));
        assert_eq!((cache.most, cache.ignored_hints, found.next), (8 << 20, 0, None));
        // A datafile that does not exist, a unit that is not possible, and numbers of a later
        // version.
        let (policy, pattern) = (CachePolicy::Other(77), AccessPattern::Other(78));
        advise(client, iod, file(u64::MAX), CacheHints { unit: Some(u32::MAX), policy, pattern, ..hints }).await;
        advise(client, iod, file(1), CacheHints { unit: Some(6000), ..hints }).await;
        let found = state(client, iod, None, 1).await;
        assert_eq!((found.cache.unwrap().ignored_hints, found.files[0].hints.unit), (4, None));
        assert_eq!(found.files[0].hints.policy, CachePolicy::Keep, "the rest of the hints counts");
    });
}

/// Over a connection with short messages, so that a reply has room for few datafiles.
#[test]
fn the_busiest_files_come_in_pages_that_fit_a_reply() {
    const FILES: u64 = 50;
    let endpoint = Config::default().eager_limit(1024);
    with_client(2, ClusterOptions { endpoint, ..unifier(16 << 20) }, async |_, cluster, client| {
        let iod = client.connect(&cluster.iods()[0]).await;
        for index in 0..FILES {
            let len = 100 + index * 37 % FILES;
            client.write(iod, file(index), &regions(&[(0, len)]), &vec![1; len as usize].into()).await.unwrap();
        }
        let few = state(client, iod, None, 3).await;
        let written: Vec<u64> = few.files.iter().map(|file| file.written).collect();
        assert_eq!((written, few.next), (vec![149, 148, 147], None), "one page looks at all");
        // All that are asked for have no room. So a page is about as many as it has room for.
        let (mut seen, mut after, mut pages) = (BTreeSet::new(), None, 0);
        loop {
            let page = state(client, iod, after, FILES as u32).await;
            assert!(page.files.len() < FILES as usize / 3, "{}", page.files.len());
            assert!(page.files.is_sorted_by_key(|file| std::cmp::Reverse(file.written)));
            assert!(page.files.iter().all(|file| seen.insert(file.datafile)), "no file comes twice");
            pages += 1;
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(seen, (0..FILES).map(file).collect());
        assert!(pages > 3, "{pages}");
        assert_eq!(state(client, iod, None, 0).await.files, []);
        assert_eq!(state(client, iod, Some(file(FILES)), 9).await.files, []);
    });
}

/// The work for one question is bounded, so a large range is answered in parts.
#[test]
fn the_coverage_of_a_range_is_exact_and_comes_in_parts() {
    const LEN: u64 = 20 << 20;
    with_client(3, unifier(64 << 20), async |_, cluster, client| {
        let iod = client.connect(&cluster.iods()[0]).await;
        assert_eq!(page(client, iod, file(1), 0, u64::MAX).await, (CacheCoverage::default(), None));
        advise(client, iod, file(1), CacheHints { unit: Some(4096), ..CacheHints::default() }).await;
        client.write(iod, file(1), &regions(&[(0, LEN)]), &vec![1; LEN as usize].into()).await.unwrap();
        let (mut sum, mut at, mut parts) = (CacheCoverage::default(), Some(1000), 0);
        while let Some(from) = at {
            let (part, next) = page(client, iod, file(1), from, LEN - 1500 - from).await;
            assert!(next.is_none_or(|next| next > from));
            sum += part;
            (at, parts) = (next, parts + 1);
        }
        assert_eq!((sum.cached, sum.dirty, parts), (LEN - 2500, LEN - 2500, 2), "5,120 units");
        client.iod(iod, IodRequest::Sync { datafiles: vec![file(1)] }).await.unwrap();
        let (part, _) = page(client, iod, file(1), 5000, 100_000).await;
        assert_eq!((part.cached, part.dirty, part.ready), (100_000, 0, 100_000));
        // Whatever the range is, the answer is no error.
        for (offset, len) in [(LEN, 100), (u64::MAX, u64::MAX), (0, 0), (LEN - 5, u64::MAX)] {
            let cached = if offset == LEN - 5 { 5 } else { 0 };
            assert_eq!(page(client, iod, file(1), offset, len).await.0.cached, cached, "{len} bytes at {offset}");
        }
    });
}

#[test]
fn a_server_without_a_cache_ignores_hints_and_says_what_it_is() {
    with_client(4, ClusterOptions::with_iods(1), async |_, cluster, client| {
        let iod = client.connect(&cluster.iods()[0]).await;
        advise(client, iod, file(1), CacheHints { unit: Some(1), ..CacheHints::default() }).await;
        client.write(iod, file(1), &regions(&[(0, 100)]), &vec![1; 100].into()).await.unwrap();
        assert_eq!(state(client, iod, None, 10).await, CacheState::default());
        assert_eq!(CacheState::default().service, ServiceKind::Normal);
        let none = IodReply::CacheCoverage { coverage: None, next: None };
        assert_eq!(client.iod(iod, IodRequest::CacheCoverage { datafile: file(1), offset: 0, len: 1 }).await, Ok(none));
    });
}

/// A restarted server has its dirty bytes back, and nobody's hints.
#[test]
fn hints_end_with_the_server() {
    let (world, cluster) = cluster(5, unifier(8 << 20));
    let client = Client::new(&world.node("client"), 1);
    let keep = CacheHints { policy: CachePolicy::Keep, ..CacheHints::default() };
    world.block_on(async {
        let iod = client.connect(&cluster.iods()[0]).await;
        advise(&client, iod, file(1), keep).await;
        client.write(iod, file(1), &regions(&[(0, 5000)]), &vec![7; 5000].into()).await.unwrap();
        assert_eq!(state(&client, iod, None, 1).await.files[0].hints, keep);
        cluster.restart_iod(0);
        let iod = client.connect(&cluster.iods()[0]).await;
        let found = state(&client, iod, None, 1).await;
        assert_eq!((found.files[0].hints, found.files[0].dirty), (CacheHints::default(), 5000));
        assert_eq!(found.cache.unwrap().taken_over, 5000);
    });
}

/// A connection that cannot lend memory gets none. What is no range of one window is refused,
/// before anything is prepared.
#[test]
fn a_view_is_refused_over_a_network() {
    with_client(6, unifier(8 << 20), async |_, cluster, client| {
        let iod = client.connect(&cluster.iods()[0]).await;
        let ask = async |datafile, offset, len| client.iod(iod, IodRequest::ReadShared { datafile, offset, len }).await;
        for (offset, len) in [(0, 1), (5 << 60, 1 << 20), (0, 16 << 20)] {
            let refused = Ok(IodReply::Shared(Err(ViewRefusal::NotLocal)));
            assert_eq!(ask(file(1), offset, len).await, refused, "{len} bytes at {offset}");
        }
        for (offset, len) in [(0, 0), (1, 16 << 20), (0, u64::MAX), (u64::MAX, u64::MAX), (u64::MAX, 1)] {
            let error = ask(file(1), offset, len).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::Invalid, "{len} bytes at {offset}");
        }
    });
}
