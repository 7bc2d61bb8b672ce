//! The baseline of a network: the least work with which two programs can use a TCP socket. Calls do
//! not block. If there is nothing to read, a side polls again, or waits in `poll(2)`.
//!
//! Each side uses as many buffers in turn as the library does, so that both touch the same amount
//! of memory. Each message is written by a call of its own. A stream of small messages is read as
//! it comes, many with one call.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use bmi::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::case::{Case, Test, Waiting};
use crate::measured::{Measured, Schedule, Stopwatch, now};
use crate::stop::Stop;

/// How long a connection may take to be made.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a side that waits looks whether the run has ended.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How long a hybrid side polls before it sleeps: as the library does.
const SPIN: Duration = Duration::from_micros(50);
/// Length of the reads of a stream of small messages, in bytes.
const READ: usize = 64 << 10;

/// A connection.
pub(crate) struct Socket {
    stream: TcpStream,
}

/// Listens for connections on one address of this host.
pub(crate) fn listen(ip: IpAddr) -> Result<(TcpListener, u16), Error> {
    let listener = TcpListener::bind(SocketAddr::new(ip, 0))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

impl Socket {
    /// Connects to a server's thread.
    pub(crate) fn connect(to: SocketAddr) -> Result<Socket, Error> {
        Socket::new(TcpStream::connect_timeout(&to, PATIENCE)?)
    }

    /// Waits for the connection of a client's thread.
    pub(crate) fn accept(listener: &TcpListener, stop: &Stop) -> Result<Socket, Error> {
        let end = now() + 2 * PATIENCE;
        while now() < end && !stop.is_set() {
            match listener.accept() {
                Ok((stream, _)) => return Socket::new(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&LOOK)).map_err(std::io::Error::from)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::new(bmi::ErrorKind::TimedOut, "the client did not connect"))
    }

    fn new(stream: TcpStream) -> Result<Socket, Error> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Socket { stream })
    }

    /// Runs the client's part.
    pub(crate) fn measure(&mut self, case: &Case, count: u64, stop: &Stop) -> Result<Measured, Error> {
        let mut part = Part { stream: &mut self.stream, case, count, stop };
        let mut ring = part.ring();
        part.await_signal()?;
        match (case.test, case.test.exchange(case.len())) {
            (Test::LatencyAtRate, _) => part.paced_pings(),
            (Test::BothWays, _) => part.both_streams(&ring, true),
            (Test::ReadBandwidth, _) => part.stream(&mut ring, false),
            (_, Some((out, back))) => part.pings(out, back),
            (_, None) => part.stream(&mut ring, true),
        }
    }

    /// Runs the server's part.
    pub(crate) fn serve(&mut self, case: &Case, count: u64, stop: &Stop) -> Result<(), Error> {
        let mut part = Part { stream: &mut self.stream, case, count, stop };
        let mut ring = part.ring();
        part.signal()?;
        match (case.test, case.test.exchange(case.len())) {
            (Test::BothWays, _) => part.both_streams(&ring, false).map(drop),
            (Test::ReadBandwidth, _) => part.send_stream(&ring),
            (_, Some((out, back))) => part.pongs(out, back),
            (_, None) => {
                part.receive_stream(&mut ring)?;
                part.signal()
            }
        }
    }
}

/// What happens on a connection in one round.
struct Part<'a> {
    stream: &'a mut TcpStream,
    case: &'a Case,
    count: u64,
    stop: &'a Stop,
}

