//! Credits: how much each side may send to the other, in messages and in bytes. There is one set of
//! credits for each connection and direction.
//!
//! **Why.** A send that finds no posted receive ends the connection, on every backend. But posting
//! each receive again at once is not flow control either. Messages without a receive are parked,
//! and the parked bytes must be bounded too. So there are four credit windows: messages, bytes,
//! control messages, and fast-RDMA slots. `docs/design/protocol.md`, section 3, has what spends
//! each, when it comes back, and when a Credit message returns it (the half-window rule).
//!
//! **Invariants**
//! 1. For each window, the hello grants a fixed amount. It is the sum of what the sender has, what
//!    is on the wire in either direction, what the receiver holds, and what waits at the receiver
//!    to be returned.
//! 2. A message finds a receive: the number of posted receives equals the message credits and
//!    control credits that are not spent.
//! 3. *No deadlock.*
//!    - Messages that wait for the program hold receive slots up to half of the message window.
//!      Further ones are copied out, within the byte window. So at least half of the message window
//!      always comes back without the help of the program, and the half-window rule returns it.
//!    - Offers (Ready) take at most half of the byte window, so messages always have the other
//!      half.
//!    - Finish and Cancel spend no bytes. So a message that ends an operation never waits for the
//!      program.
//!    - A Credit message spends only a control credit. It spends the last one only if it returns a
//!      control credit.
//!    - So the two sides never both run out of control credits. The message that spent the last
//!      credit of one side returned a credit to the other side. That credit was on its way when the
//!      other side spent its last, or was sent later.
//!    - A side returns the control credits of its peer once it holds all but one of them, in a
//!      Credit message if necessary. It takes several Credit messages to provoke one, so the two
//!      sides do not keep each other awake.
//! 4. A peer that spends credits that it does not have, or returns credits that were not spent, has
//!    broken the protocol.
//!
//! **Source.** [PVFS-IB §3.3.1]. The byte window and the reserve are ours.

use super::header::Returned;
use super::hello::{CONTROL_CREDITS, Hello};
use crate::{mutated, mutated_each};

/// The cost of a message in bytes in addition to its payload: its record while it is parked. So
/// empty messages are not free.
pub(crate) const OVERHEAD: u32 = 64;

/// Returns the cost in bytes of a message with this payload.
#[inline]
pub(crate) fn cost(payload_len: usize) -> u32 {
    u32::try_from(payload_len).expect("payloads are bounded by the eager limit") + OVERHEAD
}

/// The sender's credit windows: what this side may still send.
#[derive(Debug)]
pub(crate) struct Credit {
    messages: u16,
    control: u8,
    bytes: u32,
    /// The free fast-RDMA slots of the peer, one bit each.
    slots: u8,
    granted: Returned,
}

impl Credit {
    /// Creates the windows that the peer's hello grants.
    pub(crate) fn granted_by(hello: &Hello) -> Credit {
        let granted = Returned { control: hello.control, messages: hello.messages, bytes: hello.bytes, slots: 0 };
        Credit { messages: granted.messages, control: granted.control, bytes: granted.bytes, slots: 0, granted }
    }

    /// Records that the peer has described its fast-RDMA slots. All of them are free.
    pub(crate) fn grant_slots(&mut self, count: u8) {
        self.granted.slots = all_slots(count);
        self.slots = self.granted.slots;
    }

    /// Returns true if there is a message credit.
    pub(crate) fn has_message(&self) -> bool {
        self.messages > 0
    }

    /// Returns true if a slot is free.
    pub(crate) fn has_slot(&self) -> bool {
        self.slots != 0
    }

    /// Spends a slot and the message credit that goes with it. Returns the slot, or `None` if
    /// either is missing.
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

    /// Gives back a slot after a write into it was not posted.
    pub(crate) fn unspend_slot(&mut self, slot: u8) {
        self.messages += 1;
        self.slots |= 1 << slot;
    }

    /// Spends a message credit. Returns false if there is none.
    #[inline]
    pub(crate) fn spend_message(&mut self) -> bool {
        let enough = self.messages > 0;
        self.messages -= u16::from(enough);
        enough
    }

    /// Returns true if [`Credit::spend`] would succeed.
    #[inline]
    pub(crate) fn can_spend(&self, bytes: u32) -> bool {
        self.messages > 0 && self.bytes >= bytes
    }

    /// Spends a message credit and `bytes`. Returns false, and spends nothing, if either is
    /// missing.
    #[inline]
    pub(crate) fn spend(&mut self, bytes: u32) -> bool {
        let bytes = if mutated_each(10, "credit/message-without-bytes") { 0 } else { bytes };
        if self.bytes < bytes || !self.spend_message() {
            return false;
        }
        self.bytes -= bytes;
        true
    }

