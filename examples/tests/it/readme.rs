//! The README shows the program `hello` as it is.

/// Returns the contents of the first Rust block of a text.
fn first_rust_block(text: &str) -> Option<&str> {
    let block = &text[text.find("\n```rust")? + 1..];
    let begin = block.find('\n')? + 1;
    let end = block.find("\n```\n")? + 1;
    Some(&block[begin..end])
}

/// Returns a program without its module docs and the empty line that follows them.
fn without_module_docs(program: &str) -> &str {
    let mut rest = program;
    while let Some((_, after)) = rest.split_once('\n').filter(|(line, _)| line.starts_with("//!")) {
        rest = after;
    }
    rest.trim_start_matches('\n')
}

#[test]
fn the_readme_shows_hello_as_it_is() {
    let hello = without_module_docs(include_str!("../../src/bin/hello.rs"));
    assert_eq!(first_rust_block(include_str!("../../../README.md")), Some(hello));
}

#[test]
fn hello_fits_a_readme() {
    let hello = without_module_docs(include_str!("../../src/bin/hello.rs"));
    let lines = hello.lines().filter(|line| !line.is_empty()).count();
    assert!(lines <= 30, "{lines} lines");
    assert!(hello.lines().all(|line| line.len() <= 100));
}
