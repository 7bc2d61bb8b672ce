//! Bodies of the fuzz targets of this crate: what a server reads of a client, and the other way
//! round.
//!
//! The programs in `fuzz/` call them with the fuzzer's bytes, the tests below with the committed
//! corpora (`fuzz/corpus`). A body panics if a decoder breaks one of its rules.

use crate::codec::{VERSION, decode_reply, decode_request, encode_reply, encode_request};
use crate::limits::{
    MAX_BACKUP_PAGE, MAX_CACHED_FILES, MAX_DATAFILES, MAX_DISPLACEMENT, MAX_ENTRIES, MAX_ERROR_RANGES, MAX_JOINED,
    MAX_OFFSET, MAX_PATH, MAX_REGIONS, MAX_SERVERS,
};
use crate::{
    Datatype, FileView, IodReply, IodRequest, ManagerReply, ManagerRequest, Place, Region, Regions, ReplyBody,
    RequestBody, ViewPart,
};

fn check_regions(regions: &Regions) {
    assert!(regions.len() <= MAX_REGIONS);
    let lens = regions.iter().map(|region| {
        assert!(region.offset.checked_add(region.len).is_some_and(|end| end <= MAX_OFFSET), "{region:?}");
        region.len
    });
    assert_eq!(lens.sum::<u64>(), regions.total());
}

/// The first ranges of a part are valid, and it ends or goes on.
fn check_part(part: &ViewPart) {
    let (mut cursor, mut ranges) = (part.pieces(), [Region::new(0, 0); 16]);
    for _ in 0..4 {
        let Ok(found) = cursor.next_batch(&mut ranges, u64::MAX) else { return };
        assert!(ranges[..found].iter().all(|range| !range.is_empty() && range.end().is_some()), "{ranges:?}");
    }
}

fn check_place(place: &Place) {
    assert!(place.path.len() <= MAX_PATH);
}

/// Returns a message with the version that is spoken here. Otherwise the next version would make
/// the corpora worthless.
fn in_this_version(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.iter_mut().take(1).for_each(|version| *version = VERSION);
    bytes
}

/// A request.
///
/// What decodes respects the limits, and comes back from its encoding.
pub fn request(bytes: &[u8]) {
    let Ok(request) = decode_request(&in_this_version(bytes)) else { return };
    assert_eq!(decode_request(&encode_request(&request)).expect("its own encoding"), request);
    match &request.body {
        RequestBody::Iod(IodRequest::Write { regions, .. } | IodRequest::Read { regions, .. }) => {
            check_regions(regions)
        }
        RequestBody::Iod(IodRequest::WriteView { part, joined, .. } | IodRequest::ReadView { part, joined, .. }) => {
            check_part(part);
            assert!(joined.is_none_or(|joined| (1..=MAX_JOINED).contains(&joined.unit().len)));
        }
        RequestBody::Iod(
            IodRequest::Remove { datafiles }
            | IodRequest::Sync { datafiles }
            | IodRequest::CancelTruncates { except: datafiles, .. },
        ) => assert!(datafiles.len() <= MAX_DATAFILES),
        RequestBody::Iod(IodRequest::CommitTruncates { datafiles, .. }) => assert!(datafiles.len() <= MAX_DATAFILES),
        RequestBody::Manager(ManagerRequest::Create { place, avoid, .. }) => {
            check_place(place);
            assert!(avoid.len() <= MAX_SERVERS);
        }
        RequestBody::Manager(ManagerRequest::Grow { avoid, .. }) => assert!(avoid.len() <= MAX_SERVERS),
        RequestBody::Manager(ManagerRequest::Rename { from, to, .. }) => {
            check_place(from);
            check_place(to);
        }
        RequestBody::Manager(
            ManagerRequest::Lookup { place, .. }
            | ManagerRequest::Remove { place, .. }
            | ManagerRequest::Publish { place, .. },
        ) => check_place(place),
        _ => {}
    }
}

