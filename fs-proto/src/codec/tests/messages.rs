//! Messages that are drawn: every variant, with fields of any value.

use bmi::Addr;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::limits::{MAX_ADDRS, MAX_JOINED, MAX_OFFSET};
use crate::*;

fn text() -> impl Strategy<Value = BString> {
    vec(any::<u8>(), 0..40).prop_map(BString::from)
}

fn place() -> impl Strategy<Value = Place> {
    (any::<u64>(), text()).prop_map(|(dir, path)| Place { dir: DirHandle(dir), path })
}

fn handle() -> impl Strategy<Value = Handle> {
    let kind = prop_oneof![Just(Kind::Dir), Just(Kind::File), Just(Kind::Symlink)];
    (kind, any::<u64>()).prop_map(|(kind, raw)| Handle::new(kind, raw))
}

/// Links, extended attributes, and what looks at them.
fn link_request() -> impl Strategy<Value = ManagerRequest> {
    let name = || text().prop_map(XattrName);
    let value = option::of(text().prop_map(XattrValue));
    prop_oneof![
        (place(), text(), any::<(u32, u32, bool)>()).prop_map(|(place, target, (uid, gid, replace))| {
            ManagerRequest::Symlink { place, target, uid, gid, replace }
        }),
        (any::<(u64, bool)>(), place()).prop_map(|((file, replace), place)| ManagerRequest::Link {
            file: FileHandle(file),
            place,
            replace
        }),
        (place(), place()).prop_map(|(one, other)| ManagerRequest::Exchange { one, other }),
        (handle(), name(), value, option::of(any::<bool>()))
            .prop_map(|(handle, name, value, exists)| ManagerRequest::SetXattr { handle, name, value, exists }),
        (handle(), name()).prop_map(|(handle, name)| ManagerRequest::GetXattr { handle, name }),
        handle().prop_map(|handle| ManagerRequest::ListXattrs { handle }),
        any::<u64>().prop_map(|file| ManagerRequest::Hold { file: FileHandle(file) }),
        vec(any::<u64>().prop_map(FileHandle), 0..4).prop_map(|files| ManagerRequest::Release { files }),
        any::<u64>().prop_map(|file| ManagerRequest::BeginWrite { file: FileHandle(file) }),
        vec((any::<u64>().prop_map(FileHandle), extent()), 0..4).prop_map(|files| ManagerRequest::Close { files }),
    ]
}

fn regions() -> impl Strategy<Value = Regions> {
    vec((0..1u64 << 50, 0..64u64), 0..8).prop_map(|list| {
        Regions::try_from(list.into_iter().map(|(offset, len)| Region { offset, len }).collect::<Vec<_>>()).unwrap()
    })
}

fn replace() -> impl Strategy<Value = Replace> {
    prop_oneof![
        Just(Replace::Anything),
        Just(Replace::Nothing),
        any::<u64>().prop_map(|file| Replace::File(FileHandle(file)))
    ]
}

