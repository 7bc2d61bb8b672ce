//! The program `message_cost`, whose code is in the library.

fn main() -> std::process::ExitCode {
    benches::run_message_cost()
}
