//! The compiler, the linker, and the libraries that cargo has built.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// How a program is linked with the library.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Shared,
    Static,
}

/// Returns the root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Returns the folder of the libraries: `libbmi.a`, `libbmi.so.0`, and `libbmi.so`, which leads to
/// it. The processes of a run share it.
pub(crate) fn built() -> &'static Path {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bmi-c");
        let lock = File::create(dir.with_extension("lock")).unwrap();
        lock.lock().unwrap();
        DirBuilder::new().mode(0o700).recursive(true).create(dir.join("sockets")).unwrap();
        let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        for (name, file) in [("libbmi.a", "libbmi_c.a"), ("libbmi.so.0", "libbmi_c.so"), ("libbmi.so", "libbmi_c.so")] {
            let (link, file) = (dir.join(name), deps.join(file));
            if fs::read_link(&link).is_ok_and(|there| there == file) {
                continue;
            }
            // There may be none, or one of another profile.
            let _ = fs::remove_file(&link);
            symlink(file, link).unwrap();
        }
        dir
    });
    &BUILT
}

/// Compiles a program of the tree. Warnings are errors.
pub(crate) fn compile(source: &str, defines: &[&str], link: Link) -> PathBuf {
    let source = root().join(source);
    let name = source.file_stem().unwrap().to_string_lossy();
    let kind = if link == Link::Shared { "shared" } else { "static" };
    let program = built().join(format!("{name}-{kind}{}", defines.join("-")));
    let mut command = Command::new("cc");
    command.args(["-Wall", "-Wextra", "-Werror", "-O1", "-g", "-std=gnu11", "-o"]).arg(&program);
    command.args(defines.iter().map(|define| format!("-D{define}"))).arg(&source);
    for include in ["bmi-c/include", "bmi-c/tests/programs"] {
        command.arg("-I").arg(root().join(include));
    }
    match link {
        Link::Shared => command.arg("-L").arg(built()).arg("-lbmi").arg(format!("-Wl,-rpath,{}", built().display())),
        // As `bmi.pc` lists them.
        Link::Static => command.arg(built().join("libbmi.a")).args(["-lgcc_s", "-lutil", "-lrt", "-lm", "-ldl"]),
    };
    output(command.arg("-lpthread"));
    program
}

/// Runs a command to its end and returns what it prints. Panics unless it ends well.
pub(crate) fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{said}{complained}", output.status);
    said.into_owned()
}

/// Returns true if there is such a program.
pub(crate) fn is_there(program: &str) -> bool {
    let version = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}
