//! The program `benches`, whose code is in the library.

fn main() -> std::process::ExitCode {
    benches::run_benches()
}
