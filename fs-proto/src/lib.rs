//! What clients and servers of the file system say to each other: requests, replies, handles, distributions, and their bytes.
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
//! **Protocol.** Over the message interface of `bmi-core`; the tag is the client's own number for the request.
//!
//! ```text
//!  client                                              server
//!    recv(server, tag, reply buffer)
//!    send_unexpected(server, tag, request [+ data])  ─▶  next_unexpected
//!                                                       (large data: pull for a write, push for a read)
//!    reply                                           ◀─  send(client, tag, reply [+ data])
//! ```
//!
//! Request and reply fit the eager limit that was agreed at connect, data included. The client chooses: data travels inline
//! when the whole message fits (paper 000, section 4.1.1), else the request carries a [`bmi_core::BulkDescriptor`] of the client's memory and
//! the server moves the bytes when its buffers and disk allow (server-based RDMA, section 3.2.3).
//!
//! **Source.** Paper 000, sections 2.1, 3.2, 4. Where we differ: every request has an id and a time limit, and requests that change the
//! namespace are executed once, also when they are sent again after a reconnect.

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
pub use reply::{ClusterInfo, DirEntry, IodReply, IodStat, ManagerReply, ManagerStat, ReadData, Reply, ReplyBody};
pub use request::{Data, IodRequest, ManagerRequest, Place, RemoveKind, Request, RequestBody, RequestId};
