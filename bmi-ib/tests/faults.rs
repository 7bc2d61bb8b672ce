//! Needs an RDMA device.
