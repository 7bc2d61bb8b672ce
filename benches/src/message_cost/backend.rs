//! The transports over which messages are counted: how to open one, and where it listens.

use std::path::Path;

use bmi::backend::Transport;
use bmi::{Addr, Error};
use bmi_shm::{ShmConfig, ShmTransport};
use bmi_tcp::{TcpConfig, TcpTransport};

/// A transport, with properties that this program needs to know.
pub(crate) trait Backend: Transport + Send + Sized + 'static {
    /// True if a short message is at the peer when the post returns. If false, the next poll sends
    /// it, so the sender has to poll before the receiver.
    const SENDS_WHEN_POSTED: bool;

    /// Opens a transport with default settings.
    ///
    /// # Errors
    /// If the system has no more descriptors or memory.
    fn open() -> Result<Self, Error>;

    /// Returns an address to listen at. `folder` is a directory for names.
    fn place(folder: &Path) -> Addr;
}

impl Backend for ShmTransport {
    const SENDS_WHEN_POSTED: bool = true;

    fn open() -> Result<ShmTransport, Error> {
        ShmTransport::new(ShmConfig::default())
    }

    fn place(folder: &Path) -> Addr {
        Addr::shm(format!("{}/names/cost", folder.display()))
    }
}

impl Backend for TcpTransport {
    const SENDS_WHEN_POSTED: bool = false;

    fn open() -> Result<TcpTransport, Error> {
        TcpTransport::new(TcpConfig::default())
    }

    fn place(_: &Path) -> Addr {
        Addr::tcp("127.0.0.1", 0)
    }
}
