//! Types and views: what is read and written through them is what a walk over all bytes says. The
//! bodies run over any transport.

use bmi::Memory;
use bmi::threading::Threading;
use bmi_report::stats::Random;
use fs_client::{
    Client, Datatype, Distribute, ErrorCode, File, FileView, FsPath, GridDimension, Order, Region, TypedMemory,
};

use super::bodies::{path, pattern, striped};

/// Returns where each byte of `len` bytes of a cursor is.
pub fn walk(mut cursor: fs_proto::Cursor, len: u64) -> Vec<usize> {
    let mut places = Vec::new();
    let mut out = [Region::new(0, 0); 7];
    while (places.len() as u64) < len {
        let found = cursor.next_batch(&mut out, len - places.len() as u64);
        assert!(found > 0);
        places.extend(out[..found].iter().flat_map(|piece| piece.offset as usize..(piece.offset + piece.len) as usize));
    }
    places
}

pub async fn bytes_of<S: Threading>(file: &File<S>) -> Vec<u8> {
    let memory = Memory::zeroed(file.size().await.unwrap() as usize).unwrap();
    file.read_at(0, &memory).await.unwrap();
    memory.to_vec()
}

/// Writes typed memory through a view at `offset` and reads it back, and compares file and memory
/// with a walk over all bytes.
async fn check<S: Threading>(
    client: &Client<S>,
    at: &FsPath,
    (view, offset): (&FileView, u64),
    (datatype, count): (&Datatype, u64),
) {
    let file = client.open(at).await.unwrap();
    let base = datatype.true_lb().min(0).unsigned_abs();
    let (_, high) = datatype.true_bounds(count).unwrap();
    let source = Memory::from(pattern((base as i64 + high + 9) as usize, offset + count));
    let typed = |memory: &Memory| TypedMemory::new(memory, datatype, count).at(base);
    let total = datatype.size() * count;
    let in_memory = walk(datatype.cursor(count, base).unwrap(), total);
    let first = offset * view.etype().size();
    let in_file = walk(view.cursor(first, total).unwrap(), total);

    let mut expected = bytes_of(&file).await;
    file.write_view(view, offset, typed(&source)).await.unwrap();
    expected.resize(expected.len().max(in_file.last().map_or(0, |last| last + 1)), 0);
    let bytes = source.to_vec();
    in_file.iter().zip(&in_memory).for_each(|(to, from)| expected[*to] = bytes[*from]);
    assert!(bytes_of(&file).await == expected, "written through {view:?}");

    if datatype.may_overlap() {
        let error = file.read_view(view, offset, typed(&source)).await.unwrap_err();
        return assert_eq!(error.code(), ErrorCode::Invalid);
    }
    let back = Memory::from(vec![0xEE; source.len()]);
    assert_eq!(file.read_view(view, offset, typed(&back)).await.unwrap(), total);
    let mut expected_back = vec![0xEE; source.len()];
    in_memory.iter().zip(&in_file).for_each(|(to, from)| expected_back[*to] = expected[*from]);
    assert!(back.to_vec() == expected_back, "read through {view:?}");
}

