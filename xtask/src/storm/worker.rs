//! A worker: runs one random command after the other and compares what it sees with the models.
//!
//! **Names.** Each worker has a directory of its own with files and small trees, whose model is
//! exact ([`Worlds`]). All workers use the same few names in `/shared`
//! ([`History`](super::history::History)).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bmi_report::stats::Random;

use super::Storm;
use super::client::{Client, Ended, Verdict};
use super::content::{self, Content, state_name};
use super::report::Wrong;
use super::worlds::{Change, Contradiction, Worlds};

/// Files of a worker, trees of a worker, and the files of a tree.
const FILES: usize = 6;
const TREES: usize = 2;
const TREE: [&str; 3] = ["a", "d/b", "d/c"];
/// With more worlds than this, a worker looks at its files before it changes more of them.
const MANY_WORLDS: usize = 8;
/// The operations on a name that a wrong result shows.
const SHOWN: usize = 12;
/// Pause after a command that failed. Without it, workers would do little else while the manager is
/// down.
const PAUSE: Duration = Duration::from_millis(20);

pub(super) struct Worker<'a> {
    storm: &'a Storm,
    client: Client,
    name: String,
    random: Random,
    worlds: Worlds,
    files: Vec<String>,
    trees: Vec<String>,
    /// The number of names that were used, for new ones.
    used: usize,
    /// What the next command puts.
    drawn: Vec<Content>,
    log: File,
    recent: BTreeMap<String, Vec<String>>,
}

