//! A server and a client as two processes on this host: every test over every transport, and what
//! can go wrong.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use bmi_report::{Kind, Report, Unit};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_bmi-perf");

/// A run that takes a moment.
const SHORT: &str = "--over tcp --test latency --size 8 --count 5 --rounds 1 --waiting sleeping";

/// A server. It is killed at the end, so its temporary files are in a folder of their own.
struct Server {
    process: Child,
    lines: BufReader<ChildStdout>,
    at: String,
    _temporary: TempDir,
}

impl Server {
    fn start() -> Server {
        let temporary = tempfile::tempdir().unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["serve", "127.0.0.1:0"]).env("TMPDIR", temporary.path());
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let at = line.strip_prefix("listening at ").unwrap().split(';').next().unwrap().to_owned();
        lines.read_line(&mut line).unwrap();
        Server { process, lines, at, _temporary: temporary }
    }

    /// Waits for a line with a word.
    fn await_line(&mut self, word: &str) {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the server has ended without `{word}`");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn client(at: &str, options: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["run", at]).args(options.split_whitespace()).args(["--json", "-"]);
    command
}

fn report(output: &Output) -> Report {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Report::from_json(&String::from_utf8_lossy(&output.stdout)).unwrap()
}

fn error(output: &Output, status: i32) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{text}");
    let line = text.lines().find(|line| line.starts_with("error: "));
    line.unwrap_or_else(|| panic!("no line that says why: {text}")).to_owned()
}

const ALL: &str = "latency,bandwidth,both-ways,rate,latency-at-rate,write-latency,write-bandwidth,read-latency,\
                   read-bandwidth,write-imm,call-write,call-read,list-write,list-read";

/// Every test runs over every transport, for small and large messages, however both sides wait.
#[test]
fn everything_is_measured_over_every_transport() {
    let mut server = Server::start();
    for waiting in ["sleeping", "hybrid"] {
        let line = format!(
            "--over tcp,shm --test {ALL} --size 64,100000 --depth 4 --pieces 7 --rate 5000 --count 20 --rounds 2 \
             --waiting {waiting}"
        );
        let report = report(&client(&server.at, &line).output().unwrap());
        assert_eq!(report.interrupted, None);
        for over in ["tcp", "shm", "sockets"] {
            let number = report.rows.iter().filter(|row| row.over == over).count();
            // Twelve tests of one row, and two with a row for each path that carries the data.
            // Sockets know no paths.
            let is_left_out = |note: &&String| note.starts_with(over) && note.ends_with("not possible, and left out");
            let left_out = report.notes.iter().filter(is_left_out).count();
            let expected = if over == "sockets" { 2 * 14 } else { 2 * (12 + 2 * 5) };
            assert_eq!(number + left_out, expected, "{over}");
        }
        for row in &report.rows {
            assert_eq!(row.rounds.len(), 2, "{}", row.name());
            assert!(row.rounds.iter().all(|step| step.value > 0.0 && step.value.is_finite()), "{row:?}");
            assert_eq!(row.histogram.is_some(), row.unit == Unit::Seconds, "{}", row.name());
            assert_eq!(row.kind == Kind::Baseline, row.over == "sockets");
            let operations = row.histogram.as_ref().map(bmi_report::Histogram::len);
            assert!(operations.is_none_or(|number| number == 40), "{}: {operations:?}", row.name());
            assert!(row.cost["client"].cpu > 0.0 && row.cost["server"].cpu > 0.0, "{row:?}");
        }
        assert!(report.plans.iter().any(|plan| plan.over == "tcp" && !plan.why.is_empty()));
        assert!(report.summary.iter().any(|(name, most, _)| name.starts_with("another path") && *most >= 0.0));
        assert!(report.hosts.len() == 2 && report.hosts.iter().all(|host| !host.facts.is_empty()));
        server.await_line(": ");
    }
}

