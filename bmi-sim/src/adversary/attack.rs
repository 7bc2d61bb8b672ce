//! Attacks that are drawn from the seed.

use std::collections::BTreeMap;
use std::time::Duration;

use bmi_core::{Addr, Error, RemoteKey, RemoteSlice, Time};

use super::line::Line;
use super::{Adversary, Heard, Verb, hello};
use crate::rng::Rng;

/// How many of the last things that were heard an attack draws from. Of later ones keys and names
/// are still in use.
const RECENT: usize = 1024;
/// Messages that are sent in another order.
const SOME: u64 = 5;

/// What an adversary does with what it has heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trick {
    /// Does it in its own name: made to fit in most cases ([`Line::replay`]), or as it was.
    Replay,
    /// Sends it with some bytes, lengths or names changed.
    Forge,
    /// Sends the first bytes of it.
    Truncate,
    /// Sends some messages of one sender in another order.
    Reorder,
    /// Sends the first bytes of one message and the last bytes of another.
    Mix,
    /// Writes to or reads from memory whose name it has heard, or a name close to it.
    Reach,
}

impl Trick {
    /// All of them.
    pub const ALL: [Trick; 6] =
        [Trick::Replay, Trick::Forge, Trick::Truncate, Trick::Reorder, Trick::Mix, Trick::Reach];
}

/// A plan of an attack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attack {
    targets: Vec<Addr>,
    tricks: Vec<Trick>,
    pause: Duration,
}

impl Attack {
    /// Attacks those who listen at these addresses, with all tricks, one every 20 µs on average.
    pub fn on(targets: impl IntoIterator<Item = Addr>) -> Attack {
        Attack { targets: targets.into_iter().collect(), tricks: Trick::ALL.to_vec(), pause: Duration::from_micros(20) }
    }

    /// Uses these tricks only.
    #[must_use]
    pub fn with(mut self, tricks: &[Trick]) -> Attack {
        self.tricks = tricks.to_vec();
        self
    }

    /// Sets how long it waits between two tricks, on average.
    #[must_use]
    pub fn every(mut self, pause: Duration) -> Attack {
        self.pause = pause;
        self
    }
}

/// What an attack has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Connections that were made to each node.
    pub lines: BTreeMap<String, u64>,
    /// Connections that each node did not take.
    pub refused: BTreeMap<String, u64>,
    /// Connections that the other side, or its adapter, has ended.
    pub ended: u64,
    /// How often each trick was done.
    pub tricks: BTreeMap<Trick, u64>,
}

impl Adversary {
    /// Attacks until a time. Keeps a connection to each target, and makes a new one when it ends,
    /// with a hello that it has heard or one of its own. In the end it closes them.
    pub async fn run(&self, attack: &Attack, until: Time) -> Tally {
        let mut tally = Tally::default();
        let mut lines: Vec<Option<Line>> = attack.targets.iter().map(|_| None).collect();
        let most = u64::try_from(attack.pause.as_nanos()).unwrap_or(u64::MAX).saturating_mul(2);
        while self.node.now() < until && !lines.is_empty() {
            self.node.sleep(Duration::from_nanos(1 + self.below(most))).await;
            let at = self.below(lines.len() as u64) as usize;
            tally.ended += u64::from(lines[at].take_if(|line| !line.is_open()).is_some());
            match &lines[at] {
                None => lines[at] = self.another(&attack.targets[at], &mut tally).await,
                Some(line) => {
                    let trick = attack.tricks.get(self.below(attack.tricks.len() as u64) as usize);
                    // It is refused if its line ends meanwhile.
                    if let Some(trick) = trick
                        && let Ok(true) = self.play(*trick, line, attack.targets[at].host())
                    {
                        *tally.tricks.entry(*trick).or_default() += 1;
                    }
                }
            }
        }
        lines.iter().flatten().for_each(Line::end);
        tally
    }

    /// Draws a number below `bound`.
    fn below(&self, bound: u64) -> u64 {
        self.rng.borrow_mut().below(bound)
    }

    async fn another(&self, addr: &Addr, tally: &mut Tally) -> Option<Line> {
        let said = self.pick(|heard| heard.verb == Verb::Connect && heard.to == addr.host());
        let mut private = said.filter(|_| self.below(4) > 0).map_or_else(hello, |heard| heard.bytes);
        if self.below(8) == 0 {
            forge(&mut self.rng.borrow_mut(), &mut private);
            private.truncate(bmi_core::transport::MAX_PRIVATE_DATA);
        }
        let line = self.connect(addr, &private).await.ok();
        let count = if line.is_some() { &mut tally.lines } else { &mut tally.refused };
        *count.entry(addr.host().to_owned()).or_default() += 1;
        line
    }