/// A reply.
///
/// What decodes respects the limits, and comes back from its encoding. An identity that is cut to
/// fit some room fits it.
pub fn reply(bytes: &[u8]) {
    let Ok(reply) = decode_reply(&in_this_version(bytes)) else { return };
    assert_eq!(decode_reply(&encode_reply(&reply)).expect("its own encoding"), reply);
    match &reply.result {
        Ok(ReplyBody::Manager(ManagerReply::Entries { entries, .. })) => assert!(entries.len() <= MAX_ENTRIES),
        Ok(ReplyBody::Manager(ManagerReply::Cluster(info))) => assert!(info.iods.len() <= MAX_SERVERS),
        Ok(ReplyBody::Manager(ManagerReply::Backup { rows, .. })) => assert!(rows.len() <= MAX_BACKUP_PAGE),
        Ok(ReplyBody::Manager(ManagerReply::Entry(entry))) => {
            if let Some(layout) = &entry.layout {
                let servers = layout.distribution().servers();
                assert!((1..=MAX_SERVERS).contains(&servers));
                assert_eq!(layout.datafiles().len(), servers);
            }
        }
        Ok(ReplyBody::Iod(IodReply::Datafiles { handles, .. })) => assert!(handles.len() <= MAX_DATAFILES),
        Ok(ReplyBody::Manager(ManagerReply::Truncation(pending))) => assert!(pending.len() <= MAX_SERVERS),
        Ok(ReplyBody::Iod(IodReply::Committed(results))) => assert!(results.len() <= MAX_DATAFILES),
        Ok(ReplyBody::Iod(IodReply::CacheState(state))) => assert!(state.files.len() <= MAX_CACHED_FILES),
        Ok(ReplyBody::Identity(identity)) => {
            for room in [0, 64, bytes.len() / 2, bytes.len()] {
                assert!(identity.is_same(&identity.within(room)));
            }
        }
        Err(error) => assert!(error.ranges.len() <= MAX_ERROR_RANGES),
        _ => {}
    }
}

/// A datatype.
///
/// What decodes comes back from its encoding. A byte of the stream has the same place for one who
/// walks to it and for one who goes there at once, in a view as well.
pub fn datatype(bytes: &[u8]) {
    let Ok((datatype, _)) = postcard::take_from_bytes::<Datatype>(bytes) else { return };
    let again = postcard::to_extend(&datatype, Vec::new()).expect("a vector takes all that is written");
    assert_eq!(postcard::from_bytes::<Datatype>(&again).expect("its own encoding"), datatype);
    assert!(datatype.pieces() <= datatype.size() && datatype.size() <= MAX_DISPLACEMENT as u64);
    // A view whose type is cut by the end of all offsets.
    if let Ok(view) = FileView::new(MAX_OFFSET - datatype.extent() / 2, Datatype::BYTE, datatype.clone()) {
        let len = view.size_below(u64::MAX);
        assert_eq!(view.offset_of(len), None);
        let last = len.saturating_sub(9);
        let mut cursor = view.cursor(last, len - last).expect("bytes that have offsets");
        while cursor.next_batch(&mut [Region::new(0, 0); 2], 5) > 0 {}
        assert_eq!(cursor.position(), len);
    }
    let view = FileView::new(0, Datatype::BYTE, datatype.clone());
    for count in [1, 3] {
        let Ok(mut cursor) = datatype.cursor(count, datatype.true_lb().unsigned_abs()) else { return };
        for start in [0, cursor.remaining() / 2, cursor.remaining().saturating_sub(9)] {
            cursor.seek(start);
            let (mut out, mut there) = ([Region::new(0, 0); 8], cursor.clone());
            let len = cursor.next_batch(&mut out, u64::MAX);
            let mut position = start;
            for piece in &out[..len] {
                let mut first = [Region::new(0, 0)];
                there.seek(position);
                assert_eq!((there.next_batch(&mut first, 1), first[0]), (1, Region::new(piece.offset, 1)));
                if let Ok(view) = &view {
                    let offset = view.offset_of(position).expect("an offset of a cursor");
                    assert_eq!(view.size_below(offset), position);
                    assert_eq!(view.size_below(offset + piece.len), position + piece.len);
                }
                position += piece.len;
            }
            assert_eq!(cursor.position(), position);
        }
    }
}

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn corpora_are_replayed() {
        replay("request", super::request);
        replay("reply", super::reply);
        replay("datatype", super::datatype);
    }
}
