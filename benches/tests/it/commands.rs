//! Runs the programs as a user does: the profile that `calibrate` writes is accepted by every
//! option that takes a profile.

use std::process::{Command, Output};

const CALIBRATE: &str = env!("CARGO_BIN_EXE_calibrate");

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

/// Runs a program that has to succeed, and returns its standard output.
fn succeeds(program: &str, arguments: &[&str]) -> Vec<u8> {
    let output = run(program, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// `calibrate` wrote profiles, and `ab workload --over x.toml` failed with "no profile is called
/// x.toml".
#[test]
fn a_profile_that_calibrate_writes_is_accepted_by_name_and_with_a_disk() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (measured, profile) = (path("measured.toml"), path("profile.toml"));
    std::fs::write(&measured, succeeds(CALIBRATE, &["--example"])).unwrap();
    std::fs::write(&profile, succeeds(CALIBRATE, &[&measured])).unwrap();
    let over = format!("{profile},{profile}+nvme,vapi-2003");
    let access = ["workload", "--over", &over, "--clients", "1", "--rounds", "1", "--path", "inline"];
    let rows = succeeds(env!("CARGO_BIN_EXE_ab"), &[&access[..], &["access", "--sizes", "1024"]].concat());
    let rows = String::from_utf8(rows).unwrap();
    assert!(rows.contains(&format!("{profile}+nvme")), "{rows}");
    let few = ["--quick", "--nodes", "2", "--bare-nodes", "2", "--idle-nodes", "2", "--rounds", "10", "--profile"];
    succeeds(env!("CARGO_BIN_EXE_sim_rate"), &[&few[..], &[&profile]].concat());
    let shown = |profile: &str| String::from_utf8(succeeds(CALIBRATE, &["--show", profile])).unwrap();
    assert!(shown(&profile).contains("write_mb_per_s = 82"), "{}", shown(&profile));
    // A profile that is fitted to its own measurements does not change.
    let again = succeeds(CALIBRATE, &["--base", &profile, &measured]);
    assert_eq!(String::from_utf8(again).unwrap(), std::fs::read_to_string(&profile).unwrap());
}

/// A fit that missed every measurement by four fifths ended with status 0.
#[test]
fn a_profile_that_does_not_fit_is_written_and_the_status_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let measured = dir.path().join("measured.toml").to_str().unwrap().to_owned();
    std::fs::write(&measured, "write_one_way_us = 6.0\nread_round_trip_us = 7.0\n").unwrap();
    let output = run(CALIBRATE, &[&measured]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("read_round_trip_us") && said.contains("--tolerance"), "{said}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("read_response_ns"));
    succeeds(CALIBRATE, &["--tolerance", "100", &measured]);
    std::fs::write(&measured, "# nothing\n").unwrap();
    assert_eq!(run(CALIBRATE, &[&measured]).status.code(), Some(1), "nothing was measured");
}

#[test]
fn what_is_neither_a_name_nor_a_file_is_refused_with_the_names() {
    for (over, name) in [("abacus.toml", "cx7-400"), ("vapi-2003+floppy", "ext3-ide-2003")] {
        let output = run(env!("CARGO_BIN_EXE_ab"), &["workload", "--over", over, "access"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("no file that exists") && said.contains(name), "{said}");
    }
}
