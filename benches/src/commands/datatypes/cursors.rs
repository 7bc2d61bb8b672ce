//! How many pieces of a type a cursor returns in a second.

use std::hint::black_box;
use std::time::Duration;

use bmi::Clock;
use bmi::driver::MonotonicClock;
use bmi_report::stats::Random;
use bmi_report::{Kind, Row, Unit};
use fs_client::{Datatype, Region};

use super::Failed;
use crate::report::{self, steps};

/// Pieces of a batch.
const BATCH: usize = 256;
/// Pieces that are enumerated, or places that are sought, between two looks at the clock.
const LOOK: u64 = 1 << 16;

/// What is measured, under its name.
struct Line {
    name: &'static str,
    datatype: Datatype,
    count: u64,
    seeks: bool,
}

/// Returns the lines. All pieces have 4 bytes.
fn lines() -> Result<Vec<Line>, Failed> {
    let element = Datatype::INT32;
    let vector = Datatype::vector(1 << 20, 1, 2, &element)?;
    // Each level leaves a gap, so that none is joined with the one below.
    let nested = (0..3).try_fold(Datatype::vector(32, 1, 2, &element)?, |inner, _| {
        Datatype::hvector(32, 1, (inner.true_extent() + 8) as i64, &inner)
    })?;
    let mut random = Random::new(1);
    let displacements: Vec<i64> = (0..4096)
        .scan(0, |place, _| {
            *place += 2 + (random.number() % 8) as i64;
            Some(*place)
        })
        .collect();
    let indexed = Datatype::indexed_block(1, &displacements, &element)?;
    let line = |name, datatype: &Datatype, count, seeks| Line { name, datatype: datatype.clone(), count, seeks };
    Ok(vec![
        line("cursor vector", &vector, 1, false),
        line("cursor nested, four levels", &nested, 1, false),
        line("cursor indexed, 4096 entries", &indexed, 256, false),
        line("seek vector", &vector, 1, true),
        line("seek nested, four levels", &nested, 1, true),
        line("seek indexed, 4096 entries", &indexed, 256, true),
    ])
}

impl Line {
    /// Enumerates or seeks for at least `time`. Returns how many there were in a second.
    fn rate(&self, time: Duration) -> Result<f64, Failed> {
        let mut cursor = self.datatype.cursor(self.count, 0)?;
        let mut batch = [Region::new(0, 0); BATCH];
        let (clock, bytes) = (MonotonicClock::new(), self.datatype.size() * self.count);
        let (start, mut done, mut at) = (clock.now(), 0, 1);
        loop {
            let until = done + LOOK;
            while done < until {
                if self.seeks {
                    // Places without an order, which cost nothing to find.
                    at = (at * 1_103_515_245 + 12_345) % bytes;
                    cursor.seek(black_box(at));
                    black_box(&cursor);
                    done += 1;
                    continue;
                }
                let found = cursor.next_batch(black_box(&mut batch), u64::MAX);
                if found == 0 {
                    cursor.seek(0);
                }
                done += found as u64;
            }
            let took = clock.now().since(start);
            if took >= time {
                return Ok(done as f64 / took.as_secs_f64());
            }
        }
    }
}

/// Measures all lines, `rounds` times in turns.
pub(super) fn measure(rounds: usize, time: Duration) -> Result<Vec<Row>, Failed> {
    let lines = lines()?;
    let mut rates = vec![Vec::new(); lines.len()];
    for _ in 0..rounds {
        for (line, rates) in lines.iter().zip(&mut rates) {
            rates.push(line.rate(time)?);
        }
    }
    let row = |(line, rates): (&Line, Vec<f64>)| Row {
        rounds: steps(0, rates),
        ..report::row(line.name, "memory", Kind::Library, Unit::PerSecond, &[])
    };
    Ok(lines.iter().zip(rates).map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_pieces_that_their_names_say() {
        let pieces: Vec<u64> = lines().unwrap().iter().map(|line| line.datatype.pieces() * line.count).collect();
        assert_eq!(pieces, [1 << 20; 6]);
        let short: Vec<u64> =
            lines().unwrap().iter().map(|line| line.datatype.size() / line.datatype.pieces()).collect();
        assert_eq!(short, [4; 6]);
    }
}