    /// Gives back what was spent for a message that was not sent.
    #[inline]
    pub(crate) fn unspend(&mut self, bytes: u32) {
        self.messages += 1;
        self.bytes += bytes;
    }

    /// Returns true if half of the byte window is left after an offer that costs `bytes`.
    ///
    /// The cost of an offer comes back only when a message uses the offer. The peer's program may
    /// wait for a message of ours before it sends one.
    pub(crate) fn may_offer(&self, bytes: u32) -> bool {
        self.bytes.checked_sub(bytes).is_some_and(|left| left >= self.granted.bytes / 2)
    }

    /// Returns the number of message credits that have not come back. The peer has not seen at most
    /// this many messages.
    #[inline]
    pub(crate) fn messages_out(&self) -> usize {
        usize::from(self.granted.messages - self.messages)
    }

    /// Spends a control credit. The last one is only for a message that `returns_control`.
    pub(crate) fn spend_control(&mut self, returns_control: bool) -> bool {
        let reserve = u8::from(!returns_control && !mutated("credit/reserve-spent"));
        let enough = self.control > reserve;
        self.control -= u8::from(enough);
        enough
    }

    pub(crate) fn unspend_control(&mut self) {
        self.control += 1;
    }

    /// Adds the credits that the peer returns.
    ///
    /// # Errors
    /// Returns a description if the peer returns more than was spent.
    #[inline]
    pub(crate) fn refill(&mut self, returned: Returned) -> Result<(), &'static str> {
        let sum = self.with(returned)?;
        self.set(sum);
        Ok(())
    }

    /// Sets the windows to a result of [`Credit::with`].
    #[inline]
    pub(crate) fn set(&mut self, Returned { messages, control, bytes, slots }: Returned) {
        (self.messages, self.control, self.bytes, self.slots) = (messages, control, bytes, slots);
    }

    /// Returns the windows as they would be with the credits that the peer returns.
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

/// The receiver's view of its peer's windows: the least that the peer still has, and the credits
/// that wait to be returned.
#[derive(Debug)]
pub(crate) struct CreditAccount {
    window: Returned,
    theirs: Returned,
    waiting: Returned,
    /// The cost of the largest message, in bytes.
    full_message: u32,
}

impl CreditAccount {
    /// Creates the account of what this side's hello grants.
    pub(crate) fn of(hello: &Hello) -> CreditAccount {
        let window = Returned { control: hello.control, messages: hello.messages, bytes: hello.bytes, slots: 0 };
        CreditAccount { window, theirs: window, waiting: Returned::default(), full_message: hello.eager + OVERHEAD }
    }

