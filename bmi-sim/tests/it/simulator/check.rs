//! The harness finds wrong answers, panics, stalls, leaks and runs that differ, and reports how to
//! repeat them.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bmi_core::{Config, Error, Memory, Options};
use bmi_sim::Node;
use bmi_sim::check::{self, Case, Why};
use bmi_sim::faults::{Fault, Kind, Plan, Swarm};

const PATIENCE: Duration = Duration::from_millis(20);

/// Counts the requests that it gets. It forgets everything in a crash, which is its planted bug.
async fn counter(node: Node) {
    let endpoint = node.endpoint(Config::default()).unwrap();
    endpoint.listen(&node.addr(1)).unwrap();
    let mut count = 0u64;
    loop {
        let request = endpoint.next_unexpected().await;
        count += 1;
        let reply = count.to_le_bytes().to_vec();
        let _ = request.peer().send(request.tag(), reply, endpoint.within(PATIENCE)).await;
    }
}

/// Asks ten times. Each answer must be larger than the one before.
async fn count(world: Case) -> Result<(), Error> {
    world.nodes[0].boot(counter);
    let node = world.nodes[1].clone();
    let endpoint = node.endpoint(Config::default())?;
    let (mut peer, mut last, mut tag) = (None, 0, 0);
    while tag < 10 || node.now() < world.calm_at() {
        let Some(server) = &peer else {
            peer = endpoint.connect(&world.nodes[0].addr(1), endpoint.within(PATIENCE)).await.ok();
            continue;
        };
        tag += 1;
        let buffer = Memory::zeroed(8)?;
        let reply = server.recv(tag, &buffer, endpoint.within(PATIENCE));
        let sent = server.send_unexpected(tag, vec![1], endpoint.within(PATIENCE)).await;
        match reply.await {
            Ok(_) => {
                let answer = u64::from_le_bytes(buffer.to_vec().try_into().unwrap());
                assert!(answer > last, "{answer} after {last}");
                last = answer;
            }
            Err(_) => {
                let _ = server.disconnect(endpoint.within(PATIENCE)).await;
                peer = None;
            }
        }
        drop(sent);
        node.sleep(Duration::from_micros(500)).await;
    }
    Ok(())
}

#[test]
fn a_bug_that_needs_a_crash_shrinks_to_a_crash() {
    // The client is the test itself, so its node keeps its power. Seed 1 crashes the server in the
    // middle of a write, and needs a second fault that makes the run last until the client is back.
    let swarm = Swarm::all().sparing(Kind::Crash, "n1");
    let failure = check::sweep("counter").seeds(2..200).faults(swarm).try_run(count).unwrap_err();
    assert!(matches!(&failure.shrunk_why, Why::Panicked(text) if text.contains(" after ")), "{failure}");
    let [event] = &failure.shrunk.events[..] else { panic!("{failure}") };
    assert!(matches!(&event.fault, Fault::Crash { node, .. } if node == "n0"), "{failure}");
    let text = failure.to_string();
    let replay = text.lines().last().unwrap();
    assert!(replay.starts_with(&format!("replay: BMI_SEED={} BMI_PLAN='", failure.seed)), "{text}");
    assert!(
        replay.contains("cargo test -p bmi-sim simulator::check::a_bug_that_needs_a_crash_shrinks_to_a_crash"),
        "{text}"
    );
    // The text in the command is the plan.
    let plan: Plan = replay.split('\'').nth(1).unwrap().parse().unwrap();
    assert_eq!(plan, failure.shrunk);
}