/// The plan was read when the connection was made, before the peer had described its slots. So data
/// of 8 to 64 KiB over TCP was said to take the path `server-based: no slots`.
#[test]
fn the_plan_of_a_run_knows_the_slots_of_the_peer() {
    let server = Server::start();
    let report = report(&client(&server.at, SHORT).output().unwrap());
    let writes = || report.plans.iter().filter(|plan| plan.over == "tcp" && plan.direction.starts_with("write"));
    assert!(writes().any(|plan| plan.path == "fast-rdma" && plan.size < 64 << 10), "{:#?}", report.plans);
    assert!(!report.plans.iter().any(|plan| plan.why.contains("no slots")), "{:#?}", report.plans);
    let mut messages = report.plans.iter().filter(|plan| plan.over == "tcp" && plan.direction == "message");
    assert!(messages.any(|plan| plan.path == "fast-rdma"), "{:#?}", report.plans);
}

#[test]
fn many_connections_and_threads_share_the_work() {
    let server = Server::start();
    let line = "--over tcp,shm --test latency,bandwidth,both-ways,latency-at-rate,call-read --size 64 --depth 4 \
                --rate 5000 --count 20 --rounds 1 --waiting sleeping --connections 5 --threads 1,2,5 --path chosen";
    let report = report(&client(&server.at, line).output().unwrap());
    for row in report.rows.iter().filter(|row| row.test == "latency") {
        assert_eq!(row.histogram.as_ref().unwrap().len(), 100, "{}", row.name());
    }
    for over in ["tcp", "shm", "sockets"] {
        assert_eq!(report.rows.iter().filter(|row| row.over == over).count(), 15, "{over}");
    }
}

/// Measures between two processes of this host.
fn here(options: &str) -> Output {
    Command::new(PROGRAM).arg("here").args(options.split_whitespace()).output().unwrap()
}

/// A backend alone has all tests of messages and of single operations. An endpoint that is polled
/// has no writes with immediate data, and does not show when a write is in place.
#[test]
fn a_backend_and_a_polled_endpoint_are_measured_without_an_executor() {
    let tests = "latency,bandwidth,rate,write-latency,write-bandwidth,read-latency,read-bandwidth,write-imm,write-seen";
    let report = report(&here(&format!(
        "--over tcp,shm --interface backend,polled --test {tests},call-read --size 64,100000 --depth 3 --count 10 \
         --rounds 2 --no-baseline --json -"
    )));
    assert_eq!(report.interrupted, None);
    assert_eq!(report.overs(), ["tcp backend", "tcp polled", "shm backend", "shm polled"]);
    for over in report.overs() {
        let tests = if over.ends_with("backend") { 9 } else { 7 };
        assert_eq!(report.rows.iter().filter(|row| row.over == over).count(), 2 * tests, "{over}");
    }
    for row in &report.rows {
        assert!(row.rounds.len() == 2 && row.values().iter().all(|value| *value > 0.0), "{row:?}");
        assert_eq!(row.histogram.is_some(), row.unit == Unit::Seconds, "{}", row.name());
    }
}

/// The interface for C is beside the polled one, over two transports in one process, for messages
/// alone.
#[test]
fn a_program_in_c_is_measured_beside_a_polled_endpoint() {
    let report = report(&here(
        "--over tcp,shm --interface polled,c --test latency,bandwidth,rate,read-latency --size 8,100000 --depth 40 \
         --count 50 --rounds 2 --no-baseline --json -",
    ));
    assert_eq!(report.interrupted, None);
    assert_eq!(report.overs(), ["tcp polled", "tcp c", "shm polled", "shm c"]);
    for row in &report.rows {
        assert!(row.rounds.len() == 2 && row.values().iter().all(|value| *value > 0.0), "{row:?}");
    }
    let of = |over| report.rows.iter().filter(|row| row.over == over).count();
    assert_eq!((of("tcp polled"), of("tcp c"), of("shm c")), (8, 6, 6));
}

