//! The command `pvfs`: stores, reads and manages files from the shell. See `pvfs --help`.

mod bench;
mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
