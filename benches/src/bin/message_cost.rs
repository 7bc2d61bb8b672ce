//! Runs [`benches::message_cost`].

fn main() -> std::process::ExitCode {
    benches::message_cost::main()
}
