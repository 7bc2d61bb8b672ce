//! Four members of a group write and read arrays in files together: datatypes, views, collective
//! operations. Here the members are threads, as a rule processes. The servers are threads too.
//!
//! - `/matrix`: each member writes a tile, from memory in which the tile has a margin.
//! - `/volume`: each member reads a pencil, all of the first dimension and a part of the others.
//! - `/particles`: structs, of which the members write one field after the other.
//!
//! All is read back and compared. Prints which way each operation went, and the estimates for all.
//!
//! ```text
//! cargo run -p examples --bin arrays
//! ```

use std::{mem::offset_of, thread};

use bmi::config::HandleConfig;
use bmi::group::{GroupOptions, Groups};
use bmi::{Addr, Config, Memory, OpenOptions, Scheme, threading::AnyThread};
use fs_client::{Client, ClientOptions, CollectiveOptions, CreateOptions, Datatype, Done, FileView, Order};
use fs_client::{SharedFile, TypedMemory};
use fs_server::embedded::{ClusterOptions, EmbeddedCluster};

type Group = bmi::group::Group<AnyThread>;
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The members are a square of two by two.
const SIZE: u32 = 4;
/// Elements of a tile and of a pencil in each dimension, and structs of each member.
const TILE: [u64; 2] = [150, 200];
const PENCIL: [u64; 3] = [60, 20, 25];
const PARTICLES: u64 = 5000;

#[repr(C)]
struct Particle {
    id: u32,
    mass: f64,
}

/// Returns the row and the column of this member in the square.
fn place(group: &Group) -> [u64; 2] {
    [u64::from(group.rank() / 2), u64::from(group.rank() % 2)]
}

/// Returns memory with the bytes of these elements.
fn memory_of<const LEN: usize>(elements: impl Iterator<Item = [u8; LEN]>) -> Memory {
    Memory::from(elements.flatten().collect::<Vec<u8>>())
}

fn print(group: &Group, what: &str, Done { len, choice, .. }: &Done) {
    if group.rank() == 0 {
        println!("{what}: {len} bytes of each member; {choice}");
    }
}

async fn write_tile(file: &SharedFile, group: &Group) -> Result<(), Failure> {
    let ([row, column], [rows, columns]) = (place(group), TILE);
    // Where the tile is in the file, and where it is in memory.
    let tile =
        |sizes: [u64; 2], starts: [u64; 2]| Datatype::subarray(&sizes, &TILE, &starts, Order::C, &Datatype::DOUBLE);
    let part = tile([2 * rows, 2 * columns], [row * rows, column * columns])?;
    let view = FileView::new(0, Datatype::DOUBLE, part)?;
    let inner = tile([rows + 2, columns + 2], [1, 1])?;
    // The elements of the matrix have their numbers as values, and those of the margin have none.
    let value = |r, c| match (1..=rows).contains(&r) && (1..=columns).contains(&c) {
        true => ((row * rows + r - 1) * 2 * columns + column * columns + c - 1) as f64,
        false => f64::NAN,
    };
    let memory = memory_of((0..rows + 2).flat_map(|r| (0..columns + 2).map(move |c| value(r, c).to_ne_bytes())));
    let typed = TypedMemory::new(&memory, &inner, 1);
    let done = file.write_all(group, &view, 0, typed, CollectiveOptions::default()).await?;
    print(group, "tiles of a matrix, written", &done);
    let numbers = memory_of((0..4 * rows * columns).map(|number| (number as f64).to_ne_bytes()));
    let whole = Memory::zeroed(numbers.len())?;
    file.read_at(0, &whole).await?;
    assert!(whole.to_vec() == numbers.to_vec(), "the matrix has all tiles and no margin");
    Ok(())
}

