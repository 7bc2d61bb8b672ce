//! Writing: data from the request or pulled from the client, into the store.

use bmi_core::{BulkDescriptor, MemList, Options, ServiceClass, Transport};
use fs_proto::{Data, DatafileHandle, FsError, Region, Regions};

use super::{Iod, Part, check_bulk};
use crate::service::Context;
use crate::store::DataStore;

impl<T: Transport, S: DataStore> Iod<T, S> {
    pub(super) async fn write(
        &self,
        context: &Context,
        datafile: DatafileHandle,
        regions: &Regions,
        how: &Data,
        data: &[u8],
    ) -> Result<(), FsError> {
        match how {
            // At most one eager message: copying it costs less than anything else that happens to it.
            Data::Inline => self.store.write(datafile, regions, &MemList::from(data.to_vec())).await,
            Data::Bulk(bulk) => {
                check_bulk(regions, bulk)?;
                let step = async |part, ranges: &[Region]| self.write_unit(context, datafile, ranges, bulk, part).await;
                self.in_units(regions, step).await
            }
        }
    }

    /// One unit: from the client's memory into a buffer, and from there into the store.
    async fn write_unit(
        &self,
        context: &Context,
        datafile: DatafileHandle,
        ranges: &[Region],
        bulk: &BulkDescriptor,
        part: Part,
    ) -> Result<(), FsError> {
        let unit = self.buffers.take(context.peer).await?;
        context.check(self.endpoint.now())?;
        let slice = unit.slice(part.len as usize);
        let options = Options::by(context.deadline).class(ServiceClass::Bulk);
        self.endpoint.pull(context.peer, bulk, part.at, &slice, options).await?;
        self.store.write(datafile, ranges, &MemList::from(slice)).await
    }
}
