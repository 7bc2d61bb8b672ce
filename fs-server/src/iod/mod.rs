//! The I/O server: datafiles, read and written by lists of regions.
//!
//! **Protocol.** Small data travels inline. Large transfers are server-based: the request describes the client's memory, and the server *pulls*
//! for a write and *pushes* for a read, when its buffers and its disk allow. A transfer is cut into units; several units of a request are
//! under way at a time, each in a buffer of its own, so that the network moves one while the disk moves another:
//!
//! ```text
//!   write   unit 1  [buffer][   pull   ][ store ]
//!           unit 2          [buffer][   pull   ][ store ]
//!   read    unit 1  [buffer][ store ][   push   ]
//!           unit 2          [buffer][ store ][   push   ]
//! ```
//!
//! **Invariants**
//! 1. An error names the ranges that were not written or read; all others were.
//! 2. Every step ends: in time, or because its client is gone.
//!
//! **Source.** Paper 000, sections 3.2.3 (server-based RDMA, Figure 3), 4.1.1 (inline) and 4.2 (pipelined bulk transfer).

mod buffers;
mod read;
mod write;

use std::cell::Cell;

use async_trait::async_trait;
use bmi_core::{AsyncEndpoint, BulkDescriptor, Transport};
use fs_proto::limits::MAX_OFFSET;
use fs_proto::{DatafileHandle, ErrorCode, FsError, IodReply, IodRequest, Region, Regions, Request, RequestBody};
use futures_util::stream::{self, StreamExt};

use crate::service::{Answer, Context, Handler};
use crate::store::DataStore;
use buffers::Buffers;

/// How an I/O server uses its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IodSettings {
    /// Bytes of a transfer unit, and of each buffer.
    pub unit: usize,
    /// Buffers.
    pub buffers: usize,
    /// Units of one request that are under way at a time; two overlap network and disk.
    pub depth: usize,
}

impl Default for IodSettings {
    /// 64 buffers of 512 KiB, three for each request. Of 256 KiB, 512 KiB and 1 MiB the middle one moved most through four servers
    /// on one machine with two cores; paper 000, Figure 12, finds overlap complete below some 2 MB.
    fn default() -> IodSettings {
        IodSettings { unit: 512 << 10, buffers: 64, depth: 3 }
    }
}

/// An I/O server. Give it to [`crate::service::serve`].
pub struct Iod<T: Transport, S> {
    endpoint: AsyncEndpoint<T>,
    store: S,
    buffers: Buffers<T>,
    depth: usize,
}

impl<T: Transport, S: DataStore> Iod<T, S> {
    /// An I/O server over `store`.
    ///
    /// # Errors
    /// `Invalid` for settings without room for a single unit.
    pub fn new(endpoint: AsyncEndpoint<T>, store: S, settings: IodSettings) -> Result<Iod<T, S>, FsError> {
        let IodSettings { unit, buffers, depth } = settings;
        if unit == 0 || buffers == 0 || depth == 0 {
            let text = format!("{buffers} buffers of {unit} bytes, {depth} for each request; none may be zero");
            return Err(FsError::new(ErrorCode::Invalid, text));
        }
        Ok(Iod { buffers: Buffers::new(endpoint.clone(), buffers, unit), endpoint, store, depth })
    }

    async fn execute(&self, context: &Context, request: IodRequest, data: &[u8]) -> Result<IodReply, FsError> {
        match request {
            IodRequest::Ping => Ok(IodReply::Done),
            IodRequest::Write { datafile, regions, data: how, sync } => {
                self.write(context, datafile, &regions, &how, data).await?;
                if sync {
                    self.store.sync(datafile).await?;
                }
                self.written(datafile, regions.total()).await
            }
            IodRequest::Truncate { datafile, size } => {
                if size > MAX_OFFSET {
                    return Err(FsError::new(ErrorCode::TooLarge, format!("a datafile of {size} bytes")));
                }
                self.store.truncate(datafile, size).await?;
                self.written(datafile, 0).await
            }
            IodRequest::Remove { datafile } => {
                self.store.remove(datafile).await?;
                Ok(IodReply::Done)
            }
            IodRequest::Sync { datafile } => {
                self.store.sync(datafile).await?;
                self.written(datafile, 0).await
            }
            IodRequest::Getsize { datafile } => self.written(datafile, 0).await,
            IodRequest::Statfs => Ok(IodReply::Stat(self.store.stat().await?)),
            IodRequest::Read { .. } => unreachable!("reads are taken out before, because their answer may carry data"),
        }
    }

