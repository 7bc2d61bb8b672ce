//! The rows of the manager, compared with each other.

use std::collections::{BTreeMap, BTreeSet};

use bstr::BString;
use fs_proto::{CheckRow, Content, DatafileHandle, DirHandle, Fix, Kind, Layout, Ties};

use super::finding::{Finding, Report};
use super::repair::LOST_FOUND;
use crate::error::ServerName;

const ROOT: u64 = DirHandle::ROOT.0;

/// A file, directory or symbolic link.
pub(super) struct Object {
    kind: Kind,
    ties: Ties,
    pub(super) layout: Option<Layout>,
    pub(super) content: Content,
}

struct Name {
    dir: u64,
    name: BString,
    raw: u64,
    kind: Option<Kind>,
}

/// The rows of the manager.
#[derive(Default)]
pub(super) struct Tables {
    /// Handles from this one on were not assigned.
    pub(super) next: u64,
    repairs: u64,
    counted: (u64, u64),
    pub(super) objects: BTreeMap<u64, Object>,
    unreadable: BTreeSet<u64>,
    /// Sorted by directory.
    names: Vec<Name>,
    /// The places of an object's names in `names`.
    places: BTreeMap<u64, Vec<usize>>,
    nameless: BTreeSet<u64>,
    /// By I/O server and first handle: the end of a range of datafiles of no file.
    spare: BTreeMap<(u32, u64), u64>,
    /// By I/O server and datafile: the file that it belongs to.
    pub(super) owners: BTreeMap<(u32, u64), u64>,
    /// Datafiles that belong to another file, too.
    twice: Vec<(u32, u64, u64)>,
}

impl Tables {
    pub(super) fn add(&mut self, row: CheckRow) {
        match row {
            CheckRow::Begin { next, repairs, files, dirs } => {
                (self.next, self.repairs, self.counted) = (next, repairs, (files, dirs));
            }
            CheckRow::Object { raw, kind, ties, layout, content } => {
                for (iod, datafile) in layout.iter().flat_map(Layout::datafiles) {
                    if let Some(other) = self.owners.insert((*iod, datafile.0), raw) {
                        self.twice.push((*iod, datafile.0, other));
                    }
                }
                self.objects.insert(raw, Object { kind, ties, layout, content });
            }
            CheckRow::Unreadable { raw } => drop(self.unreadable.insert(raw)),
            CheckRow::Name { dir, name, raw, kind } => {
                self.places.entry(raw).or_default().push(self.names.len());
                self.names.push(Name { dir, name, raw, kind });
            }
            CheckRow::Nameless { raw } => drop(self.nameless.insert(raw)),
            CheckRow::Spare { iod, first, count } => {
                let end = self.spare.entry((iod, first)).or_default();
                *end = (*end).max(first.saturating_add(count.into()));
            }
        }
    }

    /// Returns true if a datafile belongs to no file on purpose.
    pub(super) fn is_spare(&self, iod: u32, datafile: u64) -> bool {
        let before = self.spare.range((iod, 0)..=(iod, datafile)).rev();
        // Ranges do not overlap unless one was removed from the middle of another.
        before.take(2).any(|(_, end)| *end > datafile)
    }

    /// Returns true if it is not known of all datafiles whom they belong to.
    pub(super) fn has_unreadable(&self) -> bool {
        !self.unreadable.is_empty()
    }

    fn names_of(&self, raw: u64) -> impl Iterator<Item = &Name> {
        self.places.get(&raw).into_iter().flatten().map(|at| &self.names[*at])
    }

    fn is_dir(&self, raw: u64) -> bool {
        self.objects.get(&raw).is_some_and(|object| object.kind == Kind::Dir)
    }

    /// Returns the path of an object by its first name; `None` if it has none.
    pub(super) fn path(&self, raw: u64) -> Option<String> {
        if raw == ROOT {
            return Some("/".to_owned());
        }
        let (mut parts, mut at) = (Vec::new(), raw);
        // A path has at most 4096 bytes. Damaged names may be in a circle.
        while at != ROOT && parts.len() < 4096 {
            let Some(name) = self.names_of(at).next() else { break };
            parts.push(name.name.to_string());
            at = name.dir;
        }
        let beginning = if at == ROOT { String::new() } else { format!("({at:x})") };
        let path = parts.iter().rev().fold(beginning, |path, part| format!("{path}/{part}"));
        (!parts.is_empty()).then_some(path)
    }

