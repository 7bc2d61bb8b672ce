//! Credits: who may send how much to whom, in messages and in bytes, for each connection and
//! direction.
//!
//! **Why.** A send that finds no posted receive costs the connection, on every backend. And a
//! receive that is posted again at once is no flow control: messages that nobody has received yet
//! are parked, and parked bytes must be bounded too. So there are three windows:
//!
//! | window | one credit is | spent by | comes back when |
//! |---|---|---|---|
//! | messages | a posted receive | every message but Credit | the receive is posted again, or still is: the message was handled, copied out of the way, or taken where the adapter showed it |
//! | bytes | a byte that may be parked | Eager, Unexpected, Announce, Ready: payload and [`OVERHEAD`] | the message was received, or dropped by the program; the offer was used, void or withdrawn |
//! | control | a posted receive of the reserve | Credit | the receive is posted again |
//! | fast slots | one certain slot | Eager or Unexpected written into it, with a message credit for the receive that its immediate data consumes | the message was received, or dropped by the program |
//!
//! Credits come back on any header that goes the other way, or in a Credit message of their own if
//! half of a window is waiting to go back, or if the peer has too few left for one full message and
//! any are waiting. Slots count like credits of their own; nobody ever waits for one who could not
//! send in another way.
//!
//! **Invariants**
//! 1. For each window: what the sender has + what is on the wire either way + what the receiver
//!    holds or has waiting = what was granted in the hello.
//! 2. A message finds a receive: receives posted = message credits + control credits not spent.
//! 3. *No deadlock.* Receive slots are held by messages that wait for the program up to half of the
//!    message window; beyond, they are copied out (within the byte window). So at least half of the
//!    messages window always comes back without the program's help, and the half-window rule sends
//!    it. Offers (Ready) take at most half of the byte window, so messages always have the other
//!    half. Finish and Cancel spend no bytes, so what ends an operation never waits for the
//!    program. A Credit message spends only control, and the last one only if it returns a control
//!    credit. So the two sides never run out both: the message that spent a side's last gave the
//!    other one, and that was on its way when the other's last was spent, or came after. The side
//!    that has one returns what it holds of the other's, by a Credit message if need be, when it
//!    holds all but one; as it takes several to provoke one, the two sides do not keep each other
//!    awake.
//! 4. A peer that spends what it does not have, or returns what was not spent, has broken the
//!    protocol.
//!
//! **Source.** [PVFS-IB §3.3.1]. Bytes and the reserve are ours.

use super::header::Returned;
use super::hello::{CONTROL_CREDITS, Hello};
use crate::{mutated, mutated_each};

/// What a message costs in bytes beside its payload: its record while parked. Empty messages are
/// not free.
pub(crate) const OVERHEAD: u32 = 64;

/// Bytes that a message with this payload costs.
#[inline]
pub(crate) fn cost(payload_len: usize) -> u32 {
    u32::try_from(payload_len).expect("payloads are bounded by the eager limit") + OVERHEAD
}

/// The sender's windows: what this side may still send.
#[derive(Debug)]
pub(crate) struct Credit {
    messages: u16,
    control: u8,
    bytes: u32,
    /// Fast-RDMA slots of the peer that are free, a bit each.
    slots: u8,
    granted: Returned,
}

impl Credit {
    /// What the peer's hello grants.
    pub(crate) fn granted_by(hello: &Hello) -> Credit {
        let granted = Returned { control: hello.control, messages: hello.messages, bytes: hello.bytes, slots: 0 };
        Credit { messages: granted.messages, control: granted.control, bytes: granted.bytes, slots: 0, granted }
    }

    /// The peer has described its fast-RDMA slots, all free.
    pub(crate) fn grant_slots(&mut self, count: u8) {
        self.granted.slots = all_slots(count);
        self.slots = self.granted.slots;
    }

    /// Whether a message credit is there.
    pub(crate) fn has_message(&self) -> bool {
        self.messages > 0
    }

    /// Whether a slot is free.
    pub(crate) fn has_slot(&self) -> bool {
        self.slots != 0
    }

    /// Spends a slot and the message credit that goes with it; which slot, or nothing.
    pub(crate) fn spend_slot(&mut self) -> Option<u8> {
        if self.slots == 0 || !self.spend_message() {
            return None;
        }
        let slot = u8::try_from(self.slots.trailing_zeros()).expect("at most 8");
        if !mutated_each(5, "credit/slot-used-twice") {
            self.slots &= !(1 << slot);
        }
        Some(slot)
    }

    /// Gives back a slot into which nothing was written after all.
    pub(crate) fn unspend_slot(&mut self, slot: u8) {
        self.messages += 1;
        self.slots |= 1 << slot;
    }

