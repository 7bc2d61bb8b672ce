//! Faults of one node: its registrations, its clock, its power and its disk.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bmi_core::{ErrorKind, Memory, Time};
use bmi_sim::faults::{DiskUser, Fault, Loss, Plan};
use bmi_sim::{DiskFault, DiskProfile, Profile, SimConfig, World};

use super::pair;

#[test]
fn registrations_fail_as_often_as_the_plan_says() {
    let pair = pair();
    Plan::NONE.with(0, Fault::Registrations { node: "a".to_owned(), count: 2 }).apply(&pair.world);
    // The end of the plan cancels the remaining failures, so check before it.
    let outcomes = Rc::new(RefCell::new(Vec::new()));
    let (seen, end) = (outcomes.clone(), pair.ends[0].clone());
    pair.world.at(pair.world.now(), move |_| {
        for _ in 0..3 {
            let memory = Memory::zeroed(4096).unwrap();
            seen.borrow_mut().push(end.with(|engine| engine.register(&memory)).map(drop).map_err(|e| e.kind()));
        }
    });
    pair.world.run_for(Duration::from_nanos(10));
    assert_eq!(*outcomes.borrow(), [Err(ErrorKind::Exhausted), Err(ErrorKind::Exhausted), Ok(())]);
}

#[test]
fn clocks_on_the_wall_step_and_no_other() {
    let pair = pair();
    let (wall, now) = (pair.nodes[0].wall_ns(), pair.nodes[0].now());
    Plan::NONE.with(0, Fault::ClockStep { node: "a".to_owned(), by_us: -7_000_000 }).apply(&pair.world);
    pair.world.run_for(Duration::from_micros(1));
    assert_eq!(pair.nodes[0].wall_ns(), wall - 7_000_000_000 + 1000);
    assert!(pair.nodes[0].now() - now < Duration::from_millis(1));
    assert!(pair.nodes[1].wall_ns() > wall);
}

/// Records the events of its disk.
#[derive(Default)]
struct Diary(RefCell<Vec<String>>);

impl DiskUser for Diary {
    fn power_fails(&self, loss: &mut Loss) {
        self.0.borrow_mut().push(format!("power fails, {}", loss.keeps()));
    }

    fn behaves(&self, fault: DiskFault) {
        self.0.borrow_mut().push(format!("{fault:?}"));
    }
}

#[test]
fn a_crash_reaches_the_disk_before_the_tasks_end_and_boots_the_programs_again() {
    let world = World::new(1);
    let node = world.node("a");
    let diary = Rc::new(Diary::default());
    node.disk().attach(diary.clone());
    let note = diary.clone();
    node.boot(move |node| {
        struct Ends(Rc<Diary>);
        impl Drop for Ends {
            fn drop(&mut self) {
                self.0.0.borrow_mut().push("ends".to_owned());
            }
        }
        let ends = Ends(note.clone());
        async move {
            ends.0.0.borrow_mut().push(format!("up at {} ms", node.now().as_nanos() / 1_000_000));
            std::future::pending::<()>().await;
            drop(ends);
        }
    });
    let plan = Plan::NONE
        .with(2000, Fault::Crash { node: "a".to_owned(), for_us: 3000, salt: 1 })
        .with(7000, Fault::DiskFull { node: "a".to_owned(), for_us: 1000 });
    plan.apply(&world);
    world.run_until(Time::ZERO + Duration::from_micros(7500));
    assert!(world.block_on(node.disk().write(1)).is_err_and(|error| error.kind() == ErrorKind::Exhausted));
    world.run_for(Duration::from_millis(5));
    world.block_on(node.disk().write(1)).unwrap();
    assert_eq!(node.crashes(), [Time::from_nanos(2_000_000)]);
    let diary = diary.0.borrow().join(", ");
    let lost = diary.contains("power fails, false");
    let expected = format!("up at 0 ms, power fails, {}, ends, up at 5 ms, Full, None", !lost);
    assert!(diary.starts_with(&expected), "{diary}");
}

#[test]
fn a_kill_is_no_power_failure() {
    let world = World::new(1);
    let node = world.node("a");
    let diary = Rc::new(Diary::default());
    node.disk().attach(diary.clone());
    node.kill();
    node.restart();
    assert!(diary.0.borrow().is_empty() && node.crashes().is_empty());
}

/// Regression: requests that a dead program had made to the disk kept the next program waiting.
#[test]
fn a_disk_that_lost_its_power_is_not_busy() {
    let slow = DiskProfile { write_ps_per_byte: 20_000, sync_ns: 1000, ..DiskProfile::default() };
    let world = World::with(SimConfig::with_profile(Profile::default().with_disk(slow)));
    let node = world.node("a");
    drop(node.disk().write(1 << 30));
    node.crash(&mut Loss::everything());
    node.restart();
    world.block_on(node.disk().sync()).unwrap();
    assert!(world.now() < Time::ZERO + Duration::from_secs(1), "{:?}", world.now());
}

/// Writes one number after the other, a hundred at once.
#[derive(Default)]
struct Burst {
    written: Cell<u32>,
    fuse: Cell<Option<u32>>,
}

impl Burst {
    fn write(&self) {
        for _ in 0..100 {
            let left = self.fuse.get().map(|left| left.saturating_sub(1));
            self.fuse.set(left);
            if left != Some(0) {
                self.written.set(self.written.get() + 1);
            }
        }
    }
}

impl DiskUser for Burst {
    fn power_fails(&self, _loss: &mut Loss) {
        self.fuse.set(None);
    }

    fn cuts_off(&self, writes: Option<u32>) {
        self.fuse.set(writes);
    }

    fn is_cut_off(&self) -> bool {
        self.fuse.get() == Some(0)
    }
}

/// Regression: a power failure hit a store that makes many writes at once before or after them, and
/// never in the middle.
#[test]
fn the_power_fails_in_the_middle_of_a_write_and_nobody_learns_of_it() {
    let mut written = Vec::new();
    for salt in 0..10 {
        let world = World::new(1);
        let node = world.node("a");
        let (burst, told) = (Rc::new(Burst::default()), Rc::new(Cell::new(false)));
        node.disk().attach(burst.clone());
        let (store, tell, sim) = (burst.clone(), told.clone(), world.sim());
        node.spawn(async move {
            sim.sleep(Duration::from_micros(2_000)).await;
            store.write();
            sim.sleep(Duration::from_nanos(1)).await;
            tell.set(true);
        });
        let plan = Plan::NONE.with(1000, Fault::CrashWriting { node: "a".to_owned(), for_us: 3000, salt });
        plan.apply(&world);
        world.run_until(Time::from_nanos(4_000_000));
        assert!(!node.is_alive() && !told.get());
        assert_eq!(node.crashes(), [Time::from_nanos(2_000_000)]);
        written.push(burst.written.get());
        world.run_until(Time::from_nanos(6_000_000));
        assert!(node.is_alive() && burst.fuse.get().is_none());
    }
    assert!(written.iter().all(|count| *count < 32) && written.iter().any(|count| *count > 0), "{written:?}");
    // If there is no write, the power fails in the end.
    let world = World::new(1);
    let node = world.node("a");
    let fault = Fault::CrashWriting { node: "a".to_owned(), for_us: 3000, salt: 1 };
    let plan = Plan::NONE.with(0, fault);
    plan.apply(&world);
    world.run_for(Duration::from_secs(1));
    assert_eq!((node.crashes(), plan.end_us()), (vec![Time::from_nanos(10_000_000)], 13_000));
}
