//! Errors as exceptions. The classes are in `bmi/errors.py`.

use bmi::ErrorKind;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// An error of any part below, or an exception that was raised already.
pub(crate) enum Raised {
    Transport(bmi::Error),
    Files(fs_client::Error),
    Python(PyErr),
}

impl From<bmi::Error> for Raised {
    fn from(error: bmi::Error) -> Raised {
        Raised::Transport(error)
    }
}

impl From<fs_client::Error> for Raised {
    fn from(error: fs_client::Error) -> Raised {
        Raised::Files(error)
    }
}

impl From<PyErr> for Raised {
    fn from(error: PyErr) -> Raised {
        Raised::Python(error)
    }
}

impl Raised {
    /// Returns it as an exception. If the classes cannot be had, that is the exception.
    pub(crate) fn into_exception(self, py: Python<'_>) -> PyErr {
        let made = match self {
            Raised::Python(error) => return error,
            Raised::Transport(error) => {
                let args =
                    (name(error.kind()), error.to_string(), error.operation(), error.peer(), error.is_retryable());
                function(py, "transport_error").and_then(|make| make.call1(args))
            }
            Raised::Files(error) => function(py, "file_error")
                .and_then(|make| make.call1((error.code().errno(), error.to_string(), error.is_retryable()))),
        };
        made.map_or_else(|failed| failed, PyErr::from_value)
    }
}

fn function<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("bmi.errors")?.getattr(name)
}

/// The classes for kinds of errors, by their names in Python.
const KINDS: [(ErrorKind, &str); 14] = [
    (ErrorKind::Invalid, "Invalid"),
    (ErrorKind::Unsupported, "Unsupported"),
    (ErrorKind::Incompatible, "Incompatible"),
    (ErrorKind::Refused, "Refused"),
    (ErrorKind::Denied, "Denied"),
    (ErrorKind::PeerLost, "PeerLost"),
    (ErrorKind::TimedOut, "TimedOut"),
    (ErrorKind::Cancelled, "Cancelled"),
    (ErrorKind::Abandoned, "Abandoned"),
    (ErrorKind::TooLarge, "TooLarge"),
    (ErrorKind::Busy, "Busy"),
    (ErrorKind::Exhausted, "Exhausted"),
    (ErrorKind::Protocol, "Protocol"),
    (ErrorKind::Io, "Io"),
];

fn name(kind: ErrorKind) -> &'static str {
    KINDS.iter().find(|(known, _)| *known == kind).map_or("Error", |(_, name)| name)
}

/// Returns the error for a client whose handler raised this: of the same kind if it is one of
/// `bmi.errors`, or else `Abandoned` with its text.
pub(crate) fn of_handler(py: Python<'_>, raised: &Bound<'_, PyAny>) -> bmi::Error {
    static BASE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = raised.get_type();
    let class_name = class.name().map(|name| name.to_string()).unwrap_or_default();
    let text = raised.str().map(|text| text.to_string()).unwrap_or_default();
    let is_ours = BASE.import(py, "bmi.errors", "Error").is_ok_and(|base| raised.is_instance(base).unwrap_or(false));
    match KINDS.iter().find(|(_, name)| is_ours && *name == class_name) {
        Some((kind, _)) => bmi::Error::new(*kind, text),
        None => bmi::Error::new(ErrorKind::Abandoned, format!("the handler raised {class_name}: {text}")),
    }
}