/// Rounds of a handle are beside those of an endpoint, and have the cost of the process.
#[test]
fn a_handle_is_measured_beside_an_endpoint() {
    let report = report(&here(
        "--over tcp,shm --interface endpoint,thread,tokio --test latency,bandwidth,read-latency,call-write \
         --path chosen --size 64 --depth 4 --connections 3 --count 10 --rounds 2 --waiting sleeping --json -",
    ));
    let overs = ["tcp", "tcp thread", "tcp tokio", "shm", "shm thread", "shm tokio", "sockets"];
    assert_eq!(report.overs(), overs);
    for row in &report.rows {
        assert_eq!(row.rounds.len(), 2, "{}", row.name());
        let operations = row.histogram.as_ref().map(bmi_report::Histogram::len);
        assert!(operations.is_none_or(|number| number == 2 * 3 * 10), "{}: {operations:?}", row.name());
        assert!(row.cost["client"].cpu > 0.0 && row.cost["server"].cpu > 0.0, "{row:?}");
    }
}

/// As many tasks as the depth share the calls of a connection, also if there are fewer calls.
#[test]
fn programs_on_tokio_are_measured_beside_plain_sockets_of_tokio() {
    let report = report(&here(
        "--over tcp,shm --test tokio-read,tokio-write --size 64,4K,100000 --depth 1,3,16 --connections 1,2 \
         --count 10 --rounds 2 --time 3600 --json -",
    ));
    assert_eq!(report.interrupted, None);
    assert_eq!(report.overs(), ["tcp", "shm", "sockets"]);
    assert_eq!(report.rows.len(), 3 * 2 * 3 * 3 * 2);
    for row in &report.rows {
        assert_eq!((row.unit, row.rounds.len()), (Unit::PerSecond, 2), "{}", row.name());
        assert!(row.values().iter().all(|value| *value > 0.0 && value.is_finite()), "{row:?}");
        let connections: u64 = row.setup.get("connections").map_or(1, |number| number.parse().unwrap());
        assert_eq!(row.histogram.as_ref().unwrap().len(), 2 * 10 * connections, "{}", row.name());
        assert!(row.cost["client"].cpu > 0.0 && row.cost["server"].cpu > 0.0, "{row:?}");
    }
}

/// A kernel, or a container, may have no io_uring: then a note has the reason. There are short and
/// long messages, and more of them than a chain has.
#[test]
fn sockets_over_io_uring_are_measured_or_the_reason_is_in_the_report() {
    let long = "--test latency,bandwidth,both-ways,read-bandwidth,call-write --size 64,100000 --depth 3,100 \
                --connections 1,3 --path chosen --count 150 --waiting sleeping";
    // Two latencies, and two depths of two streams. Nothing of it has streams in both directions.
    let short = "--test latency,rate --size 8 --count 20 --waiting polling,hybrid";
    for (line, expected) in [(long, (2 + 2 * 2) * 2 * 2), (short, 2)] {
        let report = report(&here(&format!("--over sockets,uring --rounds 2 --time 3600 --json - {line}")));
        assert_eq!(report.interrupted, None);
        if report.notes.iter().any(|note| note.starts_with("uring is left out: ")) {
            assert_eq!(report.overs(), ["sockets"]);
            continue;
        }
        let rows: Vec<_> = report.rows.iter().filter(|row| row.over == "uring").collect();
        assert_eq!(rows.len(), expected, "{line}");
        for row in rows {
            assert_eq!(row.rounds.len(), 2, "{}", row.name());
            assert!(row.values().iter().all(|value| *value > 0.0), "{}", row.name());
            assert!(row.cost["client"].cpu > 0.0 && row.cost["server"].cpu > 0.0, "{}", row.name());
        }
    }
}

