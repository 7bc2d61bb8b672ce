//! The program `honest`, whose code is in the library.

fn main() -> std::process::ExitCode {
    benches::run_honest()
}
