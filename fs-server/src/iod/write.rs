//! Writing: data that came with the request or is fetched from the client goes into the store.

use bmi::hooks::mutated;
use bmi::paths::Direction;
use bmi::{Incoming, MemList, Options};
use fs_proto::{DatafileHandle, FsError};

use super::places::Places;
use super::transfer::{Unit, is_small};
use super::{Iod, check_data};
use crate::service::Context;
use crate::store::{DataStore, StoreHandle};

impl<S: StoreHandle> Iod<S> {
    pub(super) async fn write(
        &self,
        context: &Context,
        call: &Incoming,
        datafile: DatafileHandle,
        places: Places<'_>,
    ) -> Result<(), FsError> {
        check_data(call, Direction::Write, places.total())?;
        let Some(data) = call.data() else {
            let step = async |unit: &Unit<'_>| self.write_unit(context, call, datafile, unit).await;
            return self.in_units(context, places, step).await;
        };
        // Written directly from where it arrived.
        let small = is_small(&self.zones, call.len());
        if let Places::Listed(regions) = places {
            let list = MemList::from(data);
            return self.at_disk(context, small, || self.store.write(datafile, regions, &list)).await;
        }
        let (mut rest, mut at) = (places.rest(), 0);
        while at < data.len() {
            let ranges = rest.take((data.len() - at) as u64, || context.check(self.endpoint.now())).await?;
            let taken: u64 = ranges.iter().map(|range| range.len).sum();
            let list = MemList::from(data.slice(at, taken as usize));
            self.at_disk(context, small, || self.store.write(datafile, &ranges, &list)).await?;
            at += taken as usize;
        }
        Ok(())
    }

    /// Writes one unit. If the client's pages are mapped here, writes them directly to the store.
    /// Otherwise fetches the data into a buffer, and writes it from there.
    async fn write_unit(
        &self,
        context: &Context,
        call: &Incoming,
        datafile: DatafileHandle,
        unit: &Unit<'_>,
    ) -> Result<(), FsError> {
        let mut done = 0;
        while done < unit.len {
            context.check(self.endpoint.now())?;
            if let Some(pages) = call.pages(unit.at + done, unit.len - done) {
                let ranges = unit.ranges(done, pages.len());
                return self.at_disk(context, unit.small, || self.store.write(datafile, &ranges, &pages)).await;
            }
            let options = Options::by(context.deadline).class(unit.class());
            if self.lends_to(call) {
                let ranges = unit.ranges(done, (unit.len - done) as usize);
                if let Some(receipt) = self.store.receive(datafile, &ranges).await? {
                    self.register_ready();
                    let fetch = || call.fetch(unit.at + done, receipt.list().clone(), options);
                    self.at_network(context, unit.small, fetch).await?;
                    return receipt.commit().await;
                }
            }
            let fetch = async || {
                let slice = unit.memory(done)?;
                let at = if mutated("iod/every-unit-the-first") { done } else { unit.at + done };
                call.fetch(at, &slice, options).await?;
                Ok::<_, FsError>(slice)
            };
            let slice = self.at_network(context, unit.small, fetch).await?;
            let (ranges, list) = (unit.ranges(done, slice.len()), MemList::from(&slice));
            let stored = self.at_disk(context, unit.small, || self.store.write(datafile, &ranges, &list)).await;
            if !mutated("iod/refused-write-acknowledged") {
                stored?;
            }
            done += slice.len() as u64;
        }
        Ok(())
    }
}