async fn read_pencil(file: &SharedFile, group: &Group) -> Result<(), Failure> {
    let ([row, column], [x, y, z]) = (place(group), PENCIL);
    if group.rank() == 0 {
        file.write_at(0, memory_of((0..4 * x * y * z).map(u64::to_ne_bytes))).await?;
    }
    group.barrier().await?;
    let (sizes, starts) = ([x, 2 * y, 2 * z], [0, row * y, column * z]);
    let part = Datatype::subarray(&sizes, &PENCIL, &starts, Order::C, &Datatype::INT64)?;
    let view = FileView::new(0, Datatype::INT64, part)?;
    let pencil = Memory::zeroed((x * y * z * 8) as usize)?;
    let done = file.read_all(group, &view, 0, (&pencil).into(), CollectiveOptions::default()).await?;
    print(group, "pencils of a volume, read", &done);
    let lines = (0..x).flat_map(|plane| (row * y..(row + 1) * y).map(move |line| plane * 2 * y + line));
    let numbers = lines.flat_map(|line| (column * z..(column + 1) * z).map(move |at| line * 2 * z + at));
    assert!(pencil.to_vec() == memory_of(numbers.map(u64::to_ne_bytes)).to_vec(), "the pencil has its lines");
    Ok(())
}

async fn write_fields(file: &SharedFile, group: &Group) -> Result<(), Failure> {
    // In memory, each field has an array of its own. Each member has a range of the structs.
    let first = u64::from(group.rank()) * PARTICLES;
    let (ids, mass) = (first as u32..(first + PARTICLES) as u32, |id| f64::from(id) / 2.0);
    let masses = memory_of(ids.clone().map(|id| mass(id).to_ne_bytes()));
    let ids = memory_of(ids.map(u32::to_ne_bytes));
    for (name, place, field, values) in [
        ("id", offset_of!(Particle, id), Datatype::INT32, ids),
        ("mass", offset_of!(Particle, mass), Datatype::DOUBLE, masses),
    ] {
        // A view of this field of all structs. So an offset in it is the number of a struct.
        let every = Datatype::resized(0, size_of::<Particle>() as i64, &field)?;
        let view = FileView::new(place as u64, field, every)?;
        let done = file.write_all(group, &view, first, (&values).into(), CollectiveOptions::default()).await?;
        print(group, &format!("a field of structs, {name}, written"), &done);
    }
    let whole = Memory::zeroed(PARTICLES as usize * SIZE as usize * size_of::<Particle>())?;
    file.read_at(0, &whole).await?;
    for (id, bytes) in (0u32..).zip(whole.to_vec().chunks(size_of::<Particle>())) {
        // The padding was not written.
        assert_eq!(bytes, [&id.to_ne_bytes()[..], &[0; 4], &mass(id).to_ne_bytes()].concat(), "particle {id}");
    }
    Ok(())
}

/// Runs a member. Its files and its group share an endpoint.
fn run(rank: u32, meeting: &Addr, manager: &Addr) -> Result<(), Failure> {
    let config = Config::named("member");
    let handle = bmi::handle(manager.scheme(), &OpenOptions::default(), config, 1, HandleConfig::default())?;
    let groups = Groups::of(&handle)?;
    handle.clone().block_on(async {
        let client = Client::connect_through(handle, manager.clone(), ClientOptions::new(u128::from(rank) + 1)).await?;
        let group = groups.meet(meeting, rank, SIZE, GroupOptions::default()).await?;
        // The first member that comes creates a file. The others open it.
        let options = CreateOptions { strip_size: 16 << 10, exclusive: false, ..CreateOptions::default() };
        write_tile(&client.create(&"/matrix".parse()?, options).await?, &group).await?;
        read_pencil(&client.create(&"/volume".parse()?, options).await?, &group).await?;
        write_fields(&client.create(&"/particles".parse()?, options).await?, &group).await?;
        Ok(group.leave().await?)
    })
}

fn main() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let options = ClusterOptions { over: vec![Scheme::Shm], ..ClusterOptions::with_iods(2) };
    let cluster = EmbeddedCluster::start(folder.path().join("data"), options)?;
    let (meeting, manager) = (&Addr::shm(folder.path().join("group/place").to_string_lossy()), cluster.manager());
    thread::scope(|scope| {
        let members: Vec<_> = (0..SIZE).map(|rank| scope.spawn(move || run(rank, meeting, manager))).collect();
        members.into_iter().try_for_each(|member| member.join().expect("a member"))
    })?;
    Ok(cluster.stop()?)
}
