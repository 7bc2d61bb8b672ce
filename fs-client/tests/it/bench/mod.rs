//! `pvfs bench` against a real cluster over TCP and shared memory, from one host and from several.
//! Other hosts are processes on this one, or played by the test.

mod bed;
mod hosts;
mod scratch;
mod strangers;

use std::fs;

use bed::{Bed, report};
use bmi::Memory;
use bmi_report::Report;
use bmi_report::stats::Random;
use fs_client::FsPath;

impl Bed {
    fn bytes(&self, path: &str) -> Vec<u8> {
        let path: FsPath = path.parse().unwrap();
        self.with(async |client| {
            let file = client.open(&path).await.unwrap();
            let memory = Memory::zeroed(file.size().await.unwrap() as usize).unwrap();
            file.read_at(0, &memory).await.unwrap();
            memory.to_vec()
        })
    }
}

/// Returns the first `len` bytes of a file, as the documentation of the pattern defines them.
fn pattern(seed: u64, file: u64, len: usize) -> Vec<u8> {
    let mut words = Random::stream(seed, file);
    let words = std::iter::repeat_with(|| words.number().to_le_bytes());
    words.take(len.div_ceil(8)).flatten().take(len).collect()
}

const SMALL: [&str; 8] = ["-t", "1000", "-b", "3000", "-s", "2", "--seed", "7"];

#[test]
fn the_bytes_are_those_of_ior() {
    let bed = Bed::new();
    let write = [&["io"], &SMALL[..], &["--tasks", "3", "--write", "--keep", "--verify", "--rounds", "2"]].concat();
    for over in ["tcp", "shm"] {
        let (report, raw) = bed.report(&[&write[..], &["--over", over]].concat());
        let dir = raw["kept"].as_str().unwrap();
        assert_eq!(bed.names(dir), ["shared"]);
        assert!(bed.bytes(&format!("{dir}/shared")) == pattern(7, 0, 3 * 2 * 3000), "a shared file over {over}");
        let row = &report.rows[0];
        assert_eq!((&*row.test, &*row.over, row.size, row.rounds.len()), ("write", over, Some(1000), 2));
        assert_eq!(row.histogram.as_ref().unwrap().len(), 3 * 6 * 2);
        assert_eq!((&*row.setup["tasks"], &*row.setup["check"]), ("3", "verified"));
    }
    let (_, raw) = bed.report(&[&write[..], &["--file-per-task", "--random"]].concat());
    let dir = raw["kept"].as_str().unwrap();
    assert_eq!(bed.names(dir), ["task-000000", "task-000001", "task-000002"]);
    for file in 0..3 {
        assert!(bed.bytes(&format!("{dir}/task-{file:06}")) == pattern(7, file, 6000), "the file of task {file}");
    }
}

#[test]
fn a_byte_that_changed_is_found() {
    let bed = Bed::new();
    let (_, raw) = bed.report(&[&["io"], &SMALL[..], &["--tasks", "2", "-w", "-k", "-R", "-i", "1"]].concat());
    let dir = raw["kept"].as_str().unwrap().to_owned();
    let read =
        [&["--json", "bench", "io"], &SMALL[..], &["--tasks", "2", "-r", "-R", "-i", "2", "--path", &dir]].concat();
    let (good, _) = report(&bed.run(&read), 0, "");
    assert_eq!((good.rows.len(), &*good.rows[0].test, good.rows[0].rounds.len()), (1, "read", 2));
    let path: FsPath = format!("{dir}/shared").parse().unwrap();
    let right = pattern(7, 0, 5000)[4321];
    let wrong = !right;
    bed.with(async |client| client.open(&path).await.unwrap().write_at(4321, Memory::from(vec![wrong])).await).unwrap();
    for over in ["tcp", "shm"] {
        let output = bed.run(&[&read[..], &["--over", over]].concat());
        let (_, raw) = report(&output, 1, &format!("{path}: the byte at offset 4321 is {wrong:#04x} and must be"));
        assert!(raw["errors"][0].as_str().unwrap().contains("; wrong bytes in all: 1"), "{raw}");
    }
    // Cut off.
    bed.with(async |client| {
        client.open(&path).await.unwrap().write_at(4321, Memory::from(vec![right])).await.unwrap();
        client.truncate(&path, 10_500).await.unwrap();
    });
    report(&bed.run(&read), 1, &format!("{path} ends at offset 10500"));
    assert_eq!(bed.names(&dir), ["shared"], "a run that only reads removes nothing");
}