    /// Adds what is wrong with the rows to a report.
    pub(super) fn check(&self, servers: &[ServerName], report: &mut Report) {
        report.repairs = self.repairs;
        let found = &mut report.findings;
        for raw in &self.unreadable {
            found.push(Finding::new("unreadable", self.path(*raw), format!("object {raw:x} cannot be read")));
        }
        self.names.iter().for_each(|name| found.extend(self.check_name(name)));
        let mut counts: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
        for name in &self.names {
            let (size, subdirs) = counts.entry(name.dir).or_default();
            (*size, *subdirs) = (*size + 1, *subdirs + u32::from(name.kind == Some(Kind::Dir)));
        }
        for (raw, object) in &self.objects {
            self.check_object(*raw, object, counts.get(raw).copied().unwrap_or_default(), found);
        }
        self.check_circles(found);
        self.check_owners(servers, found);
        let is_counted = |raw: &u64, object: &Object| !self.nameless.contains(raw) && object.ties.parent != 0;
        let dirs = self.objects.values().filter(|object| object.kind == Kind::Dir).count() as u64;
        let others = self.objects.iter().filter(|(_, object)| object.kind != Kind::Dir);
        let files = others.filter(|(raw, object)| is_counted(raw, object)).count() as u64;
        (report.files, report.dirs) = (files, dirs);
        if self.counted != (files, dirs) && self.unreadable.is_empty() {
            let (counted_files, counted_dirs) = self.counted;
            let text = format!(
                "{counted_files} files and {counted_dirs} directories are counted, and there are {files} and {dirs}"
            );
            let by = |is: u64, was: u64| is as i64 - was as i64;
            let fix = Fix::Counts { files: by(files, counted_files), dirs: by(dirs, counted_dirs) };
            found.push(Finding::new("counts", None, text).mended(fix, "the counts are corrected"));
        }
    }

    fn check_name(&self, name: &Name) -> Option<Finding> {
        let Name { dir, name: last, raw, kind } = name;
        let (text, remedy) = match self.objects.get(raw) {
            _ if self.unreadable.contains(raw) || self.unreadable.contains(dir) => return None,
            None => ("it leads to nothing", "the name is removed".to_owned()),
            Some(_) if !self.is_dir(*dir) => {
                ("its directory is not there", format!("it becomes {LOST_FOUND}/{}", Fix::name_of(*raw)))
            }
            Some(object) if Some(object.kind) != *kind => {
                ("it is stored as something else than it leads to", "the name is corrected".to_owned())
            }
            Some(_) => return None,
        };
        let above = self.path(*dir).unwrap_or_else(|| format!("({dir:x})"));
        let path = format!("{}/{last}", above.trim_end_matches('/'));
        let fix = Fix::Name { dir: *dir, name: last.clone() };
        Some(Finding::new("name", Some(path), text).mended(fix, remedy))
    }

