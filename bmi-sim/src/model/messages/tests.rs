use super::table::{FAULTS, LINES};
use super::*;

fn packet(number: u64, from: u32, to: u32) -> What {
    let conn = ConnRef { adapter: from, slot: 0, generation: 0 };
    let key = (conn, Verb::Message, number);
    What::Packet { from, to, key, name: "send", len: 40, arrived: None, head: None }
}

fn fault() -> What {
    What::Mark { nodes: vec![0, 1], text: "a fault".to_owned(), of: Mark::Fault }
}

/// Messages between three nodes, in turns, a µs apart, with a fault after each of `faults`.
fn recorded(count: u64, faults: &[u64]) -> Messages {
    let mut messages = Messages::default();
    for number in 0..count {
        let from = (number % 3) as u32;
        messages.push(number * 1000, packet(number, from, (from + 1) % 3));
        if faults.contains(&number) {
            messages.push(number * 1000 + 500, fault());
        }
    }
    messages
}

const NAMES: [&str; 3] = ["n0", "n1", "client"];

#[test]
fn a_short_run_is_shown_whole() {
    let mut messages = recorded(3, &[1]);
    messages.arrived((ConnRef { adapter: 1, slot: 0, generation: 0 }, Verb::Message, 1), 12_345);
    let lines = messages.lines(&NAMES, &[2]);
    let expected = [
        "messages around the faults (*) and before the failure (!), in µs, - for not arrived:",
        "     sent  arrived",
        "    0.000        -  n0 → n1      send        40 B",
        "    1.000   12.345  n1 → client  send        40 B",
        "*   1.500           a fault",
        "    2.000        -  client → n0  send        40 B",
    ];
    assert_eq!(lines, expected, "{lines:#?}");
}

#[test]
fn faults_long_past_are_shown_with_what_is_around_them_and_so_is_the_end() {
    let messages = recorded(20_000, &[4_000]);
    assert!(messages.last.len() == LAST && messages.kept.len() as u64 == 2 * NEAR + 1);
    let lines = messages.lines(&NAMES, &[]);
    assert_eq!(lines.len(), LINES + 2, "{lines:#?}");
    let at = lines.iter().position(|line| line.starts_with('*')).unwrap();
    assert!(lines[at].ends_with("4000.500             a fault"), "{lines:#?}");
    assert!(lines[at - 1].contains(" 4000.000 ") && lines[at + 1].contains(" 4001.000 "), "{lines:#?}");
    assert!(lines.last().unwrap().contains(" 19999.000 "), "{lines:#?}");
    let left_out = |line: &&String| line.ends_with("lines left out");
    assert_eq!(lines.iter().filter(left_out).count(), 2, "{lines:#?}");
    // Every record is shown or counted.
    let counted: u64 =
        lines.iter().filter(left_out).map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(counted + LINES as u64 - 2, 20_001);
}

#[test]
fn many_faults_leave_room_for_the_end() {
    let every: Vec<u64> = (0..4_000).filter(|number| number % 40 == 0).collect();
    let messages = recorded(5_000, &every);
    assert!(messages.kept.len() <= KEPT);
    let lines = messages.lines(&NAMES, &[]);
    assert!(lines.len() <= LINES + 2, "{lines:#?}");
    assert_eq!(lines.iter().filter(|line| line.starts_with('*')).count(), FAULTS, "{lines:#?}");
    assert!(lines[LINES - 4].contains(" → ") && lines.last().unwrap().contains(" 4999.000 "), "{lines:#?}");
}

#[test]
fn messages_of_the_nodes_that_failed_are_preferred() {
    let mut messages = Messages::default();
    for number in 0..200 {
        // One message of ten is of the node that fails.
        let (from, to) = if number % 10 == 0 { (0, 2) } else { (0, 1) };
        messages.push(number * 1000, packet(number, from, to));
    }
    let lines = messages.lines(&NAMES, &[2]);
    assert!(lines[0].starts_with("messages before") && lines.len() == LINES + 2, "too few: {lines:#?}");
    for number in 200..800 {
        let (from, to) = if number % 10 == 0 { (0, 2) } else { (0, 1) };
        messages.push(number * 1000, packet(number, from, to));
    }
    let lines = messages.lines(&NAMES, &[2]);
    assert!(lines[0].starts_with("messages of client before"), "{lines:#?}");
    assert!(lines[3..].iter().all(|line| line.contains("n0 → client")), "{lines:#?}");
}
