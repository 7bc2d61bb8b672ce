//! Create, stat and remove of files in one directory.
//!
//! A removal ends when the name is gone. The manager has the I/O servers remove the datafiles
//! later. The rest of that work is waited for after the measurement, so that it does not disturb
//! the next line.

use std::cell::Cell;

use benches::workload::Failed;
use fs_client::{Client, CreateOptions, FsPath, RemoveKind};

use crate::line::What;
use crate::load::repeat;
use crate::round::Round;

/// Measures the chosen lines of these three, with `in_flight` calls in flight.
///
/// # Errors
/// If an operation fails, or a directory does not have the expected entries.
pub(crate) async fn measure(round: &mut Round<'_>, in_flight: usize) -> Result<(), Failed> {
    let wanted = [What::Create(in_flight), What::Stat(in_flight), What::Remove(in_flight)];
    if !round.wants_any(&wanted) {
        return Ok(());
    }
    let [create, stat, remove] = wanted;
    let (client, mut lanes) = (round.client.clone(), vec![(); in_flight]);
    let dir: FsPath = format!("/files-{in_flight}").parse()?;
    client.mkdir(&dir).await?;
    let files = Files { client: &client, dir: &dir, next: Cell::new(0) };

    repeat(&client, round.warm_up(), &mut lanes, async |()| files.create().await).await?;
    round.begin(create);
    let times = repeat(&client, round.time(), &mut lanes, async |()| files.create().await).await?;
    round.note(create, times.figure());
    let created = files.next.get();
    files.expect(created).await?;

    if round.wants_any(&[stat]) {
        files.next.set(0);
        repeat(&client, round.warm_up(), &mut lanes, async |()| files.stat(created).await).await?;
        round.begin(stat);
        let times = repeat(&client, round.time(), &mut lanes, async |()| files.stat(created).await);
        round.note(stat, times.await?.figure());
    }

    files.next.set(0);
    repeat(&client, round.warm_up(), &mut lanes, async |()| files.remove(created).await).await?;
    round.begin(remove);
    let times = repeat(&client, round.time(), &mut lanes, async |()| files.remove(created).await).await?;
    round.note(remove, times.figure());
    files.expect(created - files.next.get()).await?;
    while client.statfs().await?.manager.orphans > 0 {
        client.endpoint().sleep(round.warm_up()).await;
    }
    Ok(())
}

/// The files of one directory, named by number.
struct Files<'a> {
    client: &'a Client,
    dir: &'a FsPath,
    /// The number of the next file, for whichever lane comes first.
    next: Cell<u64>,
}

impl Files<'_> {
    /// Returns the number and the path of the next file. It allocates, as a program that creates a
    /// name does.
    fn take(&self) -> Result<(u64, FsPath), Failed> {
        let number = self.next.get();
        self.next.set(number + 1);
        Ok((number, self.dir.join(&number.to_string())?))
    }

    async fn create(&self) -> Result<bool, Failed> {
        let (_, path) = self.take()?;
        self.client.create(&path, CreateOptions::default()).await?;
        Ok(true)
    }

    /// Reads the attributes of `count` files, repeatedly.
    async fn stat(&self, count: u64) -> Result<bool, Failed> {
        if self.next.get() >= count {
            self.next.set(0);
        }
        let (_, path) = self.take()?;
        let stat = self.client.stat(&path).await?;
        if stat.attr.size != 0 || stat.distribution.is_none() {
            return Err(format!("{path} is not the empty file that was created").into());
        }
        Ok(true)
    }

    async fn remove(&self, count: u64) -> Result<bool, Failed> {
        if self.next.get() >= count {
            return Ok(false);
        }
        let (_, path) = self.take()?;
        self.client.remove(&path, RemoveKind::File).await?;
        Ok(true)
    }

    /// Checks that the directory has this many entries.
    async fn expect(&self, count: u64) -> Result<(), Failed> {
        let entries = self.client.readdir(self.dir).await?.len() as u64;
        if entries == count { Ok(()) } else { Err(format!("{} has {entries} entries, not {count}", self.dir).into()) }
    }
}
