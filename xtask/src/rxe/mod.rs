//! `cargo xtask rxe`: real verbs on any machine, by Soft-RoCE in an emulated one.

mod image;
pub(crate) mod inside;
mod kernel;
pub(crate) mod machine;
mod wire;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::command::Failure;
use crate::setup;
pub(crate) use kernel::Kernel;
use machine::{Machine, Spec};
use wire::{Job, Plan, Record, Report};

/// What `cargo xtask rxe` understands.
#[derive(Args)]
pub(crate) struct RxeArgs {
    /// Run this program in the machine, with ARGS, and end with its status.
    #[arg(long, value_name = "PATH")]
    run: Option<PathBuf>,
    /// Bring this program along, as /bin/NAME (may be given several times).
    #[arg(long, value_name = "PATH")]
    with: Vec<PathBuf>,
    /// An environment variable inside (may be given several times).
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Look around: a shell in the machine, on this terminal.
    #[arg(long, conflicts_with = "run")]
    shell: bool,
    /// Seconds for the program of `--run`.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    limit: u64,
    /// Arguments of the program of `--run`.
    #[arg(last = true)]
    args: Vec<String>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE is expected")?;
    Ok((name.into(), value.into()))
}

/// Which link the machine's RDMA device stands on.
pub(crate) enum Link {
    /// A pair of virtual Ethernet devices inside one machine.
    Veth,
    /// A socket between two machines, with loss.
    #[expect(dead_code, reason = "the test with two machines follows")]
    Pair {
        /// This machine's socket.
        own: PathBuf,
        /// The other machine's.
        peer: PathBuf,
        /// 0 or 1.
        index: u8,
    },
}

impl Link {
    /// What `init.sh` reads: kind, address, loss.
    fn line(&self) -> String {
        match self {
            Link::Veth => "veth 192.168.77.1\n".to_owned(),
            Link::Pair { index, .. } => format!("virtio 192.168.78.{} 0.5%\n", index + 1),
        }
    }
}

/// Memory of a machine, in MiB. The kernel takes what is used, no more.
const MEMORY_MIB: u32 = 3072;
/// For booting, beside what is run.
const BOOT_LIMIT: Duration = Duration::from_secs(60);
/// Variables that are handed on, so that they work as in any other run.
const HANDED_ON: &[&str] = &["RUST_BACKTRACE", "RUST_LOG", "PROPTEST_CASES"];

/// `cargo xtask rxe`.
pub(crate) fn main(root: &Path, args: &RxeArgs) -> ExitCode {
    match run(root, args) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(root: &Path, args: &RxeArgs) -> Result<ExitCode, Failure> {
    setup::set_up_machine(root)?;
    let kernel = Kernel::installed().ok_or_else(|| Failure::new("no kernel with modules in /boot"))?;
    let mut programs = Vec::new();
    let own = std::env::current_exe().map_err(|error| Failure::new(format!("this program: {error}")))?;
    programs.push(("xtask".to_owned(), image::stripped(&own, &stripped_folder(root))?));
    for path in args.with.iter().chain(&args.run) {
        programs.push((name_of(path), image::stripped(path, &stripped_folder(root))?));
    }
    for name in ["ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_send_bw", "ib_write_bw", "ib_read_bw"] {
        programs.extend(setup::program(name).map(|path| (name.to_owned(), path)));
    }
    let mut plan = Plan { jobs: Vec::new(), env: args.env.clone() };
    plan.env.extend(HANDED_ON.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?))));
    if let Some(path) = &args.run {
        let mut words = vec![format!("/bin/{}", name_of(path))];
        words.extend(args.args.iter().cloned());
        plan.jobs.push(Job::Program { args: words, limit_s: args.limit });
    } else {
        plan.jobs.push(Job::Scenario { name: "perftest".into(), limit_s: 30 });
    }
    let mut spec = Spec {
        kernel: &kernel,
        link: Link::Veth,
        plan: Some(&plan),
        programs: &programs,
        memory_mib: MEMORY_MIB,
        limit: BOOT_LIMIT + Duration::from_secs(args.limit),
    };
    if args.shell {
        spec.plan = None;
        spec.limit = Duration::from_secs(24 * 3600);
        return machine::shell(&spec).map(|()| ExitCode::SUCCESS);
    }
    let mut code = 0;
    Machine::start(&spec, "one")?.follow(&mut |record| match record {
        Record::Out(bytes) => drop(std::io::stdout().write_all(&bytes).and_then(|()| std::io::stdout().flush())),
        Record::Err(bytes) => drop(std::io::stderr().write_all(&bytes)),
        Record::Report(Report::Exited(status)) => code = status,
        Record::Report(Report::Ended { name, verdict, output, .. }) => {
            println!("{name}: {verdict:?}\n{output}");
            code = i32::from(verdict == wire::Verdict::Failed).max(code);
        }
        Record::Report(_) => {}
    })?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Where copies of programs without their debug sections are kept.
fn stripped_folder(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
    target.join("rxe")
}
