//! The transport level: the contract C1 to C18 of [`bmi_core::transport`], directly between two
//! adapters.

pub mod channel;
pub mod connect;
pub mod end;
pub mod immediate_access;
pub mod inline_receive;
pub mod remote;
pub mod shards;
pub mod waiting;
