//! What `start`, `stop` and `status` print: a line for each server, or one JSON document.

use std::fmt;

use serde::Serialize;

/// The result of a command.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(super) servers: Vec<Entry>,
    /// What failed. The command failed if this is not empty.
    pub(crate) errors: Vec<String>,
}

/// A server, and what the command found or did.
#[derive(Debug, Serialize)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) state: State,
    /// The process, if it runs and can be seen.
    pub(super) pid: Option<u32>,
    pub(super) addresses: Vec<String>,
    pub(super) directory: String,
    /// The log of the process if it runs, else the newest one that the server may have written.
    /// `None` if that is no file.
    pub(super) log: Option<String>,
}

/// The state of a server after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// It runs. After `stop`: it still does.
    Running,
    /// It does not run. After `stop`: it did before.
    Stopped,
    /// It cannot be found out.
    Unknown,
    /// `start` started it, and it is ready.
    Started,
    /// It ran before `start`.
    AlreadyRunning,
    /// `start` started it. It has not become ready in time, and runs.
    NotReady,
    /// `start` started it, and it has ended.
    Failed,
    /// `start` did not start it, because another one failed before.
    NotStarted,
    /// It did not run before `stop`.
    NotRunning,
    /// `stop` ended it by SIGKILL.
    Killed,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            State::Running => "running",
            State::Stopped => "stopped",
            State::Unknown => "unknown",
            State::Started => "started",
            State::AlreadyRunning => "already running",
            State::NotReady => "not ready",
            State::Failed => "failed",
            State::NotStarted => "not started",
            State::NotRunning => "not running",
            State::Killed => "killed",
        })
    }
}

impl Report {
    /// Returns true if all servers of the report run.
    pub(crate) fn all_run(&self) -> bool {
        self.servers.iter().all(|server| matches!(server.state, State::Running))
    }

    /// Returns the report without its errors, with one line for each server.
    pub(crate) fn text(&self) -> String {
        let width = |of: &dyn Fn(&Entry) -> usize| self.servers.iter().map(of).max().unwrap_or(0);
        let pid = |server: &Entry| server.pid.map_or("-".to_owned(), |pid| format!("pid {pid}"));
        let name = width(&|server| server.name.len());
        let state = width(&|server| server.state.to_string().len());
        let process = width(&|server| pid(server).len());
        let addresses = width(&|server| server.addresses.join(" ").len());
        let directory = width(&|server| server.directory.len());
        let line = |server: &Entry| {
            format!(
                "{:name$}  {:state$}  {:process$}  {:addresses$}  {:directory$}  {}\n",
                server.name,
                server.state,
                pid(server),
                server.addresses.join(" "),
                server.directory,
                server.log.as_deref().unwrap_or("-"),
            )
        };
        self.servers.iter().map(line).collect()
    }

    /// Returns the report as one JSON document, in one line.
    pub(crate) fn json(&self) -> String {
        // A report has only texts and numbers, which are always valid in JSON.
        serde_json::to_string(self)
            .map_or_else(|error| format!("{{\"errors\":[{:?}]}}\n", error.to_string()), |text| text + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let entry = |name: &str, state, pid: Option<u32>| Entry {
            name: name.to_owned(),
            state,
            pid,
            addresses: vec!["tcp://a:1".to_owned()],
            directory: format!("/d/{name}"),
            log: pid.map(|_| "/d/log".to_owned()),
        };
        let servers = vec![entry("manager", State::Running, Some(17)), entry("iod0", State::NotRunning, None)];
        Report { servers, errors: vec!["no".to_owned()] }
    }

    #[test]
    fn a_server_is_a_line() {
        let text = "manager  running      pid 17  tcp://a:1  /d/manager  /d/log\n\
                    iod0     not running  -       tcp://a:1  /d/iod0     -\n";
        assert_eq!(report().text(), text);
        assert!(!report().all_run());
    }

    #[test]
    fn a_report_is_a_document() {
        let document: serde_json::Value = serde_json::from_str(&report().json()).unwrap();
        assert_eq!(document["servers"][1]["state"], "not_running");
        assert_eq!(document["servers"][0]["pid"], 17);
        assert!(document["servers"][1]["pid"].is_null() && document["errors"][0] == "no");
    }
}
