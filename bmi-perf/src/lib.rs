//! What other programs use of `bmi-perf`: the [counter](system_calls) of system calls. The rest is
//! the program, see `src/main.rs`.

pub mod system_calls;
