//! Measures the transport itself.

use std::time::Instant;

use bmi_core::driver::MonotonicClock;
use bmi_core::transport::{ConnId, Event, Payload, PostError, WorkId, WorkKind, WorkOptions, WorkStatus, WriteTarget};
use bmi_core::{Access, Addr, Clock, Error, ErrorKind, Memory, MemoryRegion, RemoteSlice, Segment, Time, Transport};
use bmi_shm::{ShmConfig, ShmTransport};

use crate::limits::write_lines;
use crate::{Row, Test};

/// The bytes of each side's send buffer, and of its receive buffer.
const ROOM: usize = 64 << 20;
const UNSIGNALLED: WorkOptions = WorkOptions::UNSIGNALLED;

/// A connected transport.
pub(crate) struct Raw {
    transport: ShmTransport,
    conn: ConnId,
    clock: MonotonicClock,
    now: Time,
    polls: u32,
    /// The byte that was written into the last payload.
    filled: u8,
    events: Vec<Event>,
    received: usize,
    ended: usize,
    out: MemoryRegion,
    into: MemoryRegion,
    remote: RemoteSlice,
    /// The segments of the row's messages. They are created once, because each handle of a region
    /// is counted.
    going: Vec<Segment>,
    coming: Vec<Segment>,
}

fn failed(what: &str) -> Error {
    Error::new(ErrorKind::Io, what)
}

impl Raw {
    pub(crate) fn listen(folder: &str) -> Result<Raw, Error> {
        let mut transport = ShmTransport::new(ShmConfig::default())?;
        transport.listen(&Addr::shm(format!("{folder}/names/raw")))?;
        Raw::start(transport, None)
    }

    pub(crate) fn connect(folder: &str) -> Result<Raw, Error> {
        let transport = ShmTransport::new(ShmConfig::default())?;
        Raw::start(transport, Some(Addr::shm(format!("{folder}/names/raw"))))
    }

    fn start(mut transport: ShmTransport, to: Option<Addr>) -> Result<Raw, Error> {
        let clock = MonotonicClock::new();
        let deadline = clock.now() + std::time::Duration::from_secs(10);
        let mut events = Vec::new();
        let out = transport.register(&Memory::shareable(ROOM)?)?;
        let into = transport.register(&Memory::shareable(ROOM)?)?;
        // Touch all pages before anything is measured.
        for region in [&out, &into] {
            region.memory().copy_from(0, &vec![1; ROOM]);
        }
        let mut conn = None;
        let (mut established, mut received) = (false, 0);
        // Post receives before the peer can send: one for its first message, and one for the start
        // of a row.
        let receives = |transport: &mut ShmTransport, conn| {
            let segments = [into.segment(0, 64)];
            (0..2).try_for_each(|_| transport.post_recv(conn, WorkId(0), &segments))
        };
        while !established {
            if let (Some(addr), None) = (&to, conn) {
                let dialed = transport.connect(addr, &[], deadline)?;
                receives(&mut transport, dialed).map_err(|error| failed(&format!("{error:?}")))?;
                conn = Some(dialed);
            }
            transport.poll(clock.now(), &mut events);
            for event in events.drain(..) {
                match event {
                    Event::ConnectRequest { conn: request, .. } => {
                        receives(&mut transport, request).map_err(|error| failed(&format!("{error:?}")))?;
                        transport.accept(request, &[])?;
                        conn = Some(request);
                    }
                    Event::Established { .. } => established = true,
                    // The peer does not listen yet.
                    Event::Disconnected { .. } if clock.now() < deadline => conn = None,
                    Event::Work(work) if work.status == WorkStatus::Flushed => {}
                    // The peer's first message may come with its acceptance.
                    Event::Work(work) if work.status == WorkStatus::Ok => received += 1,
                    other => return Err(failed(&format!("while connecting: {other:?}"))),
                }
            }
        }
        let conn = conn.ok_or_else(|| failed("no connection"))?;
        let own = transport.expose(conn, &into.segment(0, ROOM), Access::READ_WRITE)?;
        let now = clock.now();
        let (going, coming) = (Vec::new(), Vec::new());
        let mut raw = Raw {
            transport,
            conn,
            clock,
            now,
            polls: 0,
            filled: 0,
            events,
            received,
            ended: 0,
            out,
            into,
            remote: own,
            going,
            coming,
        };
        raw.send_head(&own.to_wire())?;
        raw.wait_received(1)?;
        let mut wire = [0; RemoteSlice::WIRE_LEN];
        raw.into.memory().copy_to(0, &mut wire);
        raw.remote = RemoteSlice::from_wire(&wire);
        Ok(raw)
    }

    #[inline]
    fn poll(&mut self) -> Result<(), Error> {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(64) {
            self.now = self.clock.now();
        }
        self.transport.poll(self.now, &mut self.events);
        for event in self.events.drain(..) {
            match event {
                Event::Work(work) if work.status == WorkStatus::Ok => match work.kind {
                    WorkKind::Recv => self.received += 1,
                    _ => self.ended += 1,
                },
                other => return Err(failed(&format!("{other:?}"))),
            }
        }
        Ok(())
    }

