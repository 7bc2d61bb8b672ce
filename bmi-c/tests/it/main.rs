//! Programs in C, compiled by the system's compiler and linked with the library, shared and static.
//!
//! The programs are in `tests/programs` and `examples/c`. Each runs over `tcp://` and `shm://`, as
//! two processes or as one that is its own peer, and ends with status 0 if all was as expected.

#![allow(clippy::unwrap_used, missing_docs, reason = "test code")]

mod toolchain;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use testbed::process::Process;
use toolchain::{Link, built, compile, output, root};

/// Returns an address of each kind at which nobody listens.
fn addresses() -> [String; 2] {
    // The port is free again when the listener is dropped.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    [format!("tcp://127.0.0.1:{port}"), format!("shm://{}/sockets/{port}", built().display())]
}

/// Runs a program of `tests/programs` over each transport.
fn run(name: &str, defines: &[&str], link: Link) {
    let program = compile(&format!("bmi-c/tests/programs/{name}.c"), defines, link);
    for address in addresses() {
        output(Command::new(&program).arg(&address));
    }
}

#[test]
fn messages_in_each_form_of_the_interface() {
    run("messages", &["BMI_FORM=1"], Link::Shared);
    run("messages", &["BMI_FORM=2"], Link::Static);
    run("messages", &["BMI_FORM=3"], Link::Shared);
}

#[test]
fn eight_threads_on_one_context() {
    run("threads", &[], Link::Shared);
}

#[test]
fn misuse_is_an_error_number() {
    run("misuse", &[], Link::Shared);
}

#[test]
fn peers_die_and_addresses_stay() {
    run("death", &[], Link::Static);
}

/// An operation that failed does not end while a process that is stopped may access its buffer.
#[test]
fn a_buffer_is_the_librarys_while_a_stopped_peer_copies_it() {
    let [_, shm] = addresses();
    output(Command::new(compile("bmi-c/tests/programs/stalled.c", &[], Link::Static)).arg(shm));
}

#[test]
fn constants_and_structures_are_those_of_bmi() {
    for (compiler, standard) in [("cc", "c99"), ("c++", "c++11")] {
        if !toolchain::is_there(compiler) {
            println!("skipped: no {compiler}");
            continue;
        }
        let language = if compiler == "cc" { "c" } else { "c++" };
        for form in 1..=3 {
            let mut command = Command::new(compiler);
            command.args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-pedantic", "-x", language]);
            command.arg(format!("-std={standard}")).arg(format!("-DBMI_FORM={form}"));
            command.arg("-I").arg(root().join("bmi-c/include"));
            output(command.arg(root().join("bmi-c/tests/programs/layout.c")));
        }
    }
}

/// The symbols of the library and its headers are the same, and each has a version.
#[test]
fn exported_symbols_are_those_of_the_header() {
    let read = |path: &str| std::fs::read_to_string(root().join("bmi-c").join(path)).unwrap();
    let mut declared = BTreeSet::new();
    for header in ["include/bmi.h", "include/bmi-types.h"] {
        let text = read(header);
        // A function is a name before a parenthesis, outside of comments and macros.
        let code = text.split("*/").map(|part| part.split("/*").next().unwrap_or_default()).collect::<String>();
        let lines = code.lines().filter(|line| !line.starts_with([' ', '#', 's', 't']));
        let names =
            lines.filter_map(|line| line.split_once('(')).filter_map(|(name, _)| name.split([' ', '*']).next_back());
        declared.extend(names.map(str::to_owned));
    }
    let symbols = output(Command::new("nm").args(["-D", "--defined-only"]).arg(built().join("libbmi.so.0")));
    let exported = symbols.lines().filter_map(|line| line.split_once(" T ")).map(|(_, name)| name);
    let exported: BTreeSet<_> = exported.map(|name| name.strip_suffix("@@BMI_0.1").expect(name).to_owned()).collect();
    assert_eq!(declared, exported, "the headers, and the library");
}

/// Runs a server and a client of an example, the client with `more`.
fn example(program: &Path, wrap: &[&str], address: &str, more: &[&str]) -> String {
    let wrapped = |side: &str| {
        let mut command = match wrap {
            [] => Command::new(program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        command.args([side, address]);
        command
    };
    let (server, _) = Process::start_until(&mut wrapped("server"), |line| line == "listening").unwrap();
    let said = output(wrapped("client").args(more));
    testbed::process::until(std::time::Duration::from_secs(20), || Ok(server.has_ended())).unwrap();
    said
}

#[test]
fn the_examples_run() {
    let pingpong = compile("examples/c/pingpong.c", &[], Link::Static);
    let list = compile("examples/c/list.c", &[], Link::Shared);
    for address in addresses() {
        assert!(example(&pingpong, &[], &address, &["200", "4096"]).contains("200 rounds of 4096 bytes"));
    }
    for address in addresses() {
        assert!(example(&list, &[], &address, &[]).contains("1000 rows"));
    }
}

#[test]
fn memcheck_finds_nothing() {
    if !toolchain::is_there("valgrind") {
        println!("skipped: no valgrind");
        return;
    }
    let pingpong = compile("examples/c/pingpong.c", &[], Link::Shared);
    let memcheck = [
        "valgrind",
        "-q",
        "--error-exitcode=9",
        "--leak-check=full",
        "--show-leak-kinds=definite",
        "--errors-for-leak-kinds=definite",
    ];
    let [tcp, _] = addresses();
    assert!(example(&pingpong, &memcheck, &tcp, &["5", "100000"]).contains("5 rounds"));
}
