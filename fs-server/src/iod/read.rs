//! Reading: from the store to the client, with the reply or into the client's memory.

use std::any::Any;

use bmi::config::ServiceClass;
use bmi::hooks::mutated_each;
use bmi::paths::{Direction, LONGEST_AHEAD};
use bmi::{Incoming, MemList, MemSlice, Memory, Options};
use fs_proto::{DatafileHandle, ErrorCode, FsError, IodReply, Region, Reply};

use super::places::Places;
use super::transfer::{Unit, is_small};
use super::{Iod, check_data};
use crate::service::{Answer, Context, ReadData};
use crate::store::{DataStore, Lends, Loan, StoreHandle};

impl<S: StoreHandle> Iod<S> {
    pub(super) async fn read(
        &self,
        context: &Context,
        call: &Incoming,
        datafile: DatafileHandle,
        places: Places<'_>,
    ) -> Result<Answer, FsError> {
        check_data(call, Direction::Read, places.total())?;
        let data = if call.replies_with_data() {
            Some(self.read_whole(context, datafile, places).await?)
        } else {
            let step = async |unit: &Unit<'_>| self.read_unit(context, call, datafile, unit).await;
            self.in_units(context, places, step).await?;
            None
        };
        let reply = IodReply::Read { len: places.total(), size: self.store.size(datafile).await? };
        Ok(Answer::Reply(Reply { result: Ok(reply.into()) }, data))
    }

    /// Reads all bytes for the reply. They are read into a registered buffer, so that nothing is
    /// copied on this side.
    async fn read_whole(
        &self,
        context: &Context,
        datafile: DatafileHandle,
        places: Places<'_>,
    ) -> Result<ReadData, FsError> {
        let total = places.total();
        let room = self.endpoint.peer(context.peer).limits().map_or(0, |limits| limits.eager.max(limits.fast) as u64);
        // Data that goes ahead of the reply needs no slot.
        let room = room.max(LONGEST_AHEAD);
        if total > room {
            let text = format!("{total} bytes with the reply; a message has room for {room}");
            return Err(FsError::new(ErrorCode::TooLarge, text));
        }
        let len = total as usize;
        let small = is_small(&self.zones, total);
        if let (Lends::Cache, Places::Listed(regions)) = (self.store.lends(), places) {
            let turn = self.disk_turn(context, small);
            if let Some(Loan { list, owner }) = self.store.lend(datafile, regions, &turn).await? {
                self.register_ready();
                return Ok(ReadData { list, keep: Some(owner) });
            }
        }
        let (slice, keep) = if small && len > 0 {
            let client = self.client(context.peer);
            let (class, now) = (ServiceClass::Message, self.endpoint.now());
            let lease = self.zones.take(&self.buffers, client, class, len, now).await?;
            (lease.slice(len), Some(Box::new(lease) as Box<dyn Any>))
        } else {
            // The data is larger than the smallest buffer, because the slots are. It need not fit
            // into any other buffer either.
            (Memory::zeroed(len)?.all(), None)
        };
        context.check(self.endpoint.now())?;
        if let Places::Listed(regions) = places {
            let list = MemList::from(slice);
            self.at_disk(context, small, || self.store.read(datafile, regions, &list)).await?;
            return Ok(ReadData { list, keep });
        }
        let (mut rest, mut at) = (places.rest(), 0);
        while at < len {
            let ranges = rest.take((len - at) as u64, || context.check(self.endpoint.now())).await?;
            let taken: u64 = ranges.iter().map(|range| range.len).sum();
            let into = slice.slice(at, taken as usize);
            self.at_disk(context, small, || self.read_seen(datafile, &ranges, &into)).await?;
            at += into.len();
        }
        Ok(ReadData { list: MemList::from(slice), keep })
    }

    /// Reads one unit. If the client's pages are mapped here, reads from the store directly into
    /// them. Otherwise reads into a buffer, and moves the data from there into the client's memory.
    async fn read_unit(
        &self,
        context: &Context,
        call: &Incoming,
        datafile: DatafileHandle,
        unit: &Unit<'_>,
    ) -> Result<(), FsError> {
        let mut done = 0;
        while done < unit.len {
            // Short ranges are read together, which needs memory in one piece.
            let pages = call.pages(unit.at + done, unit.len - done);
            if let Some(pages) = pages.filter(|pages| !unit.seen || pages.pieces().len() == 1) {
                let ranges = unit.ranges(done, pages.len());
                let read = async || match pages.pieces() {
                    [page] if unit.seen => self.read_seen(datafile, &ranges, page).await,
                    _ => self.store.read(datafile, &ranges, &pages).await,
                };
                return self.at_disk(context, unit.small, read).await;
            }
            if self.lends_to(call) {
                let turn = self.disk_turn(context, unit.small);
                let ranges = unit.ranges(done, (unit.len - done) as usize);
                if let Some(Loan { list, owner }) = self.store.lend(datafile, &ranges, &turn).await? {
                    self.register_ready();
                    self.store_unit(context, call, unit, unit.at + done, list).await?;
                    return owner.check();
                }
            }
            let read = async || {
                let slice = unit.memory(done)?;
                let ranges = unit.ranges(done, slice.len());
                match unit.seen {
                    true => self.read_seen(datafile, &ranges, &slice).await?,
                    false => self.store.read(datafile, &ranges, &MemList::from(&slice)).await?,
                }
                Ok::<_, FsError>(slice)
            };
            let slice = self.at_disk(context, unit.small, read).await?;
            self.store_unit(context, call, unit, unit.at + done, MemList::from(&slice)).await?;
            done += slice.len() as u64;
        }
        Ok(())
    }

    /// Reads ranges of a view into `into`.
    async fn read_seen(&self, datafile: DatafileHandle, ranges: &[Region], into: &MemSlice) -> Result<(), FsError> {
        let copied = |bytes, pieces| self.endpoint.copied(bytes, pieces);
        self.scratch.read(&self.store, datafile, ranges, into, copied).await
    }

    /// Moves bytes of a unit into the client's memory.
    async fn store_unit(
        &self,
        context: &Context,
        call: &Incoming,
        unit: &Unit<'_>,
        at: u64,
        from: MemList,
    ) -> Result<(), FsError> {
        context.check(self.endpoint.now())?;
        let options = Options::by(context.deadline).class(unit.class());
        if !mutated_each(20, "iod/unit-not-stored") {
            self.at_network(context, unit.small, || call.store(at, from, options)).await?;
        }
        Ok(())
    }
}
