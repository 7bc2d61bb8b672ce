//! Any sequence of calls, compared with a model.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::policy::queues::SCAN;

const CAPACITY_BYTES: u64 = 1 << 20;
/// Units at a time. More than a search of one queue asks for.
const MOST_UNITS: usize = SCAN + 16;
/// Up to so many units in use, the order of victims is exact.
const MOST_USED: usize = SCAN / 2 - 1;

#[derive(Clone, Debug)]
enum Call {
    Insert {
        key: u64,
        bytes: u32,
        policy: Policy,
    },
    Touch {
        unit: usize,
        policy: Policy,
    },
    UsedUp {
        unit: usize,
    },
    Remove {
        unit: usize,
    },
    Evicted {
        unit: usize,
    },
    /// Asks for a victim, and evicts it.
    Victim {
        evict: bool,
    },
    /// From now on the unit is in use, or free.
    Use {
        unit: usize,
        used: bool,
    },
}

fn policy() -> impl Strategy<Value = Policy> {
    use Policy::*;
    prop::sample::select(vec![Default, Lru, ScanResistant, Stream, Keep, None])
}

fn call() -> impl Strategy<Value = Call> {
    let unit = || 0..MOST_UNITS;
    prop_oneof![
        6 => (0..200_u64, 0..=UNIT, policy()).prop_map(|(key, bytes, policy)| Call::Insert { key, bytes, policy }),
        4 => (unit(), policy()).prop_map(|(unit, policy)| Call::Touch { unit, policy }),
        1 => unit().prop_map(|unit| Call::UsedUp { unit }),
        1 => unit().prop_map(|unit| Call::Remove { unit }),
        1 => unit().prop_map(|unit| Call::Evicted { unit }),
        4 => any::<bool>().prop_map(|evict| Call::Victim { evict }),
        3 => (unit(), any::<bool>()).prop_map(|(unit, used)| Call::Use { unit, used }),
    ]
}

/// A unit of the model.
#[derive(Clone, Copy, Debug)]
struct Known {
    id: usize,
    key: u64,
    bytes: u32,
    policy: Policy,
    used_up: bool,
    in_use: bool,
}

/// All units, in the order in which they were put at the newest end of their queue.
#[derive(Default)]
struct Model(Vec<Known>);

impl Model {
    /// Returns the ids of a queue, oldest first. `Cold` and `Hot` are one queue here.
    fn queue(&self, policy: Policy, used_up: bool) -> Vec<usize> {
        let of_queue = |unit: &&Known| unit.policy == policy && unit.used_up == used_up;
        self.0.iter().filter(of_queue).map(|unit| unit.id).collect()
    }

    fn is_free(&self, id: usize) -> bool {
        self.0.iter().any(|unit| unit.id == id && !unit.in_use)
    }

    /// Returns the units of which one is the next victim.
    fn victims(&self) -> Vec<usize> {
        let first = |policy, used_up| self.queue(policy, used_up).into_iter().find(|id| self.is_free(*id));
        let none = first(Policy::None, false);
        let next = none.or_else(|| first(Policy::Stream, true)).or_else(|| first(Policy::Stream, false));
        if let Some(id) = next {
            return vec![id];
        }
        let mut either = self.queue(Policy::ScanResistant, false);
        either.retain(|id| self.is_free(*id));
        either.extend(first(Policy::Lru, false));
        if either.is_empty() { first(Policy::Keep, false).into_iter().collect() } else { either }
    }

    /// Takes the unit out, and puts it at the newest end.
    fn renew(&mut self, at: usize, change: impl FnOnce(&mut Known)) {
        let mut unit = self.0.remove(at);
        change(&mut unit);
        self.0.push(unit);
    }
}

fn resolved(policy: Policy) -> Policy {
    if policy == Policy::Default { Policy::ScanResistant } else { policy }
}