#[test]
fn nothing_is_left_behind_and_transports_take_turns() {
    let bed = Bed::new();
    let args = ["meta", "--files", "20", "--tasks", "2", "--depth", "2", "--rounds", "3", "--over", "tcp,shm"];
    for more in [&[][..], &["--unique-dir"]] {
        let (report, raw) = bed.report(&[&args[..], more].concat());
        assert_eq!(bed.names("/"), Vec::<String>::new());
        let names: Vec<String> = report.rows.iter().map(|row| format!("{} {}", row.test, row.over)).collect();
        let tests = ["create", "stat", "list", "remove"];
        let expected: Vec<String> =
            tests.iter().flat_map(|test| [format!("{test} tcp"), format!("{test} shm")]).collect();
        assert_eq!(names, expected);
        for row in &report.rows {
            let operations = if row.test == "list" { 2 * 3 } else { 20 * 2 * 3 };
            assert_eq!(row.histogram.as_ref().unwrap().len(), operations, "{}", row.name());
            assert_eq!(row.pairs(report.beside(row, "shm").unwrap()).len(), 3);
            assert!(row.cost["client"].cpu > 0.0);
        }
        assert!(raw["interrupted"].is_null() && raw["errors"].is_null());
    }
    let (report, _) = bed.report(&["io", "-t", "4K", "-b", "16K", "--tasks", "2", "--verify", "--sync"]);
    assert_eq!(report.overs(), ["shm"], "what the client would take");
    assert_eq!(report.rows.iter().map(|row| &*row.test).collect::<Vec<_>>(), ["write", "read"]);
    assert_eq!(bed.names("/"), Vec::<String>::new());
    let text = String::from_utf8(bed.run(&["bench", "io", "-b", "1M", "-i", "1"]).stdout).unwrap();
    assert!(
        text.contains("pvfs bench io: 1 task on 1 host")
            && text.contains("1 MiB")
            && text.contains("blocks of 1.0 MiB"),
        "{text}"
    );
    let files = ["--report", "r.json", "--report", "r.html", "--report", "r.csv", "--figures", "f.json"];
    bed.run(&[&["bench", "io", "-b", "1M", "-i", "1"], &files[..]].concat());
    let path = |name| bed.dir.path().join(name);
    assert_eq!(Report::read(&path("r.json")).unwrap().rows.len(), 2);
    assert!(fs::read_to_string(path("r.html")).unwrap().contains("pvfs bench io: 1 task on 1 host"));
    assert!(fs::read_to_string(path("r.csv")).unwrap().contains("write"));
    assert!(fs::read_to_string(path("f.json")).unwrap().contains("pvfs: shm write 1 MiB"));
}

/// What is written by lists and through views has the same bytes in the same places.
#[test]
fn lists_and_views_name_the_same_bytes() {
    let bed = Bed::new();
    let args = ["io", "-t", "64K", "-b", "256K", "--pieces", "128", "--verify", "--overwrite", "--rounds", "2"];
    let (report, _) = bed.report(&[&args[..], &["--view", "--in-flight", "3", "--over", "tcp,shm"]].concat());
    let ways: Vec<_> = report.rows.iter().map(|row| row.setup.get("access").map(String::as_str)).collect();
    assert_eq!(ways.iter().filter(|way| **way == Some("through a view")).count(), 4, "{ways:?}");
    assert_eq!(ways.len(), 8);
}

