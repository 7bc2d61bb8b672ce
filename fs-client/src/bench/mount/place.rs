//! The directories that are measured: the mount, the pass-through, and memory.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::task::O_DIRECT;

/// The type of a file system in memory, of statfs(2).
const TMPFS: i64 = 0x0102_1994;

/// A directory that is measured.
pub(super) struct Place {
    pub(super) name: String,
    pub(super) dir: PathBuf,
    /// A file can be opened with `O_DIRECT`.
    pub(super) takes_direct: bool,
}

/// All of them. The first is the mount.
pub(super) struct Places {
    pub(super) all: Vec<Place>,
    /// What is left out, and why.
    pub(super) notes: Vec<String>,
    // Dropped in this order: the process of the pass-through, the directories.
    _through: Option<Through>,
    _made: [TempDir; 2],
}

/// The process of a pass-through.
struct Through(Child);

impl Places {
    pub(super) fn new(dir: &Path, beside: &Path, program: &Path) -> Result<Places, String> {
        let new = |dir: &Path| {
            let made = tempfile::Builder::new().prefix("pvfs-bench-").tempdir_in(dir);
            made.map_err(|error| format!("{}: {error}", dir.display()))
        };
        let (own, other) = (new(dir)?, new(beside)?);
        let kind = rustix::fs::statfs(beside).map_err(|error| format!("{}: {error}", beside.display()))?.f_type;
        let other_name = if kind as i64 == TMPFS { "tmpfs" } else { "beside" };
        let mut places =
            Places { all: vec![place("mount", own.path())?], notes: Vec::new(), _through: None, _made: [own, other] };
        let other = places._made[1].path().to_owned();
        let sub = |name: &str| {
            let path = other.join(name);
            fs::create_dir(&path).map(|()| path).map_err(|error| format!("{}: {error}", other.display()))
        };
        let (plain, source, at) = (sub("plain")?, sub("source")?, sub("through")?);
        match Through::start(program, &source, &at) {
            Ok(through) => {
                places._through = Some(through);
                places.all.push(place("pass-through", &at)?);
            }
            Err(why) => places.notes.push(format!("The pass-through is left out: {why}.")),
        }
        places.all.push(place(other_name, &plain)?);
        let without = places.all.iter().filter(|place| !place.takes_direct);
        let notes: Vec<String> = without.map(|place| format!("{} has no O_DIRECT.", place.name)).collect();
        places.notes.extend(notes);
        Ok(places)
    }
}

fn place(name: &str, dir: &Path) -> Result<Place, String> {
    let probe = dir.join("probe");
    let failed = |error| format!("{}: {error}", probe.display());
    fs::write(&probe, "").map_err(failed)?;
    let takes_direct = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(&probe).is_ok();
    fs::remove_file(&probe).map_err(failed)?;
    Ok(Place { name: name.to_owned(), dir: dir.to_owned(), takes_direct })
}

impl Through {
    /// Serves `source` at `at`. The error says why that cannot be.
    fn start(program: &Path, source: &Path, at: &Path) -> Result<Through, String> {
        let mut command = Command::new(program);
        command.arg("--through").args([source, at]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is for this process alone. The other one ends when its standard input does.
        let child = command.process_group(0).spawn().map_err(|error| format!("{}: {error}", program.display()))?;
        let mut through = Through(child);
        let mut line = String::new();
        let told = BufReader::new(through.0.stdout.take().expect("it is piped")).read_line(&mut line);
        if told.is_ok_and(|len| len > 0) {
            return Ok(through);
        }
        let mut why = String::new();
        // Without a text, the answer is still that there is no pass-through.
        let _ = through.0.stderr.take().expect("it is piped").read_to_string(&mut why);
        Err(why.trim().to_owned())
    }
}

impl Drop for Through {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It unmounts, and then nobody needs its status.
        let _ = self.0.wait();
    }
}
