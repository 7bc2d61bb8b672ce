//! New files that get their names when they are complete, and changes of size at several servers:
//! each happens as a whole or not at all.
//!
//! **Procedure.** Before such a step, its file leaves the list of known files. If the step
//! succeeds, the file comes back at once. If it fails or the client crashes, the file is in
//! *doubt*: no other action touches it. When the step cannot happen any more, one look decides
//! whether it has, and the model goes on from there. So a step that happens later is an error.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use bmi::{Memory, Time};
use fs_client::{CreateOptions, Draft, Error, ErrorCode, Publish};
use fs_proto::Handle;

use super::GRACE;
use super::model::{Model, What, ZOMBIE};
use super::player::{Doubt, Known, LONGEST, Outcome, Player, Step, all};

impl Player {
    // ---- new files ------------------------------------------------------------------------------

    /// Stores a file under a fresh name or in place of another file.
    pub async fn store(&mut self) -> Outcome {
        let other = self.some_file().filter(|_| self.rng.below(2) == 0);
        let name = other.unwrap_or_else(|| self.fresh_name());
        let begun = self.now();
        let Some((draft, new, size)) = self.write_draft(&name).await? else { return Ok(()) };
        self.still_there(&name).await?;
        match self.rng.below(8) {
            0 => {
                let abandoned = draft.abandon().await;
                return self.settle("abandon", abandoned).map(drop);
            }
            // The manager removes it when the client is gone.
            1 => return Ok(()),
            _ => {}
        }
        let start = self.now();
        let synced = new.file.sync().await;
        new.model.borrow_mut().synced(self.writer(), start, self.now(), synced.is_ok());
        if self.settle("sync a draft", synced)?.is_none() {
            return Ok(());
        }
        self.publish(name, draft, new, size, begun).await
    }

