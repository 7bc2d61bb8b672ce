//! Runs the program `fs_bench` from its command line to its end. Checks its output, and that it
//! leaves nothing behind, however it ends. A figure only has to be a number.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use benches::net;
use bmi_report::{Report, Row, Unit, groups};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fs_bench");

/// Returns the server's program. The environment variable `PVFSD` names one; otherwise it is built.
fn pvfsd() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(given) = std::env::var_os("PVFSD") {
            return given.into();
        }
        let beside = Path::new(PROGRAM).parent().unwrap();
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // With the features of this package's own dependency, so that it is not compiled again.
        build.args(["build", "-p", "fs-server", "--features", "sim", "--bin", "pvfsd", "--target-dir"]);
        build.arg(beside.parent().unwrap());
        build.args((beside.file_name().unwrap() == "release").then_some("--release"));
        let built = build.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        beside.join("pvfsd")
    })
}

/// A run of the benchmark.
struct Run(Child);

impl Run {
    fn start(args: &[&str], pvfsd: &Path) -> Run {
        let mut command = Command::new(PROGRAM);
        command.args(args).env("PVFSD", pvfsd).env_remove("RUST_LOG");
        Run(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Returns its directories that exist.
    fn folders(&self) -> Vec<PathBuf> {
        let prefix = format!("fs-bench-{}-", self.0.id());
        let entries = fs::read_dir(net::data_folder()).unwrap().filter_map(|entry| Some(entry.ok()?.path()));
        entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(&prefix)).collect()
    }

    /// Counts its servers that run: processes with its directory in their command lines.
    fn servers(&self) -> usize {
        let folder = format!("fs-bench-{}-", self.0.id());
        let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path().join("cmdline")));
        let lines = processes.filter_map(|path| fs::read(path).ok());
        lines.filter(|line| String::from_utf8_lossy(line).contains(&folder)).count()
    }

    /// Waits for its end, and checks that nothing of it is left.
    fn end(mut self) -> Output {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.0.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        self.0.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
        let status = self.0.wait().unwrap();
        let errors = String::from_utf8_lossy(&stderr);
        assert_eq!(self.folders(), Vec::<PathBuf>::new(), "{errors}");
        assert_eq!(self.servers(), 0, "{errors}");
        Output { status, stdout, stderr }
    }
}

impl Drop for Run {
    /// If a test fails, the benchmark does not go on running.
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = kill_process(self.pid(), Signal::TERM);
            let _ = self.0.wait();
        }
    }
}

/// Options with which lines take almost no time.
const SHORT: [&str; 5] = ["--quick", "--line-ms", "2", "--size", "1M"];

#[test]
fn a_sample_is_one_json_array_with_each_line_once() {
    let run = Run::start(&[&SHORT[..], &["--sample"]].concat(), pvfsd());
    let output = run.end();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(errors, "");
    let lines: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let names: BTreeSet<&str> = lines.iter().map(|line| line["name"].as_str().unwrap()).collect();
    assert_eq!((names.len(), lines.len()), (38, 38));
    for name in ["tcp create, 1 in flight", "shm random read 64 KiB, 16 in flight", "shm get 1 MiB"] {
        assert!(names.contains(name), "{names:?}");
    }
    for line in &lines {
        assert!(line["value"].as_f64().unwrap() > 0.0, "{line}");
        assert!(["s", "1/s", "B/s"].contains(&line["unit"].as_str().unwrap()), "{line}");
    }
}

