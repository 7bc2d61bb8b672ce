//! What the host tells the machine to do, and how the machine reports: a channel of its own, beside
//! the console.
//!
//! **Why** the console is no channel: the kernel writes into it whenever it likes, in the middle of
//! any line. So results go through a port of their own (virtio-serial), and the console is kept for
//! diagnosis.
//!
//! **Protocol** The plan is a file of the image, in JSON. The machine answers with records until
//! the port closes:
//!
//! ```text
//! kind (1 byte) │ length (4 bytes, little endian) │ that many bytes
//!   'o'  a piece of standard output of the program that runs     'e'  of its standard error
//!   'r'  a `Report` in JSON
//! ```
//!
//! The last report is `Done`. A channel that closes without it has failed, whatever was reported
//! before.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// What a machine has to do, in order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Each is done whether or not the ones before it passed.
    pub(crate) jobs: Vec<Job>,
    /// Environment of everything that runs.
    pub(crate) env: Vec<(String, String)>,
}

/// One thing to do in the machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Job {
    /// Run one program, pass its output on, answer with its exit status.
    Program {
        /// The program and its arguments.
        args: Vec<String>,
        /// Seconds after which it is killed.
        limit_s: u64,
    },
    /// Run the tests of a test program, each in a process of its own.
    Tests {
        /// What the report calls the program.
        group: String,
        /// Its path in the machine.
        program: String,
        /// Run only tests whose name contains this.
        filter: Option<String>,
        /// Seconds after which one test is killed.
        limit_s: u64,
        /// How many tests run at a time; 1 where they change what they share, such as the link.
        workers: usize,
    },
    /// Run something that is written down in `inside::scenario`.
    Scenario {
        /// Its group there.
        group: String,
        /// Its name there.
        name: String,
    },
}

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// It ran and all was well.
    Passed,
    /// It ran and failed, was killed, or could not be started.
    Failed,
    /// It was not run, and the output says why.
    Skipped,
}

/// What the machine says beside a program's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The device is up.
    Up {
        /// Version of the kernel inside.
        kernel: String,
    },
    /// A test begins; if nothing follows, it is the one that hung or killed the machine.
    Begun {
        /// The test program or the scenario.
        group: String,
        /// The test.
        name: String,
    },
    /// A test has ended.
    Ended {
        /// The test program or the scenario.
        group: String,
        /// The test.
        name: String,
        /// How.
        verdict: Verdict,
        /// How long it took, by the machine's clock.
        seconds: f64,
        /// What it printed; empty when it passed.
        output: String,
    },
    /// A line for people, such as a measured ratio.
    Note(String),
    /// A program has ended with this status: 128 and the signal's number if by a signal, 124 if
    /// killed at its limit.
    Exited(i32),
    /// All jobs are done; the machine turns itself off.
    Done,
}

/// One record.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Record {
    /// A piece of standard output.
    Out(Vec<u8>),
    /// A piece of standard error.
    Err(Vec<u8>),
    /// A report.
    Report(Report),
}

/// A test's output is cut to far less before it is sent.
const LARGEST: u32 = 16 << 20;

impl Record {
    /// Writes the record, whole.
    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let json;
        let (kind, bytes) = match self {
            Record::Out(bytes) => (b'o', bytes),
            Record::Err(bytes) => (b'e', bytes),
            Record::Report(report) => {
                json = serde_json::to_vec(report)?;
                (b'r', &json)
            }
        };
        let len = u32::try_from(bytes.len()).ok().filter(|&len| len <= LARGEST);
        let len = len.ok_or_else(|| io::Error::other("a record that is too long"))?;
        let mut whole = Vec::with_capacity(bytes.len() + 5);
        whole.push(kind);
        whole.extend(len.to_le_bytes());
        whole.extend(bytes);
        to.write_all(&whole)?;
        to.flush()
    }

    /// Reads the next record; `None` where the channel ends.
    pub(crate) fn read(from: &mut impl Read) -> io::Result<Option<Record>> {
        let mut kind = [0];
        if from.read(&mut kind)? == 0 {
            return Ok(None);
        }
        let mut len = [0; 4];
        from.read_exact(&mut len)?;
        let len = u32::from_le_bytes(len);
        if len > LARGEST {
            return Err(io::Error::other(format!("a record of {len} bytes")));
        }
        let mut bytes = vec![0; len as usize];
        from.read_exact(&mut bytes)?;
        match kind[0] {
            b'o' => Ok(Some(Record::Out(bytes))),
            b'e' => Ok(Some(Record::Err(bytes))),
            b'r' => Ok(Some(Record::Report(serde_json::from_slice(&bytes)?))),
            kind => Err(io::Error::other(format!("a record of kind {kind}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let records = [
            Record::Out(b"half a line".to_vec()),
            Record::Err(Vec::new()),
            Record::Report(Report::Ended {
                group: "conformance".into(),
                name: "send".into(),
                verdict: Verdict::Failed,
                seconds: 0.5,
                output: "panicked\n".into(),
            }),
            Record::Report(Report::Done),
        ];
        let mut bytes = Vec::new();
        records.iter().for_each(|record| record.write(&mut bytes).unwrap());
        let mut from = bytes.as_slice();
        for record in &records {
            assert_eq!(Record::read(&mut from).unwrap().as_ref(), Some(record));
        }
        assert_eq!(Record::read(&mut from).unwrap(), None);
    }

    #[test]
    fn noise_in_the_channel_is_an_error() {
        for noise in [&b"[    1.0] BUG: kernel"[..], b"x\0\0\0\0", b"r\x02\0\0\0{}", b"o\xff\0\0\0short"] {
            assert!(Record::read(&mut &noise[..]).is_err(), "{noise:?}");
        }
    }
}
