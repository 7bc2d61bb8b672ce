//! Servers of both kinds and who is at the other end: clients and servers that die or misbehave,
//! wrong servers, several transports, requests that come too late.

use super::*;

mod faults;
mod identity;
mod late_requests;
mod several_transports;
mod tickets;