/// `cargo xtask compare` knows the rows by these names.
#[test]
fn a_sample_has_a_line_for_each_row() {
    let output = here("--sample --over tcp --interface endpoint,polled,backend --test latency --size 8 --count 20");
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<&str> = lines.iter().map(|line| line["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["tcp", "tcp polled", "tcp backend"].map(|over| format!("{over} latency 8 B, polling")));
    assert!(lines.iter().all(|line| line["value"].as_f64().unwrap() > 0.0 && line["unit"] == "s"), "{lines:?}");
}

/// Programs of other libraries that are not there are named, and all else is measured.
#[test]
fn other_libraries_that_are_not_installed_are_left_out() {
    let options = "--over tcp --test latency --size 8 --count 20 --rounds 1 --peers ucx,perftest --json -";
    let mut command = Command::new(PROGRAM);
    let output = command.arg("here").args(options.split_whitespace()).env("PATH", "").output().unwrap();
    let report = report(&output);
    assert_eq!(report.overs(), ["tcp", "sockets"]);
    assert!(report.notes.iter().any(|note| note.contains("ucx_perftest is not installed")), "{:?}", report.notes);
}

fn calibrate(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).arg("calibrate").args(arguments).output().unwrap()
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A profile that is written is accepted where a profile is asked for, by name and with a disk, and
/// does not change when it is fitted to its own measurements.
#[test]
fn a_profile_is_fitted_to_a_file_of_measurements_and_to_a_report() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (measured, profile, report) = (path("measured.toml"), path("profile.toml"), path("tcp.json"));
    std::fs::write(&measured, printed(&calibrate(&["--example"]))).unwrap();
    std::fs::write(&profile, printed(&calibrate(&[&measured]))).unwrap();
    let shown = printed(&calibrate(&["--show", &format!("{profile}+nvme")]));
    assert!(shown.contains("write_mb_per_s = 82"), "{shown}");
    let again = printed(&calibrate(&["--base", &profile, &measured]));
    assert_eq!(again, std::fs::read_to_string(&profile).unwrap());
    let run = format!(
        "--over tcp --test latency,bandwidth --size 8,256K --waiting sleeping --count 20 --rounds 1 --json {report}"
    );
    assert!(here(&run).status.success());
    let text = printed(&calibrate(&["--measured", &report]));
    assert!(text.contains("send_one_way_us = ") && text.contains("# Measured over tcp by bmi-perf"), "{text}");
    assert!(!error(&calibrate(&["--over", "shm", &report]), 2).is_empty());
}

/// A fit that missed every measurement by four fifths ended with status 0.
#[test]
fn a_profile_that_does_not_fit_is_written_and_the_status_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let measured = dir.path().join("measured.toml").to_str().unwrap().to_owned();
    std::fs::write(&measured, "write_one_way_us = 6.0\nread_round_trip_us = 7.0\n").unwrap();
    let output = calibrate(&[&measured]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("read_round_trip_us") && said.contains("--tolerance"), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("read_response_ns"));
    printed(&calibrate(&["--tolerance", "100", &measured]));
}

#[test]
fn memory_is_measured_beside_shared_memory() {
    let server = Server::start();
    let line = "--over shm --test latency,bandwidth --size 64 --depth 4 --count 20 --rounds 1";
    let report = report(&client(&server.at, line).output().unwrap());
    let overs: Vec<&str> = report.rows.iter().map(|row| row.over.as_str()).collect();
    assert_eq!(overs, ["shm", "memory", "shm", "memory"]);
    assert!(!report.rows[1].cost.contains_key("server"), "the server has nothing to do");
}

/// Where the system counts system calls, a message over plain sockets that sleep takes some.
#[test]
fn system_calls_are_counted_or_the_reason_is_in_the_report() {
    let server = Server::start();
    let line = "--over tcp --test latency --size 8 --count 200 --rounds 1 --waiting sleeping";
    let report = report(&client(&server.at, line).output().unwrap());
    let said_why = report.notes.iter().any(|note| note.contains("counts no system calls"));
    let sockets = report.rows.iter().find(|row| row.over == "sockets").unwrap();
    for role in ["client", "server"] {
        match sockets.cost[role].calls {
            // A write, a read that finds nothing, poll, and the read; or without the sleep.
            Some(calls) => assert!((2.0..6.0).contains(&calls), "{role}: {calls}"),
            None => assert!(said_why, "{:?}", report.notes),
        }
    }
}