/// Types of all shapes, over `servers` servers in short strips.
pub async fn everything<S: Threading>(client: &Client<S>, servers: u32) {
    let at = path("/typed");
    let file = client.create(&at, striped(4096, servers)).await.unwrap();
    file.write_at(0, Memory::from(pattern(150_000, 3))).await.unwrap();

    let bytes = |len| Datatype::bytes(len).unwrap();
    let view = |displacement, etype: &Datatype, filetype: Datatype| {
        FileView::new(displacement, etype.clone(), filetype).unwrap()
    };
    // The first thing that anybody tries: a column of blocks.
    let column = Datatype::vector(100, 1, 8, &Datatype::INT32).unwrap();
    let whole = FileView::default();
    check(client, &at, (&view(0, &Datatype::INT32, column.clone()), 0), (&bytes(400), 1)).await;
    check(client, &at, (&whole, 1234), (&column, 1)).await;
    // Small pieces on both sides, in many windows of batches, from the middle of an instance on.
    let scattered = Datatype::resized(0, 12, &bytes(4)).unwrap();
    check(client, &at, (&view(7, &Datatype::INT32, scattered.clone()), 33), (&scattered, 30_000)).await;
    // Pieces longer than strips, and some that are moved from where they are.
    let long = Datatype::resized(0, 20_000, &bytes(9_000)).unwrap();
    check(client, &at, (&view(100, &Datatype::BYTE, long.clone()), 4_500), (&bytes(45_000), 1)).await;
    check(
        client,
        &at,
        (&view(0, &Datatype::BYTE, long), 0),
        (&Datatype::vector(9, 1_000, 1_500, &bytes(1)).unwrap(), 4),
    )
    .await;
    // Tiles of a matrix, and blocks of a grid of processes.
    let tile = Datatype::subarray(&[60, 70], &[20, 30], &[10, 40], Order::Fortran, &Datatype::DOUBLE).unwrap();
    check(client, &at, (&view(64, &Datatype::DOUBLE, tile.clone()), 5), (&tile, 2)).await;
    let dimension = |elements, distribute, processes| GridDimension { elements, distribute, processes };
    let grid = [dimension(33, Distribute::Cyclic(Some(2)), 4), dimension(50, Distribute::Block(None), 2)];
    let block = Datatype::darray(3, &grid, Order::C, &Datatype::INT64).unwrap();
    check(client, &at, (&view(8, &Datatype::INT64, block.clone()), 0), (&bytes(8), block.size() / 8)).await;
    // A type that goes backwards in memory, and one with bytes in front of its beginning.
    let back = Datatype::hvector(50, 1, -24, &Datatype::INT64).unwrap();
    check(
        client,
        &at,
        (&view(0, &Datatype::INT64, Datatype::vector(4, 2, 5, &Datatype::INT64).unwrap()), 3),
        (&back, 1),
    )
    .await;
    // An array of structures, field by field.
    let pair = Datatype::structure(&[(1, 0, &Datatype::INT16), (1, 8, &Datatype::DOUBLE)]).unwrap();
    check(client, &at, (&whole, 90_000), (&pair, 700)).await;
    refusals(&file).await;
}

async fn refusals<S: Threading>(file: &File<S>) {
    let size = file.size().await.unwrap();
    let stride = Datatype::resized(0, 100, &Datatype::bytes(10).unwrap()).unwrap();
    let view = FileView::new(0, Datatype::BYTE, stride).unwrap();
    // Beyond the end: the bytes before it are counted, the others are zeros.
    let memory = Memory::from(vec![9; 40]);
    let position = view.size_below(size) - 15;
    assert_eq!(file.read_view(&view, position, &memory).await.unwrap(), 15);
    assert!(memory.to_vec()[15..].iter().all(|byte| *byte == 0));
    assert_eq!(file.read_view(&view, view.size_below(size) + 1_000_000, &memory).await.unwrap(), 0);
    assert_eq!(file.read_view(&view, 0, &Memory::zeroed(0).unwrap()).await.unwrap(), 0);
    // A thousand million pieces, of which some are asked for.
    let many = Datatype::vector(1_000_000_000, 1, 50, &Datatype::BYTE).unwrap();
    let many = FileView::new(0, Datatype::BYTE, many).unwrap();
    assert_eq!(file.read_view(&many, 5, &memory).await.unwrap(), 40);
    let long = TypedMemory::new(&memory, &Datatype::INT32, 11);
    let error = file.write_view(&many, 0, long).await.unwrap_err();
    assert_eq!(
        (error.code(), error.to_string().contains("a memory of 40 bytes")),
        (ErrorCode::Invalid, true),
        "{error}"
    );
    let error = file.read_view(&many, u64::MAX, &memory).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::TooLarge);
    assert_eq!(file.size().await.unwrap(), size);
}

/// Views of lists of any shape, also of so many entries that no request has room for them.
pub async fn lists<S: Threading>(client: &Client<S>, servers: u32, rounds: u64) {
    let at = path("/lists");
    client.create(&at, striped(4096, servers)).await.unwrap();
    for seed in 0..rounds {
        let mut random = Random::new(seed);
        let mut draw = |below: u64| random.number() % below;
        let entries = if seed == 0 { 12_000 } else { 1 + draw(60) };
        let (mut end, mut blocks) = (0, Vec::new());
        for _ in 0..entries {
            end += draw(300) as i64;
            let len = 1 + draw(40);
            blocks.push((len, end));
            end += len as i64;
        }
        let filetype = Datatype::hindexed(&blocks, &Datatype::BYTE).unwrap();
        let view = FileView::new(draw(10_000), Datatype::BYTE, filetype.clone()).unwrap();
        let in_memory = Datatype::vector(1 + draw(9), 1 + draw(9), 10, &Datatype::BYTE).unwrap();
        let count = filetype.size() * 2 / in_memory.size();
        check(client, &at, (&view, draw(500)), (&in_memory, count)).await;
    }
}

/// Any thread may use typed accesses.
fn _are_send(file: &fs_client::SharedFile, view: &FileView, memory: &Memory) -> (impl Send, impl Send) {
    (file.read_view(view, 0, memory), file.write_view(view, 0, memory))
}