    /// Draws one of the last things that it has heard and that are `wanted`.
    fn pick(&self, wanted: impl Fn(&Heard) -> bool) -> Option<Heard> {
        let core = self.node.sim.0.core.borrow();
        let own = &core.nodes[self.node.id as usize].name;
        let recent = core.tap.iter().flat_map(|tap| tap.heard.iter().rev().take(RECENT));
        let wanted: Vec<&Heard> =
            recent.filter(|heard| heard.from != *own && heard.to != *own && wanted(heard)).collect();
        wanted.get(self.below(wanted.len() as u64) as usize).map(|heard| (*heard).clone())
    }

    /// Draws a message. Most are of those that `to` has got.
    fn message(&self, to: &str) -> Option<Heard> {
        let (of_it, messages) = (self.below(4) > 0, self.below(8) > 0);
        self.pick(|heard| (!of_it || heard.to == to) && (!messages || heard.kind().is_some()))
    }

    /// Does a trick. Returns false if nothing fitting was heard yet.
    fn play(&self, trick: Trick, line: &Line, to: &str) -> Result<bool, Error> {
        if trick == Trick::Reach {
            return self.reach(line, to);
        }
        let Some(heard) = self.message(to) else { return Ok(false) };
        match trick {
            Trick::Replay if self.below(4) == 0 => line.send(&heard.bytes)?,
            Trick::Replay | Trick::Reach => line.replay(&heard)?,
            Trick::Forge => {
                let mut bytes = line.fitted(&heard)?;
                forge(&mut self.rng.borrow_mut(), &mut bytes);
                line.send(&bytes)?;
            }
            Trick::Truncate => {
                let mut bytes = line.fitted(&heard)?;
                bytes.truncate(self.below(bytes.len() as u64) as usize);
                line.send(&bytes)?;
            }
            Trick::Reorder => {
                let of_one = |other: &Heard| other.from == heard.from && other.to == heard.to && other.kind().is_some();
                for _ in 0..2 + self.below(SOME) {
                    let Some(next) = self.pick(of_one) else { break };
                    line.replay(&next)?;
                }
            }
            Trick::Mix => {
                let Some(other) = self.message(to) else { return Ok(false) };
                let (mut bytes, other) = (line.fitted(&heard)?, line.fitted(&other)?);
                bytes.truncate(self.below(bytes.len() as u64) as usize);
                bytes.extend(&other[self.below(other.len() as u64) as usize..]);
                line.send(&bytes)?;
            }
        }
        Ok(true)
    }

    fn reach(&self, line: &Line, to: &str) -> Result<bool, Error> {
        let one_sided = |heard: &Heard| heard.to == to && matches!(heard.verb, Verb::Write(_) | Verb::Read(_));
        let Some(heard) = self.pick(one_sided) else { return Ok(false) };
        let near = |remote: RemoteSlice| match self.below(4) {
            0 => RemoteSlice { key: RemoteKey(remote.key.0 ^ 1 << self.below(64)), ..remote },
            1 => RemoteSlice { addr: remote.addr.wrapping_add(self.below(1 << 16)), ..remote },
            _ => remote,
        };
        match heard.verb {
            Verb::Write(mut target) if self.below(3) > 0 => {
                target.remote = near(target.remote);
                line.write(target, &heard.bytes)?;
            }
            Verb::Write(target) => line.read(near(target.remote))?,
            Verb::Read(remote) if self.below(3) > 0 => line.read(near(remote))?,
            Verb::Read(remote) => line.write(near(remote).into(), &heard.bytes)?,
            _ => {}
        }
        Ok(true)
    }
}

/// Changes bytes in one to three ways.
fn forge(rng: &mut Rng, bytes: &mut Vec<u8>) {
    /// Bytes at the front of a message about which most checks are.
    const FRONT: u64 = 60;
    for _ in 0..1 + rng.below(3) {
        let len = bytes.len() as u64;
        if len == 0 {
            return bytes.push(rng.next_u64() as u8);
        }
        let most = if rng.below(3) == 0 { len } else { len.min(FRONT) };
        let at = rng.below(most) as usize;
        match rng.below(4) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.next_u64() as u8,
            2 => {
                // A field of the header, or a word of a table.
                let at = at & !7;
                let Some(field) = bytes.get_mut(at..at + 8).and_then(|field| field.first_chunk_mut::<8>()) else {
                    continue;
                };
                let real = u64::from_le_bytes(*field);
                let other = [0, u64::MAX, u64::MAX - real, 1 << 63, real.wrapping_add(1), real.wrapping_sub(1)];
                *field = other[rng.below(6) as usize].to_le_bytes();
            }
            _ => {
                let part = bytes[at..(at + 1 + rng.below(40) as usize).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
        }
    }
}
