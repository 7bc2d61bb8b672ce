//! The script of the client, what it finds, and what it may find.

use std::ops::Range;

use fs_client::{Error, File};
use fs_proto::Distribution;

use super::*;

/// An operation of the script.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Write(Vec<Range<u64>>),
    Read(Range<u64>),
    Sync,
    Cut(u64),
    Pause(Duration),
}

/// Returns the script.
pub(super) fn script() -> Vec<Op> {
    let pieces = |len: u64, step: u64| (0..len / step).map(move |at| at * step..(at + 1) * step);
    // Many short pieces of the same units, and few of distant ones.
    let near: Vec<Range<u64>> = (0..14).map(|at| 20_000 + at * 900..20_300 + at * 900).collect();
    let far: Vec<Range<u64>> = (0..8).map(|at| 1_000 + at * 37_000..3_500 + at * 37_000).collect();
    let mut script: Vec<Op> = pieces(LONGEST, 64 << 10).map(|range| Op::Write(vec![range])).collect();
    script.extend([Op::Sync, Op::Write(far.clone())]);
    script.extend(pieces(LONGEST, 40 << 10).map(Op::Read));
    script.extend([Op::Write(near.clone()), Op::Pause(3 * AGE), Op::Read(10_000..60_000), Op::Write(near)]);
    script.extend([Op::Sync, Op::Write(far), Op::Cut(150_001), Op::Read(100_000..200_000)]);
    script.extend([Op::Write(vec![200_000..260_000, 5..5_000]), Op::Read(0..LONGEST), Op::Sync]);
    script.extend([Op::Write(std::iter::once(70_000..130_000).collect()), Op::Pause(3 * AGE), Op::Read(0..LONGEST)]);
    script
}

/// The values that each byte of the file may have: a bit for each.
pub(super) struct Model(Vec<u32>);

impl Model {
    pub(super) fn new() -> Model {
        Model(vec![1; LONGEST as usize])
    }

    /// The bytes of a range were written; `sure`: and it is known that they were.
    fn set(&mut self, range: Range<u64>, value: u8, sure: bool) {
        for may in &mut self.0[range.start as usize..range.end as usize] {
            *may = 1 << value | if sure { 0 } else { *may };
        }
    }

    fn check(&self, what: &str, range: Range<u64>, bytes: &[u8]) {
        for (at, byte) in range.zip(bytes) {
            let may = self.0[at as usize];
            assert!(
                may.checked_shr((*byte).into()).is_some_and(|may| may & 1 == 1),
                "{what}: byte {at} is {byte}, not one of {may:#b}"
            );
        }
    }
}

/// Returns what is left of ranges without others.
fn without(ranges: &[Range<u64>], others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = ranges.to_vec();
    for other in others {
        let parts = |own: Range<u64>| [own.start..own.end.min(other.start), own.start.max(other.end)..own.end];
        left = left.into_iter().flat_map(parts).filter(|range| !range.is_empty()).collect();
    }
    left
}

/// A run of the script.
pub(super) struct Run {
    pub(super) disks: Rc<Disks>,
    pub(super) machines: Vec<Rc<Machine>>,
    pub(super) file: File,
    pub(super) datafiles: Vec<(u32, DatafileHandle)>,
    pub(super) model: Model,
    pub(super) writes: u8,
    pub(super) errors: u64,
}

impl Run {
    /// Checks an error of an operation, and returns the ranges that it names. `ranges` are those of
    /// the operation; there are none if it has none.
    fn judge(&mut self, error: &Error, ranges: &[Range<u64>]) -> Vec<Range<u64>> {
        self.errors += 1;
        let mut named = Vec::new();
        for failure in error.failures() {
            let server = failure.server.as_ref().unwrap_or_else(|| panic!("{error} names no server"));
            let of_disk = matches!(failure.code, ErrorCode::Io | ErrorCode::NoSpace);
            let waits = matches!(failure.code, ErrorCode::Unreachable | ErrorCode::Timeout | ErrorCode::Busy);
            assert!(of_disk || waits || failure.code == ErrorCode::Unfinished, "{error}");
            if let Some(index) = server.iod
                && !matches!(self.disks.fault, Fault::Room(_))
            {
                assert!(self.disks.steps().failed.contains(&index), "{error}: the disk of iod {index} works");
            }
            if !ranges.is_empty() {
                assert!(!failure.ranges.is_empty(), "{error} names no ranges");
                // If there are many, the last one covers all that follow.
                let all = ranges.iter().map(|range| range.start).min().unwrap()
                    ..ranges.iter().map(|range| range.end).max().unwrap();
                assert_eq!(without(&failure.ranges, &[all]), [], "{error}: not of this operation, {ranges:?}");
            }
            named.extend(failure.ranges.iter().cloned());
        }
        named
    }

