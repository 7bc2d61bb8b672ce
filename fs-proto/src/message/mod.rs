//! What goes over a connection: requests of clients and servers, and the replies.

mod check;
mod default_layout;
mod reply;
mod request;

pub use check::{CheckRow, Fix, Repair, Ties};
pub use default_layout::DefaultLayout;
pub use reply::{
    ClusterInfo, DirEntry, IodInfo, IodReply, IodStat, ListEntry, ManagerReply, ManagerStat, PendingTruncate, Reply,
    ReplyBody, XattrName,
};
pub use request::{
    Allocation, Existing, IodRequest, ManagerRequest, Place, Registration, RemoveKind, Replace, Request, RequestBody,
    RequestId, Sought, XattrValue,
};
