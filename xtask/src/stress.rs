//! `cargo xtask storm` and `cargo xtask hostile`: hands them to the program `stress` of `testbed`,
//! which is built with all other programs.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Args;

use crate::command::Invocation;
use crate::metadata;

/// Arguments of the program.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct StressArgs {
    /// Options; `--help` shows them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// With these options the program needs none of this build's other programs.
const ALONE: [&str; 4] = ["--bin-dir", "--frames", "--help", "-h"];
/// Time limit for building the programs.
const BUILD_LIMIT: Duration = Duration::from_secs(2400);
/// The exit status of a test that could not be run.
const FAILED: u8 = 2;

/// Builds the programs, and replaces this process by the test `name`.
pub(crate) fn main(root: &Path, name: &str, args: &StressArgs) -> ExitCode {
    let is_alone = |arg: &String| ALONE.contains(&arg.split('=').next().unwrap_or_default());
    let build = match args.args.iter().any(is_alone) {
        true => Ok("build --package testbed --bin stress".to_owned()),
        false => metadata::features(root).map(|features| format!("{} --features {features}", metadata::BUILD)),
    };
    let built = build.and_then(|build| Invocation::cargo(root, &build).run_aside(BUILD_LIMIT));
    let program = metadata::program(root, "stress");
    let failure = match built {
        Ok(()) => Command::new(&program).arg(name).args(&args.args).exec().to_string(),
        Err(failure) => failure.reason,
    };
    eprintln!("error: {failure}");
    ExitCode::from(FAILED)
}
