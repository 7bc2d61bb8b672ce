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

/// One end of a connection on which both sides have sent until their byte windows were empty.
struct Side {
    credit: Credit,
    grant: CreditAccount,
    parked: u32,
    /// Credit messages on the way to this side.
    arriving: VecDeque<Returned>,
}

impl Side {
    fn send_credit(&mut self) -> Option<Returned> {
        let returns_control = self.grant.returns_control();
        let sends = self.grant.is_pressing() && self.credit.spend_control(returns_control);
        sends.then(|| self.grant.return_to_peer())
    }

    /// Handles a Credit message, if one is on the way. Returns false if there is none.
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
    /// Both directions, with Credit messages that cross. Once both programs have received
    /// everything, both sides can send a full message. They could not if each had spent its
    /// last control credit on a few returned credits.
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
                // A program that receives polls afterwards.
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

    /// One direction, with sending, handling and releasing in any order. No credit is created
    /// or lost, and a sender that waits can always go on once everything is released.
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
                2 if grant.is_pressing() => back.push_back(grant.return_to_peer()),
                3 => if let Some(returned) = back.pop_front() { prop_assert!(credit.refill(returned).is_ok()) },
                _ => {}
            }
        }
        for bytes in parked.drain(..) {
            grant.unparked(bytes);
        }
        if grant.is_pressing() {
            back.push_back(grant.return_to_peer());
        }
        for returned in back {
            prop_assert!(credit.refill(returned).is_ok());
        }
        prop_assert!(credit.spend(cost(256)), "a full message can go once everything was released");
    }
}
