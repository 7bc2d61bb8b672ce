//! Why connections end, as far as only this backend knows. The rest is [`bmi_backend::Fault`].

use std::io;

use bmi_core::ErrorKind;

pub(crate) use bmi_backend::Violation;
pub(crate) use bmi_backend::software::{BadRequest, Refusal};

use crate::os::socket::NotOne;

pub(crate) type Fault = bmi_backend::Fault;

pub(crate) const BAD_PACKET: Violation = Violation::Malformed("packet");
pub(crate) const BAD_RECORD: Violation = Violation::Malformed("record");
pub(crate) const BAD_RING: Violation = Violation::Other("its ring holds what no sender writes");

impl From<NotOne> for Fault {
    fn from(why: NotOne) -> Fault {
        match why {
            NotOne::Theirs => Violation::Other("it passed no descriptor, or several").into(),
            NotOne::Ours => no_memory(io::Error::from_raw_os_error(libc::EMFILE)),
        }
    }
}

/// Returns why a connection for which the system has no memory ends.
pub(crate) fn no_memory(error: io::Error) -> Fault {
    Fault::caused(ErrorKind::Exhausted, "no memory for the connection", error)
}

/// Returns why a socket could not be connected.
pub(crate) fn unconnected(error: io::Error) -> Fault {
    // The socket's directory is closed to other users.
    if error.kind() == io::ErrorKind::PermissionDenied {
        const WHY: &str = "no permission to connect to this socket; run this program as the socket's owner or as root \
                           (docs/design/shared-memory.md#security)";
        return Fault::caused(ErrorKind::Refused, WHY, error);
    }
    Fault::Unreachable(error)
}

#[cfg(test)]
mod tests {
    use bmi_core::Addr;

    use super::*;

    #[test]
    fn a_missing_permission_is_not_a_missing_listener() {
        for (errno, words) in [
            (libc::EACCES, "no permission"),
            (libc::EPERM, "no permission"),
            (libc::ENOENT, "nobody answers"),
            (libc::ECONNREFUSED, "nobody answers"),
        ] {
            let error = unconnected(io::Error::from_raw_os_error(errno)).into_error(&Addr::shm("/run/bmi/iod-0"));
            assert_eq!(error.kind(), ErrorKind::Refused);
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
