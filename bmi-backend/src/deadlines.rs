//! The earliest of a transport's time limits (C12).

use bmi_core::Time;

/// The earliest of all deadlines. Adding one is cheap; when one may have gone away, the transport
/// looks for the earliest anew at the end of its poll, once however many went.
///
/// ```
/// use bmi_backend::Deadlines;
/// use bmi_core::Time;
///
/// let (soon, late) = (Time::from_nanos(1), Time::from_nanos(2));
/// let mut deadlines = Deadlines::default();
/// deadlines.add(Some(late));
/// deadlines.add(Some(soon));
/// assert!(deadlines.due(soon));
/// deadlines.refresh(); // what was due at `soon` has ended
/// deadlines.renew(|| [late].into_iter());
/// assert_eq!(deadlines.earliest(), Some(late));
/// ```
#[derive(Debug, Default)]
pub struct Deadlines {
    earliest: Option<Time>,
    stale: bool,
}

impl Deadlines {
    /// What `next_deadline` answers: never too late; too early only until the end of the next poll.
    #[inline]
    pub fn earliest(&self) -> Option<Time> {
        self.earliest
    }

    /// Whether one has been reached.
    #[inline]
    pub fn due(&self, now: Time) -> bool {
        self.earliest.is_some_and(|earliest| earliest <= now)
    }

    /// One more, if it is one.
    #[inline]
    pub fn add(&mut self, deadline: Option<Time>) {
        self.earliest = self.earliest.into_iter().chain(deadline).min();
    }

    /// One may have gone away.
    #[inline]
    pub fn refresh(&mut self) {
        self.stale = true;
    }

    /// Whether one may have gone away since the last time.
    #[inline]
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// Looks through `all` there are, if any may have gone away since the last time.
    #[inline]
    pub fn renew<I: Iterator<Item = Time>>(&mut self, all: impl FnOnce() -> I) {
        if std::mem::take(&mut self.stale) {
            self.earliest = all().min();
        }
    }
}
