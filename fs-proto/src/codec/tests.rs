//! Round trips of all messages, and bytes that are not the encoding of any.

use bmi::Addr;
use bmi::bulk::extents;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::limits::{MAX_ADDRS, MAX_BACKUP_PAGE, MAX_CACHED_FILES, MAX_OFFSET, MAX_PATH, MAX_REGIONS};
use crate::*;

fn place() -> impl Strategy<Value = Place> {
    (any::<u64>(), "[a-zé/]{0,40}").prop_map(|(dir, path)| Place { dir: DirHandle(dir), path })
}

fn handle() -> impl Strategy<Value = Handle> {
    any::<(bool, u64)>()
        .prop_map(|(dir, raw)| if dir { Handle::Dir(DirHandle(raw)) } else { Handle::File(FileHandle(raw)) })
}

fn regions() -> impl Strategy<Value = Regions> {
    vec((0..1u64 << 50, 0..64u64), 0..8).prop_map(|list| {
        Regions::try_from(list.into_iter().map(|(offset, len)| Region { offset, len }).collect::<Vec<_>>()).unwrap()
    })
}

fn manager_request() -> impl Strategy<Value = ManagerRequest> {
    let kind = prop_oneof![Just(RemoveKind::File), Just(RemoveKind::Dir), Just(RemoveKind::Any)];
    let set = (option::of(any::<u32>()), option::of(any::<u64>())).prop_map(|(mode, mtime_ns)| SetAttr {
        mode,
        mtime_ns,
        ..SetAttr::default()
    });
    prop_oneof![
        Just(ManagerRequest::Ping),
        (place(), any::<(u32, u32, u32)>()).prop_map(|(place, (mode, uid, gid))| ManagerRequest::Mkdir {
            place,
            mode,
            uid,
            gid
        }),
        (place(), any::<(u32, u32, u32, u64, u32)>(), vec(any::<u32>(), 0..4), existing()).prop_map(
            |(place, (mode, uid, gid, strip_size, servers), avoid, existing)| ManagerRequest::Create {
                place,
                mode,
                uid,
                gid,
                strip_size,
                servers,
                avoid,
                existing
            }
        ),
        place().prop_map(|place| ManagerRequest::Lookup { place }),
        (any::<(u64, u32)>(), "[a-z]{0,20}").prop_map(|((dir, max), after)| ManagerRequest::Readdir {
            dir: DirHandle(dir),
            after,
            max
        }),
        handle().prop_map(|handle| ManagerRequest::Getattr { handle }),
        (handle(), set).prop_map(|(handle, set)| ManagerRequest::Setattr { handle, set }),
        (place(), place()).prop_map(|(from, to)| ManagerRequest::Rename { from, to }),
        (place(), kind).prop_map(|(place, kind)| ManagerRequest::Remove { place, kind }),
        Just(ManagerRequest::Statfs),
        any::<u32>().prop_map(|first| ManagerRequest::Cluster { first }),
        (any::<u64>(), option::of(any::<u64>()))
            .prop_map(|(file, size)| ManagerRequest::RecordSize { file: FileHandle(file), size }),
        (any::<(u64, bool)>(), place(), any::<(Option<u32>, Option<u64>, Option<u64>)>()).prop_map(
            |((file, inherit), place, (mode, mtime_ns, size))| ManagerRequest::Publish {
                file: FileHandle(file),
                place,
                inherit,
                mode,
                mtime_ns,
                size
            }
        ),
        any::<u64>().prop_map(|file| ManagerRequest::Abandon { file: FileHandle(file) }),
        any::<(u64, u64)>().prop_map(|(file, size)| ManagerRequest::Truncate { file: FileHandle(file), size }),
        any::<u64>().prop_map(|file| ManagerRequest::Truncation { file: FileHandle(file) }),
        any::<u64>().prop_map(|page| ManagerRequest::Backup { page }),
        registration().prop_map(ManagerRequest::Register),
    ]
}

fn existing() -> impl Strategy<Value = Existing> {
    prop_oneof![Just(Existing::Refuse), Just(Existing::Open), Just(Existing::Replace)]
}

