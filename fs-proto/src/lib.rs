//! What clients and servers of the file system say to each other: requests, replies, handles,
//! distributions, and their bytes.
//!
//! | where | what |
//! |---|---|
//! | [`Request`], [`ManagerRequest`], [`IodRequest`] | what a client asks |
//! | [`Reply`], [`ManagerReply`], [`IodReply`] | what a server answers |
//! | [`codec`] | to bytes and back, limits checked |
//! | [`Identity`], [`Role`] | who a server is, and where it listens |
//! | [`Distribution`], [`Layout`] | which server holds which byte |
//! | [`Region`], [`Regions`] | ranges of bytes, lists of them |
//! | [`FsError`], [`ErrorCode`] | what went wrong, where |
//!
//! **Protocol.** A request is a call of [`bmi_core::comm`], whose tag is the client's own number
//! for the request; requests and replies are its bytes, the data of a read or write is its data.
//! Which way that takes, with the message, by RDMA into a slot, or moved by the server or the
//! client, is the communication manager's concern and in no request.
//!
//! ```text
//!  client                                                server
//!    call(server, tag, request, data out or in)   ────▶  incoming(message)
//!                                                         fetch for a write, store for a read, as often as it likes
//!    reply                                        ◀────  reply(reply [, data of a small read])
//! ```
//!
//! **Source.** [PVFS-IB §2.1, §3.2, §4]. Where we differ: every request has an id and a time
//! limit, and requests that change the namespace are executed once, also when they are sent again
//! after a reconnect.

// Runs inside the simulator: see clippy.toml.
#![warn(clippy::disallowed_types)]

mod attr;
pub mod codec;
mod distribution;
mod error;
mod handle;
mod identity;
pub mod limits;
mod region;
mod reply;
mod request;

pub use attr::{Attr, Entry, Kind, SetAttr};
pub use distribution::{Distribution, Layout, Location, Share, Strip};
pub use error::{ErrorCode, FsError};
pub use handle::{DatafileHandle, DirHandle, FileHandle, Handle};
pub use identity::{Identity, Role};
pub use region::{Region, Regions};
pub use reply::{ClusterInfo, DirEntry, IodReply, IodStat, ManagerReply, ManagerStat, Reply, ReplyBody};
pub use request::{IodRequest, ManagerRequest, Place, RemoveKind, Request, RequestBody, RequestId};
