//! Lends the pages of files where the system has them in memory ([`Mapped`]).

use std::io;
use std::sync::Arc;

use fs_proto::{DatafileHandle, FsError, Region};

use super::mapped::{InUse, Mapped, Piece, WINDOW, Window, len_of, lend};
use super::store::FileStore;
use crate::store::open::{OpenFile, Way};
use crate::store::sys::fault;
use crate::store::transfer::jobs;
use crate::store::{DiskTurn, Loan};

impl FileStore {
    /// Lends the bytes of files where the system has them in memory, if `on` is set. Off without
    /// this. Call it before the store is used.
    ///
    /// # Errors
    /// `NoSpace`, `Unsupported`: this system cannot do it.
    pub fn mapped(mut self, on: bool) -> Result<FileStore, FsError> {
        self.mapped = if on { Some(Mapped::new()?) } else { None };
        Ok(self)
    }

    /// Lends regions of a datafile, if that is worth it and possible.
    pub(super) async fn lend_mapped(
        &self,
        mapped: &Mapped,
        datafile: DatafileHandle,
        regions: &[Region],
        turn: &dyn DiskTurn,
    ) -> Result<Option<Loan>, FsError> {
        if !mapped.is_worth_it(regions) {
            return Ok(None);
        }
        let Some(file) = self.file(datafile, false).await? else { return Ok(None) };
        let len = file.len().map_err(|error| fault("looking at", datafile, &error))?;
        let end = len.next_multiple_of(mapped.page);
        let (mut windows, missing) = mapped.windows(datafile, end, regions);
        if !missing.is_empty() {
            let Some(made) = self.map(datafile, file.clone(), end, missing).await? else { return Ok(None) };
            for (number, window) in made {
                let gone = mapped.table().keep((datafile, number), &window);
                drop(gone);
                windows.insert(number, window);
            }
        }
        let (list, pieces) = mapped.list(regions, &windows, end);
        let is_there = pieces.iter().all(|piece| piece.window.is_resident(piece.at, piece.len));
        if !is_there && !self.populate(pieces, turn).await? {
            return Ok(None);
        }
        // From here on it is not cut off. It may have been before.
        let Some(loan) = lend(&mapped.loans, datafile) else { return Ok(None) };
        if let Some(check) = self.begin_check(&file) {
            let (jobs, own) = (jobs(regions, &list), file.clone());
            let verified = self.bulk(move || check.verify(own.file(), &jobs, true).is_ok());
            // Whoever reads the bytes into a buffer is told what is wrong with them.
            if !verified.await? {
                return Ok(None);
            }
        }
        let same = file.len().map_err(|error| fault("looking at", datafile, &error))? >= len;
        let (windows, regions) = (windows.into_values().collect(), regions.to_vec());
        let owner = Box::new(InUse { datafile, regions, windows, _loan: loan });
        Ok(same.then_some(Loan { list, owner }))
    }

    /// Maps windows of a file. Returns `None` if there is no room for them.
    async fn map(
        &self,
        datafile: DatafileHandle,
        file: Arc<OpenFile>,
        end: u64,
        numbers: Vec<u64>,
    ) -> Result<Option<Vec<(u64, Arc<Window>)>>, FsError> {
        let map = move |closer| -> io::Result<Vec<(u64, Arc<Window>)>> {
            let window =
                |number| Window::map(file.descriptor(Way::Buffered), number * WINDOW, len_of(number, end), &closer);
            numbers.into_iter().map(|number| Ok((number, Arc::new(window(number)?)))).collect()
        };
        let closer = Arc::downgrade(&self.core.short);
        match self.short(move |_| map(closer)).await? {
            Ok(windows) => Ok(Some(windows)),
            Err(error) => {
                tracing::debug!(%datafile, %error, "it is not mapped");
                Ok(None)
            }
        }
    }

    /// Brings pieces into memory, during a turn at the disk. Returns false if that is not possible.
    async fn populate(&self, pieces: Vec<Piece>, turn: &dyn DiskTurn) -> Result<bool, FsError> {
        let _turn = turn.take().await?;
        let len = pieces.iter().map(|piece| piece.len as u64).sum::<u64>();
        let populate = move || pieces.iter().all(|piece| piece.window.populate(piece.at, piece.len).is_ok());
        match len >= self.offload {
            true => self.bulk(populate).await,
            false => self.short(move |_| populate()).await,
        }
    }
}