fn start() -> impl Strategy<Value = Start> {
    any::<(u64, u128)>().prop_map(|(epoch, instance)| Start { epoch, instance })
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Manager), any::<u32>().prop_map(Role::Iod)]
}

fn registration() -> impl Strategy<Value = Registration> {
    let starts = (start(), option::of(start()), option::of(start()), option::of(start()));
    (any::<(u32, u64, bool, bool)>(), option::of(any::<u128>()), starts).prop_map(
        |((iod, highest, replace, ready), store, (start, offered, confirmed, manager))| Registration {
            iod,
            store: store.map(StoreId),
            start,
            offered,
            confirmed,
            manager,
            highest: DatafileHandle(highest),
            replace,
            ready,
        },
    )
}

fn hello() -> impl Strategy<Value = Hello> {
    let sender =
        prop_oneof![Just(Sender::Client), (role(), start()).prop_map(|(role, start)| Sender::Server(role, start))];
    (option::of(any::<u128>()), role(), option::of(any::<u128>()), option::of(start()), sender).prop_map(
        |(cluster, role, store, seen, sender)| Hello {
            cluster: cluster.map(ClusterId),
            role,
            store: store.map(StoreId),
            seen,
            sender,
        },
    )
}

fn iod_request() -> impl Strategy<Value = IodRequest> {
    let datafile = || any::<u64>().prop_map(DatafileHandle);
    prop_oneof![
        Just(IodRequest::Ping),
        (datafile(), regions(), any::<bool>()).prop_map(|(datafile, regions, sync)| IodRequest::Write {
            datafile,
            regions,
            sync
        }),
        (datafile(), regions()).prop_map(|(datafile, regions)| IodRequest::Read { datafile, regions }),
        (datafile(), any::<u64>()).prop_map(|(datafile, size)| IodRequest::Truncate { datafile, size }),
        (datafile(), any::<u32>()).prop_map(|(first, count)| IodRequest::Create { first, count }),
        (datafile(), any::<u32>()).prop_map(|(first, count)| IodRequest::Discard { first, count }),
        vec(datafile(), 0..5).prop_map(|datafiles| IodRequest::Remove { datafiles }),
        option::of(datafile()).prop_map(|after| IodRequest::List { after }),
        vec(datafile(), 0..5).prop_map(|datafiles| IodRequest::Sync { datafiles }),
        (datafile(), any::<(u64, u64)>()).prop_map(|(datafile, (size, number))| IodRequest::PrepareTruncate {
            datafile,
            size,
            number
        }),
        (any::<u64>(), vec((datafile(), any::<u64>(), any::<u64>()), 0..5))
            .prop_map(|(before, datafiles)| IodRequest::CommitTruncates { before, datafiles }),
        (any::<u64>(), vec(datafile(), 0..5))
            .prop_map(|(before, except)| IodRequest::CancelTruncates { before, except }),
        datafile().prop_map(|datafile| IodRequest::Getsize { datafile }),
        Just(IodRequest::Statfs),
        (datafile(), hints()).prop_map(|(datafile, hints)| IodRequest::Advise { datafile, hints }),
        (option::of(datafile()), any::<u32>()).prop_map(|(after, files)| IodRequest::CacheState { after, files }),
        (datafile(), any::<(u64, u64)>()).prop_map(|(datafile, (offset, len))| IodRequest::CacheCoverage {
            datafile,
            offset,
            len
        }),
        (datafile(), any::<(u64, u64)>()).prop_map(|(datafile, (offset, len))| IodRequest::ReadShared {
            datafile,
            offset,
            len
        }),
    ]
}

fn hints() -> impl Strategy<Value = CacheHints> {
    any::<(Option<u32>, u8, u8, bool)>().prop_map(|(unit, policy, pattern, write_through)| CacheHints {
        unit,
        policy: policy.into(),
        pattern: pattern.into(),
        write_through,
    })
}

