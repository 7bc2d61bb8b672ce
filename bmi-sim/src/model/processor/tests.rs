use std::time::Duration;

use super::cpu::*;
use crate::engine::TaskKey;

fn task(index: usize) -> TaskKey {
    TaskKey { index, generation: 0 }
}

#[test]
fn tasks_take_idle_cores_and_then_wait_in_order() {
    let mut cpu = Cpu::new(2);
    for at in 0..2 {
        assert_eq!(cpu.enter(0, task(at), 0, None), Ok(()));
        let slice = cpu.charge(0, Work::Application, 10 + at as u64);
        assert_eq!((slice.core, slice.start, cpu.left()), (at, 0, 10 + at as u64));
    }
    assert_eq!(cpu.enter(5, task(2), 0, None), Err(Some(10)));
    assert_eq!(cpu.enter(5, task(3), 0, None), Err(None), "one event is enough");
    assert_eq!(cpu.release(10), Some(task(2)));
    cpu.charge(10, Work::Copying, 100);
    assert_eq!((cpu.left(), cpu.next_release()), (110, Some(11)));
    assert_eq!(cpu.release(11), Some(task(3)));
    assert_eq!(cpu.usage().busy(), Duration::from_nanos(121));
}

#[test]
fn only_a_copy_is_slowed_and_only_while_it_lasts() {
    let mut cpu = Cpu::new(1);
    cpu.charge(0, Work::Protocol, 10);
    cpu.charge(0, Work::Copying, 100);
    cpu.charge(0, Work::Protocol, 5);
    assert!(cpu.slow_copy(0, 9, 7).is_none() && cpu.slow_copy(0, 110, 7).is_none());
    assert_eq!(cpu.slow_copy(0, 10, 7).map(|slice| (slice.start, slice.end)), Some((115, 122)));
    assert!(cpu.slow_copy(0, 116, 3).is_some(), "it lasts longer now");
    assert!(cpu.slow_copy(0, 120, 3).is_none());
    assert_eq!(cpu.usage().copying, Duration::from_nanos(110));
    cpu.charge(200, Work::Application, 50);
    assert!(cpu.slow_copy(0, 220, 7).is_none(), "no copy");
}

#[test]
fn a_copy_is_slowed_by_what_it_does_not_leave_of_the_bus() {
    let mut cpu = Cpu::new(1);
    cpu.charge(0, Work::Copying, 100);
    cpu.leave_bus(0, 30);
    assert!(cpu.slow_copy(0, 10, 20).is_none(), "there is room");
    assert_eq!(cpu.slow_copy(0, 50, 25).map(|slice| (slice.start, slice.end)), Some((100, 115)), "for 10 of them");
    cpu.charge(200, Work::Copying, 100);
    assert!(cpu.slow_copy(0, 250, 1).is_some(), "what is left of one copy is not the next one's");
    cpu.leave_bus(0, 90);
    assert_eq!(cpu.slow_copy(0, 300, 10).map(|slice| slice.end), Some(310), "1 ns of the copy is left");
}

#[test]
fn a_task_that_may_not_run_yet_lets_others_pass() {
    let mut cpu = Cpu::new(2);
    assert_eq!(cpu.enter(0, task(0), 50, None), Err(Some(50)));
    assert_eq!(cpu.enter(0, task(1), 0, None), Ok(()));
    cpu.charge(0, Work::Application, 70);
    cpu.left();
    assert_eq!(cpu.release(50), Some(task(0)), "on the other core");
    assert_eq!(cpu.left(), 0);
}

#[test]
fn a_bound_task_waits_for_its_core_and_for_no_other_task() {
    let mut cpu = Cpu::new(2);
    assert_eq!(cpu.enter(0, task(0), 0, Some(1)), Ok(()));
    assert_eq!((cpu.charge(0, Work::Application, 100).core, cpu.left()), (1, 100));
    assert_eq!(cpu.enter(0, task(1), 0, Some(1)), Err(Some(100)));
    assert_eq!(cpu.enter(0, task(2), 0, None), Ok(()), "the first core is idle");
    cpu.charge(0, Work::Application, 300);
    cpu.left();
    assert_eq!(cpu.enter(1, task(3), 0, None), Err(None), "a release comes at 100");
    assert_eq!(cpu.release(100), Some(task(1)));
    assert_eq!((cpu.charge(100, Work::Application, 10).core, cpu.left()), (1, 110));
    assert_eq!((cpu.next_release(), cpu.release(110)), (Some(110), Some(task(3))));
    assert_eq!(cpu.charge(110, Work::Application, 5).core, 1, "an unbound task takes the core that is idle first");
    cpu.left();
    assert_eq!(cpu.enter(120, task(4), 0, Some(0)), Err(Some(300)));
    assert_eq!(cpu.release(300), Some(task(4)));
}

/// The kernel had work booked on the core of a loop without a gap, and the loop never ran.
#[test]
fn work_of_the_kernel_that_came_later_does_not_delay_a_bound_task() {
    let mut cpu = Cpu::new(2);
    let receives = |cpu: &mut Cpu| {
        let (current, tasks_done) = (std::mem::replace(&mut cpu.current, 1), cpu.tasks_done[1]);
        cpu.charge(0, Work::Interrupt, 100);
        (cpu.current, cpu.tasks_done[1]) = (current, tasks_done);
    };
    receives(&mut cpu);
    assert_eq!(cpu.enter(0, task(0), 0, Some(1)), Err(Some(100)));
    assert_eq!(cpu.enter(0, task(1), 0, Some(1)), Err(None));
    receives(&mut cpu);
    assert_eq!(cpu.release(99), None, "not before what was there");
    assert_eq!(cpu.next_release(), None, "there will be a look at 100 already");
    assert_eq!(cpu.release(100), Some(task(0)));
    let slice = cpu.charge(100, Work::Application, 10);
    assert_eq!((slice.start, slice.end, cpu.left()), (200, 210, 210), "its work comes behind the kernel's");
    receives(&mut cpu);
    assert_eq!((cpu.next_release(), cpu.release(209)), (Some(210), None), "one task after the other");
    assert_eq!(cpu.release(210), Some(task(1)));
}

/// A core beyond those that tasks may use counts as the last of them.
#[test]
fn a_task_is_bound_to_a_core_for_tasks() {
    let mut cpu = Cpu::new(4);
    cpu.limit_tasks(2);
    assert_eq!(cpu.enter(0, task(0), 0, Some(3)), Ok(()));
    assert_eq!(cpu.charge(0, Work::Application, 1).core, 1);
}
