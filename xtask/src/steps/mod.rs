//! The table of test steps, and the loop over it.

mod python;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::budget::{self, Budget, Verdict};
use crate::command::{Failure, Invocation};
use crate::cpu;
use crate::digests;
use crate::dist::deb;
use crate::metadata;
use crate::mutants;
use crate::pair;
use crate::rxe;
use crate::setup;
use crate::totals::Totals;

/// A step of the test command.
pub(crate) struct Step {
    /// The name for `--only`.
    pub(crate) name: &'static str,
    /// A description in one line.
    pub(crate) what: &'static str,
    /// Which runs it is part of.
    pub(crate) when: When,
    run: fn(&Path) -> Result<Totals, Failure>,
}

/// Which runs a step is part of. `--only` can name any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Always,
    /// With `--full`.
    InFull,
    OnRequest,
}

/// All steps, in order: those that fail fastest come first. Steps that need more than this machine
/// may have run on request.
pub(crate) const STEPS: &[Step] = &[
    step("setup", "installs what the machine lacks: components of the toolchain, packages", |root| {
        setup::set_up(root).map(|()| NOTHING)
    }),
    step("fmt", "the code is formatted as rustfmt.toml says", fmt),
    step("clippy", "no warnings, over all targets and features", clippy),
    step("rustdoc", "the documentation builds without warnings", rustdoc),
    step("package", "cargo makes a package of every crate that other projects use", package),
    step("publish", "cargo would publish every crate that other projects use; nothing is published", publish),
    step("portable", "the libraries with the lowest Rust version, for Linux on aarch64 and for macOS", portable),
    step("build", "all programs and all tests build, once, for the steps below", |root| build(root).map(|()| NOTHING)),
    step("tests", "unit, property, conformance and file system tests", tests),
    on_request(step(
        "miri",
        "the ring of bmi-shm, its records and its packets under Miri, where a nightly toolchain has it",
        miri,
    )),
    step("mutants", "the sweeps find the bugs that are seeded in the code", mutants::step),
    on_request(step("digests", "the sweeps' digests are the same in debug and in release", digests::step)),
    step("doctests", "the examples in the documentation", doctests),
    step("examples", "every program of examples/ that needs no arguments runs to a good end", examples),
    Step {
        when: When::InFull,
        ..step(
            "raft",
            "a Raft cluster over calls: examples/raft, outside of the workspace; 150 s of processor time",
            raft,
        )
    },
    step("main-job", "the A/B run on a small tree, over every transport here and in the simulator", main_job),
    step("storm", "commands of the file system while its servers are killed, compared with a model", storm),
    step("hostile", "an honest client of the file system beside every kind of attacker", hostile),
    step("python", "the Python package: its types and its tests; needs Python 3.9", python::step),
    step("fuse", "the mount, and an I/O server on a disk that stalls for real; needs root and /dev/fuse", fuse),
    on_request(step(
        "pair",
        "two hosts on one machine: rate, delay and loss of the cable, and its end; needs root",
        pair::step,
    )),
    on_request(step(
        "deb",
        "the Debian package, installed, used and purged in a bare root; needs root and cargo-deb",
        deb::step,
    )),
    step("rxe", "real verbs, in an emulated machine with Soft-RoCE", rxe::step),
];

/// A step that is part of every run.
const fn step(name: &'static str, what: &'static str, run: fn(&Path) -> Result<Totals, Failure>) -> Step {
    Step { name, what, when: When::Always, run }
}

const fn on_request(step: Step) -> Step {
    Step { when: When::OnRequest, ..step }
}

/// The totals of a step that counts nothing.
const NOTHING: Totals = Totals::NONE;
/// Time limit for one call of cargo. A cold build of everything took 10 minutes on two processors
/// that other programs used too. A busier machine takes longer.
const CARGO_LIMIT: Duration = Duration::from_secs(2400);
/// Time limit for one example. Each takes a second or two.
const EXAMPLE_LIMIT: Duration = Duration::from_secs(60);
/// Time limit for the small A/B run. It takes seconds.
const MAIN_JOB_LIMIT: Duration = Duration::from_secs(120);
/// Time limit for a short storm or attack. It takes less than a minute, and on a busy machine some
/// minutes.
const STRESS_LIMIT: Duration = Duration::from_secs(900);

/// Finds a step by its name, for `--only`.
pub(crate) fn parse_step(name: &str) -> Result<&'static Step, String> {
    STEPS.iter().find(|step| step.name == name).ok_or_else(|| {
        let names = STEPS.iter().map(|step| step.name).collect::<Vec<_>>().join(", ");
        format!("no such step; there are {names}")
    })
}

