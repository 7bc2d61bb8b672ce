//! The header and the libraries, and programs in C that use them with a real cluster.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod misuse;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bmi::Scheme;
use fs_server::embedded::{ClusterOptions, EmbeddedCluster};

/// What a program needs beside `libpvfs.a`: `rustc --print native-static-libs`.
const STATIC: [&str; 4] = ["-lgcc_s", "-lpthread", "-lm", "-ldl"];

/// The beginning of the header.
const HEADER: &str = "\
/* libpvfs: the file system for programs in C and C++. Made by cbindgen of the sources.

 A function returns 0 or a number of things, or a negative error number of Linux. pvfs_error() then
 has the text. The last argument of most functions says whether they wait: see pvfs_async.

 Memory may be freed when the operation that it came with has ended. Texts are UTF-8, and paths
 begin with '/'. Handles are closed once, by their own function, and not used any more then. */";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the directory that cargo has built the libraries in.
fn built() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

fn succeeded(output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Compiles a program of C, and links it.
fn compile(dir: &Path, source: &str, is_static: bool) -> PathBuf {
    let program = dir.join(format!("{}-{is_static}", Path::new(source).file_stem().unwrap().display()));
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-D_XOPEN_SOURCE=700", "-O1", "-g", "-I"])
        .arg(root().join("include"));
    cc.arg(root().join(source)).arg("-o").arg(&program);
    if is_static {
        cc.arg(built().join("libfs_c.a")).args(STATIC);
    } else {
        let name = dir.join("libpvfs.so.0");
        if !name.exists() {
            std::os::unix::fs::symlink(built().join("libfs_c.so"), &name).unwrap();
        }
        cc.arg(&name).arg(format!("-Wl,-rpath,{}", dir.display()));
    }
    succeeded(cc.output().unwrap());
    program
}

fn with_cluster(over: Scheme, body: impl FnOnce(&Path, &str)) {
    let dir = tempfile::tempdir().unwrap();
    let options = ClusterOptions { over: vec![over], ..ClusterOptions::with_iods(2) };
    let cluster = EmbeddedCluster::start(dir.path().join("data"), options).unwrap();
    body(dir.path(), &cluster.manager().to_string());
    cluster.stop().unwrap();
}

/// Compares the committed header with that of the sources. `WRITE_HEADER=1` writes it.
#[test]
fn the_header_is_that_of_the_sources() {
    let config = cbindgen::Config {
        language: cbindgen::Language::C,
        cpp_compat: true,
        include_guard: Some("PVFS_H".to_owned()),
        header: Some(HEADER.to_owned()),
        no_includes: true,
        sys_includes: vec!["stddef.h".to_owned(), "stdint.h".to_owned()],
        usize_is_size_t: true,
        documentation_style: cbindgen::DocumentationStyle::C,
        line_length: 100,
        ..cbindgen::Config::default()
    };
    let sources = ["boundary", "client", "queue", "names", "memory", "file", "types"];
    let builder = cbindgen::Builder::new().with_config(config);
    let source = |builder: cbindgen::Builder, name| builder.with_src(root().join(format!("src/{name}.rs")));
    let mut made = Vec::new();
    sources.into_iter().fold(builder, source).generate().unwrap().write(&mut made);
    let (path, made) = (root().join("include/pvfs.h"), String::from_utf8(made).unwrap());
    if std::env::var_os("WRITE_HEADER").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert!(fs::read_to_string(path).unwrap_or_default() == made, "run this test with WRITE_HEADER=1");
}

/// Returns the functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = fs::read_to_string(root().join("include/pvfs.h")).unwrap();
    let lines = header.lines().filter(|line| !line.trim_start().starts_with(['*', '/']));
    let name = |line: &str| {
        let before = line.split_once('(')?.0;
        let name = before.rsplit([' ', '*']).next()?;
        name.starts_with("pvfs_").then(|| name.to_owned())
    };
    lines.filter_map(name).collect()
}

#[test]
fn the_symbols_are_those_of_the_header_and_have_a_version() {
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(built().join("libfs_c.so")).output().unwrap();
    let listed = succeeded(listed);
    let symbols = listed.lines().filter_map(|line| line.split_once(" T ")).map(|(_, name)| name.to_owned());
    let declared: BTreeSet<_> = declared().into_iter().map(|name| format!("{name}@@PVFS_0.1")).collect();
    assert!(declared.len() > 30);
    assert_eq!(symbols.collect::<BTreeSet<_>>(), declared);
}

#[test]
fn the_header_is_one_of_cpp_too() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("header.cpp");
    fs::write(&source, "#include <pvfs.h>\nint main() { return pvfs_connect(\"\", 0, nullptr); }\n").unwrap();
    let mut compiler = Command::new("c++");
    compiler.args(["-Wall", "-Werror", "-fsyntax-only", "-I"]).arg(root().join("include")).arg(source);
    match compiler.output() {
        Ok(output) => drop(succeeded(output)),
        Err(error) => println!("skipped: c++: {error}"),
    }
}

fn copies(over: Scheme, is_static: bool) {
    with_cluster(over, |dir, manager| {
        let program = compile(dir, "../examples/c/pvfs_cp.c", is_static);
        let run = |args: &[&str]| Command::new(&program).args(args).output().unwrap();
        let (source, back) = (dir.join("source"), dir.join("back"));
        let (from, to) = (source.to_str().unwrap(), back.to_str().unwrap());
        for (len, posts) in [(0, false), (1, true), (5_000_001, false), (9_000_007, true)] {
            let bytes: Vec<u8> = (0..len).map(|n: usize| (n % 251) as u8).collect();
            fs::write(&source, &bytes).unwrap();
            let flag = posts.then_some("-n");
            let args = |from, to| flag.into_iter().chain([manager, from, to]).collect::<Vec<_>>();
            succeeded(run(&args(from, "pvfs:/copy")));
            succeeded(run(&args("pvfs:/copy", to)));
            assert!(fs::read(&back).unwrap() == bytes, "{len} bytes");
        }
        let failed = run(&[manager, "pvfs:/missing", to]);
        assert!(String::from_utf8_lossy(&failed.stderr).contains("no such file"), "{failed:?}");
    });
}

#[test]
fn a_file_is_copied_into_the_cluster_and_back() {
    copies(Scheme::Tcp, false);
}

#[test]
fn a_program_with_the_static_library_copies_over_shared_memory() {
    copies(Scheme::Shm, true);
}

#[test]
fn all_of_it_from_c() {
    for over in [Scheme::Tcp, Scheme::Shm] {
        with_cluster(over, |dir, manager| {
            let program = compile(dir, "tests/programs/everything.c", false);
            let mut run = Command::new(&program);
            if over == Scheme::Tcp {
                match Command::new("valgrind").arg("--version").output() {
                    Ok(_) => {
                        run = Command::new("valgrind");
                        run.args(["-q", "--error-exitcode=9"]).arg(&program);
                    }
                    Err(error) => println!("skipped: valgrind: {error}"),
                }
            }
            assert_eq!(succeeded(run.arg(manager).output().unwrap()), "all of it\n");
        });
    }
}
