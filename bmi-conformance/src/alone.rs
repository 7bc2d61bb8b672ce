//! Tests that need a process of their own, because they count what the whole process has, or limit
//! it. A test program that has such tests runs itself again for each of them.

use std::process::Command;

/// Set in a process that runs one test.
const ALONE: &str = "BMI_TEST_ALONE";

/// Returns true in a process that runs only the calling test. In any other, runs the test in such
/// a process, and returns false when it has passed there: the caller has nothing left to do.
///
/// ```text
/// #[test]
/// fn a_connection_has_one_descriptor() {
///     if !alone(|| ()) {
///         return;
///     }
/// ```
///
/// `here` is a closure without effect. The name of its type has the name of the test.
///
/// # Panics
/// If the test fails in the other process.
pub fn alone<F: Fn()>(_here: F) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let here = std::any::type_name::<F>();
    let (_, test) = here.split_once("::").expect("a function in a program");
    let test = test.trim_end_matches("::{{closure}}");
    let program = std::env::current_exe().expect("this program has a name");
    let run = ["--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"];
    let output = Command::new(program).args(run).env(ALONE, "1").output().expect("this program can run again");
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{test} in a process of its own: {text}{}", String::from_utf8_lossy(&output.stderr));
    print!("{text}");
    false
}
