//! The program `hello` as two processes.

use std::process::Command;

use crate::program::{Server, fail, private_dir, succeed};

fn hello(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hello"));
    command.args(arguments);
    command
}

/// Starts a server at `addr`, and lets two clients write and read.
fn two_clients(addr: &str) {
    let server = Server::start(&mut hello(&["server", addr]));
    for _ in 0..2 {
        assert_eq!(succeed(&mut hello(&["client", &server.addr])), "b\"Hello, block!\"\n");
    }
}

#[test]
fn a_client_reads_back_its_block_over_tcp() {
    two_clients("tcp://127.0.0.1:0");
}

#[test]
fn a_client_reads_back_its_block_over_shared_memory() {
    let dir = private_dir();
    two_clients(&format!("shm://{}/hello", dir.path().display()));
}

#[test]
fn errors_are_readable() {
    assert_eq!(fail(&mut hello(&["client"])), "Error: \"usage: hello server|client ADDR\"\n");
    let errors = fail(&mut hello(&["client", "tcp://127.0.0.1:1"]));
    assert!(errors.starts_with("Error: connect with tcp://127.0.0.1:1: refused: "), "{errors}");
}
