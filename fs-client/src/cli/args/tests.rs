//! Tests of the command line.

use std::ffi::OsStr;

use clap::CommandFactory;

use super::*;

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn pages_and_completions_have_every_command_and_option() {
    cli_manual::check(&Cli::command(), tempfile::tempdir().unwrap().path());
}

#[test]
fn every_option_is_parsed() {
    let values = [
        ("manager", "tcp://h:1"),
        ("over", "auto"),
        ("timeout", "1s"),
        ("path", "/a"),
        ("paths", "/a"),
        ("source", "/a"),
        ("from", "/a"),
        ("to", "/b"),
        ("target", "/a"),
        ("size", "1M"),
        ("strip-size", "64K"),
        ("retry-for", "0s"),
        ("mode", "640"),
        ("owner", "1:2"),
        ("link", "/a"),
        ("sources", "/a"),
        ("reference", "/a"),
        ("date", "@0"),
        ("stamp", "202611281200"),
        ("cache-policy", "stream"),
        ("cache-unit", "16K"),
        ("files", "5"),
        ("report", "a.json"),
        ("beside", "b=tcp://h:1"),
        ("watch", "1s"),
        ("transfer", "4K"),
        ("block", "1M"),
        ("duration", "1m"),
        ("address", "h:1"),
    ];
    assert!(
        testbed::cli::every_option::<Cli>(&values) >= 176,
        "seven global options with each of 20 commands, and others"
    );
}

#[test]
fn options_stand_before_or_after_the_command() {
    for line in ["pvfs --manager tcp://h:1 --json ls -l /a", "pvfs ls --json -l /a -m tcp://h:1"] {
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        assert_eq!(cli.global.manager, Some(Addr::tcp("h", 1)));
        assert!(cli.global.json);
        let Command::Names(Names::Ls { long: true, recursive: false, path }) = cli.command else { panic!("ls") };
        assert_eq!(path.to_string(), "/a");
    }
}

#[test]
fn sizes_and_layouts() {
    let line = "pvfs put a b /d --strip-size 64K --servers 4 --block-size 8M --window 2 --cache-unit 8K";
    let Command::Put { sources, target, layout, transfer, .. } = Cli::try_parse_from(line.split(' ')).unwrap().command
    else {
        panic!("put")
    };
    assert_eq!((sources.len(), target.to_string().as_str()), (2, "/d"));
    assert_eq!((layout.strip_size, layout.servers), (Some(64 << 10), Some(4)));
    assert_eq!((transfer.block_size, transfer.window), (8 << 20, 2));
    assert_eq!((transfer.cache_policy, transfer.cache_unit), (CachePolicy::Default, Some(8 << 10)));
}

#[test]
fn the_cache_can_be_watched_with_and_without_a_number() {
    for (line, expected) in [
        ("pvfs cache", (None, None, None)),
        ("pvfs cache --files", (None, Some(10), None)),
        ("pvfs cache --files 3 --watch", (None, Some(3), Some(2.0))),
        ("pvfs cache /a --watch 0.5", (Some("/a"), None, Some(0.5))),
    ] {
        let Command::Cache { path, files, watch } = Cli::try_parse_from(line.split(' ')).unwrap().command else {
            panic!("cache")
        };
        let watch = watch.map(|time| time.as_secs_f64());
        let path = path.as_ref().map(ToString::to_string);
        assert_eq!((path.as_deref(), files, watch), expected, "{line}");
    }
}

#[test]
fn bad_lines_say_what_is_wrong() {
    for (line, why) in [
        ("pvfs frobnicate", "unrecognized subcommand"),
        ("pvfs ls a/b", "begins with '/'"),
        ("pvfs ls -m nowhere", "scheme://host:port"),
        ("pvfs put a /b --strip-size 0", "at least 1"),
        ("pvfs put a /b --strip-size 64X", "64X"),
        ("pvfs put a /b --servers 0", "0"),
        ("pvfs put a /b --mode 888", "octal"),
        ("pvfs ls --retry-for soon", "soon"),
        ("pvfs ping --timeout soon", "soon"),
        ("pvfs ping --over sim", "tcp, ib, shm and auto"),
        ("pvfs put a /b --cache-policy mru", "scan-resistant"),
        ("pvfs get /a b --cache-unit 5000", "4K, 8K, 16K, 32K or 64K"),
        ("pvfs cache /a --files", "cannot be used with"),
        ("pvfs viewdist", "required"),
        ("pvfs mv /a", "required"),
        ("pvfs chmod u+q /a", "u+x,go-w"),
        ("pvfs chmod 755", "required"),
        ("pvfs chown : /a", "alice:users"),
        ("pvfs cp /a", "required"),
    ] {
        let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line}");
        assert!(error.to_string().contains(why), "{line}: {error}");
    }
}

#[test]
fn names_are_bytes_and_modes_may_begin_with_a_hyphen() {
    let line: [&OsStr; 5] = ["pvfs", "chmod", "-wx", "-R", "/\u{e9}"].map(OsStr::new);
    let bytes = OsStr::from_bytes(b"/\xe9");
    for path in [line[4], bytes] {
        let line = [&line[..4], &[path]].concat();
        let Command::Names(Names::Chmod { mode, paths, recursive: true }) = Cli::try_parse_from(line).unwrap().command
        else {
            panic!("chmod")
        };
        assert_eq!(
            (mode.apply(0o777, false, 0), &paths[..]),
            (0o444, &[BStr::new(path.as_bytes()).try_into().unwrap()][..])
        );
    }
}
