//! A process that is killed while it records. The process is this test program itself, started with
//! an environment variable.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use super::*;

/// The file that the victim uses.
const VICTIM: &str = "BMI_CACHE_VICTIM";
const KILLS: u64 = 100;
/// The victim prints a line after so many records.
const LINE: u64 = 500;
const MARK: &str = "recorded";

/// The units that it records, in turn.
const UNITS: [Place; 5] = [
    Place { frame: 0, frames: 16 },
    Place { frame: 16, frames: 1 },
    Place { frame: 17, frames: 1 },
    Place { frame: 18, frames: 2 },
    Place { frame: 24, frames: 8 },
];
/// Where it keeps the number of the last record that is complete.
const PROGRESS: Place = Place { frame: 32, frames: 1 };

/// What it records in a unit as step `number`: three records of one file, nothing, and the same for
/// the next file. Every field differs from that of the step before.
fn what(number: u64) -> (Place, Option<Record>) {
    let count = UNITS.len() as u64;
    let (unit, round) = (UNITS[(number % count) as usize], number / count);
    let file = round / 4 * count + number % count;
    let start = (number % 1000) as u32;
    let parts = [start..start + 1, 1010 + start..2020, 2030..2040 + start];
    let dirty = (round % 4 < 3).then(|| ranges(&parts[..1 + (round % 3) as usize]));
    (unit, dirty.map(|dirty| Record { file, at: !file << 16 >> 1 & !0xffff, dirty }))
}

fn record_until_killed(path: &Path) -> ! {
    let (mut arena, recovered) = Arena::adopt(open(path));
    assert!(recovered.is_empty());
    while arena.grow().unwrap() {}
    let mut out = std::io::stdout().lock();
    for number in 1.. {
        let (unit, record) = what(number);
        arena.slice(unit, 0, 8).copy_from(&number.to_ne_bytes());
        arena.record(unit, record.as_ref());
        arena.slice(PROGRESS, 0, 8).copy_from(&number.to_ne_bytes());
        if number % LINE == 0 {
            // This fails when the parent is gone.
            writeln!(out, "{MARK}").unwrap();
        }
    }
    unreachable!("the numbers end later than the process");
}

/// Starts a victim, and kills it some records after the last of so many lines.
fn kill_after(path: &Path, lines: u64) {
    struct Kill(Child);
    impl Drop for Kill {
        fn drop(&mut self) {
            let _ = self.0.kill().and_then(|()| self.0.wait());
        }
    }
    let test = "memory::arena::tests::killed::a_kill_at_any_moment_leaves_every_acknowledged_record";
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads", "1"]).env(VICTIM, path).stdout(Stdio::piped());
    let process = {
        let _guard = new_process();
        command.spawn().unwrap()
    };
    let mut victim = Kill(process);
    let output = BufReader::new(victim.0.stdout.take().unwrap());
    let seen = output.lines().map_while(Result::ok).filter(|line| line.ends_with(MARK)).take(lines as usize);
    assert_eq!(seen.count() as u64, lines, "the victim ended by itself");
    victim.0.kill().unwrap();
    assert_eq!(victim.0.wait().unwrap().signal(), Some(9), "the victim ended by itself");
}

fn number_at(arena: &Arena, unit: Place) -> u64 {
    u64::from_ne_bytes(arena.slice(unit, 0, 8).to_vec().try_into().unwrap())
}

#[test]
fn a_kill_at_any_moment_leaves_every_acknowledged_record() {
    if let Some(path) = std::env::var_os(VICTIM) {
        record_until_killed(Path::new(&path));
    }
    let dir = folder();
    let path = dir.path().join("arena");
    for kill in 0..KILLS {
        kill_after(&path, 1 + kill % 3);
        let _guard = no_new_process();
        let (mut arena, recovered) = Arena::adopt(open(&path));
        assert_eq!(arena.dropped(), 0);
        let done = number_at(&arena, PROGRESS);
        assert!(done >= LINE);
        for unit in UNITS {
            let found = recovered.iter().find(|found| found.place == unit).map(|found| &found.record);
            // The last complete step of this unit, and the one that was in flight if it is of this
            // unit.
            let steps = [(0..=done).rev().find(|number| what(*number).0 == unit).unwrap(), done + 1];
            let possible = steps.into_iter().filter(|number| what(*number).0 == unit);
            let possible: Vec<(u64, Option<Record>)> = possible.map(|number| (number, what(number).1)).collect();
            assert!(possible.iter().any(|(_, record)| found == record.as_ref()), "{found:?} is none of {possible:?}");
            let bytes = number_at(&arena, unit);
            assert!(possible.iter().any(|(number, _)| bytes == *number), "bytes of {bytes}, not of {possible:?}");
        }
        assert!(recovered.iter().all(|found| UNITS.contains(&found.place)), "{recovered:?}");
        recovered.iter().for_each(|found| arena.record(found.place, None));
    }
}
