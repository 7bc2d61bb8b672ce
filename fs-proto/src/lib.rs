//! The protocol between clients and servers of the file system: requests, replies, handles,
//! distributions, and their encoding.
//!
//! | module or type | contents |
//! |---|---|
//! | [`Request`], [`ManagerRequest`], [`IodRequest`] | requests of a client |
//! | [`Reply`], [`ManagerReply`], [`IodReply`] | replies of a server |
//! | [`codec`] | encoding and decoding, with limits checked |
//! | [`Hello`], [`Identity`] | the server that a connection must lead to: cluster, role, store, start |
//! | [`Distribution`], [`Layout`] | which server holds which byte |
//! | [`CacheHints`], [`CacheState`], [`CacheCoverage`] | hints for the caches of I/O servers, and what they tell |
//! | [`ViewGrant`], [`ViewRange`], [`ViewRefusal`] | views that I/O servers lend to clients on their host |
//! | [`Datatype`], [`Cursor`], [`FileView`] | MPI's types, their pieces, and what they show of a file |
//! | [`Joined`], [`Coverage`] | requests of several clients in one, and the bytes that have come |
//! | [`Region`], [`Regions`] | ranges of bytes, lists of them |
//! | [`FsError`], [`ErrorCode`] | errors, with the server and ranges concerned |
//!
//! **Protocol.** A request is a call of [`bmi::calls`]. Its tag is the client's own number for
//! the request. The call's request and reply bytes are encoded [`Request`]s and [`Reply`]s. The
//! data of a read or write is the call's data. The communication manager chooses the path of the
//! data: with the message, by RDMA into a slot, or moved by the server or the client. No request
//! names the path.
//!
//! ```text
//!  client                                                server
//!    call(server, 0, Hello)                       ────▶  the expected server? nothing else is served before
//!    call(server, tag, request, data out or in)   ────▶  incoming(message)
//!                                                         fetch for a write, store for a read, as often as it likes
//!    reply                                        ◀────  reply(reply [, data of a small read])
//! ```
//!
//! **Source.** [PVFS-IB §2.1, §3.2, §4]. Differences: every request has an id and a time limit.
//! Requests that change the namespace are executed once, even if they are sent again after a
//! reconnect.

// Runs inside the simulator: see clippy.toml.
#![warn(clippy::disallowed_types)]

mod attr;
mod cache;
pub mod codec;
mod coverage;
mod datatype;
mod distribution;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod handle;
mod identity;
mod joined;
pub mod limits;
mod message;
mod region;
mod regions;

/// Names and paths: bytes in no particular encoding.
pub use bstr::BString;

pub use attr::{Attr, Content, Entry, Extent, SetAttr};
pub use cache::{
    AccessPattern, CacheCoverage, CacheHints, CachePolicy, CacheStat, CacheState, CachedFile, ServiceKind,
    VIEW_GRANULE, VIEW_HEADER, VIEW_SEGMENT, VIEW_WINDOW, ViewGrant, ViewRange, ViewRefusal, view_entry,
};
pub use coverage::Coverage;
pub use datatype::{
    Cursor, Datatype, Distribute, FileView, GridDimension, Order, PartCursor, ViewPart, gather, scatter,
};
pub use distribution::{Distribution, Layout, Location, Share, Strip};
pub use error::{ErrorCode, FsError};
pub use handle::{
    COUNT_BITS, DatafileHandle, DirHandle, FileHandle, Handle, Kind, MAX_EPOCH, SymlinkHandle, handle_number,
};
pub use identity::{
    Access, BadName, Caller, Claims, ClusterId, Duty, Grant, Hello, Holder, HolderDigest, Identity, Ids, MAX_REVOKED,
    NOBODY, Name, Role, Sender, Span, Speaker, Start, StoreId, Tag, Ticket, TicketKey, TicketNews, user_folder,
    user_transports,
};
pub use joined::Joined;
pub use message::{
    Allocation, CheckRow, ClusterInfo, DefaultLayout, DirEntry, Existing, Fix, IodInfo, IodReply, IodRequest, IodStat,
    ListEntry, ManagerReply, ManagerRequest, ManagerStat, PendingTruncate, Place, Registration, RemoveKind, Repair,
    Replace, Reply, ReplyBody, Request, RequestBody, RequestId, Sought, Ties, XattrName, XattrValue,
};
pub use region::Region;
pub use regions::Regions;