/// The stages of a message add up to about its time, and the trace has both sides of each case.
#[test]
fn timelines_of_both_sides_tell_where_the_time_goes() {
    let (server, scratch) = (Server::start(), tempfile::tempdir().unwrap());
    let (path, page) = (scratch.path().join("trace.json"), scratch.path().join("page.html"));
    let line = "--over tcp,shm --test latency,call-write --size 8,64,100000 --count 20 --rounds 1 --waiting sleeping";
    let mut command = client(&server.at, line);
    command.arg("--timeline").arg(&path).arg("--html").arg(&page);
    let report = report(&command.output().unwrap());
    for row in report.rows.iter().filter(|row| row.test == "latency" && row.kind == Kind::Library) {
        let names: Vec<&str> = row.stages.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["send", "in flight", "deliver", "the server's program"], "{}", row.name());
        assert!(row.stages.iter().all(|(_, seconds)| *seconds >= 0.0) && row.stages[1].1 > 0.0, "{row:?}");
    }
    let trace: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |event: &&serde_json::Value| event["name"] == "process_name";
    let names: Vec<&str> = events.iter().filter(named).filter_map(|event| event["args"]["name"].as_str()).collect();
    // The smallest and the largest size of both tests over both transports.
    assert_eq!(names.len(), 2 * 2 * 2 * 2, "{names:?}");
    assert!(names.contains(&"client: tcp latency 8 B, sleeping") && !names.iter().any(|name| name.contains("64 B")));
    let ends = |phase: &str| {
        let mut ids: Vec<u64> =
            events.iter().filter(|event| event["ph"] == *phase).filter_map(|event| event["id"].as_u64()).collect();
        ids.sort_unstable();
        ids
    };
    assert!(!ends("s").is_empty() && ends("s") == ends("f"), "each arrow has both ends");
    assert!(std::fs::read_to_string(page).unwrap().contains("client: tcp latency 8 B, sleeping"));
}

/// A report is compared with itself and with a slower one, from the command line.
#[test]
fn a_gate_for_ci_fails_only_if_something_is_surely_slower() {
    let scratch = tempfile::tempdir().unwrap();
    let write = |name: &str, factor: f64| {
        let mut report = Report::new("test", "a title");
        let value = |round: u32| bmi_report::Step { round, value: factor * (1e-6 + f64::from(round % 3) * 1e-9) };
        let row = bmi_report::Row {
            test: "latency".into(),
            over: "tcp".into(),
            rounds: (0..20).map(value).collect(),
            ..bmi_report::Row::default()
        };
        report.rows.push(row);
        let path = scratch.path().join(name);
        std::fs::write(&path, report.to_json()).unwrap();
        path
    };
    let (a, b) = (write("a.json", 1.0), write("b.json", 1.2));
    let status = |a: &std::path::Path, b: &std::path::Path, rule: &str| {
        let mut command = Command::new(PROGRAM);
        command.arg("compare").args([a, b]).args(rule.split_whitespace()).output().unwrap().status.code()
    };
    assert_eq!(status(&a, &a, "--fail-if slower:5%"), Some(0));
    assert_eq!(status(&a, &b, "--fail-if slower:5%"), Some(1));
    assert_eq!(status(&a, &b, "--fail-if slower:25% --json"), Some(0));
    assert_eq!((status(&b, &a, "--fail-if slower:5%"), status(&a, &b, "")), (Some(0), Some(0)));
    assert_eq!(status(&a, &b, "--fail-if cheaper"), Some(2));
    assert_eq!(status(&a, &scratch.path().join("none.json"), ""), Some(2));
    let shown = Command::new(PROGRAM).arg("show").arg(&a).output().unwrap();
    assert!(shown.status.success() && String::from_utf8_lossy(&shown.stdout).contains("latency"));
}

// ---- what can go wrong --------------------------------------------------------------------------

#[test]
fn a_wrong_host_is_told_apart_from_one_without_a_server() {
    let run = |at: &str| error(&client(at, "").output().unwrap(), 2);
    assert!(run("no.such.host.invalid").contains("no host that can be found"));
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    assert!(run(&format!("127.0.0.1:{port}")).contains("start `bmi-perf serve"));
}

/// A server of another program, and one of another version.
#[test]
fn what_is_no_server_of_this_version_is_told_so() {
    let answered = |answer: &'static [u8]| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        std::thread::scope(|scope| {
            let serve = || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(answer).unwrap();
                // Until the client has gone.
                let _ = stream.read_to_end(&mut Vec::new());
            };
            std::thread::Builder::new().spawn_scoped(scope, serve).unwrap();
            error(&client(&at, "").output().unwrap(), 2)
        })
    };
    assert!(answered(b"220 mail.example ESMTP\r\n").contains("not a message of bmi-perf"));
    let other = b"{\"Refused\":{\"why\":\"this server speaks version 9\"}}\n";
    assert!(answered(other).contains("version 9"));
}