    /// Spends a message credit.
    #[inline]
    pub(crate) fn spend_message(&mut self) -> bool {
        let enough = self.messages > 0;
        self.messages -= u16::from(enough);
        enough
    }

    /// Whether [`Credit::spend`] would.
    #[inline]
    pub(crate) fn can_spend(&self, bytes: u32) -> bool {
        self.messages > 0 && self.bytes >= bytes
    }

    /// Spends a message credit and `bytes`, or nothing.
    #[inline]
    pub(crate) fn spend(&mut self, bytes: u32) -> bool {
        let bytes = if mutated_each(10, "credit/message-without-bytes") { 0 } else { bytes };
        if self.bytes < bytes || !self.spend_message() {
            return false;
        }
        self.bytes -= bytes;
        true
    }

    /// Gives back what was spent for a message that was not sent after all.
    #[inline]
    pub(crate) fn unspend(&mut self, bytes: u32) {
        self.messages += 1;
        self.bytes += bytes;
    }

    /// Whether an offer that costs `bytes` leaves half of the window. What an offer costs comes
    /// back only when a message uses it, and the peer's program may wait for one of ours before it
    /// sends any.
    pub(crate) fn may_offer(&self, bytes: u32) -> bool {
        self.bytes.checked_sub(bytes).is_some_and(|left| left >= self.granted.bytes / 2)
    }

    /// Message credits that have not come back: no more messages than this can be unseen by the
    /// peer.
    #[inline]
    pub(crate) fn messages_out(&self) -> usize {
        usize::from(self.granted.messages - self.messages)
    }

    /// Spends a control credit; the last only for a message that `returns_control`.
    pub(crate) fn spend_control(&mut self, returns_control: bool) -> bool {
        let reserve = u8::from(!returns_control && !mutated("credit/reserve-spent"));
        let enough = self.control > reserve;
        self.control -= u8::from(enough);
        enough
    }

    pub(crate) fn unspend_control(&mut self) {
        self.control += 1;
    }

    /// Takes back what the peer returns.
    ///
    /// # Errors
    /// In words, if that is more than was spent.
    #[inline]
    pub(crate) fn refill(&mut self, returned: Returned) -> Result<(), &'static str> {
        let sum = self.with(returned)?;
        self.set(sum);
        Ok(())
    }

    /// Takes what [`Credit::with`] has found.
    #[inline]
    pub(crate) fn set(&mut self, Returned { messages, control, bytes, slots }: Returned) {
        (self.messages, self.control, self.bytes, self.slots) = (messages, control, bytes, slots);
    }

    /// What there would be with what the peer returns.
    ///
    /// # Errors
    /// As [`Credit::refill`].
    #[inline(always)]
    pub(crate) fn with(&self, returned: Returned) -> Result<Returned, &'static str> {
        let messages = self.messages.checked_add(returned.messages).filter(|sum| *sum <= self.granted.messages);
        let control = self.control.checked_add(returned.control).filter(|sum| *sum <= self.granted.control);
        let bytes = self.bytes.checked_add(returned.bytes).filter(|sum| *sum <= self.granted.bytes);
        let (Some(messages), Some(control), Some(bytes)) = (messages, control, bytes) else {
            return Err("credits returned that were never spent");
        };
        if returned.slots & (self.slots | !self.granted.slots) != 0 {
            return Err("slots returned that were never used");
        }
        Ok(Returned { messages, control, bytes, slots: self.slots | returned.slots })
    }
}

/// The receiver's view of its peer's windows: what it still has at least, and what waits to go
/// back.
#[derive(Debug)]
pub(crate) struct CreditAccount {
    window: Returned,
    theirs: Returned,
    waiting: Returned,
    /// What the largest message costs in bytes.
    full_message: u32,
}

impl CreditAccount {
    /// What this side's hello grants.
    pub(crate) fn of(hello: &Hello) -> CreditAccount {
        let window = Returned { control: hello.control, messages: hello.messages, bytes: hello.bytes, slots: 0 };
        CreditAccount { window, theirs: window, waiting: Returned::default(), full_message: hello.eager + OVERHEAD }
    }