    pub(super) async fn step(&mut self, op: &Op) {
        match op {
            Op::Write(ranges) => self.write(ranges).await,
            Op::Read(range) => self.read(range.clone()).await,
            Op::Sync => drop(self.sync().await),
            Op::Cut(size) => self.cut(*size).await,
            Op::Pause(time) => self.machines[0].node.sleep(*time).await,
        }
    }

    async fn write(&mut self, ranges: &[Range<u64>]) {
        self.writes += 1;
        let regions: Vec<Region> =
            ranges.iter().map(|range| Region::new(range.start, range.end - range.start)).collect();
        let len: u64 = regions.iter().map(|region| region.len).sum();
        let result = self.file.write_list(&regions, &Memory::from(vec![self.writes; len as usize])).await;
        let failed = result.err().map_or_else(Vec::new, |error| self.judge(&error, ranges));
        let written = without(ranges, &failed);
        for range in without(ranges, &written) {
            self.model.set(range, self.writes, false);
        }
        for range in written {
            self.model.set(range, self.writes, true);
        }
    }

    async fn read(&mut self, range: Range<u64>) {
        let memory = Memory::from(vec![0xee; (range.end - range.start) as usize]);
        let result = self.file.read_at(range.start, &memory).await;
        let failed = result.err().map_or_else(Vec::new, |error| self.judge(&error, std::slice::from_ref(&range)));
        let bytes = memory.to_vec();
        for part in without(std::slice::from_ref(&range), &failed) {
            let own = &bytes[(part.start - range.start) as usize..(part.end - range.start) as usize];
            self.model.check("read", part.clone(), own);
        }
    }

    /// Syncs. If that succeeds, looks at the disks.
    async fn sync(&mut self) -> Result<(), Error> {
        if let Err(error) = self.file.sync().await {
            self.judge(&error, &[]);
            return Err(error);
        }
        let distribution = Distribution::simple_stripe(STRIP, SERVERS).unwrap();
        let disk =
            |(server, datafile): &(u32, DatafileHandle)| self.machines[*server as usize].durable(*datafile, LONGEST);
        let disks: Vec<Vec<u8>> = self.datafiles.iter().map(disk).collect();
        let byte = |at| {
            let place = distribution.locate(at);
            disks[place.server][place.physical as usize]
        };
        self.model.check("disk", 0..LONGEST, &(0..LONGEST).map(byte).collect::<Vec<u8>>());
        Ok(())
    }

    async fn cut(&mut self, size: u64) {
        let result = self.file.set_len(size).await;
        let sure = result.is_ok();
        result.err().into_iter().for_each(|error| drop(self.judge(&error, &[])));
        self.model.set(size..LONGEST, 0, sure);
    }

    /// The disks are sound again. Everything must get there.
    pub(super) async fn end(&mut self, kill: bool) {
        self.disks.steps().active = false;
        for machine in &self.machines {
            if matches!(self.disks.fault, Fault::Room(_)) {
                machine.remove_ballast().await;
            }
            if kill {
                // A sync tells of the new start.
                self.disks.steps().failed.insert(machine.index);
                machine.node.kill();
                machine.node.restart();
            }
        }
        let mut tries = 0;
        while let Err(error) = self.sync().await {
            tries += 1;
            let patience = if error.code() == ErrorCode::Unfinished { 4000 } else { 10 };
            assert!(tries < patience, "the disks are sound, and a sync fails: {error}");
            self.machines[0].node.sleep(START_AGAIN).await;
        }
        for machine in &self.machines {
            assert_eq!(machine.unified.borrow().as_ref().unwrap().statistics().dirty, 0);
        }
        let errors = self.errors;
        self.read(0..LONGEST).await;
        assert_eq!(self.errors, errors, "the disks are sound, and a read fails");
    }
}