#[test]
fn a_client_of_another_version_and_a_stranger_are_refused_and_the_server_goes_on() {
    let server = Server::start();
    let asked = |line: &str| {
        let mut stream = TcpStream::connect(&server.at).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        answer
    };
    assert!(asked("{\"Hello\":{\"magic\":\"bmi-perf\",\"version\":99,\"who\":\"x\"}}\n").contains("version 99"));
    assert!(asked("GET / HTTP/1.1\r\n").contains("not a message"));
    assert!(asked(&"x".repeat(5000)).contains("more than 4096 bytes"));
    report(&client(&server.at, SHORT).output().unwrap());
}

/// Starts a client that measures for a long time, and waits until the server serves it.
fn long_run(server: &mut Server, scratch: &TempDir) -> Child {
    let mut command = Command::new(PROGRAM);
    command.args(["run", &server.at, "--over", "tcp", "--test", "latency", "--size", "8", "--waiting", "sleeping"]);
    command.args(["--round-ms", "5", "--time", "3600", "--rounds", "100000", "--least-rounds", "100000"]);
    command.arg("--json").arg(scratch.path().join("report.json"));
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    server.await_line("measuring");
    child
}

/// Another client's attempt meanwhile.
fn attempt(server: &Server) -> String {
    error(&client(&server.at, SHORT).output().unwrap(), 2)
}

#[test]
fn a_second_run_at_the_same_time_is_refused_and_an_interrupted_one_reports_what_it_has() {
    let (mut server, scratch) = (Server::start(), tempfile::tempdir().unwrap());
    // How long the first round takes depends on the load. So a run that had measured nothing when
    // it was interrupted is repeated with more patience.
    let (path, mut attempts) = (scratch.path().join("report.json"), 1);
    let report = loop {
        let first = long_run(&mut server, &scratch);
        for _ in 0..attempts {
            let refused = attempt(&server);
            assert!(refused.contains("one run at a time"), "{refused}");
        }
        let pid = rustix::process::Pid::from_child(&first);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let ended = first.wait_with_output().unwrap();
        server.await_line(": ");
        // A client that has not begun yet ends by the signal itself.
        if ended.status.code().is_some() {
            assert!(error(&ended, 130).contains("interrupted"));
        }
        match path.exists().then(|| Report::read(&path).unwrap()) {
            Some(report) if report.rows.len() == 2 => break report,
            _ => attempts *= 2,
        }
    };
    assert!(report.interrupted.is_some() && report.rows.iter().all(|row| !row.rounds.is_empty()));
    // And the next run is served.
    self::report(&client(&server.at, SHORT).output().unwrap());
}

#[test]
fn the_death_of_either_side_in_the_middle_ends_the_other_ones_run() {
    let (mut server, scratch) = (Server::start(), tempfile::tempdir().unwrap());
    let mut first = long_run(&mut server, &scratch);
    attempt(&server);
    first.kill().unwrap();
    first.wait().unwrap();
    server.await_line(": ");
    let second = long_run(&mut server, &scratch);
    attempt(&server);
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    let ended = error(&second.wait_with_output().unwrap(), 2);
    assert!(["gone", "lost", "closed"].iter().any(|word| ended.contains(word)), "{ended}");
}

#[test]
fn a_transport_that_is_not_there_is_an_error_if_it_was_named_and_a_note_if_not() {
    let server = Server::start();
    let has_verbs = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some());
    let line = "--test latency --size 8 --count 5 --rounds 1";
    let all = report(&client(&server.at, line).output().unwrap());
    if !has_verbs {
        assert!(all.notes.iter().any(|note| note.starts_with("ib is left out: ")), "{:?}", all.notes);
        let named = client(&server.at, &format!("--over ib {line}")).output().unwrap();
        assert!(error(&named, 2).contains("ib cannot be measured"));
    }
    let device = client(&server.at, &format!("--over ib --device no_such_device {line}")).output().unwrap();
    assert!(error(&device, 2).contains("ib cannot be measured"));
}