/// Makes a call to both. `unit` in a call is a place in the model's list.
fn apply(call: &Call, policies: &mut Policies, model: &mut Model) {
    let at = |unit: usize, model: &Model| (!model.0.is_empty()).then(|| unit % model.0.len());
    match *call {
        Call::Insert { key, bytes, policy } => {
            if model.0.len() == MOST_UNITS || model.0.iter().any(|unit| unit.key == key) {
                return;
            }
            let id = (0..).find(|id| model.0.iter().all(|unit| unit.id != *id)).unwrap();
            policies.insert(id, key, bytes, policy);
            model.0.push(Known { id, key, bytes, policy: resolved(policy), used_up: false, in_use: false });
        }
        Call::Touch { unit, policy } => {
            let Some(at) = at(unit, model) else { return };
            let policy = resolved(policy);
            let Known { id, policy: before, used_up, .. } = model.0[at];
            policies.touch(id, policy);
            if policy != before || used_up || matches!(policy, Policy::Lru | Policy::Keep) {
                model.renew(at, |unit| (unit.policy, unit.used_up) = (policy, false));
            }
        }
        Call::UsedUp { unit } => {
            let Some(at) = at(unit, model) else { return };
            policies.used_up(model.0[at].id);
            if model.0[at].policy == Policy::Stream && !model.0[at].used_up {
                model.renew(at, |unit| unit.used_up = true);
            }
        }
        Call::Remove { unit } | Call::Evicted { unit } => {
            let Some(at) = at(unit, model) else { return };
            let id = model.0.remove(at).id;
            if matches!(call, Call::Remove { .. }) { policies.remove(id) } else { policies.evicted(id) }
        }
        Call::Victim { evict } => {
            let expected = model.victims();
            let victim = policies.victim(&mut |id| model.is_free(id));
            match victim {
                Some(id) => assert!(expected.contains(&id), "{id} is evicted, and not one of {expected:?}"),
                None => assert_eq!(expected, []),
            }
            if let Some(id) = victim.filter(|_| evict) {
                policies.evicted(id);
                model.0.retain(|unit| unit.id != id);
            }
        }
        Call::Use { unit, used } => {
            let Some(at) = at(unit, model) else { return };
            let all = model.0.iter().filter(|unit| unit.in_use).count();
            model.0[at].in_use = used && (all < MOST_USED || model.0[at].in_use);
        }
    }
}

fn check(policies: &Policies, model: &Model) {
    let queues = &policies.queues;
    for (place, policy, used_up) in [
        (Place::Unkept, Policy::None, false),
        (Place::UsedUp, Policy::Stream, true),
        (Place::Stream, Policy::Stream, false),
        (Place::Recent, Policy::Lru, false),
        (Place::Kept, Policy::Keep, false),
    ] {
        assert_eq!(queues.order(place), model.queue(policy, used_up), "{place:?}");
    }
    let sorted = |mut ids: Vec<usize>| {
        ids.sort_unstable();
        ids
    };
    let resistant = sorted([queues.order(Place::Cold), queues.order(Place::Hot)].concat());
    assert_eq!(resistant, sorted(model.queue(Policy::ScanResistant, false)));
    for place in Place::ALL {
        let bytes: u64 = queues.order(place).iter().map(|id| u64::from(queues.unit(*id).bytes)).sum();
        assert_eq!(queues.bytes(place), bytes, "{place:?}");
    }
    for unit in &model.0 {
        let Known { id, key, bytes, .. } = *unit;
        assert_eq!((queues.unit(id).key, queues.unit(id).bytes), (key, bytes));
        assert!(queues.order(queues.unit(id).place).contains(&id));
    }
    policies.scan_resistant.check(policies.room);
    policies.lru_ghosts.check();
}

proptest! {
    #[test]
    fn any_calls(calls in vec(call(), 1..400)) {
        let mut policies = Policies::new(Policy::Default, CAPACITY_BYTES);
        let mut model = Model::default();
        for call in &calls {
            apply(call, &mut policies, &mut model);
            check(&policies, &model);
        }
    }
}
