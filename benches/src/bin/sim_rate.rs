//! The program `sim_rate`, whose code is in the library.

fn main() -> std::process::ExitCode {
    benches::run_sim_rate()
}