/// The time of a line of a report, in µs.
fn sent(line: &str) -> f64 {
    line.trim_start_matches(['*', '!']).split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_report_has_the_messages_around_the_fault() {
    let swarm = Swarm::of(&[Kind::Cut]);
    // Sends one message after the other, and must not lose one after the first ten.
    let test = |world: Case| async move {
        let (a, b) = (world.nodes[0].endpoint(Config::default())?, world.nodes[1].endpoint(Config::default())?);
        let addr = a.listen(&world.nodes[0].addr(1))?;
        let Ok(peer) = b.connect(&addr, b.within(PATIENCE)).await else { return Ok(()) };
        world.nodes[0].spawn(async move {
            loop {
                a.next_unexpected().await;
            }
        });
        for tag in 0..20_000 {
            if peer.send_unexpected(tag, vec![0; 100], peer.within(PATIENCE)).await.is_err() {
                assert!(tag < 10, "message {tag} is lost");
                break;
            }
            world.sleep(Duration::from_micros(5)).await;
        }
        Ok::<_, Error>(())
    };
    let failure = check::sweep("lost").seeds(0..20).faults(swarm).ignoring_leaks().try_run(test).unwrap_err();
    let [cut] = &failure.shrunk.events[..] else { panic!("{failure}") };
    let lines = &failure.messages;
    assert!(lines.len() > 10 && lines.len() <= 42, "{failure}");
    let table = &lines[2..];
    let shown: Vec<&String> = table.iter().filter(|line| !line.ends_with("lines left out")).collect();
    assert!(shown.windows(2).all(|pair| sent(pair[0]) <= sent(pair[1])), "{failure}");

    // The fault is where it happened: behind the messages that came before it.
    let at = shown.iter().position(|line| line.starts_with('*')).unwrap();
    assert!(shown[at].ends_with("the connections between n0 and n1 are cut"), "{failure}");
    assert_eq!(sent(shown[at]), cut.at_us as f64, "{failure}");
    let is_message = |line: &&&String| line.contains(" n1 → n0  send ") && line.contains("132 B  Unexpected, tag ");
    let before: Vec<_> = shown[..at].iter().filter(is_message).collect();
    assert!(before.len() > 5, "{failure}");
    // Then both sides learn of it, and then the test fails.
    let after = shown[at + 1..].iter().map(|line| line.as_str()).collect::<Vec<_>>().join("\n");
    for expected in
        ["n0 × n1  connection ends: the connection was cut", "n1 × n0  connection ends: the connection was cut"]
    {
        assert!(after.contains(expected), "{failure}");
    }
    assert!(after.ends_with("the failure"), "{failure}");
    assert!(failure.to_string().contains(&lines.join("\n")), "{failure}");
    // Again the same, and the last line is still the command.
    let again = check::sweep("lost").seeds(failure.seed..20).faults(Swarm::of(&[Kind::Cut])).ignoring_leaks();
    assert_eq!(&again.try_run(test).unwrap_err().messages, lines);
}

#[test]
fn a_message_on_its_way_when_the_fault_strikes_has_not_arrived() {
    let test = |world: Case| async move {
        let (a, b) = (world.nodes[0].endpoint(Config::default())?, world.nodes[1].endpoint(Config::default())?);
        let addr = a.listen(&world.nodes[0].addr(1))?;
        let peer = b.connect(&addr, b.within(PATIENCE)).await?;
        // A megabyte takes 80 µs.
        let memory = Memory::zeroed(1 << 20)?;
        let receive = a.next_unexpected();
        peer.send_unexpected(1, vec![1], peer.within(PATIENCE)).await?;
        let client = receive.await.peer().clone();
        let receive = client.recv(2, Memory::zeroed(1 << 20)?, client.within(PATIENCE));
        let sent = peer.send(2, memory, peer.within(PATIENCE));
        world.sleep(Duration::from_micros(40)).await;
        world.cut(&world.nodes[0], &world.nodes[1]);
        sent.await?;
        receive.await.map(drop)
    };
    let failure = check::sweep("on its way").seeds(0..1).ignoring_leaks().try_run(test).unwrap_err();
    let line =
        |what: &str| failure.messages.iter().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{failure}"));
    assert!(line("Announce, tag 2, 1048576 bytes").contains(" n1 → n0  send "), "{failure}");
    let read = line(" n0 → n1  read ");
    assert!(read.ends_with(" 262144 B") && read.split_whitespace().nth(1) == Some("-"), "{failure}");
    assert!(line("n0 × n1  connection ends: the connection was cut").contains("4 reads flushed"), "{failure}");
}

#[test]
fn without_crashes_the_same_protocol_passes_and_repeats() {
    let swarm = Swarm::all().without(Kind::Crash);
    let sweep = || check::sweep("counter").seeds(0..40).faults(swarm.clone()).run(count);
    let report = sweep();
    assert_eq!(report, sweep());
    assert!(report.seeds < 40 || report.faults > 100, "{report}");
}

#[test]
fn a_stall_an_error_and_a_panic_of_a_task_are_failures() {
    let sweep = || check::sweep("all kinds of ends").seeds(3..5);
    let stalled = sweep().try_run(|_| std::future::pending::<()>()).unwrap_err();
    assert!(matches!(&stalled.why, Why::Stalled(text) if text.contains("deadlock")), "{stalled}");
    let error = sweep().try_run(|_| async { Err::<(), _>("no luck") }).unwrap_err();
    assert_eq!((error.seed, error.why), (3, Why::Error("no luck".to_owned())));
    let panicked = sweep().try_run(|world| async move {
        world.nodes[1].spawn(async { panic!("in a task") });
        world.sleep(Duration::from_secs(1)).await;
    });
    assert!(matches!(panicked.unwrap_err().why, Why::Panicked(text) if text.starts_with("in a task (")));
    let endless = sweep().events(1000).try_run(|world| async move {
        loop {
            world.sleep(Duration::from_nanos(1)).await;
        }
        #[expect(unreachable_code, reason = "says what the future would give")]
        ()
    });
    assert!(matches!(endless.unwrap_err().why, Why::Stalled(text) if text.contains("more events")));
}

#[test]
fn a_leak_is_a_failure() {
    let leaky = |world: Case| async move {
        let (a, b) = (world.nodes[0].endpoint(Config::default())?, world.nodes[1].endpoint(Config::default())?);
        let addr = a.listen(&world.nodes[0].addr(1))?;
        let peer = b.connect(&addr, Options::default()).await?;
        // There is no receive for it.
        let _ = peer.send(1, vec![1], Options::default()).await;
        Ok::<_, Error>(())
    };
    let failure = check::sweep("leak").seeds(0..1).try_run(leaky).unwrap_err();
    assert!(
        matches!(&failure.why, Why::Leaked(text) if text.contains("n0") && text.contains("parked: 1")),
        "{failure}"
    );
    check::sweep("leak").seeds(0..1).ignoring_leaks().run(leaky);
}

/// Regression: tasks that went on after a test's end had no limit: the sweep hung.
#[test]
fn a_task_that_goes_on_for_ever_is_found_behind_the_end_of_its_test() {
    let endless = check::sweep("behind the end").seeds(0..1).events(1000).try_run(|world| async move {
        let task = world.clone();
        world.nodes[0].spawn(async move {
            loop {
                task.sleep(Duration::from_nanos(1)).await;
            }
        });
    });
    assert!(matches!(endless.unwrap_err().why, Why::Stalled(text) if text.contains("more events")));
}

/// Regression: the second run's failure was hidden behind two digests.
#[test]
fn a_run_that_fails_when_it_is_run_again_says_how() {
    let runs = Cell::new(0);
    let test = |_: Case| {
        runs.set(runs.get() + 1);
        let second = runs.get() == 2;
        async move { if second { Err("the second time") } else { Ok(()) } }
    };
    let failure = check::sweep("again").seeds(0..1).try_run(test).unwrap_err();
    assert_eq!(failure.why, Why::Again(Box::new(Why::Error("the second time".to_owned()))), "{failure}");
}

/// Regression: a test that also failed without any faults, in another way, shrank to nothing.
#[test]
fn a_failure_shrinks_to_a_plan_that_fails_in_the_same_way() {
    let test = |world: Case| async move {
        world.calm().await;
        let crashes = world.nodes[0].crashes().len();
        assert!(crashes < 2, "it crashed {crashes} times");
        assert!(crashes > 0, "nothing happened at all");
    };
    let swarm = Swarm::of(&[Kind::Crash]).sparing(Kind::Crash, "n1");
    let crashed = |failure: &check::Failure| failure.why.to_string().contains("it crashed");
    let failure = (0..100).find_map(|seed| {
        let sweep = check::sweep("twice").seeds(seed..seed + 1).faults(swarm.clone());
        sweep.try_run(test).err().filter(|failure| crashed(failure))
    });
    let failure = failure.unwrap();
    assert_eq!(failure.shrunk.events.len(), 2, "{failure}");
    assert!(failure.shrunk_why.to_string().contains("it crashed 2 times"), "{failure}");
}

#[test]
fn a_run_that_depends_on_the_run_before_is_found() {
    let runs = Rc::new(Cell::new(0));
    let test = move |world: Case| {
        runs.set(runs.get() + 1);
        let pause = Duration::from_micros(runs.get());
        async move { world.sleep(pause).await }
    };
    let failure = check::sweep("impure").seeds(0..1).try_run(test).unwrap_err();
    assert!(matches!(failure.why, Why::Differs(..)), "{failure}");
}

/// `cargo xtask test --only digests` compares this output in debug and in release.
#[test]
fn digests_to_compare() {
    let report = check::sweep("counter").seeds(0..60).faults(Swarm::all().without(Kind::Crash)).run(count);
    println!("{report}");
    assert!(report.seeds < 60 || report.events > 10_000, "{report}");
}
