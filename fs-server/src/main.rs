//! `pvfsd`: see `pvfsd --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    fs_server::cli::run(std::env::args_os())
}