    #[inline]
    fn wait_received(&mut self, count: usize) -> Result<(), Error> {
        while self.received < count {
            self.poll()?;
        }
        self.received -= count;
        Ok(())
    }

    fn wait_ended(&mut self, count: usize) -> Result<(), Error> {
        while self.ended < count {
            self.poll()?;
        }
        self.ended -= count;
        Ok(())
    }

    fn posted(&mut self, result: Result<(), PostError>) -> Result<bool, Error> {
        match result {
            Ok(()) => Ok(true),
            Err(PostError::QueueFull) => self.poll().map(|()| false),
            Err(other) => Err(failed(&format!("{other:?}"))),
        }
    }

    /// Posts a receive for a message of the row.
    #[inline]
    fn recv(&mut self, place: usize) -> Result<(), Error> {
        let posted = self.transport.post_recv(self.conn, WorkId(0), &self.coming[place..=place]);
        self.posted(posted).map(|_| ())
    }

    /// Posts a receive for an empty message, or immediate data.
    #[inline]
    fn recv_nothing(&mut self) -> Result<(), Error> {
        let posted = self.transport.post_recv(self.conn, WorkId(0), &[]);
        self.posted(posted).map(|_| ())
    }

    #[inline]
    fn send_head(&mut self, head: &[u8]) -> Result<(), Error> {
        loop {
            let posted = self.transport.post_send(self.conn, WorkId(1), head, Payload::EMPTY, UNSIGNALLED);
            if self.posted(posted)? {
                return Ok(());
            }
        }
    }

    #[inline]
    fn send(&mut self, place: usize, len: usize) -> Result<(), Error> {
        if len <= 64 {
            self.filled = self.filled.wrapping_add(1);
            return self.send_head(&[self.filled; 64][..len]);
        }
        self.fill(place);
        loop {
            let payload = Payload::Gather(&self.going[place..=place]);
            let posted = self.transport.post_send(self.conn, WorkId(1), &[], payload, UNSIGNALLED);
            if self.posted(posted)? {
                return Ok(());
            }
        }
    }

    /// Writes the payload of the transfer that is posted next.
    #[inline]
    fn fill(&mut self, place: usize) {
        self.filled = self.filled.wrapping_add(1);
        let payload = &self.going[place];
        // SAFETY: the segment lies in memory that its region keeps, and no transfer of this place
        // is under way (`places`).
        unsafe { write_lines(payload.as_ptr(), payload.len(), self.filled) };
    }

    fn write(&mut self, place: usize, immediate: Option<u32>, options: WorkOptions) -> Result<(), Error> {
        self.fill(place);
        self.write_filled(place, immediate, options)
    }

    fn write_filled(&mut self, place: usize, immediate: Option<u32>, options: WorkOptions) -> Result<(), Error> {
        loop {
            let target = WriteTarget { remote: self.place_there(place)?, immediate };
            let segments = &self.going[place..=place];
            let posted = self.transport.post_write(self.conn, WorkId(2), &[], segments, target, options);
            if self.posted(posted)? {
                return Ok(());
            }
        }
    }

    fn read(&mut self, place: usize) -> Result<(), Error> {
        loop {
            let (remote, segments) = (self.place_there(place)?, &self.going[place..=place]);
            let posted = self.transport.post_read(self.conn, WorkId(3), segments, remote, WorkOptions::SIGNALLED);
            if self.posted(posted)? {
                return Ok(());
            }
        }
    }

    /// Returns the peer's memory for the transfers of this place.
    #[inline]
    fn place_there(&self, place: usize) -> Result<RemoteSlice, Error> {
        let len = self.going[place].len();
        self.remote.slice((place * len) as u64, len as u64).ok_or_else(|| failed("no such place"))
    }

    /// Synchronises both sides at the beginning of a row. Each side has one receive more than the
    /// row needs, posted earlier. Empty messages use these.
    fn meet(&mut self, near: bool) -> Result<(), Error> {
        if near {
            self.send_head(&[])?;
            self.wait_received(1)
        } else {
            self.wait_received(1)?;
            self.send_head(&[])
        }
    }

