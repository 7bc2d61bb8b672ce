//! The server program `pvfsd`. See `pvfsd --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    fs_server::cli::run(std::env::args_os())
}