/// Runs the steps in `only`, or all, up to the first that fails. Prints a summary and the totals.
#[expect(clippy::disallowed_methods, reason = "tells a person how long each step took")]
pub(crate) fn run(root: &Path, only: &[&'static Step]) -> ExitCode {
    let in_full = std::env::var_os(crate::FULL).is_some();
    let chosen: Vec<&Step> = STEPS
        .iter()
        .filter(|step| match only {
            [] => step.when == When::Always || step.when == When::InFull && in_full,
            only => only.iter().any(|one| one.name == step.name),
        })
        .collect();
    let begin = Instant::now();
    let budget = Budget::committed();
    let mut kind = budget::Run {
        is_whole: only.is_empty(),
        is_cold: !metadata::program(root, "pvfsd").exists(),
        is_on_usual_machine: budget::is_usual_machine(),
        gauges: Vec::new(),
    };
    let mut totals = Totals::default();
    // `cargo xtask` builds this program and then replaces itself by it, so this process includes
    // the time of the build.
    let built_with = cpu::seconds();
    let mut summary = vec![line(&budget, "(xtask)", "", 0.0, built_with, Totals::NONE)];
    let left_out = STEPS.iter().filter(|step| only.is_empty() && step.when == When::InFull && !in_full);
    let mut skips: Vec<String> = left_out.map(|step| format!("LEFT OUT {}: it needs --full", step.name)).collect();
    let mut failure = None;
    for (index, step) in chosen.iter().enumerate() {
        println!("==> {}/{} {}: {}", index + 1, chosen.len(), step.name, step.what);
        if kind.is_whole && budget.is_large(step.name) {
            kind.gauges.push(budget::gauge());
        }
        let (step_begin, cpu_begin) = (Instant::now(), cpu::seconds());
        let result = (step.run)(root);
        let (took, cpu) = (step_begin.elapsed().as_secs_f64(), cpu::seconds() - cpu_begin);
        let (more, verdict) = match &result {
            Ok(more) => (*more, "ok"),
            Err(skipped) if skipped.is_skip => {
                println!("SKIPPED {}: {skipped}", step.name);
                (skipped.totals, "SKIPPED")
            }
            // A failure that no test runner counted counts as one.
            Err(failed) if failed.totals.failed == 0 => (Totals { failed: 1, ..failed.totals }, "FAILED"),
            Err(failed) => (failed.totals, "FAILED"),
        };
        totals += more;
        println!("<== {} {verdict} in {took:.1} s, {cpu:.1} s of processor time", step.name);
        summary.push(line(&budget, step.name, verdict, took, cpu, more));
        match result {
            Ok(_) => {}
            Err(skipped) if skipped.is_skip => skips.push(format!("SKIPPED {}: {skipped}", step.name)),
            Err(failed) => {
                failure = Some(format!(
                    "step {} failed: {failed}\nalone again: cargo xtask test --only {}",
                    step.name, step.name
                ));
                break;
            }
        }
    }
    if kind.is_whole {
        kind.gauges.push(budget::gauge());
    }
    let (took, cpu) = (begin.elapsed().as_secs_f64(), cpu::seconds());
    println!(
        "\nSummary: {took:.1} s, {cpu:.1} s of processor time; the budget of a cold run is {:.0} s of it",
        budget.sum
    );
    if kind.is_whole {
        let times: Vec<String> = kind.gauges.iter().map(|seconds| format!("{seconds:.2}")).collect();
        println!("  fixed work took {} s; {:.2} s on the machine of the budget", times.join(", "), budget.gauge);
    }
    println!("  step                   time  processor  of budget");
    summary.iter().chain(&skips).for_each(|line| println!("{}", line.trim_end()));
    if failure.is_none() {
        match budget.judge(cpu, &kind) {
            Verdict::Kept => {}
            Verdict::Warned(why) => println!("\nwarning: {why}"),
            Verdict::Failed(why) => {
                totals += Totals::FAILED;
                failure = Some(why);
            }
        }
    }
    if let Some(why) = &failure {
        println!("\n{why}");
    }
    println!("\n{totals}");
    if failure.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Returns a line of the summary.
fn line(budget: &Budget, name: &str, verdict: &str, took: f64, cpu: f64, counted: Totals) -> String {
    let counted = if counted == NOTHING { String::new() } else { counted.to_string() };
    let share = budget.share(name, cpu);
    format!("  {name:<10} {verdict:<7} {took:>7.1} s  {cpu:>7.1} s  {share:>9}  {counted}")
}

fn fmt(root: &Path) -> Result<Totals, Failure> {
    Invocation::cargo(root, "fmt --all --check").run(CARGO_LIMIT)
}

fn clippy(root: &Path) -> Result<Totals, Failure> {
    Invocation::cargo(root, "clippy --workspace --all-targets --all-features -- -D warnings").run(CARGO_LIMIT)
}

/// Packs the crates that other projects use, without building the packages. Cargo checks their
/// manifests and that each package can be resolved without this workspace. The files may have
/// changes that are not committed. What the packages depend on was downloaded to build this program
/// and its workspace, so no registry is asked.
fn package(root: &Path) -> Result<Totals, Failure> {
    let names = public(root)?.into_iter().map(|package| package.name);
    Invocation::cargo(root, "package --no-verify --allow-dirty --offline --quiet").args(&select(names)).run(CARGO_LIMIT)
}

/// Goes through all that publishing the crates needs, but for the upload. Beyond `package`, it asks
/// the registry for what they depend on, and finds the order in which to publish them. Without a
/// registry, the step is skipped.
///
/// It does not build the packages: each would be built with all that it depends on, once more, from
/// the same files that the other steps build.
fn publish(root: &Path) -> Result<Totals, Failure> {
    let dry_run = Invocation::cargo(root, "publish --workspace --dry-run --no-verify --allow-dirty");
    match dry_run.captured(CARGO_LIMIT) {
        (Ok(()), _) => Ok(NOTHING),
        (Err(_), said) if has_no_registry(&said) => Err(Failure::skip(
            "the registry cannot be reached, and `cargo publish` asks it even if it publishes nothing",
        )),
        (Err(failure), said) => Err(Failure { reason: format!("{failure}\n{said}"), ..failure }),
    }
}

/// Returns true if cargo has said that it cannot reach the registry, whose first file this is, or
/// must not.
fn has_no_registry(said: &str) -> bool {
    ["download of config.json failed", "--offline was specified"].iter().any(|why| said.contains(why))
}

/// Checks the crates that other projects use with the lowest version of Rust that they state, and
/// for other targets than this machine's. One build tests both.
///
/// For macOS it checks only the protocol and the simulator: the other crates call Linux. It leaves
/// out the file system's client and server, whose dependencies (command lines, a database) take as
/// long as all the others. It has a target directory of its own, so that no other step builds again
/// because of it.
fn portable(root: &Path) -> Result<Totals, Failure> {
    let packages = public(root)?;
    let version = packages.iter().find_map(|package| package.rust_version.clone());
    let version = version.ok_or_else(|| Failure::new("no crate states rust-version"))?;
    let mac = ["bmi-core", "bmi-sim", "bmi-transport"].map(str::to_owned).to_vec();
    let programs = ["fs-client", "fs-server"];
    let all = packages.into_iter().map(|package| package.name).filter(|name| !programs.contains(&&**name)).collect();
    let checks = [("aarch64-unknown-linux-gnu", all), ("aarch64-apple-darwin", mac)];
    setup::install(root, setup::Need::Portable).map_err(|why| Failure::skip(why.to_string()))?;
    setup::set_up_toolchain(root, &version, &checks.each_ref().map(|(target, _)| *target))
        .map_err(|why| Failure::skip(why.reason))?;
    for (target, names) in checks {
        // `rustup run` and not `cargo +version`: a cargo on the PATH may be another than rustup's.
        // Without its default features, `bmi` has no transport of Linux.
        let features = if target.contains("apple") { " --no-default-features" } else { "" };
        Invocation::new(root, "rustup", &format!("run {version} cargo check --release --target {target}{features}"))
            .args(&select(names))
            .env("CARGO_TARGET_DIR", crate::target(root).join("portable"))
            // Nothing that is checked here runs. The development profile optimises the dependencies
            // that the tests spend their time in, and keeps records for incremental builds; a check
            // would pay for both.
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
            .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
            .env("RUSTFLAGS", "-Dwarnings")
            .run(CARGO_LIMIT)?;
    }
    Ok(NOTHING)
}

/// The crates that other projects use.
fn public(root: &Path) -> Result<Vec<metadata::Package>, Failure> {
    Ok(metadata::packages(root)?.into_iter().filter(metadata::Package::is_public).collect())
}

/// Selects crates, as cargo's commands take them.
fn select(names: impl IntoIterator<Item = String>) -> Vec<String> {
    names.into_iter().flat_map(|name| ["--package".to_owned(), name]).collect()
}

fn rustdoc(root: &Path) -> Result<Totals, Failure> {
    // Libraries and programs are documented together. A program with the name of a library of
    // another crate would collide with it. There is none today.
    Invocation::cargo(root, "doc --workspace --all-features --no-deps")
        .env("RUSTDOCFLAGS", "-Dwarnings")
        .run(CARGO_LIMIT)
}

fn tests(root: &Path) -> Result<Totals, Failure> {
    build(root)?;
    // The test programs of `bmi-ib` need a device, and each of their tests is ignored. They are
    // counted where they run, in the step `rxe`. Nothing else is ignored.
    let has_nextest = setup::has_nextest(root);
    let runner = if has_nextest {
        "nextest run --workspace --filterset !(package(bmi-ib)&kind(test)) --features"
    } else {
        // `--all-targets` does not include the doctests. They are a step of their own.
        "test --workspace --all-targets --no-fail-fast --features"
    };
    // The tests of the command lines start servers. With this variable they do not build them
    // again.
    let tests = Invocation::cargo(root, runner)
        .args(&[metadata::features(root)?])
        .env("PVFSD", metadata::program(root, "pvfsd"))
        // No seeded bug is active here, whatever the user's environment contains.
        .env("BMI_MUTANT", "");
    let totals = leaving_nothing(&crate::target(root).join("temp"), tests)?;
    Ok(if has_nextest { totals } else { Totals { skipped: 0, ..totals } })
}

/// Runs tests with this directory for temporary files. Fails if they leave anything there, and
/// removes it.
fn leaving_nothing(folder: &Path, tests: Invocation) -> Result<Totals, Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", folder.display()));
    let names = |folder: &Path| -> Vec<String> {
        let entries = folder.read_dir().into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    // A run that was killed has left it.
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).map_err(failed)?;
    let result = tests.env("TMPDIR", folder).run(CARGO_LIMIT);
    let left = names(folder).into_iter().map(|name| format!("{name} ({})", names(&folder.join(&name)).join(" ")));
    let left = left.collect::<Vec<_>>().join(", ");
    fs::remove_dir_all(folder).map_err(failed)?;
    let totals = result?;
    match left.is_empty() {
        true => Ok(totals),
        false => Err(Failure::counted(format!("the tests left temporary files, with what is in them: {left}"), totals)),
    }
}

/// Runs the parts of bmi-shm that make no system call under Miri, which finds data races and
/// undefined behaviour: the ring with plain memory, and the codec of its packets.
///
/// Loom's models of the ring are ordinary tests. Only nightly toolchains have Miri. If none is
/// installed, the step is skipped.
fn miri(root: &Path) -> Result<Totals, Failure> {
    if !Invocation::new(root, "cargo", "+nightly miri --version").succeeds() {
        let text = "there is no Miri here; rustup toolchain install nightly --component miri,rust-src brings it";
        return Err(Failure::skip(text));
    }
    Invocation::new(root, "cargo", "+nightly miri test -p bmi-shm --lib -- ring:: packet::").run(CARGO_LIMIT)
}

/// Runs the tests that mount a FUSE file system. Without root or the device, the step is skipped.
fn fuse(root: &Path) -> Result<Totals, Failure> {
    if !setup::is_root() || !Path::new("/dev/fuse").exists() {
        return Err(Failure::skip("mounting a FUSE file system needs root and /dev/fuse"));
    }
    Invocation::cargo(root, "test --workspace --test stalled_disk --test mount --features")
        .args(&[metadata::features(root)?])
        .run(CARGO_LIMIT)
}

fn doctests(root: &Path) -> Result<Totals, Failure> {
    Invocation::cargo(root, "test --doc --workspace --features").args(&[metadata::features(root)?]).run(CARGO_LIMIT)
}

/// Builds all programs and tests. The steps that run a program take it from the directory in which
/// this puts it.
fn build(root: &Path) -> Result<(), Failure> {
    Invocation::cargo(root, metadata::BUILD)
        .args(&["--features".into(), metadata::features(root)?])
        .run(CARGO_LIMIT)
        .map(drop)
}

/// Examples that need arguments and do not end by themselves. Their tests in `examples/tests` run
/// them.
const NEED_ARGUMENTS: [&str; 2] = ["hello", "replicated"];

/// Runs the programs of the crate `examples`: they are found, not listed, so that none is
/// forgotten.
fn examples(root: &Path) -> Result<Totals, Failure> {
    let packages = metadata::packages(root)?.into_iter().filter(|package| package.name == "examples");
    let programs = packages.flat_map(metadata::Package::programs);
    let mut names: Vec<String> = programs.filter(|name| !NEED_ARGUMENTS.contains(&name.as_str())).collect();
    names.sort();
    if names.is_empty() {
        return Err(Failure::new("no example found in examples/"));
    }
    build(root)?;
    let mut totals = NOTHING;
    for name in names {
        println!("--- {name}");
        if let Err(failure) = Invocation::new(root, metadata::program(root, &name), "").run(EXAMPLE_LIMIT) {
            totals += Totals::FAILED;
            return Err(Failure { totals, ..failure });
        }
        totals += Totals::PASSED;
    }
    Ok(totals)
}

/// Runs the tests of the Raft cluster. It is outside of the workspace, because it needs packages
/// that the project does not, so everything is built for it again.
fn raft(root: &Path) -> Result<Totals, Failure> {
    const RAFT: &str = "--manifest-path examples/raft/Cargo.toml";
    let target = crate::target(root).join("raft");
    Invocation::cargo(root, &format!("fmt {RAFT} --check")).run(CARGO_LIMIT)?;
    Invocation::cargo(root, &format!("test {RAFT}"))
        .env("CARGO_TARGET_DIR", target)
        .env("RUSTFLAGS", "-Dwarnings")
        .run(CARGO_LIMIT)
}

/// Runs the main job, shortened. It uses the development profile, which checks more and is built
/// already.
fn main_job(root: &Path) -> Result<Totals, Failure> {
    build(root)?;
    Invocation::new(root, metadata::program(root, "ab"), "--quick").run(MAIN_JOB_LIMIT)?;
    Ok(Totals::PASSED)
}

/// Runs a short storm.
fn storm(root: &Path) -> Result<Totals, Failure> {
    stress(root, "storm --kills 12 --limit 20")
}

/// Runs a short attack of every kind.
fn hostile(root: &Path) -> Result<Totals, Failure> {
    stress(root, "hostile --streams 500 --seconds 0.15 --processes 1 --connections 200")
}

/// Runs the program `stress`, with the development profile, which checks more and is built already.
fn stress(root: &Path, line: &str) -> Result<Totals, Failure> {
    build(root)?;
    Invocation::new(root, metadata::program(root, "stress"), line).run(STRESS_LIMIT)?;
    Ok(Totals::PASSED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_found_by_its_name_and_no_other() {
        for step in STEPS {
            assert_eq!(parse_step(step.name).map(|found| found.name), Ok(step.name));
        }
        assert!(parse_step("no-such-step").is_err_and(|why| why.contains("fmt, clippy")));
    }

    #[test]
    fn a_registry_that_cannot_be_reached_is_no_failure_and_a_bad_manifest_is() {
        assert!(has_no_registry("error: download of config.json failed\n\nCaused by:\n  [7] Could not connect"));
        assert!(has_no_registry("error: attempting to make an HTTP request, but --offline was specified"));
        assert!(!has_no_registry("error: all dependencies must have a version requirement specified"));
    }

    #[test]
    fn libraries_are_public_and_the_programs_that_test_them_are_not() {
        let names: Vec<String> = public(&crate::root()).unwrap().into_iter().map(|package| package.name).collect();
        assert!(
            ["bmi-transport", "bmi-core", "bmi-sim", "fs-client"]
                .iter()
                .all(|name| names.iter().any(|one| one == name))
        );
        assert!(!["xtask", "benches", "examples", "testbed"].iter().any(|name| names.iter().any(|one| one == name)));
    }

    #[test]
    fn temporary_files_that_are_left_are_named_and_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("temp");
        let run = |program: &str, args: &str| leaving_nothing(&folder, Invocation::new(scratch.path(), program, args));
        assert_eq!(run("mktemp", "--dry-run").unwrap(), NOTHING);
        assert!(run("mkdir", "-p temp/.tmpA/names").is_err_and(|why| why.reason.contains(".tmpA (names)")));
        assert!(run("false", "").is_err_and(|why| why.reason.contains("`false` failed")));
        assert!(!folder.exists());
    }

    /// The step `tests` does not count what is ignored.
    #[test]
    fn only_what_needs_a_device_is_ignored() {
        let mut grep = std::process::Command::new("git");
        let grep = grep.args(["grep", "-n", r"^ *#\[ignore", "--", "*.rs"]).current_dir(crate::root());
        let output = grep.output().unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        for line in lines.lines() {
            assert!(line.starts_with("bmi-ib/tests/"), "{line}");
        }
    }
}
