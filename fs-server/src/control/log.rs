//! The log files of servers in the background. A file is only ever appended to, so that an earlier
//! failure can still be read.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::ServerName;

/// The log of a process that runs several servers.
pub(super) const ONE_PROCESS: &str = "pvfsd.log";
/// The most lines of a log that an error shows.
const SHOWN: usize = 15;

/// A log file, and its length before the server was started that appends to it.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) path: PathBuf,
    begin: u64,
}

impl Log {
    /// Opens a log, and creates it and its directory if they do not exist. The file is for the
    /// server's output.
    pub(super) fn open(path: PathBuf) -> Result<(Log, File), String> {
        let opened = || {
            if let Some(dir) = path.parent() {
                fs::create_dir_all(dir)?;
            }
            let file = File::options().append(true).create(true).open(&path)?;
            Ok((file.metadata()?.len(), file))
        };
        let (begin, file) = opened().map_err(|error: io::Error| format!("log {}: {error}", path.display()))?;
        Ok((Log { path, begin }, file))
    }

    /// Returns what was logged since the log was opened. Text that is not UTF-8 is replaced.
    pub(super) fn text(&self) -> io::Result<String> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.begin))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the last lines that were logged since the log was opened, each after a line break,
    /// for the end of a message.
    pub(super) fn tail(&self) -> String {
        let text = match self.text() {
            Ok(text) if text.trim().is_empty() => "(nothing was logged)".to_owned(),
            Ok(text) => text,
            Err(error) => format!("(cannot be read: {error})"),
        };
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(SHOWN)..].iter().map(|line| format!("\n  {line}")).collect()
    }
}

/// Returns the log of a server's own process.
pub(super) fn own(logs: &Path, name: ServerName) -> PathBuf {
    logs.join(format!("{name}.log"))
}

/// Returns the newer of the logs that the server may have written: its own, and that of a process
/// with several servers.
pub(super) fn last(logs: &Path, name: ServerName) -> Option<PathBuf> {
    let written = |path: PathBuf| Some((fs::metadata(&path).ok()?.modified().ok()?, path));
    [own(logs, name), logs.join(ONE_PROCESS)].into_iter().filter_map(written).max().map(|(_, path)| path)
}

/// Returns the file that a process's standard error goes to, if it is one.
pub(super) fn of_process(pid: u32) -> Option<PathBuf> {
    let path = fs::read_link(format!("/proc/{pid}/fd/2")).ok()?;
    fs::metadata(&path).is_ok_and(|file| path.is_absolute() && file.is_file()).then_some(path)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_log_is_read_from_where_its_server_began() {
        let dir = tempfile::tempdir().unwrap();
        let path = own(&dir.path().join("made"), ServerName::Iod(3));
        assert_eq!(last(path.parent().unwrap(), ServerName::Iod(3)), None);
        let (log, mut file) = Log::open(path.clone()).unwrap();
        assert!(path.ends_with("made/iod3.log") && log.tail().contains("nothing was logged"));
        writeln!(file, "listening on tcp://a:1").unwrap();
        let (log, mut file) = Log::open(path.clone()).unwrap();
        assert_eq!(log.text().unwrap(), "", "an earlier start is not this one");
        (0..40).for_each(|line| writeln!(file, "line {line}").unwrap());
        assert!(log.tail().starts_with("\n  line 25") && log.tail().ends_with("\n  line 39"), "{}", log.tail());
        assert!(fs::read_to_string(&path).unwrap().starts_with("listening on"), "nothing is removed");
        assert_eq!(last(path.parent().unwrap(), ServerName::Iod(3)), Some(path.clone()));
        fs::remove_file(&path).unwrap();
        assert!(log.tail().contains("cannot be read"));
    }

    #[test]
    fn a_log_that_cannot_be_written_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("logs"), "").unwrap();
        let error = Log::open(dir.path().join("logs/iod0.log")).unwrap_err();
        assert!(error.contains("logs/iod0.log: "), "{error}");
    }
}
