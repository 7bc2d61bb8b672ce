//! The baseline: the least work with which two processes can use a TCP socket. Calls do not block.
//! If there is nothing to read, a side polls again (polling) or waits in `poll(2)` (sleeping).
//!
//! Each side uses as many buffers in turn as the library does, so that both touch the same amount
//! of memory.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::time::Instant;

use bmi_report::{Histogram, stats};
use rustix::event::{PollFd, PollFlags, poll};

use crate::phase::{Mode, Outcome, Phase, What};

/// A connected socket, and how to wait for it.
pub(crate) struct Plain {
    stream: TcpStream,
    mode: Mode,
}

impl Plain {
    /// Wraps a connected socket.
    pub(crate) fn new(stream: TcpStream) -> Result<Plain> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Plain { stream, mode: Mode::Polling })
    }

    fn wait(&self, flags: PollFlags) -> Result<()> {
        if self.mode == Mode::Sleeping {
            poll(&mut [PollFd::new(&self.stream, flags)], None)?;
        }
        Ok(())
    }

    fn read_some(&mut self, into: &mut [u8]) -> Result<usize> {
        loop {
            match self.stream.read(into) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::IN)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn read_exact(&mut self, into: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < into.len() {
            done += self.read_some(&mut into[done..])?;
        }
        Ok(())
    }

    fn write_all(&mut self, from: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < from.len() {
            match self.stream.write(&from[done..]) {
                Ok(len) => done += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::OUT)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn signal(&mut self) -> Result<()> {
        self.write_all(&[1])
    }

    fn await_signal(&mut self) -> Result<()> {
        self.read_exact(&mut [0])
    }

    /// Runs this side's part of a phase, as the side that measures.
    #[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    pub(crate) fn measure(&mut self, phase: &Phase) -> Result<Outcome> {
        self.mode = phase.mode;
        let mut ring = vec![1u8; phase.size * phase.window];
        self.await_signal()?;
        let mut each = Histogram::new();
        let begin = Instant::now();
        let seconds = match phase.what {
            What::Latency => self.ping(phase, &mut ring, &mut each)?,
            What::Send | What::Write | What::Rate | What::RateEach => {
                self.send_stream(phase, &ring)?;
                self.await_signal()?;
                begin.elapsed().as_secs_f64()
            }
            What::Read => {
                self.signal()?;
                self.receive_stream(phase, &mut ring)?;
                begin.elapsed().as_secs_f64()
            }
        };
        Ok(Outcome { seconds, each, ..Outcome::default() })
    }

    /// Runs the peer's part.
    pub(crate) fn serve(&mut self, phase: &Phase) -> Result<()> {
        self.mode = phase.mode;
        let mut ring = vec![2u8; phase.size * phase.window];
        self.signal()?;
        match phase.what {
            What::Latency => {
                for _ in 0..phase.count {
                    self.read_exact(&mut ring[..phase.size])?;
                    self.write_all(&ring[..phase.size])?;
                }
                Ok(())
            }
            What::Send | What::Write | What::Rate | What::RateEach => {
                self.receive_stream(phase, &mut ring)?;
                self.signal()
            }
            What::Read => {
                self.await_signal()?;
                self.send_stream(phase, &ring)
            }
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    fn ping(&mut self, phase: &Phase, ring: &mut [u8], each: &mut Histogram) -> Result<f64> {
        let mut trips = Vec::with_capacity(phase.count as usize);
        for _ in 0..phase.count {
            let begin = Instant::now();
            self.write_all(&ring[..phase.size])?;
            self.read_exact(&mut ring[..phase.size])?;
            trips.push(begin.elapsed().as_secs_f64());
        }
        trips.iter().for_each(|trip| each.record((trip / 2.0 * 1e9) as u64));
        Ok(stats::middle(&mut trips) / 2.0)
    }

    fn send_stream(&mut self, phase: &Phase, ring: &[u8]) -> Result<()> {
        // The number of messages in one write.
        let batch = if phase.what == What::Rate { phase.window as u64 } else { 1 };
        let mut sent = 0;
        while sent < phase.count {
            let messages = batch.min(phase.count - sent);
            let at = (sent % phase.window as u64) as usize * phase.size;
            self.write_all(&ring[at..][..messages as usize * phase.size])?;
            sent += messages;
        }
        Ok(())
    }

    fn receive_stream(&mut self, phase: &Phase, ring: &mut [u8]) -> Result<()> {
        if matches!(phase.what, What::Rate | What::RateEach) {
            // One read takes as many small messages as have arrived.
            let mut left = phase.count * phase.size as u64;
            let mut buffer = vec![0; 64 << 10];
            while left > 0 {
                let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                left -= self.read_some(&mut buffer[..most])? as u64;
            }
            return Ok(());
        }
        for number in 0..phase.count {
            let at = (number % phase.window as u64) as usize * phase.size;
            self.read_exact(&mut ring[at..][..phase.size])?;
        }
        Ok(())
    }
}