fn cache_state() -> impl Strategy<Value = CacheState> {
    let stat = any::<[u64; 17]>().prop_map(|numbers| {
        let [most, resident, cached, dirty, ready, asked, hit, written, flushed, rest @ ..] = numbers;
        let [filled, evicted, ahead_used, ahead_unused, failed_flushes, taken_over, ignored_hints, refused_growth] =
            rest;
        CacheStat {
            most,
            resident,
            cached,
            dirty,
            ready,
            asked,
            hit,
            written,
            flushed,
            filled,
            evicted,
            ahead_used,
            ahead_unused,
            failed_flushes,
            taken_over,
            ignored_hints,
            refused_growth,
        }
    });
    let file = (any::<([u64; 6], u32, bool)>(), hints()).prop_map(|((numbers, unit, failed), hints)| {
        let [datafile, cached, dirty, asked, hit, written] = numbers;
        CachedFile { datafile: DatafileHandle(datafile), unit, hints, cached, dirty, asked, hit, written, failed }
    });
    (any::<u8>(), option::of(stat), vec(file, 0..5), option::of(any::<u64>())).prop_map(
        |(service, cache, files, next)| CacheState {
            service: service.into(),
            cache,
            files,
            next: next.map(DatafileHandle),
        },
    )
}

fn request() -> impl Strategy<Value = Request> {
    let body = prop_oneof![
        8 => manager_request().prop_map(RequestBody::Manager),
        8 => iod_request().prop_map(RequestBody::Iod),
        1 => hello().prop_map(RequestBody::Hello),
    ];
    (any::<(u128, u64, u64, u32)>(), body).prop_map(|((client, seq, unanswered, timeout_ms), body)| Request {
        id: RequestId { client, seq },
        unanswered,
        timeout_ms,
        body,
    })
}

fn entry() -> impl Strategy<Value = Entry> {
    let layout = (4096..1u64 << 20, vec(any::<(u32, u64)>(), 1..6)).prop_map(|(strip, datafiles)| {
        let distribution = Distribution::simple_stripe(strip, datafiles.len() as u32).unwrap();
        Layout::new(distribution, datafiles.into_iter().map(|(iod, raw)| (iod, DatafileHandle(raw))).collect()).unwrap()
    });
    (handle(), any::<(u32, u32, u32, u64, u64)>(), option::of(layout), option::of(any::<u64>())).prop_map(
        |(handle, (mode, uid, gid, size, time), layout, recorded_size)| Entry {
            handle,
            attr: Attr {
                kind: Kind::File,
                mode,
                uid,
                gid,
                size,
                atime_ns: time,
                mtime_ns: time / 2,
                ctime_ns: time / 3,
                nlink: 1,
            },
            touched_ns: time / 3,
            layout,
            recorded_size,
        },
    )
}

fn identity() -> impl Strategy<Value = Identity> {
    let addr = prop_oneof![
        any::<u16>().prop_map(|port| Addr::tcp("localhost", port)),
        "/[a-z]{1,106}".prop_map(Addr::shm),
        any::<u16>().prop_map(|port| Addr::ib(Some("mlx5_0:1".parse().unwrap()), "h".repeat(255), port)),
    ];
    (any::<(u128, u128)>(), role(), "[0-9a-f-]{0,36}", start(), vec(addr, 0..=MAX_ADDRS)).prop_map(
        |((cluster, store), role, host, start, addrs)| Identity {
            cluster: ClusterId(cluster),
            role,
            store: StoreId(store),
            start,
            host,
            addrs,
        },
    )
}

fn failure() -> impl Strategy<Value = Option<FsError>> {
    option::of(".{0,40}".prop_map(|detail| FsError::new(ErrorCode::NoSpace, detail)))
}

