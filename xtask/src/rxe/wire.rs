//! How the host gives the machine its plan, and how the machine reports. The reports have a channel
//! of their own, besides the console.
//!
//! **Why** not the console: the kernel writes into it at any time, in the middle of any line.
//! Results go through a port of their own (virtio-serial), and the console is kept for diagnosis.
//!
//! **Protocol.** The plan is a file of the image, in JSON. The machine answers with records until
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

/// The work of a machine, in order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The jobs. Each one runs even if those before it failed.
    pub(crate) jobs: Vec<Job>,
    /// The environment of all programs.
    pub(crate) env: Vec<(String, String)>,
}

/// A job of the machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Job {
    /// Run one program, pass its output on, and report its exit status.
    Program {
        /// The program and its arguments.
        args: Vec<String>,
        /// Seconds after which it is killed.
        limit_s: u64,
    },
    /// Run the tests of a test program, each in a process of its own.
    Tests {
        /// The name of the program in the report.
        group: String,
        /// Its path in the machine.
        program: String,
        /// Run only tests whose name contains this.
        filter: Option<String>,
        /// Seconds after which one test is killed.
        limit_s: u64,
        /// The number of tests that run at the same time. It is 1 for tests that change something
        /// that they share, such as the link.
        workers: usize,
    },
    /// Run a scenario of `inside::scenario`.
    Scenario {
        /// The group of the scenario.
        group: String,
        /// The name of the scenario.
        name: String,
    },
}

/// The result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// It ran and succeeded.
    Passed,
    /// It failed, was killed, or could not be started.
    Failed,
    /// It was not run. The output has the reason.
    Skipped,
}

/// A message of the machine other than a program's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The device is ready.
    Up {
        /// The version of the kernel in the machine.
        kernel: String,
    },
    /// A test begins. If no record follows, this test hung or stopped the machine.
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
        /// The result.
        verdict: Verdict,
        /// The duration in seconds, by the machine's clock.
        seconds: f64,
        /// The output; empty if the test passed.
        output: String,
    },
    /// A line for people, such as a measured ratio.
    Note(String),
    /// A program has ended with this status. It is 128 and the signal's number after a signal, and
    /// 124 if the program was killed at its limit.
    Exited(i32),
    /// All jobs are done; the machine turns itself off.
    Done,
}

/// A record.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Record {
    /// A piece of standard output.
    Out(Vec<u8>),
    /// A piece of standard error.
    Err(Vec<u8>),
    /// A report.
    Report(Report),
}

/// The limit of a record's length. The output of a test is cut to much less before it is sent.
const LARGEST: u32 = 16 << 20;

impl Record {
    /// Writes the whole record.
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

    /// Reads the next record. Returns `None` at the end of the channel.
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
