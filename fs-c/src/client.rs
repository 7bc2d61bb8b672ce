//! Connecting.

use std::ffi::{c_char, c_int};
use std::fs::File;
use std::io::Read;
use std::time::Duration;

use bmi::config::HandleConfig;
use bmi::{Addr, Config, Handle};
use fs_client::{Caller, ClientOptions, SharedClient};
use fs_proto::FsError;

use crate::boundary::{Failure, Out, call, call_int, invalid, text};

/// A client of a cluster. Any thread may use it and what was opened with it, and several at the
/// same time. It is of no use in a process that was forked from this one.
pub struct pvfs_client {
    pub(crate) handle: Handle,
    pub(crate) client: SharedClient,
}

/// Connects to the cluster whose manager listens at an address, such as `tcp://host:7000` or
/// `shm:///path`. An operation ends after `timeout_ms` milliseconds for each of its requests at the
/// latest, or after 30 s if that is 0. Waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_connect(manager: *const c_char, timeout_ms: u32, client: *mut *mut pvfs_client) -> c_int {
    call_int(|| {
        // SAFETY: C's promise.
        let (manager, place) = unsafe { (text(manager, "manager")?, Out::new(client, "client")?) };
        let manager: Addr = manager.parse().map_err(|error: bmi::Error| invalid(error))?;
        let mut id = [0; 16];
        let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut id));
        read.map_err(|error| Failure::new(error.raw_os_error().unwrap_or(5), format!("/dev/urandom: {error}")))?;
        let mut options = ClientOptions::new(u128::from_ne_bytes(id));
        options.caller = Caller::of_process();
        if timeout_ms > 0 {
            options.timeout = Duration::from_millis(timeout_ms.into());
            options.retry_for = options.retry_for.min(options.timeout);
        }
        let (open, config) = (fs_proto::user_transports().map_err(invalid)?, Config::named("libpvfs"));
        let handle = bmi::handle(manager.scheme(), &open, config, 1, HandleConfig::default());
        let handle = handle.map_err(FsError::from)?;
        let client = handle.block_on(SharedClient::connect_through(handle.clone(), manager, options))?;
        place.set(Box::into_raw(Box::new(pvfs_client { handle, client })));
        Ok(0)
    })
}

/// Closes a client. Its connections end when its files, directories and queues are closed too. NULL
/// is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn pvfs_disconnect(client: Option<Box<pvfs_client>>) {
    call(|| {
        drop(client);
        Ok(0)
    });
}

versioned!(pvfs_connect, pvfs_disconnect);