impl Part<'_> {
    /// Waits, after a call that would have blocked.
    fn wait(&self, flags: PollFlags, since: &mut Option<std::time::Instant>) -> Result<(), Error> {
        if self.stop.is_set() {
            return Err(self.stop.error());
        }
        let sleeps = match self.case.waiting {
            Waiting::Polling => false,
            Waiting::Sleeping => true,
            Waiting::Hybrid => now() - *since.get_or_insert_with(now) > SPIN,
        };
        if sleeps {
            poll(&mut [PollFd::new(&*self.stream, flags)], Some(&LOOK)).map_err(std::io::Error::from)?;
        }
        Ok(())
    }

    /// Reads what is there, or nothing.
    fn try_read(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        match self.stream.read(into) {
            Ok(0) => Err(Error::new(bmi::ErrorKind::PeerLost, "the other side has closed the socket")),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
            other => Ok(other?),
        }
    }

    fn try_write(&mut self, from: &[u8]) -> Result<usize, Error> {
        match self.stream.write(from) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
            other => Ok(other?),
        }
    }

    fn read_some(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        let mut since = None;
        loop {
            match self.try_read(into)? {
                0 => self.wait(PollFlags::IN, &mut since)?,
                len => return Ok(len),
            }
        }
    }

    fn read_exact(&mut self, into: &mut [u8]) -> Result<(), Error> {
        let mut done = 0;
        while done < into.len() {
            done += self.read_some(&mut into[done..])?;
        }
        Ok(())
    }

    fn write_all(&mut self, from: &[u8]) -> Result<(), Error> {
        let (mut done, mut since) = (0, None);
        while done < from.len() {
            match self.try_write(&from[done..])? {
                0 => self.wait(PollFlags::OUT, &mut since)?,
                len => done += len,
            }
        }
        Ok(())
    }

    fn signal(&mut self) -> Result<(), Error> {
        self.write_all(&[1])
    }

    fn await_signal(&mut self) -> Result<(), Error> {
        self.read_exact(&mut [0])
    }

    /// Returns the buffers. They are allocated, and their pages touched, before the time begins.
    fn ring(&self) -> Vec<u8> {
        vec![1; (self.case.len() * self.case.buffers()).max(READ)]
    }

    /// Returns where the buffer of a message begins.
    fn turn(&self, number: u64) -> usize {
        (number % self.case.buffers() as u64) as usize * self.case.len()
    }

    fn pings(&mut self, out: usize, back: usize) -> Result<Measured, Error> {
        let (sent, mut answer) = (vec![1; out], vec![1; back]);
        let mut measured = Measured::of_each(self.case);
        let watch = Stopwatch::start();
        let mut last = watch.begin;
        for _ in 0..self.count {
            self.write_all(&sent)?;
            self.read_exact(&mut answer)?;
            last = measured.lap(last);
        }
        Ok(measured.ended(watch, self.count))
    }

    fn pongs(&mut self, out: usize, back: usize) -> Result<(), Error> {
        let (mut came, answer) = (vec![1; out], vec![1; back]);
        for _ in 0..self.count {
            self.read_exact(&mut came)?;
            self.write_all(&answer)?;
        }
        Ok(())
    }

    fn paced_pings(&mut self) -> Result<Measured, Error> {
        let (size, most) = (self.case.len(), self.case.buffers() as u64);
        let (message, mut came) = (vec![1; size], vec![1; READ.max(size)]);
        let mut measured = Measured::of_each(self.case);
        let rate = f64::from(self.case.rate) / f64::from(self.case.station.connections);
        let watch = Stopwatch::start();
        let schedule = Schedule::new(watch.begin, rate);
        let (mut next, mut answered, mut bytes) = (0, 0, 0);
        while answered < self.count {
            if self.stop.is_set() {
                return Err(self.stop.error());
            }
            bytes += self.try_read(&mut came)?;
            while bytes >= size {
                bytes -= size;
                measured.record(schedule.since_due(answered));
                answered += 1;
            }
            if next < self.count && next - answered < most && schedule.is_due(next) {
                self.write_all(&message)?;
                next += 1;
            }
        }
        Ok(measured.ended(watch, self.count))
    }

    /// Measures a stream to the server (`out`) or from it.
    fn stream(&mut self, ring: &mut [u8], out: bool) -> Result<Measured, Error> {
        let watch = Stopwatch::start();
        if out {
            self.send_stream(ring)?;
            self.await_signal()?;
        } else {
            self.receive_stream(ring)?;
        }
        Ok(Measured::in_all(self.case).ended(watch, self.count))
    }

    fn send_stream(&mut self, ring: &[u8]) -> Result<(), Error> {
        for number in 0..self.count {
            self.write_all(&ring[self.turn(number)..][..self.case.len()])?;
        }
        Ok(())
    }

    fn receive_stream(&mut self, ring: &mut [u8]) -> Result<(), Error> {
        if self.case.len() >= READ {
            for number in 0..self.count {
                let at = self.turn(number);
                self.read_exact(&mut ring[at..][..self.case.len()])?;
            }
            return Ok(());
        }
        let mut left = self.count * self.case.size;
        while left > 0 {
            let most = READ.min(usize::try_from(left).unwrap_or(READ));
            left -= self.read_some(&mut ring[..most])? as u64;
        }
        Ok(())
    }

    /// Sends and receives a stream at the same time, then waits for the server's signal.
    fn both_streams(&mut self, out: &[u8], is_client: bool) -> Result<Measured, Error> {
        let mut back = vec![1; READ];
        let watch = Stopwatch::start();
        let (mut to_send, mut to_come) = (self.count * self.case.size, self.count * self.case.size);
        let mut since = None;
        while to_send > 0 || to_come > 0 {
            let mut moved = 0;
            if to_send > 0 {
                let at = ((self.count * self.case.size - to_send) % out.len() as u64) as usize;
                let most = self.case.len().min(out.len() - at).min(usize::try_from(to_send).unwrap_or(usize::MAX));
                let len = self.try_write(&out[at..][..most])?;
                (to_send, moved) = (to_send - len as u64, moved + len);
            }
            if to_come > 0 {
                let most = READ.min(usize::try_from(to_come).unwrap_or(READ));
                let len = self.try_read(&mut back[..most])?;
                (to_come, moved) = (to_come - len as u64, moved + len);
            }
            if moved > 0 {
                since = None;
                continue;
            }
            let out_too = if to_send > 0 { PollFlags::OUT } else { PollFlags::empty() };
            self.wait(if to_come > 0 { PollFlags::IN | out_too } else { out_too }, &mut since)?;
        }
        if is_client {
            self.await_signal()?;
        } else {
            self.signal()?;
        }
        Ok(Measured::in_all(self.case).ended(watch, 2 * self.count))
    }
}