    /// Carries out a transfer unit by unit, several at a time. Once a unit has failed no further one is begun; those under way end. What was
    /// not begun is not gone through unit by unit: a transfer can be as long as its client says, and no client has to have the memory for it.
    async fn in_units(
        &self,
        regions: &Regions,
        step: impl AsyncFn(Part, &[Region]) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let (failed, begun, step) = (&Cell::new(false), &Cell::new(0), &step);
        let one = async move |part: Part| {
            let ranges: Vec<Region> = regions.range(part.at, part.len).collect();
            if failed.get() {
                return Err(FsError::new(ErrorCode::Io, "given up").with_ranges(ranges));
            }
            let result = step(part, &ranges).await;
            failed.set(failed.get() || result.is_err());
            result.map_err(|error| if error.ranges.is_empty() { error.with_ranges(ranges) } else { error })
        };
        let parts = parts(regions.total(), self.buffers.size()).take_while(|_| !failed.get());
        let parts = parts.inspect(|part| begun.set(part.at + part.len));
        let mut units = stream::iter(parts.map(one)).buffer_unordered(self.depth);
        let mut failures = Failures::default();
        while let Some(result) = units.next().await {
            if let Err(error) = result {
                failures.note(error);
            }
        }
        failures.ranges.extend(regions.range(begun.get(), regions.total() - begun.get()));
        failures.into_result()
    }

    async fn written(&self, datafile: DatafileHandle, len: u64) -> Result<IodReply, FsError> {
        Ok(IodReply::Written { len, size: self.store.size(datafile).await? })
    }
}

/// A unit of a transfer: the part of the request's bytes that begins `at` bytes into it and has `len`.
#[derive(Clone, Copy, Debug)]
struct Part {
    at: u64,
    len: u64,
}

/// Cuts a transfer of `total` bytes into units.
fn parts(total: u64, unit: usize) -> impl Iterator<Item = Part> {
    let unit = unit as u64;
    (0..total.div_ceil(unit)).map(move |index| Part { at: index * unit, len: unit.min(total - index * unit) })
}

/// Checks that the client's memory has as many bytes as the regions.
fn check_bulk(regions: &Regions, bulk: &BulkDescriptor) -> Result<(), FsError> {
    if bulk.len() == regions.total() {
        return Ok(());
    }
    let text = format!("{} bytes of memory for {} bytes of the file", bulk.len(), regions.total());
    Err(FsError::new(ErrorCode::Invalid, text))
}

/// The failures of a transfer's units, put together.
#[derive(Default)]
struct Failures {
    first: Option<FsError>,
    ranges: Vec<Region>,
}

impl Failures {
    fn note(&mut self, error: FsError) {
        self.ranges.extend_from_slice(&error.ranges);
        self.first.get_or_insert(error);
    }

    fn into_result(mut self) -> Result<(), FsError> {
        match self.first {
            None => Ok(()),
            Some(error) => {
                self.ranges.sort_by_key(|range| range.offset);
                let mut joined: Vec<Region> = Vec::new();
                for range in self.ranges {
                    match joined.last_mut() {
                        Some(last) if last.offset + last.len >= range.offset => *last = last.hull(range),
                        _ => joined.push(range),
                    }
                }
                Err(error.with_ranges(joined))
            }
        }
    }
}

#[async_trait(?Send)]
impl<T: Transport, S: DataStore> Handler for Iod<T, S> {
    async fn handle(&self, context: &Context, request: Request, data: &[u8]) -> Answer {
        let RequestBody::Iod(body) = request.body else {
            return Answer::error(FsError::new(ErrorCode::Invalid, "this is an I/O server, not the manager"));
        };
        let name = body.name();
        let answer = match body {
            IodRequest::Read { datafile, regions, data } => self.read(context, datafile, &regions, &data).await,
            other => Answer::from(self.execute(context, other, data).await.map(Into::into)),
        };
        if let Answer::Reply(fs_proto::Reply { result: Err(error) }, _) = &answer {
            tracing::debug!(peer = ?context.peer, request = name, %error, "failed");
        }
        answer
    }

    async fn background(&self) {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests;
