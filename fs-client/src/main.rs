//! The command `pvfs`: stores, reads and manages files from the shell. See `pvfs --help`.

fn main() -> std::process::ExitCode {
    fs_client::cli::main()
}
