//! Handles for any thread, over verbs. Needs an RDMA device; `cargo xtask rxe` has one.

use bmi_conformance::handle::{Adapter, Backend};
use bmi_core::Addr;
use bmi_ib::{IbConfig, IbTransport};

fn open(count: usize) -> Vec<Adapter> {
    let transports = IbTransport::shards(IbConfig::default(), count).expect("this machine has an RDMA device");
    transports.into_iter().map(|transport| Box::new(transport) as Adapter).collect()
}

bmi_conformance::handle_suite!(
    Backend { open, addr: || Addr::ib(None, "127.0.0.1", 0) },
    #[ignore = "needs an RDMA device: cargo xtask rxe"]
);
