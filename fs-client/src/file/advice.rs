//! The hints of an open file, and which servers must still be told.

use fs_proto::{CacheHints, ReplyBody};

use crate::error::Failure;
use crate::locked::Locked;

/// The hints of an open file, and which servers must still be told.
#[derive(Debug)]
pub(crate) struct Advice(Locked<Told>);

#[derive(Debug)]
struct Told {
    hints: CacheHints,
    /// How often hints were set.
    set: u64,
    /// By datafile.
    untold: Vec<bool>,
}

/// The right and the duty to tell a server. If it is dropped before [`Telling::told`], someone else
/// has it.
pub(super) struct Telling<'a> {
    advice: &'a Advice,
    datafile: usize,
    pub(super) hints: CacheHints,
    set: u64,
    told: bool,
}

impl Advice {
    pub(crate) fn new(datafiles: usize) -> Advice {
        Advice(Locked::new(Told { hints: CacheHints::default(), set: 0, untold: vec![false; datafiles] }))
    }

    /// Sets the hints. All servers must be told.
    pub(crate) fn set(&self, hints: CacheHints) {
        self.0.with(|told| {
            (told.hints, told.set) = (hints, told.set + 1);
            told.untold.fill(true);
        });
    }

    /// Returns true if a server must be told.
    pub(super) fn is_untold(&self, datafile: usize) -> bool {
        self.0.with(|told| told.untold[datafile])
    }

    pub(super) fn take(&self, datafile: usize) -> Option<Telling<'_>> {
        let taken = self.0.with(|told| {
            let untold = std::mem::take(&mut told.untold[datafile]);
            untold.then_some((told.hints, told.set))
        });
        taken.map(|(hints, set)| Telling { advice: self, datafile, hints, set, told: false })
    }
}

impl Telling<'_> {
    /// The server has answered, or the request has failed.
    pub(super) fn ended(mut self, result: &Result<ReplyBody, Failure>) {
        // Whatever a server answers, it would answer it again.
        self.told = result.as_ref().map_or_else(|failure| failure.source.is_none(), |_| true);
        if let Err(failure) = result {
            tracing::debug!(%failure.detail, "hints were not taken");
        }
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        if !self.told {
            self.advice.0.with(|told| told.untold[self.datafile] |= told.set == self.set);
        }
    }
}

#[cfg(test)]
mod tests {
    use fs_proto::{CachePolicy, ErrorCode, IodReply};

    use super::*;
    use crate::error::ServerName;

    #[test]
    fn a_server_is_told_once_and_again_after_a_loss() {
        let hints = |policy| CacheHints { policy, ..CacheHints::default() };
        let lost = || {
            let error = bmi::Error::new(bmi::ErrorKind::PeerLost, "");
            let server = ServerName { addr: bmi::Addr::tcp("h", 1), iod: Some(0) };
            Err(Failure::transport(server, error))
        };
        let advice = Advice::new(2);
        assert!(!advice.is_untold(0) && advice.take(0).is_none(), "nothing to tell");
        advice.set(hints(CachePolicy::Stream));
        let telling = advice.take(0).unwrap();
        assert_eq!(telling.hints.policy, CachePolicy::Stream);
        assert!(advice.take(0).is_none() && advice.is_untold(1), "one at a time for each server");
        telling.ended(&lost());
        drop(advice.take(0).unwrap());
        advice.take(0).unwrap().ended(&Ok(IodReply::Done.into()));
        assert!(!advice.is_untold(0));
        // A server that refuses them is not asked again.
        advice.take(1).unwrap().ended(&Err(Failure::here(ErrorCode::Invalid, "")));
        assert!(!advice.is_untold(1));
        // Later hints are not those that were lost.
        advice.set(hints(CachePolicy::Keep));
        let late = advice.take(0).unwrap();
        advice.set(hints(CachePolicy::Lru));
        let newer = advice.take(0).unwrap();
        newer.ended(&Ok(IodReply::Done.into()));
        late.ended(&lost());
        assert!(!advice.is_untold(0), "the newer hints have arrived");
    }
}
