//! A worker: runs one random command after the other and compares what it sees with the models.
//!
//! **Names.** Each worker has a directory of its own with files and small trees, whose model is
//! exact ([`Worlds`]). All workers use the same few names in `/shared`, each with a
//! [`History`](testbed::names::History).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bmi_report::stats::Random;
use testbed::command::{Ended, Pvfs, Verdict};
use testbed::names::{Change, Content, Contradiction, Worlds, describe, state_name};
use testbed::process::sleep;
use testbed::{Outcome, named};

use super::report::Wrong;
use super::verify::States;
use super::{Storm, locked};

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

type Possible = BTreeSet<Option<Content>>;

pub(super) struct Worker<'a> {
    storm: &'a Storm,
    pvfs: Pvfs,
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
    pub(super) fn new(storm: &'a Storm, number: u16, random: Random) -> Outcome<Worker<'a>> {
        let name = format!("w{number}");
        let dir = storm.dir.join(&name);
        fs::create_dir_all(&dir).map_err(named(dir.display()))?;
        let log = File::create(dir.join("operations.log")).map_err(named("operations.log"))?;
        let pvfs = Pvfs { dir, ..storm.pvfs.clone() };
        pvfs.run(&["mkdir", &format!("/{name}")])?.ok()?;
        Ok(Worker {
            storm,
            pvfs,
            random,
            worlds: Worlds::absent(),
            files: (0..FILES).map(|index| format!("/{name}/f{index}")).collect(),
            trees: (0..TREES).map(|index| format!("/{name}/t{index}")).collect(),
            used: FILES,
            drawn: Vec::new(),
            log,
            recent: BTreeMap::new(),
            name,
        })
    }

    /// Works until the storm is over.
    pub(super) fn run(&mut self) -> Outcome {
        while !self.storm.is_over.load(Ordering::Relaxed) {
            let unresolved = if self.worlds.count() > MANY_WORLDS { self.worlds.unresolved() } else { None };
            let good = match unresolved {
                Some(name) => self.get(&name)?,
                None => self.step()?,
            };
            if !good {
                sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Reads everything after the storm.
    pub(super) fn check(&mut self) -> Outcome {
        let names: BTreeSet<String> = self.files.iter().cloned().chain(self.worlds.names()).collect();
        for name in names {
            // To find one file of a tree wrong abandons all of them.
            if !locked(&self.storm.abandoned).contains(&name) {
                self.get(&name)?;
            }
        }
        Ok(())
    }

    /// Returns what the model says: for each name, its possible states.
    pub(super) fn states(&self) -> States {
        self.worlds.names().into_iter().map(|name| (name.clone(), self.worlds.states(&name))).collect()
    }

    /// Does one random operation. Returns true if it was acknowledged.
    fn step(&mut self) -> Outcome<bool> {
        let (file, other) = (self.random.below(FILES), self.random.below(FILES));
        let (name, to) = (self.files[file].clone(), self.files[other].clone());
        let may_exist = self.worlds.states(&name).iter().any(Option::is_some);
        match self.random.below(100) {
            0..25 => self.put(&name),
            25..45 => self.get(&name),
            45..55 if may_exist && name != to => {
                let kind = if self.may_be_absent(&to) { "mv" } else { "mv over" };
                self.change(kind, &["mv", &name, &to], &[Change::Rename(name.clone(), to.clone())])
            }
            55..62 if may_exist => self.change("rm", &["rm", &name], &[Change::Remove(name.clone())]),
            62..70 if may_exist => self.truncate(&name),
            70..75 => self.put_tree(),
            75..78 => self.remove_tree(),
            78..97 => self.use_shared(),
            97..100 => self.rename_to_shared(&name),
            _ => self.put(&name),
        }
    }

    fn may_be_absent(&self, name: &str) -> bool {
        self.worlds.states(name).contains(&None)
    }

    fn put(&mut self, name: &str) -> Outcome<bool> {
        let content = self.draw(name, "in")?;
        let kind = if self.may_be_absent(name) { "put new" } else { "put over" };
        self.change(kind, &["put", "in", name], &[Change::Put(name.to_owned(), content)])
    }

    fn truncate(&mut self, name: &str) -> Outcome<bool> {
        let largest = self.worlds.states(name).into_iter().flatten().map(|content| content.size).max().unwrap_or(0);
        let size = self.random.below(largest as usize * 5 / 4 + 2) as u64;
        self.change("truncate", &["truncate", name, &size.to_string()], &[Change::Truncate(name.to_owned(), size)])
    }

    fn put_tree(&mut self) -> Outcome<bool> {
        let tree = self.trees[self.random.below(TREES)].clone();
        let local = tree.rsplit('/').next().unwrap_or_default().to_owned();
        let _ = fs::remove_dir_all(self.pvfs.dir.join(&local));
        let put = |file| {
            let name = format!("{tree}/{file}");
            let content = self.draw(&name, &format!("{local}/{file}"))?;
            Ok(Change::Put(name, content))
        };
        let changes = TREE.map(put).into_iter().collect::<Outcome<Vec<_>>>()?;
        let target = format!("/{}", self.name);
        self.change("put -r", &["put", "-r", &local, &target], &changes)
    }

    fn remove_tree(&mut self) -> Outcome<bool> {
        let tree = self.trees[self.random.below(TREES)].clone();
        let names = files_of(&tree);
        if names.iter().all(|name| self.may_be_absent(name)) {
            return self.put_tree();
        }
        self.change("rm -r", &["rm", "-r", &tree], &names.map(Change::Clear))
    }

    /// Runs a command that changes private names, and records the result in the model.
    fn change(&mut self, kind: &'static str, args: &[&str], changes: &[Change]) -> Outcome<bool> {
        let names: Vec<&str> = changes.iter().flat_map(Change::names).collect();
        let ended = self.run_one(kind, args, &names)?;
        if !ended.is_acknowledged() {
            self.worlds.failed(changes);
            return Ok(false);
        }
        let before: Vec<Possible> = names.iter().map(|name| self.worlds.states(name)).collect();
        if let Err(Contradiction) = self.worlds.acknowledged(changes) {
            for (name, possible) in names.iter().zip(before) {
                self.report("was acknowledged, but is not possible", name, &ended, possible, None);
                self.abandon(name);
            }
        }
        Ok(true)
    }

    /// Fetches a private name and compares it with the model.
    fn get(&mut self, name: &str) -> Outcome<bool> {
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
            self.report("is in a state that is not possible", name, &ended, possible, bytes);
            self.abandon(name);
        }
        Ok(true)
    }

    /// Puts, gets or removes a shared name.
    fn use_shared(&mut self) -> Outcome<bool> {
        let index = self.random.below(self.storm.shared.len());
        let name = self.storm.shared[index].0.clone();
        match self.random.below(19) {
            0..8 => {
                let content = self.draw(&name, "in")?;
                self.write_shared(index, Some(content), "put shared", &["put", "in", &name])
            }
            8..17 => self.get_shared(index),
            _ => self.write_shared(index, None, "rm shared", &["rm", &name]),
        }
    }

    /// Moves a private file over a shared one.
    fn rename_to_shared(&mut self, from: &str) -> Outcome<bool> {
        let Some(content) = self.worlds.certain(from) else { return self.get(from) };
        let index = self.random.below(self.storm.shared.len());
        let to = self.storm.shared[index].0.clone();
        let number = self.storm.history(index).begin(Some(content), self.storm.now_us());
        let acknowledged = self.change("mv to shared", &["mv", from, &to], &[Change::Remove(from.to_owned())])?;
        self.storm.history(index).end(number, self.storm.now_us(), acknowledged);
        Ok(acknowledged)
    }

    fn write_shared(
        &mut self,
        index: usize,
        state: Option<Content>,
        kind: &'static str,
        args: &[&str],
    ) -> Outcome<bool> {
        let number = self.storm.history(index).begin(state, self.storm.now_us());
        let ended = self.run_one(kind, args, &[&self.storm.shared[index].0])?;
        self.storm.history(index).end(number, self.storm.now_us(), ended.is_acknowledged());
        Ok(ended.is_acknowledged() || ended.is_absent())
    }

    /// Fetches a shared name and compares it with its history.
    pub(super) fn get_shared(&mut self, index: usize) -> Outcome<bool> {
        let name = &self.storm.shared[index].0;
        let (ended, bytes) = self.fetch("get shared", name)?;
        let possible = self.storm.history(index).states(ended.begin_us, ended.end_us);
        let fits = match &bytes {
            Some(bytes) => possible.iter().flatten().any(|content| content.is(bytes)),
            None if ended.is_absent() => possible.contains(&None),
            None => {
                // With one possible state, nothing has replaced the file meanwhile.
                let is_steady = possible.len() == 1;
                self.unreadable(name, &ended, possible, is_steady);
                return Ok(false);
            }
        };
        if !fits {
            // The others' operations on it, not only this worker's.
            self.recent.insert(name.clone(), self.storm.history(index).lines(SHOWN));
            self.report("is in a state that is not possible", name, &ended, possible, bytes);
        }
        Ok(true)
    }

    /// Fetches a file. Returns its bytes if the command was acknowledged.
    fn fetch(&mut self, kind: &'static str, name: &str) -> Outcome<(Ended, Option<Vec<u8>>)> {
        let out = self.pvfs.dir.join("out");
        let _ = fs::remove_file(&out);
        let ended = self.run_one(kind, &["get", name, "out"], &[name])?;
        let bytes = fs::read(&out).ok();
        if ended.is_acknowledged() != bytes.is_some() {
            self.report("left a file exactly when it failed", name, &ended, Possible::new(), None);
        }
        Ok((ended.clone(), bytes.filter(|_| ended.is_acknowledged())))
    }

    /// A file could not be fetched. In the storm this is wrong only if its data was lost. The data
    /// of a file that was removed meanwhile is also lost, and while the manager is down, a client
    /// cannot tell the one from the other. Names of one worker are not removed meanwhile.
    fn unreadable(&mut self, name: &str, ended: &Ended, possible: Possible, is_steady: bool) {
        let is_calm = self.storm.is_calm.load(Ordering::Relaxed);
        if is_calm || (is_steady && ended.errors.contains("data lost")) {
            self.report("cannot be read", name, ended, possible, None);
        }
    }

    /// Runs a command, counts it and writes it to the log.
    fn run_one(&mut self, kind: &'static str, args: &[&str], names: &[&str]) -> Outcome<Ended> {
        let ended = self.storm.run(&self.pvfs, args)?;
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
        writeln!(self.log, "{line}").map_err(named("operations.log"))?;
        for name in names {
            let recent = self.recent.entry((*name).to_owned()).or_default();
            recent.push(line.clone());
            if recent.len() > SHOWN {
                recent.remove(0);
            }
        }
        if let Verdict::Broken(why) = &ended.verdict {
            let what = format!("a command ended in a wrong way: {why}");
            self.report(&what, names[0], &ended, Possible::new(), None);
        }
        Ok(ended)
    }

    /// Reports a wrong result, with the bytes that were fetched.
    fn report(&self, what: &str, name: &str, ended: &Ended, possible: Possible, bytes: Option<Vec<u8>>) {
        let at_ms = ended.end_us / 1000;
        let seen = match &bytes {
            Some(bytes) => describe(bytes, |version| self.storm.version(version)),
            None if ended.errors.contains("no such file or directory") => "absent".to_owned(),
            None => String::new(),
        };
        let path = self.storm.dir.join(format!("wrong-{}-{at_ms}", self.name));
        let saved = bytes.and_then(|bytes| fs::write(&path, bytes).ok()).map(|()| path.display().to_string());
        self.storm.tally().wrong(Wrong {
            what: what.to_owned(),
            at_ms,
            worker: self.name.clone(),
            name: name.to_owned(),
            command: ended.line.clone(),
            errors: ended.errors.clone(),
            possible: possible.into_iter().map(state_name).collect(),
            seen,
            before: self.recent.get(name).cloned().unwrap_or_default(),
            saved,
        });
    }

    /// Uses another name in place of one whose state is unknown from now on.
    fn abandon(&mut self, name: &str) {
        let mut abandoned = vec![name.to_owned()];
        if let Some(tree) = self.trees.iter_mut().find(|tree| name.starts_with(&format!("{tree}/"))) {
            abandoned.extend(files_of(tree));
            *tree = format!("/{}/t{}", self.name, self.used);
        } else if let Some(file) = self.files.iter_mut().find(|file| *file == name) {
            *file = format!("/{}/f{}", self.name, self.used);
        }
        self.used += 1;
        abandoned.iter().for_each(|name| self.worlds.forget(name));
        locked(&self.storm.abandoned).extend(abandoned);
    }

    /// Draws the content of a new version and writes it to a local file.
    fn draw(&mut self, name: &str, local: &str) -> Outcome<Content> {
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
        let path = self.pvfs.dir.join(local);
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        made.and_then(|()| fs::write(&path, content.bytes())).map_err(named(path.display()))?;
        Ok(content)
    }
}

fn files_of(tree: &str) -> [String; 3] {
    TREE.map(|file| format!("{tree}/{file}"))
}