fn manager_request() -> impl Strategy<Value = ManagerRequest> {
    let kind = prop_oneof![Just(RemoveKind::File), Just(RemoveKind::Dir), Just(RemoveKind::Any)];
    let set = (option::of(any::<u32>()), option::of(any::<u64>())).prop_map(|(mode, mtime_ns)| SetAttr {
        mode,
        mtime_ns,
        ..SetAttr::default()
    });
    prop_oneof![
        link_request(),
        Just(ManagerRequest::Ping),
        (place(), any::<(u32, u32, u32)>()).prop_map(|(place, (mode, uid, gid))| ManagerRequest::Mkdir {
            place,
            mode,
            uid,
            gid
        }),
        (place(), any::<(u32, u32, u32, u64, u32, bool, bool)>(), vec(any::<u32>(), 0..4), existing()).prop_map(
            |(place, (mode, uid, gid, strip_size, servers, hold, small), avoid, existing)| ManagerRequest::Create {
                place,
                mode,
                uid,
                gid,
                strip_size,
                servers,
                avoid,
                existing,
                hold,
                small
            }
        ),
        (place(), any::<bool>()).prop_map(|(place, open)| ManagerRequest::Lookup { place, open }),
        (any::<(u64, u32, bool)>(), text()).prop_map(|((dir, max, attributes), after)| ManagerRequest::Readdir {
            dir: DirHandle(dir),
            after,
            max,
            attributes
        }),
        (handle(), any::<bool>()).prop_map(|(handle, open)| ManagerRequest::Getattr { handle, open }),
        (handle(), set).prop_map(|(handle, set)| ManagerRequest::Setattr { handle, set }),
        (place(), place(), replace()).prop_map(|(from, to, replace)| ManagerRequest::Rename { from, to, replace }),
        (place(), kind).prop_map(|(place, kind)| ManagerRequest::Remove { place, kind }),
        Just(ManagerRequest::Statfs),
        any::<u32>().prop_map(|first| ManagerRequest::Cluster { first }),
        any::<(u64, u64)>().prop_map(|(file, size)| ManagerRequest::RecordSize { file: FileHandle(file), size }),
        (any::<(u64, bool)>(), place(), any::<(Option<u32>, Option<u64>, Option<u64>)>(), replace()).prop_map(
            |((file, inherit), place, (mode, mtime_ns, size), replace)| ManagerRequest::Publish {
                file: FileHandle(file),
                place,
                inherit,
                mode,
                mtime_ns,
                size,
                replace
            }
        ),
        any::<u64>().prop_map(|file| ManagerRequest::Abandon { file: FileHandle(file) }),
        any::<(u64, u64)>().prop_map(|(file, size)| ManagerRequest::Truncate { file: FileHandle(file), size }),
        any::<u64>().prop_map(|file| ManagerRequest::Truncation { file: FileHandle(file) }),
        any::<u64>().prop_map(|page| ManagerRequest::Backup { page }),
        registration().prop_map(ManagerRequest::Register),
        any::<u64>().prop_map(|page| ManagerRequest::Check { page }),
        (fix(), any::<(u64, u64)>()).prop_map(|(fix, (before, lost))| {
            ManagerRequest::Repair(Repair { fix, before, lost: DirHandle(lost) })
        }),
        (any::<u64>(), vec(any::<u32>(), 0..4))
            .prop_map(|(file, avoid)| ManagerRequest::Grow { file: FileHandle(file), avoid }),
    ]
}

fn ties() -> impl Strategy<Value = Ties> {
    any::<(u64, u64, u32)>().prop_map(|(parent, size, nlink)| Ties { parent, size, nlink })
}

fn fix() -> impl Strategy<Value = Fix> {
    prop_oneof![
        (any::<u64>(), text()).prop_map(|(dir, name)| Fix::Name { dir, name }),
        (any::<u64>(), ties()).prop_map(|(raw, was)| Fix::Nameless { raw, was }),
        (any::<u64>(), ties(), ties()).prop_map(|(raw, was, now)| Fix::Ties { raw, was, now }),
        (any::<u32>(), any::<u64>()).prop_map(|(iod, raw)| Fix::Datafile { iod, datafile: DatafileHandle(raw) }),
        any::<(i64, i64)>().prop_map(|(files, dirs)| Fix::Counts { files, dirs }),
    ]
}

