//! Round trips of all messages, and bytes that are not the encoding of any.

mod messages;

use bmi::bulk::extents;
use proptest::collection::vec;
use proptest::prelude::*;

use self::messages::{identity, reply, request};
use super::*;
use crate::limits::{MAX_BACKUP_PAGE, MAX_CACHED_FILES, MAX_OFFSET, MAX_PATH, MAX_REGIONS};
use crate::*;

proptest! {
    #[test]
    fn requests_come_back(request in request()) {
        let bytes = encode_request(&request);
        prop_assert_eq!(decode_request(&bytes).unwrap(), request);
        let longer = [&bytes[..], &[0]].concat();
        prop_assert_eq!(decode_request(&longer), Err(CodecError::Trailing(1)), "a byte too many");
    }

    #[test]
    fn replies_come_back(reply in reply()) {
        let bytes = encode_reply(&reply);
        match &reply.result {
            Ok(ReplyBody::Iod(IodReply::CacheState(state))) => {
                let room = CacheState::LONGEST + state.files.len() * 75;
                prop_assert!(bytes.len() <= room && CacheState::most_files(room) == state.files.len());
            }
            // As many as there is room for.
            Ok(ReplyBody::Iod(IodReply::Committed(_) | IodReply::Sizes(_) | IodReply::Scrubbed { .. })) => {}
            Ok(ReplyBody::Iod(_)) => prop_assert!(bytes.len() <= crate::limits::REPLY_ROOM),
            _ => {}
        }
        prop_assert_eq!(is_error(&bytes), reply.result.is_err());
        prop_assert_eq!(decode_reply(&bytes).unwrap(), reply);
    }

    /// A reply that was cut to a size fits that size, and keeps every address that had room.
    #[test]
    fn an_identity_fits_the_room_that_there_is(identity in identity(), room in 0..4096usize) {
        let cut = identity.within(room);
        prop_assert!(identity.is_same(&cut));
        prop_assert!(identity.addrs.starts_with(&cut.addrs));
        let len = encode_reply(&Reply { result: Ok(cut.clone().into()) }).len();
        prop_assert!(len <= room.max(160), "{len} bytes for a room of {room}");
        let all = encode_reply(&Reply { result: Ok(identity.clone().into()) }).len();
        prop_assert!(cut == identity || all + 112 > room, "{all} bytes had room in {room}");
    }

    #[test]
    fn truncated_messages_are_refused(request in request(), cut in any::<prop::sample::Index>()) {
        let bytes = encode_request(&request);
        prop_assert!(decode_request(&bytes[..cut.index(bytes.len())]).is_err());
    }

    /// A message that still decodes after a mutation respects the limits and can be encoded again.
    #[test]
    fn mutated_messages_never_panic(
        request in request(),
        reply in reply(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let (mut bytes, mut answer) = (encode_request(&request), encode_reply(&reply));
        for (at, value) in &changes {
            let at_request = at.index(bytes.len());
            bytes[at_request] = *value;
            let at_reply = at.index(answer.len());
            answer[at_reply] = *value;
        }
        if let Ok(request) = decode_request(&bytes) {
            prop_assert_eq!(decode_request(&encode_request(&request)).unwrap(), request);
        }
        if let Ok(reply) = decode_reply(&answer) {
            prop_assert_eq!(decode_reply(&encode_reply(&reply)).unwrap(), reply);
        }
    }

    #[test]
    fn garbage_never_panics(mut bytes in vec(any::<u8>(), 0..300)) {
        let _ = (decode_request(&bytes), decode_reply(&bytes));
        if let Some(first) = bytes.first_mut() {
            *first = VERSION;
        }
        let _ = (decode_request(&bytes), decode_reply(&bytes));
    }
}

fn body(body: impl Into<RequestBody>) -> Request {
    Request {
        id: RequestId { client: 1, seq: 1 },
        unanswered: 1,
        timeout_ms: 1000,
        caller: None,
        ticket: None,
        body: body.into(),
    }
}

#[test]
fn another_version_is_named() {
    let mut bytes = encode_request(&body(ManagerRequest::Ping));
    bytes[0] = VERSION + 1;
    assert_eq!(decode_request(&bytes), Err(CodecError::Version(VERSION + 1)));
    assert_eq!(decode_request(&[]), Err(CodecError::Empty));
}

#[test]
fn limits_hold_on_the_wire() {
    let long = body(ManagerRequest::Lookup { place: Place::root("x".repeat(MAX_PATH + 1)), open: false });
    assert!(matches!(decode_request(&encode_request(&long)), Err(CodecError::Malformed(_))));
    let just = body(ManagerRequest::Lookup { place: Place::root("x".repeat(MAX_PATH)), open: false });
    assert!(decode_request(&encode_request(&just)).is_ok());
}

/// The longest state of a cache fits the room that is calculated for it, and one file more than
/// allowed is refused.
#[test]
fn the_files_of_a_cache_are_bounded() {
    let hints =
        CacheHints { unit: Some(u32::MAX), policy: u8::MAX.into(), pattern: u8::MAX.into(), write_through: true };
    let big = u64::MAX;
    let datafile = DatafileHandle(big);
    let (unit, failed) = (u32::MAX, true);
    let file =
        CachedFile { datafile, unit, hints, cached: big, dirty: big, asked: big, hit: big, written: big, failed };
    let reply = |files: usize| {
        let stat = CacheStat { most: big, resident: big, cached: big, dirty: big, ready: big, ..CacheStat::default() };
        let stat = CacheStat { asked: big, hit: big, written: big, flushed: big, filled: big, ..stat };
        let stat = CacheStat { evicted: big, ahead_used: big, ahead_unused: big, failed_flushes: big, ..stat };
        let cache = Some(CacheStat { taken_over: big, ignored_hints: big, refused_growth: big, ..stat });
        let state =
            CacheState { service: u8::MAX.into(), cache, files: vec![file; files], next: Some(DatafileHandle(big)) };
        encode_reply(&Reply { result: Ok(IodReply::CacheState(Box::new(state)).into()) })
    };
    for room in [CacheState::LONGEST, 1000, 8 << 10, 1 << 20] {
        let files = CacheState::most_files(room);
        let len = reply(files).len();
        assert!(len <= room && (len + 80 > room || files == MAX_CACHED_FILES), "{len} bytes in a room of {room}");
        assert!(decode_reply(&reply(files)).is_ok());
    }
    assert_eq!((CacheState::most_files(0), CacheState::most_files(usize::MAX)), (0, MAX_CACHED_FILES));
    assert!(matches!(decode_reply(&reply(MAX_CACHED_FILES + 1)), Err(CodecError::Malformed(_))));
}

#[test]
fn a_page_of_a_backup_is_bounded() {
    let page = |len: usize| {
        encode_reply(&Reply { result: Ok(ManagerReply::Backup { rows: vec![7; len], more: true }.into()) })
    };
    assert!(decode_reply(&page(MAX_BACKUP_PAGE)).is_ok());
    assert!(matches!(decode_reply(&page(MAX_BACKUP_PAGE + 1)), Err(CodecError::Malformed(_))));
}

/// Replays an attack: a few bytes that announce a list of 2^60 elements, or a region that ends
/// beyond the largest offset.
#[test]
fn an_announced_length_allocates_nothing() {
    let getsize = IodRequest::Read { datafile: DatafileHandle(0x55), regions: Regions::default() };
    let honest = encode_request(&body(getsize));
    // The length of the regions follows the datafile's handle.
    let at = honest.iter().rposition(|byte| *byte == 0x55).unwrap() + 1;
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f];
    let lying = [&honest[..at], &huge[..], &honest[at + 1..]].concat();
    assert!(matches!(decode_request(&lying), Err(CodecError::Malformed(_))));

    let with_regions = |ranges: Vec<(u64, u64)>| {
        let encoded = extents::encode(Vec::new(), ranges);
        assert!(encoded.len() < 0x80, "a length of one byte");
        [&honest[..at], &[encoded.len() as u8], &encoded[..], &honest[at + 1..]].concat()
    };
    let just = with_regions(vec![(0, 0); MAX_REGIONS]);
    assert!(decode_request(&just).is_ok());
    // The first list is as short as `just`, but has one region too many. The others have a region
    // that ends beyond the largest offset; the end of the last one overflows 64 bits.
    for ranges in [vec![(0, 0); MAX_REGIONS + 1], vec![(MAX_OFFSET, 1)], vec![(u64::MAX, 2)]] {
        assert!(matches!(decode_request(&with_regions(ranges)), Err(CodecError::Malformed(_))));
    }
}

#[test]
fn a_list_of_thousands_is_a_short_request() {
    let rows = (0..MAX_REGIONS as u64).map(|row| Region::new(row * 2048 * 64, 1024 * 64)).collect::<Vec<_>>();
    let write = |regions: Vec<Region>| {
        encode_request(&body(IodRequest::Write {
            datafile: DatafileHandle(1),
            regions: Regions::try_from(regions).unwrap(),
            sync: false,
        }))
    };
    assert!(write(rows).len() < 64, "a regular list");
    let ragged = (0..1000u64).map(|n| Region::new(n * 70_000 + n * n % 4099, 4096 + n % 100)).collect::<Vec<_>>();
    assert!(write(ragged).len() < 8 << 10, "a thousand regions of any shape find room in an eager message");
}