    /// Creates a draft and writes it in several pieces. Returns it with its size. Returns `None` if
    /// that fails.
    async fn write_draft(&mut self, name: &str) -> Outcome<Option<(Draft, Known, u64)>> {
        let options = CreateOptions { servers: self.rng.below(4) as u32, ..CreateOptions::default() };
        let draft = self.client().draft(&self.path(name), options).await;
        let Some(draft) = self.settle("create a draft", draft)? else { return Ok(None) };
        let new = Known { file: draft.file().clone(), model: Rc::default() };
        let size = 1 + self.rng.below(LONGEST);
        let mut cuts: Vec<u64> = (0..self.rng.below(4)).map(|_| self.rng.below(size)).chain([0, size]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let pieces: Vec<Range<u64>> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
        for piece in pieces {
            if !self.put(&new, std::iter::once(piece).collect()).await? {
                if self.rng.below(2) == 0 {
                    let abandoned = draft.abandon().await;
                    self.settle("abandon", abandoned)?;
                }
                return Ok(None);
            }
        }
        Ok(Some((draft, new, size)))
    }

    /// A draft does not concern the file whose name it is to get.
    async fn still_there(&mut self, name: &str) -> Outcome {
        let found = self.client().lookup(&self.path(name)).await;
        match (self.files.get(name).cloned(), found) {
            (None, Err(error)) if error.code() == ErrorCode::NotFound => Ok(()),
            (Some(old), found) => {
                match self.settle("lookup of an old file", found)? {
                    Some(entry) if entry.handle != Handle::File(old.file.handle()) => {
                        return Err(format!("{name} leads to {} before it is published", entry.handle));
                    }
                    _ => {}
                }
                self.read_ranges(&old, &all()).await
            }
            (None, found) => match self.settle("lookup before a publication", found)? {
                Some(entry) => Err(format!("{name} leads to {} before it is published", entry.handle)),
                None => Ok(()),
            },
        }
    }

    /// Publishes a draft that is complete and synced. A reader may have the old file open.
    async fn publish(&mut self, name: String, draft: Draft, new: Known, size: u64, begun: Time) -> Outcome {
        let old = self.files.remove(&name);
        self.unsure.insert(name.clone());
        self.doubts.insert(name.clone(), Doubt::new(Step::Publish { old: old.clone(), new: new.clone() }));
        let how = Publish { inherit: old.is_some(), size: Some(size), ..Publish::default() };
        let mut published = draft.publish(how).await;
        let late = self.now().since(begun) >= GRACE && !self.calm();
        if matches!(&published, Err(error) if error.code() == ErrorCode::Stale && late) {
            // The manager could not know that the client was there.
            published = Err(Error::new(ErrorCode::Timeout, "the draft was removed"));
        }
        if self.settle("publish", published)?.is_none() {
            let now = self.now();
            self.doubts.entry(name).and_modify(|doubt| doubt.since = Some(now));
            return Ok(());
        }
        self.doubts.remove(&name);
        self.files.insert(name.clone(), new.clone());
        if let Some(old) = old {
            self.read_replaced(&old).await?;
        }
        self.read_ranges(&new, &all()).await
    }

    /// Reads a file that was replaced: its old bytes, or an error.
    async fn read_replaced(&mut self, old: &Known) -> Outcome {
        let memory = Memory::from(vec![0xee; LONGEST as usize]);
        let start = self.now();
        match old.file.read_at(0, &memory).await {
            Ok(_) => {
                let checked = old.model.borrow().check(start, self.now(), 0, &memory.to_vec(), &self.crashes());
                checked.map_err(|wrong| format!("client {} read a file that was replaced: {wrong}", self.who))
            }
            Err(error) if error.code() == ErrorCode::Stale => Ok(()),
            // The manager could not be asked why there is no datafile.
            Err(error) if error.code() == ErrorCode::Lost && !self.calm() => Ok(()),
            Err(error) => self.settle::<()>("read a file that was replaced", Err(error)).map(drop),
        }
    }

    /// Begins a draft that outlives the grace, because its client stays connected.
    pub async fn begin_kept(&mut self) -> Outcome {
        let name = self.fresh_name();
        let Some((draft, new, size)) = self.write_draft(&name).await? else { return Err(format!("no {name}")) };
        self.sync(&new).await?;
        self.kept = Some((name, draft, new, size, self.now()));
        Ok(())
    }

    /// Publishes it.
    pub async fn publish_kept(&mut self) -> Outcome {
        let (name, draft, new, size, begun) = self.kept.take().expect("it was begun");
        if self.now().since(begun) <= GRACE {
            return Err("it was not kept for long".to_owned());
        }
        self.publish(name, draft, new, size, begun).await
    }

    // ---- sizes ----------------------------------------------------------------------------------

    /// Changes the size of a file that may be at several servers.
    pub async fn cut(&mut self, name: String, known: Known) -> Outcome {
        if self.rng.below(2) == 0 {
            self.put(&known, all()).await?;
        }
        let size = self.rng.below(LONGEST);
        let everywhere = known.file.servers().len() > 1 || known.file.is_small();
        let op = known.model.borrow_mut().begin(self.writer(), What::Cut { size }, self.now());
        if everywhere {
            self.files.remove(&name);
            self.unsure.insert(name.clone());
            self.doubts.insert(name.clone(), Doubt::new(Step::Cut { known: known.clone(), op }));
        }
        let result = known.file.set_len(size).await;
        known.model.borrow_mut().end(op, self.now(), result.is_ok());
        let done = self.settle("truncate", result)?.is_some();
        if done && everywhere {
            self.doubts.remove(&name);
            self.files.insert(name, known.clone());
            return self.read_ranges(&known, &all()).await;
        }
        let now = self.now();
        self.doubts.entry(name).and_modify(|doubt| doubt.since = Some(now));
        Ok(())
    }

    // ---- doubts ---------------------------------------------------------------------------------

    /// Finds out what has become of the steps that cannot happen any more.
    pub async fn decide(&mut self) -> Outcome {
        let now = self.now();
        let ripe = |doubt: &Doubt| doubt.since.is_some_and(|since| now >= since + ZOMBIE);
        let ripe = self.doubts.iter().filter(|(_, doubt)| ripe(doubt)).map(|(name, _)| name.clone());
        for name in ripe.collect::<Vec<_>>() {
            let doubt = self.doubts.remove(&name).expect("it was there");
            let decided = match &doubt.step {
                Step::Publish { old, new } => self.is_published(&name, old.as_ref(), new).await?,
                Step::Cut { known, op } => self.is_cut(&name, known, *op).await?,
            };
            if !decided {
                self.doubts.insert(name, doubt);
            }
        }
        Ok(())
    }

    /// Decides all doubts. Waits until that is possible.
    pub async fn decide_all(&mut self) -> Outcome {
        if !self.doubts.is_empty() {
            self.world.sleep(ZOMBIE).await;
            self.decide().await?;
        }
        match self.doubts.keys().next() {
            Some(name) => Err(format!("client {}: {name} is still in doubt", self.who)),
            None => Ok(()),
        }
    }

    async fn is_published(&mut self, name: &str, old: Option<&Known>, new: &Known) -> Outcome<bool> {
        let found = match self.client().lookup(&self.path(name)).await {
            Err(error) if error.code() == ErrorCode::NotFound && old.is_none() => return Ok(true),
            found => self.settle("lookup after a publication", found)?,
        };
        let Some(entry) = found else { return Ok(false) };
        let is_new = entry.handle == Handle::File(new.file.handle());
        let known = if is_new { Some(new) } else { old };
        let Some(known) = known.filter(|known| entry.handle == Handle::File(known.file.handle())) else {
            return Err(format!("{name} leads to {}, which is neither the old nor the new file", entry.handle));
        };
        self.reopen(name, known.model.clone()).await
    }

    async fn is_cut(&mut self, name: &str, known: &Known, op: usize) -> Outcome<bool> {
        if !self.reopen(name, known.model.clone()).await? {
            return Ok(false);
        }
        let known = self.files.remove(name).expect("it was opened");
        let memory = Memory::from(vec![0xee; LONGEST as usize]);
        let start = self.now();
        let result = known.file.read_at(0, &memory).await;
        let Some(read) = self.settle("read after a truncation", result)? else { return Ok(false) };
        let (now, bytes, crashes) = (self.now(), memory.to_vec(), self.crashes());
        let fits = |happened: bool| {
            let mut model = known.model.borrow().clone();
            model.decided(op, happened);
            let size = model.size(start, now, &crashes).unwrap_or(read);
            let is_long_enough = (size == read).then_some(()).ok_or_else(|| format!("it has {read} bytes, not {size}"));
            is_long_enough.and_then(|()| model.check(start, now, 0, &bytes, &crashes)).map(|()| model)
        };
        match fits(true).or_else(|cut| fits(false).map_err(|whole| format!("if cut: {cut}; if not: {whole}"))) {
            Ok(model) => *known.model.borrow_mut() = model,
            Err(wrong) => return Err(format!("client {}: a truncation of {name} happened in part: {wrong}", self.who)),
        }
        self.files.insert(name.to_owned(), known);
        Ok(true)
    }

    /// Opens a file that was in doubt. It is known again.
    async fn reopen(&mut self, name: &str, model: Rc<RefCell<Model>>) -> Outcome<bool> {
        let file = self.client().open(&self.path(name)).await;
        let Some(file) = self.settle("open", file)? else { return Ok(false) };
        self.files.insert(name.to_owned(), Known { file, model });
        Ok(true)
    }
}