fn check_row() -> impl Strategy<Value = CheckRow> {
    let kind = |handle: Handle| handle.kind();
    prop_oneof![
        any::<(u64, u64, u64, u64)>().prop_map(|(next, repairs, files, dirs)| CheckRow::Begin {
            next,
            repairs,
            files,
            dirs
        }),
        (entry(), ties()).prop_map(move |(entry, ties)| CheckRow::Object {
            raw: entry.handle.raw(),
            kind: kind(entry.handle),
            ties,
            layout: entry.layout,
            content: entry.content
        }),
        any::<u64>().prop_map(|raw| CheckRow::Unreadable { raw }),
        (any::<(u64, u64)>(), text(), option::of(handle()))
            .prop_map(move |((dir, raw), name, handle)| { CheckRow::Name { dir, name, raw, kind: handle.map(kind) } }),
        any::<u64>().prop_map(|raw| CheckRow::Nameless { raw }),
        any::<(u32, u64, u32)>().prop_map(|(iod, first, count)| CheckRow::Spare { iod, first, count }),
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
    (option::of(any::<u128>()), role(), option::of(any::<u128>()), option::of(start()), sender, caller()).prop_map(
        |(cluster, role, store, seen, sender, caller)| Hello {
            cluster: cluster.map(ClusterId),
            role,
            store: store.map(StoreId),
            seen,
            sender,
            caller,
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
        (datafile(), view_part(), option::of(joined())).prop_map(|(datafile, part, joined)| IodRequest::WriteView {
            datafile,
            part,
            joined
        }),
        (datafile(), view_part(), option::of(joined())).prop_map(|(datafile, part, joined)| IodRequest::ReadView {
            datafile,
            part,
            joined
        }),
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
        (datafile(), any::<(u64, u64, u64, bool, bool)>()).prop_map(
            |(datafile, (offset, len, number, exclusive, held))| IodRequest::Lock {
                datafile,
                range: Region::new(offset, len),
                exclusive,
                number,
                held
            }
        ),
        (datafile(), any::<u64>()).prop_map(|(datafile, number)| IodRequest::Unlock { datafile, number }),
        vec(datafile(), 0..4).prop_map(|datafiles| IodRequest::Getsizes { datafiles }),
        (datafile(), any::<(u64, u64)>(), 0..3u8, any::<bool>()).prop_map(|(datafile, (offset, len), how, grows)| {
            let how = match how {
                0 => Allocation::Reserve { grows },
                1 => Allocation::Zeros { grows },
                _ => Allocation::Hole,
            };
            IodRequest::Allocate { datafile, range: Region::new(offset, len), how }
        }),
        (datafile(), any::<u64>(), prop_oneof![Just(Sought::Data), Just(Sought::Hole)])
            .prop_map(|(datafile, offset, what)| IodRequest::Seek { datafile, offset, what }),
        (vec(datafile(), 0..4), any::<u64>()).prop_map(|(datafiles, offset)| IodRequest::Scrub { datafiles, offset }),
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

fn view_part() -> impl Strategy<Value = ViewPart> {
    (1..40u64, 1..40u64, 0..40u64, (1..5u32, 0..5u32), 0..1000u64).prop_map(
        |(count, len, gap, (servers, index), at)| {
            let block = Datatype::bytes(len).expect("a few bytes");
            let filetype = Datatype::hvector(count, 1, (len + gap) as i64, &block).expect("a short type");
            let view = FileView::new(at, Datatype::BYTE, filetype).expect("ascending");
            let distribution = Distribution::simple_stripe(4096, servers).expect("a valid one");
            ViewPart::new(view, distribution, index % servers, (at, 900), len).expect("a valid part")
        },
    )
}

fn joined() -> impl Strategy<Value = Joined> {
    (any::<(u64, u64)>(), 1..9u32, (0..MAX_OFFSET - MAX_JOINED, 1..=MAX_JOINED)).prop_map(
        |(operation, requests, (offset, len))| {
            Joined::new(operation, requests, Region::new(offset, len)).expect("a valid unit")
        },
    )
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

pub(super) fn request() -> impl Strategy<Value = Request> {
    let body = prop_oneof![
        8 => manager_request().prop_map(RequestBody::Manager),
        8 => iod_request().prop_map(RequestBody::Iod),
        1 => hello().prop_map(RequestBody::Hello),
    ];
    let caller = option::of(caller());
    (any::<(u128, u64, u64, u32)>(), caller, body).prop_map(|((client, seq, unanswered, timeout_ms), caller, body)| {
        let ticket = timeout_ms.is_multiple_of(2).then(|| tickets(seq)[0].1);
        Request { id: RequestId { client, seq }, unanswered, timeout_ms, caller, ticket, body }
    })
}

fn caller() -> impl Strategy<Value = Caller> {
    let groups = vec(any::<u32>(), 0..4);
    (any::<(u32, u32)>(), groups).prop_map(|((uid, gid), groups)| Caller { uid, gid, groups })
}

fn a_layout() -> Layout {
    let datafiles = vec![(0, DatafileHandle(3)), (1, DatafileHandle(4))];
    Layout::new(Distribution::simple_stripe(4096, 2).unwrap(), datafiles).unwrap()
}

fn grant(number: u64) -> Grant {
    TicketKey::of(&[7; 32], number).grant(number, Access::READ, &a_layout(), &HolderDigest::of("x"))
}

fn tickets(number: u64) -> Vec<(DatafileHandle, Ticket)> {
    grant(number).tickets(&a_layout())
}

fn access() -> impl Strategy<Value = Access> {
    (0u8..8).prop_map(|bits| Access::try_from(bits).unwrap())
}

fn extent() -> impl Strategy<Value = Extent> {
    any::<(u64, u64)>().prop_map(|(size, written_ns)| Extent { size, written_ns })
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        Just(Content::Shared),
        any::<u64>().prop_map(Content::Recorded),
        any::<(u128, u64)>().prop_map(|(client, starts)| Content::Written { client, starts }),
        (option::of(extent()), any::<u64>()).prop_map(|(last, starts)| Content::Closed { last, starts }),
    ]
}

fn entry() -> impl Strategy<Value = Entry> {
    let layout =
        (4096..1u64 << 20, vec(any::<(u32, u64)>(), 1..6), any::<bool>()).prop_map(|(strip, datafiles, small)| {
            let distribution = Distribution::simple_stripe(strip, datafiles.len() as u32).unwrap();
            let datafiles: Vec<_> = datafiles.into_iter().map(|(iod, raw)| (iod, DatafileHandle(raw))).collect();
            if small {
                Layout::small(distribution, datafiles[0])
            } else {
                Layout::new(distribution, datafiles).unwrap()
            }
        });
    let target = option::of(text());
    (handle(), any::<(u32, u32, u32, u64, u64)>(), option::of(layout), content(), target).prop_map(
        |(handle, (mode, uid, gid, size, time), layout, content, target)| Entry {
            handle,
            attr: Attr {
                kind: handle.kind(),
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
            target,
            content,
        },
    )
}

pub(super) fn identity() -> impl Strategy<Value = Identity> {
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

fn failed() -> impl Strategy<Value = FsError> {
    (".{0,40}", vec(any::<(u32, u32)>(), 0..5)).prop_map(|(detail, ranges)| {
        FsError::new(ErrorCode::NoSpace, detail)
            .with_ranges(ranges.into_iter().map(|(offset, len)| Region::new(offset.into(), len.into())))
    })
}

fn failure() -> impl Strategy<Value = Option<FsError>> {
    option::of(".{0,40}".prop_map(|detail| FsError::new(ErrorCode::NoSpace, detail)))
}

pub(super) fn reply() -> impl Strategy<Value = Reply> {
    let manager = prop_oneof![
        Just(ManagerReply::Done),
        entry().prop_map(ManagerReply::Entry),
        (entry(), access(), option::of(any::<u64>().prop_map(grant)))
            .prop_map(|(entry, access, grant)| ManagerReply::Opened { entry, access, grant }),
        text().prop_map(ManagerReply::Xattr),
        vec(text().prop_map(XattrName), 0..5).prop_map(ManagerReply::Xattrs),
        (vec((text(), entry()), 0..3), any::<bool>()).prop_map(|(entries, more)| ManagerReply::Listing {
            entries: entries.into_iter().map(|(name, entry)| ListEntry { name, entry }).collect(),
            more
        }),
        (vec((text(), handle()), 0..5), any::<bool>()).prop_map(|(entries, more)| ManagerReply::Entries {
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
        (vec(check_row(), 0..4), any::<bool>()).prop_map(|(rows, more)| ManagerReply::Check { rows, more }),
        (any::<u128>(), start(), option::of(start()), option::of(any::<u64>())).prop_map(
            |(cluster, start, recorded, floor)| {
                let news = |floor| TicketNews {
                    key: TicketKey::of(&[7; 32], floor),
                    earlier: (floor % 2 == 0).then(|| TicketKey::of(&[8; 32], floor)),
                    floor,
                    revoked: vec![Name("pvfs:user/anna".to_owned())],
                };
                let tickets = floor.map(|floor| Box::new(news(floor)));
                ManagerReply::Registered { cluster: ClusterId(cluster), start, recorded, tickets }
            },
        ),
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
        any::<u32>().prop_map(|ahead| IodReply::Locked { ahead }),
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
        vec(option::of(extent()), 0..5).prop_map(IodReply::Sizes),
        (option::of(any::<u64>()), any::<u64>()).prop_map(|(at, size)| IodReply::Sought { at, size }),
        (any::<(u32, u64, u64, u32)>(), vec((any::<u64>().prop_map(DatafileHandle), failed()), 0..3))
            .prop_map(|((done, next, read, summed), damage)| IodReply::Scrubbed { done, next, read, summed, damage }),
    ];
    prop_oneof![
        identity().prop_map(|identity| Reply { result: Ok(identity.into()) }),
        manager.prop_map(|reply| Reply { result: Ok(reply.into()) }),
        iod.prop_map(|reply| Reply { result: Ok(reply.into()) }),
        failed().prop_map(|error| Reply { result: Err(error) }),
    ]
}
