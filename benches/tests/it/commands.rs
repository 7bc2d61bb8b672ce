//! Runs the programs as a user does: a profile of the simulator in a file is accepted by every
//! option that takes a profile.

use std::process::{Command, Output};

use bmi_sim::Profile;

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

/// Runs a program that has to succeed, and returns its standard output.
fn succeeds(program: &str, arguments: &[&str]) -> Vec<u8> {
    let output = run(program, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Profiles were written to files, and `benches workload --over x.toml` failed with "no profile is
/// called x.toml".
#[test]
fn a_profile_in_a_file_is_accepted_by_name_and_with_a_disk() {
    let dir = tempfile::tempdir().unwrap();
    let profile = dir.path().join("profile.toml").to_str().unwrap().to_owned();
    std::fs::write(&profile, Profile::vapi_2003().to_toml()).unwrap();
    let over = format!("{profile},{profile}+nvme,vapi-2003");
    let access = ["workload", "--over", &over, "--clients", "1", "--rounds", "1", "--path", "inline"];
    let rows = succeeds(env!("CARGO_BIN_EXE_benches"), &[&access[..], &["access", "--sizes", "1024"]].concat());
    let rows = String::from_utf8(rows).unwrap();
    assert!(rows.contains(&format!("{profile}+nvme")), "{rows}");
    let few = ["--quick", "--nodes", "2", "--bare-nodes", "2", "--idle-nodes", "2", "--rounds", "10", "--profile"];
    succeeds(env!("CARGO_BIN_EXE_sim_rate"), &[&few[..], &[&profile]].concat());
}

#[test]
fn what_is_neither_a_name_nor_a_file_is_refused_with_the_names() {
    for (over, name) in [("abacus.toml", "cx7-400"), ("vapi-2003+floppy", "ext3-ide-2003")] {
        let output = run(env!("CARGO_BIN_EXE_benches"), &["workload", "--over", over, "access"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("no file that exists") && said.contains(name), "{said}");
    }
}