fn reply() -> impl Strategy<Value = Reply> {
    let manager = prop_oneof![
        Just(ManagerReply::Done),
        entry().prop_map(ManagerReply::Entry),
        (vec(("[a-z]{1,20}", handle()), 0..5), any::<bool>()).prop_map(|(entries, more)| ManagerReply::Entries {
            entries: entries.into_iter().map(|(name, handle)| DirEntry { name, handle }).collect(),
            more
        }),
        any::<(u64, u64, u64, u64, u64)>().prop_map(|(files, nameless, dirs, orphans, prepared)| ManagerReply::Stat(
            ManagerStat { files, nameless, dirs, orphans, prepared }
        )),
        (vec(any::<(u16, u128, bool)>(), 0..5), any::<u32>()).prop_map(|(iods, total)| {
            let info = |(port, store, up): (u16, u128, bool)| IodInfo {
                addr: Addr::tcp("localhost", port),
                store: up.then_some(StoreId(store)),
                up,
            };
            ManagerReply::Cluster(ClusterInfo { iods: iods.into_iter().map(info).collect(), total, strip_size: 65536 })
        }),
        (vec(any::<u8>(), 0..200), any::<bool>()).prop_map(|(rows, more)| ManagerReply::Backup { rows, more }),
        (any::<u128>(), start(), option::of(start())).prop_map(|(cluster, start, recorded)| {
            ManagerReply::Registered { cluster: ClusterId(cluster), start, recorded }
        }),
        vec((any::<(u32, u64, u64)>(), failure()), 0..5).prop_map(|pending| ManagerReply::Truncation(
            pending
                .into_iter()
                .map(|((iod, datafile, size), error)| PendingTruncate {
                    iod,
                    datafile: DatafileHandle(datafile),
                    size,
                    error
                })
                .collect()
        )),
    ];
    let iod = prop_oneof![
        Just(IodReply::Done),
        any::<(u64, u64, u64)>().prop_map(|(len, size, start)| IodReply::Written { len, size, start }),
        any::<(u64, u64)>().prop_map(|(len, size)| IodReply::Read { len, size }),
        any::<(u64, u64)>().prop_map(|(size, mtime_ns)| IodReply::Held { size, mtime_ns }),
        any::<(u64, u64, u64, u64)>().prop_map(|(capacity, free, datafiles, disk)| IodReply::Stat(IodStat {
            capacity,
            free,
            datafiles,
            disk
        })),
        (vec(any::<u64>(), 0..5), any::<bool>()).prop_map(|(handles, more)| IodReply::Datafiles {
            handles: handles.into_iter().map(DatafileHandle).collect(),
            more
        }),
        cache_state().prop_map(|state| IodReply::CacheState(Box::new(state))),
        any::<(Option<(u64, u64, u64)>, Option<u64>)>().prop_map(|(coverage, next)| IodReply::CacheCoverage {
            coverage: coverage.map(|(cached, dirty, ready)| CacheCoverage { cached, dirty, ready }),
            next
        }),
        any::<Result<(u64, u64, u64, u32), u8>>().prop_map(|grant| IodReply::Shared(
            grant.map(|(key, addr, size, lease_ms)| ViewGrant { key, addr, size, lease_ms }).map_err(ViewRefusal::from)
        )),
        vec((any::<u64>().prop_map(DatafileHandle), failure()), 0..5).prop_map(IodReply::Committed),
    ];
    let error = (".{0,40}", vec(any::<(u32, u32)>(), 0..5)).prop_map(|(detail, ranges)| {
        FsError::new(ErrorCode::NoSpace, detail)
            .with_ranges(ranges.into_iter().map(|(offset, len)| Region::new(offset.into(), len.into())))
    });
    prop_oneof![
        identity().prop_map(|identity| Reply { result: Ok(identity.into()) }),
        manager.prop_map(|reply| Reply { result: Ok(reply.into()) }),
        iod.prop_map(|reply| Reply { result: Ok(reply.into()) }),
        error.prop_map(|error| Reply { result: Err(error) }),
    ]
}

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
            Ok(ReplyBody::Iod(IodReply::Committed(_))) => {}
            Ok(ReplyBody::Iod(_)) => prop_assert!(bytes.len() <= crate::limits::REPLY_ROOM),
            _ => {}
        }
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
    Request { id: RequestId { client: 1, seq: 1 }, unanswered: 1, timeout_ms: 1000, body: body.into() }
}

#[test]
fn another_version_is_named() {
    let mut bytes = encode_request(&body(ManagerRequest::Ping));
    bytes[0] = 9;
    assert_eq!(decode_request(&bytes), Err(CodecError::Version(9)));
    assert_eq!(decode_request(&[]), Err(CodecError::Empty));
}

#[test]
fn limits_hold_on_the_wire() {
    let long = body(ManagerRequest::Lookup { place: Place::root("x".repeat(MAX_PATH + 1)) });
    assert!(matches!(decode_request(&encode_request(&long)), Err(CodecError::Malformed(_))));
    let just = body(ManagerRequest::Lookup { place: Place::root("x".repeat(MAX_PATH)) });
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