impl<'a> Worker<'a> {
    /// Creates a worker and makes its directory at the servers.
    pub(super) fn new(storm: &'a Storm, number: usize, random: Random) -> Result<Worker<'a>, String> {
        let name = format!("w{number}");
        let dir = storm.dir.join(&name);
        let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
        fs::create_dir_all(&dir).map_err(failed)?;
        let log = File::create(dir.join("operations.log")).map_err(failed)?;
        let client = Client { dir, ..storm.client.clone() };
        let path = |kind: &str, index: usize| format!("/{name}/{kind}{index}");
        let worker = Worker {
            storm,
            client,
            random,
            worlds: Worlds::new(),
            files: (0..FILES).map(|index| path("f", index)).collect(),
            trees: (0..TREES).map(|index| path("t", index)).collect(),
            used: FILES,
            drawn: Vec::new(),
            log,
            recent: BTreeMap::new(),
            name,
        };
        let made = worker.client.run(&["mkdir", &format!("/{}", worker.name)])?;
        if made.is_acknowledged() { Ok(worker) } else { Err(format!("{}: {}", made.line, made.errors)) }
    }

    /// Works until the storm is over.
    pub(super) fn run(&mut self) -> Result<(), String> {
        while !self.storm.is_over.load(Ordering::Relaxed) {
            let unresolved = if self.worlds.len() > MANY_WORLDS { self.worlds.unresolved() } else { None };
            let good = match unresolved {
                Some(name) => self.get(&name)?,
                None => self.step()?,
            };
            if !good {
                self.storm.clock.sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Reads everything after the storm.
    pub(super) fn check(&mut self) -> Result<(), String> {
        let names: BTreeSet<String> = self.files.iter().cloned().chain(self.worlds.names()).collect();
        for name in names {
            // To find one file of a tree wrong abandons all of them.
            if !self.storm.abandoned().contains(&name) {
                self.get(&name)?;
            }
        }
        Ok(())
    }

    /// Returns what the model says: for each name, its possible states.
    pub(super) fn states(&self) -> BTreeMap<String, BTreeSet<Option<Content>>> {
        self.worlds.names().into_iter().map(|name| (name.clone(), self.worlds.states(&name))).collect()
    }

    /// Does one random operation. Returns true if it was acknowledged.
    fn step(&mut self) -> Result<bool, String> {
        let (file, other) = (self.random.below(FILES), self.random.below(FILES));
        let (name, to) = (self.files[file].clone(), self.files[other].clone());
        let may_exist = self.worlds.states(&name).iter().any(Option::is_some);
        match self.random.below(100) {
            0..25 => self.put(&name),
            25..45 => self.get(&name),
            45..55 if may_exist && name != to => self.rename(&name, &to),
            55..62 if may_exist => self.change("rm", &["rm", &name], &[Change::Remove(name.clone())], &[&name]),
            62..70 if may_exist && self.storm.truncates => self.truncate(&name),
            70..75 => self.put_tree(),
            75..78 => self.remove_tree(),
            78..86 => self.put_shared(),
            86..95 => self.get_shared(),
            95..97 => self.remove_shared(),
            97..100 => self.rename_to_shared(&name),
            _ => self.put(&name),
        }
    }

    fn put(&mut self, name: &str) -> Result<bool, String> {
        let content = self.draw(name);
        self.write_local("in", content)?;
        let kind = if self.worlds.states(name).contains(&None) { "put new" } else { "put over" };
        self.change(kind, &["put", "in", name], &[Change::Put(name.to_owned(), content)], &[name])
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<bool, String> {
        let kind = if self.worlds.states(to).contains(&None) { "mv" } else { "mv over" };
        self.change(kind, &["mv", from, to], &[Change::Rename(from.to_owned(), to.to_owned())], &[from, to])
    }

    fn truncate(&mut self, name: &str) -> Result<bool, String> {
        let largest = self.worlds.states(name).into_iter().flatten().map(|content| content.size).max().unwrap_or(0);
        let size = self.random.below(largest as usize * 5 / 4 + 2) as u64;
        let change = Change::Truncate(name.to_owned(), size);
        self.change("truncate", &["truncate", name, &size.to_string()], &[change], &[name])
    }

    fn put_tree(&mut self) -> Result<bool, String> {
        let tree = self.trees[self.random.below(TREES)].clone();
        let names = files_of(&tree);
        let local = tree.rsplit('/').next().unwrap_or_default().to_owned();
        let _ = fs::remove_dir_all(self.client.dir.join(&local));
        let mut changes = Vec::new();
        for (file, name) in TREE.iter().zip(&names) {
            let content = self.draw(name);
            self.write_local(&format!("{local}/{file}"), content)?;
            changes.push(Change::Put(name.clone(), content));
        }
        let target = format!("/{}", self.name);
        self.change("put -r", &["put", "-r", &local, &target], &changes, &names.each_ref().map(String::as_str))
    }

    fn remove_tree(&mut self) -> Result<bool, String> {
        let tree = self.trees[self.random.below(TREES)].clone();
        let names = files_of(&tree);
        if names.iter().all(|name| self.worlds.states(name).contains(&None)) {
            return self.put_tree();
        }
        let changes = names.each_ref().map(|name| Change::Clear(name.clone()));
        self.change("rm -r", &["rm", "-r", &tree], &changes, &names.each_ref().map(String::as_str))
    }

    /// Runs a command that changes private names, and records the result in the model.
    fn change(
        &mut self,
        kind: &'static str,
        args: &[&str],
        changes: &[Change],
        names: &[&str],
    ) -> Result<bool, String> {
        let ended = self.run_one(kind, args, names)?;
        if ended.is_acknowledged() {
            let before: Vec<_> = names.iter().map(|name| self.worlds.states(name)).collect();
            if let Err(Contradiction) = self.worlds.acknowledged(changes) {
                for (name, possible) in names.iter().zip(before) {
                    let wrong = self.wrong("was acknowledged, but is not possible", name, &ended, possible);
                    self.report(wrong, None);
                    self.abandon(name);
                }
            }
        } else {
            self.worlds.failed(changes);
        }
        Ok(ended.is_acknowledged())
    }

    /// Fetches a private name and compares it with the model.
    fn get(&mut self, name: &str) -> Result<bool, String> {
        let (ended, bytes) = self.fetch("get", name)?;
        let possible = self.worlds.states(name);
        let observed = match &bytes {
            Some(bytes) => self.worlds.observed(name, |state| state.is_some_and(|content| content.is(bytes))),
            None if ended.is_absent() => self.worlds.observed(name, |state| state.is_none()),
            None => {
                self.unreadable(name, &ended, possible, true);
                return Ok(false);
            }
        };
        if let Err(Contradiction) = observed {
            let wrong = self.wrong("is in a state that is not possible", name, &ended, possible);
            self.report(wrong, bytes);
            self.abandon(name);
        }
        Ok(true)
    }

    fn put_shared(&mut self) -> Result<bool, String> {
        let index = self.random.below(self.storm.shared.len());
        let content = self.draw(&self.storm.shared[index].0);
        self.write_local("in", content)?;
        let name = self.storm.shared[index].0.clone();
        self.write_shared(index, Some(content), "put shared", &["put", "in", &name])
    }

    fn remove_shared(&mut self) -> Result<bool, String> {
        let index = self.random.below(self.storm.shared.len());
        let name = self.storm.shared[index].0.clone();
        self.write_shared(index, None, "rm shared", &["rm", &name])
    }

    /// Moves a private file over a shared one.
    fn rename_to_shared(&mut self, from: &str) -> Result<bool, String> {
        let Some(content) = self.worlds.certain(from) else { return self.get(from) };
        let index = self.random.below(self.storm.shared.len());
        let to = self.storm.shared[index].0.clone();
        let number = self.storm.history(index).begin(Some(content), self.storm.clock.now_us());
        let change = Change::Remove(from.to_owned());
        let acknowledged = self.change("mv to shared", &["mv", from, &to], &[change], &[from, &to]);
        let end_us = self.storm.clock.now_us();
        self.storm.history(index).end(number, end_us, *acknowledged.as_ref().unwrap_or(&false));
        acknowledged
    }

    fn write_shared(
        &mut self,
        index: usize,
        state: Option<Content>,
        kind: &'static str,
        args: &[&str],
    ) -> Result<bool, String> {
        let number = self.storm.history(index).begin(state, self.storm.clock.now_us());
        let name = self.storm.shared[index].0.clone();
        let ended = self.run_one(kind, args, &[&name])?;
        self.storm.history(index).end(number, self.storm.clock.now_us(), ended.is_acknowledged());
        Ok(ended.is_acknowledged() || ended.is_absent())
    }

    fn get_shared(&mut self) -> Result<bool, String> {
        let index = self.random.below(self.storm.shared.len());
        self.check_shared(index)
    }

    /// Fetches a shared name and compares it with its history.
    pub(super) fn check_shared(&mut self, index: usize) -> Result<bool, String> {
        let name = self.storm.shared[index].0.clone();
        let (ended, bytes) = self.fetch("get shared", &name)?;
        let possible = self.storm.history(index).states(ended.begin_us, ended.end_us);
        let fits = match &bytes {
            Some(bytes) => possible.iter().flatten().any(|content| content.is(bytes)),
            None if ended.is_absent() => possible.contains(&None),
            None => {
                // With one possible state, nothing has replaced the file meanwhile.
                let is_steady = possible.len() == 1;
                self.unreadable(&name, &ended, possible, is_steady);
                return Ok(false);
            }
        };
        if !fits {
            let mut wrong = self.wrong("is in a state that is not possible", &name, &ended, possible);
            wrong.before = self.storm.history(index).lines(SHOWN);
            self.report(wrong, bytes);
        }
        Ok(true)
    }

    /// Fetches a file. Returns its bytes if the command was acknowledged.
    fn fetch(&mut self, kind: &'static str, name: &str) -> Result<(Ended, Option<Vec<u8>>), String> {
        let out = self.client.dir.join("out");
        let _ = fs::remove_file(&out);
        let ended = self.run_one(kind, &["get", name, "out"], &[name])?;
        let bytes = fs::read(&out).ok();
        if ended.is_acknowledged() != bytes.is_some() {
            let wrong = self.wrong("left a file exactly when it failed", name, &ended, BTreeSet::new());
            self.report(wrong, None);
        }
        Ok((ended.clone(), bytes.filter(|_| ended.is_acknowledged())))
    }

    /// A file could not be fetched. In the storm this is wrong only if its data was lost. The data
    /// of a file that was removed meanwhile is also lost, and while the manager is down, a client
    /// cannot tell the one from the other. Names of one worker are not removed meanwhile.
    fn unreadable(&mut self, name: &str, ended: &Ended, possible: BTreeSet<Option<Content>>, is_steady: bool) {
        let is_calm = self.storm.is_calm.load(Ordering::Relaxed);
        if is_calm || (is_steady && ended.errors.contains("data lost")) {
            let wrong = self.wrong("cannot be read", name, ended, possible);
            self.report(wrong, None);
        }
    }

    /// Runs a command, counts it and writes it to the log.
    fn run_one(&mut self, kind: &'static str, args: &[&str], names: &[&str]) -> Result<Ended, String> {
        let ended = self.client.run(args)?;
        // To see that a file is absent is a result, not a failure.
        let absent = match (args[0], ended.is_absent()) {
            ("get", true) => Some("get (absent)"),
            ("rm", true) => Some("rm (absent)"),
            _ => None,
        };
        match absent {
            Some(kind) => self.storm.tally().count(kind, &Ended { verdict: Verdict::Acknowledged, ..ended.clone() }),
            None => self.storm.tally().count(kind, &ended),
        }
        let drawn: String = self.drawn.drain(..).map(|content| format!(" [{}]", content.name())).collect();
        let (begin, end) = (ended.begin_us as f64 / 1e6, ended.end_us as f64 / 1e6);
        let errors = ended.errors.replace('\n', "; ");
        let line = format!("{begin:.3}..{end:.3} s {}{drawn}: {:?} {errors}", ended.line, ended.verdict);
        writeln!(self.log, "{line}").map_err(|error| format!("operations.log: {error}"))?;
        for name in names {
            let recent = self.recent.entry((*name).to_owned()).or_default();
            recent.push(line.clone());
            if recent.len() > SHOWN {
                recent.remove(0);
            }
        }
        if let Verdict::Broken(why) = &ended.verdict {
            let wrong =
                self.wrong(&format!("a command ended in a wrong way: {why}"), names[0], &ended, BTreeSet::new());
            self.report(wrong, None);
        }
        Ok(ended)
    }

    fn wrong(&self, what: &str, name: &str, ended: &Ended, possible: BTreeSet<Option<Content>>) -> Wrong {
        Wrong {
            what: what.to_owned(),
            at_ms: ended.end_us / 1000,
            worker: self.name.clone(),
            name: name.to_owned(),
            command: ended.line.clone(),
            errors: ended.errors.clone(),
            possible: possible.into_iter().map(state_name).collect(),
            seen: String::new(),
            before: self.recent.get(name).cloned().unwrap_or_default(),
            saved: None,
        }
    }

    /// Reports a wrong result, with the bytes that were fetched.
    fn report(&self, mut wrong: Wrong, bytes: Option<Vec<u8>>) {
        wrong.seen = match &bytes {
            Some(bytes) => content::describe(bytes, |version| self.storm.version(version)),
            None if wrong.errors.contains("no such file or directory") => "absent".to_owned(),
            None => String::new(),
        };
        if let Some(bytes) = bytes {
            let path = self.storm.dir.join(format!("wrong-{}-{}", self.name, wrong.at_ms));
            wrong.saved = fs::write(&path, bytes).ok().map(|()| path.display().to_string());
        }
        self.storm.tally().wrong(wrong);
    }

    /// Uses another name in place of one whose state is unknown from now on.
    fn abandon(&mut self, name: &str) {
        self.worlds.forget(name);
        self.storm.abandoned.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        let tree = self.trees.iter().position(|tree| name.starts_with(&format!("{tree}/")));
        let file = self.files.iter().position(|file| file == name);
        if let Some(index) = tree {
            for name in files_of(&self.trees[index]) {
                self.worlds.forget(&name);
                self.storm.abandoned.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
            }
            self.trees[index] = format!("/{}/t{}", self.name, self.used);
        } else if let Some(index) = file {
            self.files[index] = format!("/{}/f{}", self.name, self.used);
        }
        self.used += 1;
    }

    /// Draws the content of a new version.
    fn draw(&mut self, name: &str) -> Content {
        let len = match self.random.below(10) {
            0 => self.random.below(200),
            // The strip size and sizes next to it.
            1 => (64 << 10) * (1 + self.random.below(4)) + self.random.below(3) - 1,
            2..6 => self.random.below(64 << 10),
            6..9 => self.random.below(1 << 20),
            _ => self.random.below(6 << 20),
        };
        let content = self.storm.new_version(name, len as u64);
        self.drawn.push(content);
        content
    }

    fn write_local(&self, file: &str, content: Content) -> Result<(), String> {
        let path = self.client.dir.join(file);
        let dir = path.parent().unwrap_or(&path);
        let written = fs::create_dir_all(dir).and_then(|()| fs::write(&path, content.bytes()));
        written.map_err(|error| format!("{}: {error}", path.display()))
    }
}

fn files_of(tree: &str) -> [String; 3] {
    TREE.map(|file| format!("{tree}/{file}"))
}