    /// A message came that cost a message credit and `bytes`.
    ///
    /// # Errors
    /// In words, if the peer did not have that much.
    #[inline]
    pub(crate) fn arrived(&mut self, bytes: u32) -> Result<(), &'static str> {
        let messages = self.theirs.messages.checked_sub(1).ok_or("a message without a credit")?;
        let bytes = self.theirs.bytes.checked_sub(bytes).ok_or("more bytes than its credits allow")?;
        (self.theirs.messages, self.theirs.bytes) = (messages, bytes);
        Ok(())
    }

    /// Whether a message that costs a message credit and `bytes` is within what the peer has.
    #[inline]
    pub(crate) fn admits(&self, bytes: u32) -> bool {
        self.theirs.messages > 0 && self.theirs.bytes >= bytes
    }

    /// A message that is [admitted](CreditAccount::admits) came and went, and its receive is
    /// posted: [`CreditAccount::arrived`], [`CreditAccount::reposted`] and
    /// [`CreditAccount::unparked`] in one.
    #[inline]
    pub(crate) fn taken(&mut self, bytes: u32) {
        self.theirs.messages -= 1;
        self.theirs.bytes -= bytes;
        self.waiting.messages += 1;
        self.waiting.bytes += bytes;
    }

    /// The peer has been told of this many fast-RDMA slots.
    pub(crate) fn grant_slots(&mut self, count: u8) {
        self.window.slots = all_slots(count);
        self.theirs.slots = self.window.slots;
    }

    /// A message came in a fast-RDMA slot.
    ///
    /// # Errors
    /// In words, if the slot was not the peer's to use, or it had no message credit.
    pub(crate) fn slot_arrived(&mut self, slot: u32) -> Result<u8, &'static str> {
        let slot = u8::try_from(slot).ok().filter(|slot| *slot < 8 && self.theirs.slots & (1 << slot) != 0);
        let slot = slot.ok_or("a message in a fast-RDMA slot that it may not use")?;
        self.arrived(0)?;
        self.theirs.slots &= !(1 << slot);
        Ok(slot)
    }

    /// A fast-RDMA slot holds no message any more.
    pub(crate) fn slot_freed(&mut self, slot: u8) {
        debug_assert!(self.window.slots & !self.theirs.slots & (1 << slot) != 0, "slot {slot} was not in use");
        if !mutated_each(5, "credit/slot-not-returned") {
            self.waiting.slots |= 1 << slot;
        }
    }

    /// Fast-RDMA slots that hold a message.
    pub(crate) fn slots_in_use(&self) -> usize {
        (self.window.slots & !self.theirs.slots & !self.waiting.slots).count_ones() as usize
    }

    /// A Credit message came.
    ///
    /// # Errors
    /// In words, if the peer had no credit for it.
    pub(crate) fn control_arrived(&mut self) -> Result<(), &'static str> {
        self.theirs.control = self.theirs.control.checked_sub(1).ok_or("a credit message without a credit")?;
        Ok(())
    }

    /// The receive of a message was posted again.
    #[inline]
    pub(crate) fn reposted(&mut self) {
        self.waiting.messages += u16::from(!mutated_each(20, "credit/message-not-returned"));
    }

    /// The receive of a Credit message was posted again.
    pub(crate) fn control_reposted(&mut self) {
        self.waiting.control += 1;
    }

    /// Bytes are no longer parked.
    #[inline]
    pub(crate) fn unparked(&mut self, bytes: u32) {
        self.waiting.bytes += if mutated_each(20, "credit/bytes-not-returned") { 0 } else { bytes };
    }

    /// Whether what waits must go back in a message of its own.
    #[inline(always)]
    pub(crate) fn is_pressing(&self) -> bool {
        let Returned { control, messages, bytes, slots } = self.waiting;
        messages >= self.window.messages / 2
            || bytes >= self.window.bytes / 2
            || (self.theirs.bytes < self.full_message && bytes > 0)
            || (control | slots != 0 && self.is_pressing_else())
    }

    /// For what seldom waits.
    fn is_pressing_else(&self) -> bool {
        let Returned { control, slots, .. } = self.waiting;
        control >= CONTROL_CREDITS.min(self.window.control) - 1
            || (slots != 0 && 2 * slots.count_ones() >= self.window.slots.count_ones())
    }

    /// Whether control credits are among what waits.
    pub(crate) fn returns_control(&self) -> bool {
        self.waiting.control > 0
    }

    /// Takes what waits, to ride on a header.
    #[inline]
    pub(crate) fn take(&mut self) -> Returned {
        let taken = std::mem::take(&mut self.waiting);
        self.theirs.control += taken.control;
        self.theirs.messages += taken.messages;
        self.theirs.bytes += taken.bytes;
        self.theirs.slots |= taken.slots;
        taken
    }

    /// Puts back what was taken for a header that was not sent after all.
    #[inline]
    pub(crate) fn put_back(&mut self, taken: Returned) {
        self.theirs.control -= taken.control;
        self.theirs.messages -= taken.messages;
        self.theirs.bytes -= taken.bytes;
        self.waiting.control += taken.control;
        self.waiting.messages += taken.messages;
        self.waiting.bytes += taken.bytes;
        self.theirs.slots &= !taken.slots;
        self.waiting.slots |= taken.slots;
    }
}