    /// Runs one round. The figure is that of the near side.
    #[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    pub(crate) fn run(&mut self, row: &Row, near: bool, count: usize) -> Result<f64, Error> {
        self.prepare(row, near, count)?;
        self.meet(near)?;
        let begin = Instant::now();
        match row.test {
            Test::Latency | Test::Immediate => self.ping_pong(row, near, count)?,
            Test::WriteLatency => self.write_ping_pong(row, near, count)?,
            Test::Send | Test::Rate => self.stream(row, near, count)?,
            Test::Write | Test::Read => self.one_sided(row, near, count)?,
        }
        let seconds = begin.elapsed().as_secs_f64();
        Ok(match row.test {
            Test::Latency | Test::WriteLatency | Test::Immediate => seconds / count as f64 / 2.0,
            Test::Rate => count as f64 / seconds,
            _ => (count * row.size) as f64 / seconds,
        })
    }

    /// Creates the row's segments, and posts its first receives.
    fn prepare(&mut self, row: &Row, near: bool, count: usize) -> Result<(), Error> {
        let (window, half) = window(row);
        self.going = (0..places(row)).map(|place| self.out.segment(place * row.size, row.size)).collect();
        self.coming = (0..places(row)).map(|place| self.into.segment(place * row.size, row.size)).collect();
        match row.test {
            // One more than is needed, so that a receive can be posted again after the answer and
            // not before it.
            Test::Latency => (0..2).try_for_each(|_| self.recv(0)),
            Test::Immediate => (0..2).try_for_each(|_| self.recv_nothing()),
            Test::Send | Test::Rate if near => (0..=count.div_ceil(half)).try_for_each(|_| self.recv_nothing()),
            Test::Send | Test::Rate => (0..window.min(count)).try_for_each(|number| self.recv(number % places(row))),
            Test::WriteLatency => {
                self.into.memory().copy_from(row.size - 1, &[0]);
                (0..2).try_for_each(|_| self.recv_nothing())
            }
            Test::Write | Test::Read => (0..2).try_for_each(|_| self.recv_nothing()),
        }
    }

    fn ping_pong(&mut self, row: &Row, near: bool, count: usize) -> Result<(), Error> {
        let immediate = row.test == Test::Immediate;
        let go = |raw: &mut Raw| {
            if immediate { raw.write(0, Some(1), UNSIGNALLED) } else { raw.send(0, row.size) }
        };
        for number in 0..count {
            if near {
                go(self)?;
            }
            self.wait_received(1)?;
            if !near {
                go(self)?;
            }
            // The last two are those that were posted in advance. One of them is for the next row.
            if number + 1 < count {
                if immediate { self.recv_nothing()? } else { self.recv(0)? }
            }
        }
        Ok(())
    }

    /// Runs a ping-pong of writes. Each side polls the last byte that the other will write, which
    /// has another value each time.
    fn write_ping_pong(&mut self, row: &Row, near: bool, count: usize) -> Result<(), Error> {
        let last = row.size - 1;
        // Rounds of a row follow each other, and neither side is more than one write ahead.
        for number in 0..count {
            let value = (number % 250) as u8 + 2;
            for mine in [near, !near] {
                if mine {
                    self.fill(0);
                    self.out.memory().copy_from(last, &[value]);
                    self.write_filled(0, None, UNSIGNALLED)?;
                } else {
                    let mut seen = [0];
                    let mut looks = 0u32;
                    while seen[0] != value {
                        self.into.memory().copy_to(last, &mut seen);
                        looks += 1;
                        // One-sided writes need only occasional polls of this side.
                        if looks.is_multiple_of(64) {
                            self.poll()?;
                        }
                    }
                }
            }
        }
        self.poll()?;
        if near {
            self.send_head(&[])?;
            return self.wait_received(1);
        }
        self.wait_received(1)?;
        self.send_head(&[])
    }

    /// Sends messages in one direction, as many as there are receives. The receiver tells the
    /// sender when it has posted more.
    fn stream(&mut self, row: &Row, near: bool, count: usize) -> Result<(), Error> {
        let (window, half) = window(row);
        if near {
            let (mut credit, mut grants) = (window, count.div_ceil(half));
            for number in 0..count {
                while credit == 0 {
                    self.wait_received(1)?;
                    (credit, grants) = (credit + half, grants - 1);
                }
                credit -= 1;
                self.send(number % places(row), row.size)?;
            }
            return self.wait_received(grants);
        }
        let (mut posted, mut done) = (window.min(count), 0);
        while done < count {
            let here = half.min(count - done);
            self.wait_received(here)?;
            done += here;
            for _ in 0..here {
                if posted < count {
                    self.recv(posted % places(row))?;
                    posted += 1;
                }
            }
            if done == count {
                self.recv_nothing()?;
            }
            self.send_head(&[])?;
        }
        Ok(())
    }

    fn one_sided(&mut self, row: &Row, near: bool, count: usize) -> Result<(), Error> {
        if !near {
            self.wait_received(1)?;
            return self.send_head(&[]);
        }
        // A place is written again when its transfer has ended.
        let most = if row.test == Test::Write { places(row) - 1 } else { 4 };
        for number in 0..count {
            if row.test == Test::Write {
                self.write(number % places(row), None, WorkOptions::SIGNALLED)?;
            } else {
                self.read(number % places(row))?;
            }
            if number >= most {
                self.wait_ended(1)?;
            }
        }
        self.wait_ended(count.min(most))?;
        self.send_head(&[])?;
        self.wait_received(1)
    }
}

/// Returns the number of places that a row's messages use in turn. No place is written while a
/// transfer of it is under way.
fn places(row: &Row) -> usize {
    match row.test {
        Test::Send | Test::Rate => window(row).0,
        Test::Write => (ROOM / row.size).clamp(2, 5),
        _ if row.size >= 8 << 20 => 2,
        _ => 1,
    }
}

/// Returns the number of receives of a stream, and after how many messages the receiver tells the
/// sender that there are more.
fn window(row: &Row) -> (usize, usize) {
    let window = if row.test == Test::Rate { 512 } else { (ROOM / row.size).min(16) };
    (window, (window / 2).max(1))
}
