//! A client acts: at random, and with everything that it has.

use std::time::Duration;

use super::player::{Known, LONGEST, Outcome, Player, all};

impl Player {
    /// Does one random action.
    pub async fn act(&mut self) -> Outcome {
        self.decide().await?;
        let name = self.some_file();
        let Some(name) = name else { return self.create().await };
        let known = self.files[&name].clone();
        match self.rng.below(100) {
            0..6 => self.create().await,
            6..14 => self.store().await,
            14..19 => self.complete(&known).await,
            19..32 => self.write(&known).await,
            32..42 => self.write_strided(&known).await,
            42..57 => self.read(&known).await,
            57..65 => self.sync(&known).await,
            65..72 => self.cut(name, known).await,
            72..84 => self.share().await,
            84..88 => self.rename(&name).await,
            88..91 => self.remove(&name).await,
            91..95 => self.directories().await,
            _ => self.list().await,
        }
    }

    fn everything(&self) -> Vec<Known> {
        self.files.values().chain(&self.shared).cloned().collect()
    }

    /// Ends the run. Nothing may fail now: everything is compared, and written again so that
    /// nothing is in doubt.
    pub async fn finish(&mut self) -> Outcome {
        self.decide_all().await?;
        self.list().await?;
        for known in self.everything() {
            self.read_ranges(&known, &all()).await?;
            // A server reports a loss once, here at the latest.
            let start = self.now();
            let good = known.file.sync().await.is_ok();
            known.model.borrow_mut().synced(self.writer(), start, self.now(), good);
        }
        for (name, known) in self.files.clone() {
            self.put(&known, all()).await?;
            self.sync(&known).await?;
            // Look it up by its name, not by the handle that was kept.
            let stat = self.client().stat(&self.path(&name)).await;
            let stat = self.settle("stat", stat)?.expect("nothing fails any more");
            if stat.attr.size != LONGEST {
                return Err(format!("{name} has {} bytes and not {LONGEST}", stat.attr.size));
            }
        }
        Ok(())
    }

    /// Reads, writes and perhaps syncs every file.
    pub async fn use_all_files(&mut self, sync: bool) -> Outcome {
        for known in self.everything() {
            self.read_ranges(&known, &all()).await?;
        }
        self.write_here_and_there().await?;
        for known in self.everything() {
            self.read(&known).await?;
            if sync {
                self.sync(&known).await?;
            }
        }
        Ok(())
    }

    /// Compares everything once more.
    pub async fn compare(&mut self) -> Outcome {
        self.decide_all().await?;
        self.list().await?;
        for known in self.everything() {
            self.read_ranges(&known, &all()).await?;
        }
        Ok(())
    }

    /// Removes everything.
    pub async fn clear(&mut self) -> Outcome {
        let result = self.client().remove_all(&self.dir.clone()).await;
        self.settle("remove all", result)?;
        Ok(())
    }

    /// Waits between two actions.
    pub async fn think(&mut self) {
        let pause = Duration::from_micros(self.rng.below(4_000));
        self.world.sleep(pause).await;
    }
}