/// A bit for each of `count` slots.
fn all_slots(count: u8) -> u8 {
    u8::try_from((1u16 << count.min(8)) - 1).expect("eight bits")
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::config::Config;

    fn pair() -> (Credit, CreditAccount) {
        let config = Config::default().eager_limit(256).credit_messages(4).credit_bytes(4 * 320);
        let hello = Hello::of(&config);
        (Credit::granted_by(&hello), CreditAccount::of(&hello))
    }

    #[test]
    fn overdrawing_is_noticed() {
        let (_, mut grant) = pair();
        for _ in 0..4 {
            grant.arrived(320).unwrap();
        }
        assert!(grant.arrived(0).is_err());
        let (mut credit, _) = pair();
        assert!(credit.refill(Returned { messages: 1, ..Returned::default() }).is_err());
    }

    /// One end of a connection on which both sides have sent until their windows of bytes were
    /// empty.
    struct Side {
        credit: Credit,
        grant: CreditAccount,
        parked: u32,
        /// Credit messages on the way to it.
        arriving: VecDeque<Returned>,
    }

    impl Side {
        fn send_credit(&mut self) -> Option<Returned> {
            let returns_control = self.grant.returns_control();
            let sends = self.grant.is_pressing() && self.credit.spend_control(returns_control);
            sends.then(|| self.grant.take())
        }

        /// Handles a Credit message, if one is on the way.
        fn receive(&mut self) -> bool {
            let Some(returned) = self.arriving.pop_front() else { return false };
            self.credit.refill(returned).unwrap();
            self.grant.control_arrived().unwrap();
            self.grant.control_reposted();
            true
        }

        fn unpark(&mut self) {
            if self.parked > 0 {
                self.parked -= 1;
                self.grant.unparked(cost(0));
            }
        }
    }

    proptest! {
        /// Both directions, with Credit messages that cross: once both programs have received
        /// everything, both sides can send a full message. They could not when each had spent its
        /// last control credit on small change.
        #[test]
        fn credit_messages_that_cross_leave_nobody_stuck(steps in proptest::collection::vec((0usize..2, 0u8..4), 0..200)) {
            let config =
                Config::default().eager_limit(256).credit_messages(64).credit_bytes(4 * 320);
            let hello = Hello::of(&config);
            let mut sides = [(); 2].map(|()| Side {
                credit: Credit::granted_by(&hello),
                grant: CreditAccount::of(&hello),
                parked: 0,
                arriving: VecDeque::new(),
            });
            for from in 0..2 {
                while sides[from].credit.spend(cost(0)) {
                    let to = &mut sides[1 - from];
                    prop_assert!(to.grant.arrived(cost(0)).is_ok());
                    to.grant.reposted();
                    to.parked += 1;
                }
            }
            for (side, action) in steps {
                match action {
                    0 => {
                        sides[side].receive();
                    }
                    // A program that receives is followed by a poll.
                    _ => {
                        sides[side].unpark();
                        if let Some(returned) = sides[side].send_credit() {
                            sides[1 - side].arriving.push_back(returned);
                        }
                    }
                }
            }
            let mut messages = 0;
            loop {
                let mut moved = false;
                for side in 0..2 {
                    moved |= sides[side].parked > 0 || sides[side].receive();
                    sides[side].unpark();
                    if let Some(returned) = sides[side].send_credit() {
                        messages += 1;
                        prop_assert!(messages < 200, "they keep each other awake");
                        sides[1 - side].arriving.push_back(returned);
                        moved = true;
                    }
                }
                if !moved {
                    break;
                }
            }
            for side in &mut sides {
                prop_assert!(side.credit.spend(cost(256)), "{:?} {:?}", side.credit, side.grant);
            }
        }

        /// One direction, any order of sending, handling and releasing: nothing is created or lost,
        /// and a sender that waits is always helped once everything is released.
        #[test]
        fn conserved_and_alive(steps in proptest::collection::vec((0u8..4, 0usize..=256), 0..300)) {
            let (mut credit, mut grant) = pair();
            let mut parked: VecDeque<u32> = VecDeque::new();
            let mut back: VecDeque<Returned> = VecDeque::new();
            for (action, len) in steps {
                match action {
                    0 if credit.spend(cost(len)) => {
                        prop_assert!(grant.arrived(cost(len)).is_ok());
                        grant.reposted();
                        parked.push_back(cost(len));
                    }
                    1 => if let Some(bytes) = parked.pop_front() { grant.unparked(bytes) },
                    2 if grant.is_pressing() => back.push_back(grant.take()),
                    3 => if let Some(returned) = back.pop_front() { prop_assert!(credit.refill(returned).is_ok()) },
                    _ => {}
                }
            }
            for bytes in parked.drain(..) {
                grant.unparked(bytes);
            }
            if grant.is_pressing() {
                back.push_back(grant.take());
            }
            for returned in back {
                prop_assert!(credit.refill(returned).is_ok());
            }
            prop_assert!(credit.spend(cost(256)), "a full message can go once everything was released");
        }
    }
}