/// The program `loops` measured this before, and printed no JSON.
#[test]
fn many_clients_of_one_loop_and_of_two_are_measured_side_by_side() {
    let args = ["--quick", "--line-ms", "2", "--clients", "1,3", "--loops", "1,2", "--rounds", "2", "--json"];
    let output = Run::start(&args, pvfsd()).end();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(errors, "");
    let report = report(&output);
    let names: BTreeSet<String> = report.rows.iter().map(Row::name).collect();
    assert_eq!((names.len(), report.rows.len()), (32, 32));
    assert!(names.contains("2 loops read 64 KiB, 3 clients, shm"), "{names:?}");
    for row in &report.rows {
        assert!(row.rounds.len() == 2 && row.unit == Unit::PerSecond, "{row:?}");
        assert!(row.values().iter().all(|value| *value > 0.0), "{row:?}");
        assert!(["server", "clients"].iter().all(|role| row.cost[*role].cpu > 0.0), "{row:?}");
    }
    for group in groups::groups(&report) {
        let compared: Vec<usize> =
            group.figures.iter().map(|figure| figure.ratios().map(|ratio| ratio.rounds).sum()).collect();
        assert_eq!(compared, [0, 2], "with the first number of loops: {:?}", group.row());
    }
}

fn report(output: &Output) -> Report {
    Report::from_json(&String::from_utf8_lossy(&output.stdout)).unwrap()
}

#[test]
fn a_report_has_the_rounds_of_the_table_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["json", "html", "csv", "txt"].map(|ending| folder.path().join(format!("a.{ending}")));
    let options = files.iter().flat_map(|file| ["--report", file.to_str().unwrap()]);
    let args: Vec<&str> = SHORT.into_iter().chain(["--only", "in flight", "--rounds", "2"]).chain(options).collect();
    let output = Run::start(&args, pvfsd()).end();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (report, table) = (Report::read(&files[0]).unwrap(), String::from_utf8(output.stdout).unwrap());
    assert_eq!((report.rows.len(), report.overs()), (28, vec!["tcp", "shm"]));
    for row in &report.rows {
        assert!(row.rounds.len() == 2 && table.contains(&row.name()), "{row:?}\n{table}");
    }
    assert!(files.iter().all(|file| fs::read_to_string(file).unwrap().contains("64 in flight")));
}

/// Both runs create directories, ask for free ports and start servers at the same time.
#[test]
fn two_runs_at_once_do_not_meet() {
    let args = [&SHORT[..], &["--only", "stat", "--rounds", "2", "--json"]].concat();
    let runs = [(); 2].map(|()| Run::start(&args, pvfsd()));
    for run in runs {
        let output = run.end();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let rows = report(&output).rows;
        assert_eq!(rows.len(), 4);
        assert!(rows.iter().all(|row| row.rounds.len() == 2), "{rows:?}");
    }
}

#[test]
fn a_signal_ends_the_servers_and_removes_the_folder() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut run = Run::start(&[&SHORT[..], &["--rounds", "1000"]].concat(), pvfsd());
        // Wait until it is at work. It has a thousand rounds to do, and ends earlier only if it
        // fails.
        while run.servers() < 5 {
            assert!(matches!(run.0.try_wait(), Ok(None)), "it has ended by itself");
            std::thread::yield_now();
        }
        assert_eq!(run.folders().len(), 1);
        kill_process(run.pid(), signal).unwrap();
        assert_eq!(run.end().status.code(), Some(128 + signal.as_raw()));
    }
}

#[test]
fn servers_that_do_not_come_up_are_an_error_that_leaves_nothing() {
    let output = Run::start(&SHORT, Path::new("/bin/false")).end();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("server 0 did not come up over tcp"), "{errors}");
    assert!(output.stdout.is_empty());
}

#[test]
fn without_the_servers_program_it_says_what_to_build() {
    let output = Run::start(&SHORT, Path::new("/nowhere/pvfsd")).end();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("/nowhere/pvfsd") && errors.contains("cargo build --release -p fs-server"), "{errors}");
}

#[test]
fn a_limit_that_is_passed_ends_the_run_and_leaves_nothing() {
    // A single line takes longer than the limit.
    let args = ["--quick", "--only", "create, 1", "--line-ms", "10000", "--limit", "1"];
    let output = Run::start(&args, pvfsd()).end();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(i32::from(benches::limit::TIMED_OUT)), "{errors}");
    assert!(errors.contains("took longer than 1 s"), "{errors}");
}
