//! The simulator itself: its executor, its model of machines and networks, its faults, its
//! adapters, and the harness that sweeps seeds.

mod check;
mod classes;
mod cores;
mod determinism;
mod executor;
mod faults;
mod model;
mod timeline;
mod transport;
