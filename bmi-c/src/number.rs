//! The error numbers of BMI: a bit that says so, the class of BMI, and a number of its own order.
//! Functions return them negated.

use bmi::ErrorKind;
use std::ffi::{CStr, c_int};

/// An error number, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number(pub(crate) c_int);

/// A result whose error is returned negated.
pub(crate) type Outcome<T = c_int> = Result<T, Number>;

/// `BMI_ERROR_BIT` and `BMI_ERROR`.
const OF_BMI: c_int = 1 << 30 | 1 << 7;
/// `BMI_NON_ERRNO_ERROR_BIT`.
const NOT_OF_ERRNO: c_int = 1 << 29;

/// Defines the numbers, and what is found by them: the number of an `errno` that the original
/// translates, and the name.
macro_rules! numbers {
    ($($name:ident $value:literal $($errno:ident)?;)*; $($other:ident $code:literal;)*) => {
        #[allow(dead_code, reason = "the whole list of the header; the library gives some of them")]
        impl Number {
            $(pub(crate) const $name: Number = Number($value | OF_BMI);)*
            $(pub(crate) const $other: Number = Number($code | OF_BMI | NOT_OF_ERRNO);)*
        }

        /// Returns the number of a positive `errno`, if it has one.
        pub(crate) fn of_errno(errno: c_int) -> Option<Number> {
            match errno {
                $($(libc::$errno => Some(Number::$name),)?)*
                _ => None,
            }
        }

        /// Returns the name of a number.
        pub(crate) fn name(number: c_int) -> &'static CStr {
            const PREFIXED: &[(Number, &str)] = &[
                $((Number::$name, concat!("BMI_", stringify!($name), "\0")),)*
                $((Number::$other, concat!("BMI_", stringify!($other), "\0")),)*
            ];
            if number == 0 {
                return c"BMI_SUCCESS";
            }
            let found = PREFIXED.iter().find(|(known, _)| known.0 == number.wrapping_abs());
            found.and_then(|(_, name)| CStr::from_bytes_with_nul(name.as_bytes()).ok()).unwrap_or(c"(UNKNOWN)")
        }
    };
}

numbers! {
    EPERM 1 EPERM; ENOENT 2 ENOENT; EINTR 3 EINTR; EIO 4 EIO; ENXIO 5 ENXIO; EBADF 6 EBADF; EAGAIN 7 EAGAIN;
    ENOMEM 8 ENOMEM; EFAULT 9 EFAULT; EBUSY 10 EBUSY; EEXIST 11 EEXIST; ENODEV 12 ENODEV; ENOTDIR 13 ENOTDIR;
    EISDIR 14 EISDIR; EINVAL 15 EINVAL; EMFILE 16 EMFILE; EFBIG 17 EFBIG; ENOSPC 18 ENOSPC; EROFS 19 EROFS;
    EMLINK 20 EMLINK; EPIPE 21 EPIPE; EDEADLK 22 EDEADLK; ENAMETOOLONG 23 ENAMETOOLONG; ENOLCK 24 ENOLCK;
    ENOSYS 25 ENOSYS; ENOTEMPTY 26 ENOTEMPTY; ELOOP 27 ELOOP; EWOULDBLOCK 28; ENOMSG 29 ENOMSG; EUNATCH 30;
    EBADR 31; EDEADLOCK 32; ENODATA 33 ENODATA; ETIME 34 ETIME; ENONET 35; EREMOTE 36 EREMOTE; ECOMM 37;
    EPROTO 38 EPROTO; EBADMSG 39 EBADMSG; EOVERFLOW 40 EOVERFLOW; ERESTART 41; EMSGSIZE 42 EMSGSIZE;
    EPROTOTYPE 43 EPROTOTYPE; ENOPROTOOPT 44 ENOPROTOOPT; EPROTONOSUPPORT 45 EPROTONOSUPPORT;
    EOPNOTSUPP 46 EOPNOTSUPP; EADDRINUSE 47 EADDRINUSE; EADDRNOTAVAIL 48 EADDRNOTAVAIL; ENETDOWN 49 ENETDOWN;
    ENETUNREACH 50 ENETUNREACH; ENETRESET 51 ENETRESET; ENOBUFS 52 ENOBUFS; ETIMEDOUT 53 ETIMEDOUT;
    ECONNREFUSED 54 ECONNREFUSED; EHOSTDOWN 55 EHOSTDOWN; EHOSTUNREACH 56 EHOSTUNREACH; EALREADY 57 EALREADY;
    EACCES 58 EACCES; ECONNRESET 59 ECONNRESET;;
    ECANCEL 1; EDEVINIT 2; EDETAIL 3; EHOSTNTFD 4; EADDRNTFD 5; ENORECVR 6; ETRYAGAIN 7;
}

impl From<ErrorKind> for Number {
    fn from(kind: ErrorKind) -> Number {
        match kind {
            ErrorKind::Invalid => Number::EINVAL,
            ErrorKind::Unsupported => Number::EOPNOTSUPP,
            ErrorKind::Incompatible => Number::EPROTONOSUPPORT,
            ErrorKind::Refused => Number::ECONNREFUSED,
            ErrorKind::Denied => Number::EACCES,
            ErrorKind::PeerLost => Number::ECONNRESET,
            ErrorKind::TimedOut => Number::ETIMEDOUT,
            ErrorKind::Cancelled => Number::ECANCEL,
            ErrorKind::TooLarge => Number::EMSGSIZE,
            ErrorKind::Busy => Number::EAGAIN,
            ErrorKind::Exhausted => Number::ENOBUFS,
            ErrorKind::Protocol => Number::EPROTO,
            // `Abandoned` is of calls, which this interface does not have.
            _ => Number::EIO,
        }
    }
}

impl From<bmi::Error> for Number {
    fn from(error: bmi::Error) -> Number {
        // The number of the system says more than the kind, if there is one.
        let system = error.cause().and_then(|cause| cause.downcast_ref::<std::io::Error>());
        let errno = system.and_then(std::io::Error::raw_os_error);
        errno.and_then(of_errno).unwrap_or_else(|| error.kind().into())
    }
}
