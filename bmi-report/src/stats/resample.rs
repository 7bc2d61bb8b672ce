//! Values that are drawn again, with replacement.
//!
//! **Why.** A bootstrap draws thousands of times, and both figures need the drawn values in order.
//! So the values are sorted once. A draw only counts how often each of them is taken, and a figure
//! walks over the counts. Nothing is sorted or allocated after that.

use super::random::Random;

/// The share of the values that is left out at each end of a trimmed mean.
const TRIMMED: f64 = 0.25;

/// Values in ascending order, and how often each was drawn.
pub(super) struct Resample {
    sorted: Vec<f64>,
    times: Vec<u32>,
}

impl Resample {
    /// Takes each value once. There is at least one.
    pub(super) fn new(mut values: Vec<f64>) -> Resample {
        values.sort_by(f64::total_cmp);
        Resample { times: vec![1; values.len()], sorted: values }
    }

    /// Draws as many values as there are.
    pub(super) fn draw(&mut self, random: &mut Random) {
        self.times.fill(0);
        let len = self.times.len();
        for _ in 0..len / 2 {
            for index in random.two_below(len as u32) {
                self.times[index as usize] += 1;
            }
        }
        if len % 2 == 1 {
            self.times[random.below(len)] += 1;
        }
    }

    /// Returns the mean without the smallest and the largest quarter.
    pub(super) fn trimmed_mean(&self) -> f64 {
        let len = self.sorted.len();
        let cut = (len as f64 * TRIMMED) as usize;
        self.mean(cut, len - cut)
    }

    /// Returns the middle value, or the mean of the two in the middle.
    pub(super) fn middle(&self) -> f64 {
        let len = self.sorted.len();
        self.mean((len - 1) / 2, len / 2 + 1)
    }

    /// Returns the mean of the drawn values from rank `from` to before `to`.
    fn mean(&self, from: usize, to: usize) -> f64 {
        let (mut sum, mut rank) = (0.0, 0);
        for (value, times) in self.sorted.iter().zip(&self.times) {
            let next = rank + *times as usize;
            let within = next.min(to).saturating_sub(rank.max(from));
            sum += value * within as f64;
            rank = next;
            if rank >= to {
                break;
            }
        }
        sum / (to - from) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes both figures as their definitions say.
    fn plain(mut values: Vec<f64>) -> (f64, f64) {
        let middle = super::super::middle(&mut values);
        let cut = values.len() / 4;
        let kept = &values[cut..values.len() - cut];
        (kept.iter().sum::<f64>() / kept.len() as f64, middle)
    }

    #[test]
    fn the_figures_of_a_draw_are_those_of_the_drawn_values() {
        let mut random = Random::new(1);
        for len in 1..40 {
            let values: Vec<f64> = (0..len).map(|_| random.below(30) as f64).collect();
            let mut sample = Resample::new(values);
            for _ in 0..20 {
                let drawn = |(value, times): (&f64, &u32)| std::iter::repeat_n(*value, *times as usize);
                let drawn: Vec<f64> = sample.sorted.iter().zip(&sample.times).flat_map(drawn).collect();
                assert_eq!(drawn.len(), len);
                let (mean, middle) = plain(drawn);
                assert!((sample.trimmed_mean() - mean).abs() < 1e-9 && (sample.middle() - middle).abs() < 1e-9);
                sample.draw(&mut random);
            }
        }
    }
}
