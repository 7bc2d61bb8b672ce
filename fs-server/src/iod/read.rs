//! Reading: data from the store, behind the reply or pushed to the client.

use bmi_core::{BulkDescriptor, MemList, Memory, Options, ServiceClass, Transport};
use fs_proto::limits::REPLY_ROOM;
use fs_proto::{Data, DatafileHandle, ErrorCode, FsError, IodReply, ReadData, Region, Regions, Reply};

use super::{Iod, Part, check_bulk};
use crate::service::{Answer, Context};
use crate::store::DataStore;

impl<T: Transport, S: DataStore> Iod<T, S> {
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
        let step = async |part, ranges: &[Region]| self.read_unit(context, datafile, ranges, bulk, part).await;
        self.in_units(regions, step).await
    }

    /// One unit: from the store into a buffer, and from there into the client's memory.
    async fn read_unit(
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
        self.store.read(datafile, ranges, &MemList::from(&slice)).await?;
        let options = Options::by(context.deadline).class(ServiceClass::Bulk);
        self.endpoint.push(context.peer, bulk, part.at, &slice, options).await?;
        Ok(())
    }
}
