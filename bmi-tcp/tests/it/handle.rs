//! Handles for any thread, over TCP on the loopback.

use bmi_conformance::handle::{Adapter, Backend};
use bmi_core::Addr;
use bmi_tcp::{TcpConfig, TcpTransport};

fn open(count: usize) -> Vec<Adapter> {
    let transports = TcpTransport::shards(TcpConfig::default(), count).expect("the system has descriptors");
    transports.into_iter().map(|transport| Box::new(transport) as Adapter).collect()
}

bmi_conformance::handle_suite!(Backend { open, addr: || Addr::tcp("127.0.0.1", 0) });
