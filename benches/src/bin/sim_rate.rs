//! Runs [`benches::sim_rate`].

fn main() -> std::process::ExitCode {
    benches::sim_rate::main()
}