    /// Records the arrival of a message that cost a message credit and `bytes`.
    ///
    /// # Errors
    /// Returns a description if the peer did not have that much.
    #[inline]
    pub(crate) fn arrived(&mut self, bytes: u32) -> Result<(), &'static str> {
        let messages = self.theirs.messages.checked_sub(1).ok_or("a message without a credit")?;
        let bytes = self.theirs.bytes.checked_sub(bytes).ok_or("more bytes than its credits allow")?;
        (self.theirs.messages, self.theirs.bytes) = (messages, bytes);
        Ok(())
    }

    /// Returns true if the peer has a message credit and `bytes`.
    #[inline]
    pub(crate) fn admits(&self, bytes: u32) -> bool {
        self.theirs.messages > 0 && self.theirs.bytes >= bytes
    }

    /// Records that an [admitted](CreditAccount::admits) message arrived and was handled, and that
    /// its receive is posted. This is [`CreditAccount::arrived`], [`CreditAccount::reposted`] and
    /// [`CreditAccount::unparked`] in one.
    #[inline]
    pub(crate) fn taken(&mut self, bytes: u32) {
        self.theirs.messages -= 1;
        self.theirs.bytes -= bytes;
        self.waiting.messages += 1;
        self.waiting.bytes += bytes;
    }

    /// Records that the peer has been told of `count` fast-RDMA slots.
    pub(crate) fn grant_slots(&mut self, count: u8) {
        self.window.slots = all_slots(count);
        self.theirs.slots = self.window.slots;
    }

    /// Returns true if the peer has too few bytes left for one full message, and most of the window
    /// is in `parked` bytes.
    pub(crate) fn is_used_up_by(&self, parked: u64) -> bool {
        self.theirs.bytes.saturating_add(self.waiting.bytes) < self.full_message
            && parked >= u64::from(self.window.bytes / 2)
    }

    /// Records the arrival of a message in a fast-RDMA slot. Returns the slot.
    ///
    /// # Errors
    /// Returns a description if the peer may not use the slot, or has no message credit.
    pub(crate) fn slot_arrived(&mut self, slot: u32) -> Result<u8, &'static str> {
        let slot = u8::try_from(slot).ok().filter(|slot| *slot < 8 && self.theirs.slots & (1 << slot) != 0);
        let slot = slot.ok_or("a message in a fast-RDMA slot that it may not use")?;
        self.arrived(0)?;
        self.theirs.slots &= !(1 << slot);
        Ok(slot)
    }

    /// Records that a fast-RDMA slot no longer holds a message.
    pub(crate) fn slot_freed(&mut self, slot: u8) {
        debug_assert!(self.window.slots & !self.theirs.slots & (1 << slot) != 0, "slot {slot} was not in use");
        if !mutated_each(5, "credit/slot-not-returned") {
            self.waiting.slots |= 1 << slot;
        }
    }

    /// Returns the bytes of the messages that have arrived and are not released yet. Messages in
    /// fast-RDMA slots do not count.
    pub(crate) fn parked_bytes(&self) -> u32 {
        self.window.bytes - self.theirs.bytes - self.waiting.bytes
    }

    /// Returns the number of fast-RDMA slots that hold a message.
    pub(crate) fn slots_in_use(&self) -> usize {
        (self.window.slots & !self.theirs.slots & !self.waiting.slots).count_ones() as usize
    }

    /// Records the arrival of a Credit message.
    ///
    /// # Errors
    /// Returns a description if the peer had no credit for it.
    pub(crate) fn control_arrived(&mut self) -> Result<(), &'static str> {
        self.theirs.control = self.theirs.control.checked_sub(1).ok_or("a credit message without a credit")?;
        Ok(())
    }

    /// Records that the receive of a message was posted again.
    #[inline]
    pub(crate) fn reposted(&mut self) {
        self.waiting.messages += u16::from(!mutated_each(20, "credit/message-not-returned"));
    }

    /// Records that the receive of a Credit message was posted again.
    pub(crate) fn control_reposted(&mut self) {
        self.waiting.control += 1;
    }

    /// Records that `bytes` are no longer parked.
    #[inline]
    pub(crate) fn unparked(&mut self, bytes: u32) {
        self.waiting.bytes += if mutated_each(20, "credit/bytes-not-returned") { 0 } else { bytes };
    }

    /// Returns true if the waiting credits must go back in a message of their own.
    #[inline(always)]
    pub(crate) fn is_pressing(&self) -> bool {
        let Returned { control, messages, bytes, slots } = self.waiting;
        messages >= self.window.messages / 2
            || bytes >= self.window.bytes / 2
            || (self.theirs.bytes < self.full_message && bytes > 0)
            || (control | slots != 0 && self.is_pressing_else())
    }

    /// Checks the credits that seldom wait: control credits and slots.
    fn is_pressing_else(&self) -> bool {
        let Returned { control, slots, .. } = self.waiting;
        control >= CONTROL_CREDITS.min(self.window.control) - 1
            || (slots != 0 && 2 * slots.count_ones() >= self.window.slots.count_ones())
    }

    /// Returns true if control credits are waiting to go back.
    pub(crate) fn returns_control(&self) -> bool {
        self.waiting.control > 0
    }

    /// Returns the waiting credits to the peer. The caller puts them into the header that it sends.
    #[inline]
    pub(crate) fn return_to_peer(&mut self) -> Returned {
        let returned = std::mem::take(&mut self.waiting);
        self.theirs.control += returned.control;
        self.theirs.messages += returned.messages;
        self.theirs.bytes += returned.bytes;
        self.theirs.slots |= returned.slots;
        returned
    }

    /// Undoes [`CreditAccount::return_to_peer`] for a header that was not sent.
    #[inline]
    pub(crate) fn unreturn(&mut self, returned: Returned) {
        self.theirs.control -= returned.control;
        self.theirs.messages -= returned.messages;
        self.theirs.bytes -= returned.bytes;
        self.waiting.control += returned.control;
        self.waiting.messages += returned.messages;
        self.waiting.bytes += returned.bytes;
        self.theirs.slots &= !returned.slots;
        self.waiting.slots |= returned.slots;
    }
}

/// Returns a mask with a bit for each of `count` slots.
fn all_slots(count: u8) -> u8 {
    u8::try_from((1u16 << count.min(8)) - 1).expect("eight bits")
}

#[cfg(test)]
mod tests;