    fn check_object(&self, raw: u64, object: &Object, (size, subdirs): (u64, u32), found: &mut Vec<Finding>) {
        let Object { kind, ties, .. } = object;
        let names: Vec<&Name> = self.names_of(raw).collect();
        if self.nameless.contains(&raw) {
            if !names.is_empty() {
                let text = "it has a name, and is in the list of files without one";
                found.push(Finding::new("nameless", self.path(raw), text));
            }
            return;
        }
        if names.is_empty() && raw != ROOT {
            let fix = Fix::Nameless { raw, was: *ties };
            let remedy = format!("it becomes {LOST_FOUND}/{}", Fix::name_of(raw));
            let what = if *kind == Kind::Dir { "a directory" } else { "a file" };
            let text = format!("{what} without a name ({raw:x})");
            found.push(Finding::new("nameless", None, text).mended(fix, remedy));
            return;
        }
        let mut now = *ties;
        if *kind == Kind::Dir {
            (now.size, now.nlink) = (size, 2 + subdirs);
            let above: Vec<u64> = names.iter().map(|name| name.dir).filter(|dir| self.is_dir(*dir)).collect();
            now.parent = match above.first() {
                _ if raw == ROOT => ROOT,
                Some(first) if !above.contains(&ties.parent) => *first,
                _ => ties.parent,
            };
            // The first name in the directory that it is in stays.
            let own = names.iter().position(|name| name.dir == now.parent);
            for (_, name) in names.iter().enumerate().filter(|(at, name)| Some(*at) != own && self.is_dir(name.dir)) {
                let text = format!("a second name of this directory: {:?} in {:x}", name.name, name.dir);
                let finding = Finding::new("name", self.path(raw), text);
                let fix = Fix::Name { dir: name.dir, name: name.name.clone() };
                let is_elsewhere = name.dir != now.parent;
                found.push(if is_elsewhere { finding.mended(fix, "this name is removed") } else { finding });
            }
        } else {
            now.nlink = u32::try_from(names.len()).unwrap_or(u32::MAX);
        }
        if now != *ties {
            let mut wrong = Vec::new();
            let mut differs = |what: &str, was: u64, is: u64| {
                if was != is {
                    wrong.push(format!("{what} is stored as {was}, and is {is}"));
                }
            };
            differs("its number of entries", ties.size, now.size);
            differs("its link count", ties.nlink.into(), now.nlink.into());
            if ties.parent != now.parent {
                wrong.push("the directory that it is in is stored as another one".to_owned());
            }
            let finding = Finding::new("ties", self.path(raw), wrong.join("; "));
            found.push(finding.mended(Fix::Ties { raw, was: *ties, now }, "this is set right"));
        }
    }

    /// Finds directories that cannot be reached, although all above them have names.
    fn check_circles(&self, found: &mut Vec<Finding>) {
        let is_top = |raw: &u64| *raw == ROOT || !self.names_of(*raw).any(|name| self.is_dir(name.dir));
        let dirs = || self.objects.iter().filter(|(_, object)| object.kind == Kind::Dir).map(|(raw, _)| *raw);
        let mut left: BTreeSet<u64> = dirs().collect();
        let mut reached: Vec<u64> = dirs().filter(is_top).collect();
        while let Some(dir) = reached.pop() {
            if left.remove(&dir) {
                let first = self.names.partition_point(|name| name.dir < dir);
                let below = self.names[first..].iter().take_while(|name| name.dir == dir);
                reached.extend(below.map(|name| name.raw).filter(|raw| self.is_dir(*raw)));
            }
        }
        let below = |raw: u64| Finding::new("circle", None, format!("directory {raw:x} is below itself"));
        found.extend(left.into_iter().map(below));
    }

    fn check_owners(&self, servers: &[ServerName], found: &mut Vec<Finding>) {
        let mut push = |kind, iod: u32, datafile: u64, text: &str| {
            let path = self.owners.get(&(iod, datafile)).and_then(|raw| self.path(*raw));
            let finding = Finding::new(kind, path, text);
            found.push(match servers.get(iod as usize) {
                Some(server) => finding.of(server, DatafileHandle(datafile)),
                None => finding,
            });
        };
        for (iod, datafile) in self.owners.keys().filter(|(iod, _)| *iod as usize >= servers.len()) {
            push(
                "server",
                *iod,
                *datafile,
                &format!("its I/O server {iod} is not in the configuration of the manager"),
            );
        }
        for (iod, datafile, other) in &self.twice {
            let other = self.path(*other).unwrap_or_else(|| format!("({other:x})"));
            push("twice", *iod, *datafile, &format!("it belongs to {other}, too"));
        }
        for ((iod, first), end) in &self.spare {
            for (_, datafile) in self.owners.range((*iod, *first)..(*iod, *end)).map(|(key, _)| *key) {
                push("spare", *iod, datafile, "it is also about to be removed, or to be given to a new file");
            }
        }
    }
}