/// A partner has its row in each round, moves what it says, and leaves no file.
#[test]
fn a_plain_program_has_a_turn_beside_each_line() {
    let bed = Bed::new();
    let local = bed.dir.path().join("local");
    fs::create_dir(&local).unwrap();
    let args = ["all", "--plain", "--quick", "--size", "3M", "--rounds", "2", "--over", "tcp,shm"];
    let (report, _) = bed.report(&[&args[..], &["--local", local.to_str().unwrap()]].concat());
    let mut partners = Vec::new();
    for row in report.rows.iter().filter(|row| row.over == "tcp") {
        let over = match &*row.test {
            "list" => continue,
            "put" | "put and sync" | "get" => "cp",
            _ => "sockets",
        };
        let Some(partner) = report.beside(row, over) else { panic!("{} has no partner", row.name()) };
        assert_eq!(row.pairs(partner).len(), 2, "{}", row.name());
        assert!(partner.rounds.iter().all(|step| step.value > 0.0), "{}", row.name());
        partners.push(&*row.test);
    }
    for test in ["read", "write", "create", "stat", "remove", "put", "get"] {
        assert!(partners.contains(&test), "{test}: {partners:?}");
    }
    assert_eq!((bed.names("/").len(), fs::read_dir(&local).unwrap().count()), (0, 0));
    let output = bed.run(&["bench", "io", "--plain", "--tasks", "2"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// The page of `bench meta` had no picture, and that of `bench io` two dots on cut axes for each
/// transport. Both had the processor time of the clients as that of *all hosts*.
#[test]
fn the_pages_of_io_and_meta_have_bars_of_each_test_and_transport() {
    let bed = Bed::new();
    for (args, tests) in [(&["io", "-t", "64K", "-b", "128K"][..], 2), (&["meta", "--files", "5"], 4)] {
        let more = ["-i", "1", "--over", "tcp,shm", "--report", "page.html"];
        let output = bed.run(&[&["bench"], args, &more].concat());
        assert!(output.status.success(), "{output:?}");
        let page = fs::read_to_string(bed.dir.path().join("page.html")).unwrap();
        let bars = |id: &str| {
            let section = page.split(&format!("<section id=\"{id}\">")).nth(1).unwrap_or_else(|| panic!("no {id}"));
            section.split("</section>").next().unwrap().matches("<g class=\"bar ").count()
        };
        assert_eq!((bars("speed"), bars("processor")), (2 * tests, 2 * tests), "{args:?}");
        assert!(page.contains(": processor time of client<") && !page.contains("time of all hosts"), "{args:?}");
    }
}

/// Each byte is at its place, whichever way it was written.
#[test]
fn lists_and_operations_in_flight_write_the_same_bytes() {
    let bed = Bed::new();
    let usual = ["io", "-b", "24K", "--seed", "7", "--tasks", "2", "-i", "1", "--verify", "-w", "-r", "-k"];
    for more in [&["-t", "1K", "--in-flight", "5"][..], &["-t", "6K", "--pieces", "3", "-z", "-E", "--in-flight", "3"]]
    {
        let (report, raw) = bed.report(&[&usual[..], more].concat());
        let dir = raw["kept"].as_str().unwrap();
        assert!(bed.bytes(&format!("{dir}/shared")) == pattern(7, 0, 48 << 10), "{more:?}");
        for row in &report.rows {
            let transfers = 2 * (24 << 10) / row.size.unwrap();
            assert_eq!(
                row.histogram.as_ref().unwrap().len(),
                transfers,
                "what is filled is not measured: {}",
                row.name()
            );
        }
    }
    let (report, _) = bed.report(&["io", "-t", "1K,2K", "-b", "4K", "--in-flight", "1,4", "-i", "2"]);
    let names: Vec<String> =
        report.rows.iter().map(|row| format!("{} {:?}", row.test, row.setup.get("in flight"))).collect();
    assert_eq!(names.len(), 2 * 2 * 2, "{names:?}");
    assert!(report.rows.iter().all(|row| row.rounds.len() == 2));
    let (report, _) = bed.report(&["meta", "--files", "30", "--in-flight", "8", "-i", "1"]);
    assert!(report.rows.iter().all(|row| row.setup["in flight"] == "8 in flight"));
    assert_eq!(report.rows[0].histogram.as_ref().unwrap().len(), 30);
    let (report, _) = bed.report(&["meta", "--files", "5", "--data", "0,4K", "-i", "1"]);
    let data: Vec<_> = report.rows.iter().map(|row| row.setup.get("data").map(String::as_str)).collect();
    assert_eq!(data, [[None; 4], [Some("4.0 KiB written"); 4]].concat());
}

#[test]
fn copies_and_all_that_is_usual_are_measured_and_leave_nothing() {
    let bed = Bed::new();
    let local = bed.dir.path().join("local");
    fs::create_dir(&local).unwrap();
    let (report, _) = bed.report(&["copy", "--size", "300K", "-i", "2", "-N", "2", "--local", local.to_str().unwrap()]);
    let tests: Vec<&str> = report.rows.iter().map(|row| &*row.test).collect();
    assert_eq!(tests, ["put", "put and sync", "get"]);
    assert!(report.rows.iter().all(|row| row.size == Some(300 << 10) && row.histogram.as_ref().unwrap().len() == 4));
    let all = ["all", "--quick", "--verify", "--size", "1M", "-i", "1", "--server-pid"];
    let (report, _) = bed.report(&[&all[..], &[&std::process::id().to_string()]].concat());
    assert_eq!(report.rows.len(), 2 * 4 + 5 * 2 + 3);
    let names: std::collections::BTreeSet<String> = report.rows.iter().map(bmi_report::Row::name).collect();
    assert_eq!(names.len(), report.rows.len(), "{names:?}");
    // The servers are in this process.
    assert!(report.rows.iter().any(|row| row.cost["server"].cpu > 0.0));
    assert_eq!(bed.names("/"), Vec::<String>::new());
    assert_eq!(fs::read_dir(&local).unwrap().count(), 0);
}

#[test]
fn two_clusters_are_measured_in_turns() {
    let (bed, other) = (Bed::new(), Bed::new());
    let beside = format!("other={}", other.manager());
    let (report, _) = bed.report(&["io", "-b", "1M", "-i", "2", "--beside", &beside]);
    assert_eq!(report.overs(), ["this", "other"]);
    let read = report.rows.iter().find(|row| row.test == "read").unwrap();
    assert_eq!(read.pairs(report.beside(read, "other").unwrap()).len(), 2);
    assert_eq!((bed.names("/"), other.names("/")), (Vec::<String>::new(), Vec::<String>::new()));
}

#[test]
fn an_operation_that_fails_ends_the_run_and_leaves_nothing() {
    let bed = Bed::new();
    let none = bed.run(&["--over", "ib", "bench", "io"]);
    assert_eq!((none.status.code(), none.stdout.len()), (Some(1), 0));
    let missing = bed.run(&["bench", "io", "--path", "/missing", "-i", "1"]);
    let errors = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(missing.status.code() == Some(1) && errors.starts_with("pvfs: mkdir /missing/pvfs-bench-"), "{errors}");
    assert_eq!(bed.names("/"), Vec::<String>::new());
    for (line, why) in [
        ("io -t 3000 -b 4000", "whole transfers"),
        ("io --tasks 0", "1 to 1024 tasks"),
        ("io --tasks 4294967295", "1 to 1024 tasks"),
        ("io --read", "--path"),
        ("io --read --path /a --verify", "--seed"),
        ("io --write --verify", "--keep"),
        ("io --over tcp,tcp", "twice"),
        ("io -t 4K,8K --write --keep", "one --transfer"),
        ("io --read --path /a --overwrite", "--overwrite"),
        ("io -t 4K --pieces 3", "3 pieces"),
        ("io --in-flight 0", "in flight, not 0"),
        ("meta --in-flight 1025", "not 1025"),
        ("meta --data 64K,65K", "at most 65536 bytes"),
        ("copy --size 0", "at least one byte"),
        ("io --wait-for 1024", "at most 1024 hosts"),
        ("io --wait-for 18446744073709551615", "at most 1024 hosts"),
    ] {
        let output = bed.run(&[&["bench"], &line.split(' ').collect::<Vec<_>>()[..]].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(2) && errors.contains(why) && errors.lines().count() == 1,
            "{line}: {errors}"
        );
    }
    let ls = bed.run(&["ls", "--over", "tcp,shm"]);
    assert_eq!(ls.status.code(), Some(2));
}
