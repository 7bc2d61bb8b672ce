//! Writing: data from the request or pulled from the client, into the store.

use bmi_core::{BulkDescriptor, MemList, Options, Transport};
use fs_proto::{Data, DatafileHandle, FsError, Regions};

use super::transfer::Unit;
use super::{Iod, check_bulk};
use crate::service::Context;
use crate::store::DataStore;

impl<T: Transport + 'static, S: DataStore> Iod<T, S> {
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
                let step = async |unit: &Unit| self.write_unit(context, datafile, bulk, unit).await;
                self.in_units(context, regions, step).await
            }
        }
    }

    /// One unit: from the client's memory into a buffer, and from there into the store.
    async fn write_unit(
        &self,
        context: &Context,
        datafile: DatafileHandle,
        bulk: &BulkDescriptor,
        unit: &Unit,
    ) -> Result<(), FsError> {
        let slice = unit.slice();
        let options = Options::by(context.deadline).class(unit.class());
        self.at_network(context, unit, || self.endpoint.pull(context.peer, bulk, unit.at, &slice, options)).await?;
        let list = MemList::from(slice);
        self.at_disk(context, unit, || self.store.write(datafile, &unit.ranges, &list)).await
    }
}
