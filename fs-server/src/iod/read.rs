//! Reading: data from the store, behind the reply or pushed to the client.

use bmi_core::{BulkDescriptor, MemList, Memory, Options, Transport};
use fs_proto::limits::REPLY_ROOM;
use fs_proto::{Data, DatafileHandle, ErrorCode, FsError, IodReply, ReadData, Regions, Reply};

use super::transfer::Unit;
use super::{Iod, check_bulk};
use crate::service::{Answer, Context};
use crate::store::DataStore;

impl<T: Transport + 'static, S: DataStore> Iod<T, S> {
    pub(super) async fn read(
        &self,
        context: &Context,
        datafile: DatafileHandle,
        regions: &Regions,
        how: &Data,
    ) -> Answer {
        let result = match how {
            Data::Inline => self.read_inline(context, datafile, regions).await.map(Some),
            Data::Bulk(bulk) => self.read_bulk(context, datafile, regions, bulk).await.map(|()| None),
        };
        let (list, size) = match result {
            Ok(list) => match self.store.size(datafile).await {
                Ok(size) => (list, size),
                Err(error) => return Answer::error(error),
            },
            Err(error) => return Answer::error(error),
        };
        let data = if list.is_some() { ReadData::Inline } else { ReadData::Pushed };
        let reply = IodReply::Read { len: regions.total(), size, data };
        Answer::Reply(Reply { result: Ok(reply.into()) }, list)
    }

    async fn read_inline(
        &self,
        context: &Context,
        datafile: DatafileHandle,
        regions: &Regions,
    ) -> Result<MemList, FsError> {
        let room = context.eager.saturating_sub(REPLY_ROOM) as u64;
        if regions.total() > room {
            let text = format!("{} bytes inline; a message has room for {room}", regions.total());
            return Err(FsError::new(ErrorCode::TooLarge, text));
        }
        let list = MemList::from(Memory::from(vec![0; regions.total() as usize]));
        self.store.read(datafile, regions, &list).await?;
        Ok(list)
    }

    async fn read_bulk(
        &self,
        context: &Context,
        datafile: DatafileHandle,
        regions: &Regions,
        bulk: &BulkDescriptor,
    ) -> Result<(), FsError> {
        check_bulk(regions, bulk)?;
        let step = async |unit: &Unit| self.read_unit(context, datafile, bulk, unit).await;
        self.in_units(context, regions, step).await
    }

    /// One unit: from the store into a buffer, and from there into the client's memory.
    async fn read_unit(
        &self,
        context: &Context,
        datafile: DatafileHandle,
        bulk: &BulkDescriptor,
        unit: &Unit,
    ) -> Result<(), FsError> {
        let slice = unit.slice();
        let list = MemList::from(&slice);
        self.at_disk(context, unit, || self.store.read(datafile, &unit.ranges, &list)).await?;
        context.check(self.endpoint.now())?;
        let options = Options::by(context.deadline).class(unit.class());
        self.at_network(context, unit, || self.endpoint.push(context.peer, bulk, unit.at, &slice, options)).await?;
        Ok(())
    }
}
