//! Runs [`benches::commands`].

fn main() -> std::process::ExitCode {
    benches::commands::main()
}
