//! The client and servers of one process over real transports: TCP, shared memory, real disks.

mod crowd;
mod loops;
#[cfg(feature = "object_store")]
mod objects;
mod secure;
mod tcp;
mod threads;
mod together;
mod unifier;
#[cfg(target_os = "linux")]
mod views;
