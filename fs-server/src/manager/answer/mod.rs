//! How requests are answered that change nothing: on the first event loop (`look`) and on further
//! ones ([`ManagerLoop`]), and the clients that send them ([`Clients`]).

mod clients;
mod further_loop;
mod look;
mod mint;

pub(super) use clients::Clients;
pub(super) use further_loop::Errands;
pub(crate) use further_loop::ManagerLoop;
pub(super) use mint::Mint;
