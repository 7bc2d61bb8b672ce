//! Answers `GET /metrics` over HTTP/1.1, and nothing else.
//!
//! **Why no library.** One path, one method and one answer for each connection are a page of code.
//! A library for HTTP would be more than the rest of the server's dependencies together.
//!
//! **Invariants**
//! 1. A connection has [`PATIENCE`] for everything, and [`LONGEST_REQUEST`] bytes for its request.
//! 2. At most [`MOST_CONNECTIONS`] are open. A newcomer takes the place of the oldest, so slow
//!    clients keep nobody out.
//! 3. Nothing that a client sends is decoded but the first line, by comparing bytes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

/// Most connections at a time.
const MOST_CONNECTIONS: usize = 16;
/// Longest request with its headers, in bytes.
const LONGEST_REQUEST: u64 = 8 << 10;
/// The time of a connection.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted, for lack of descriptors mostly.
const PAUSE: Duration = Duration::from_millis(100);

/// The text that is served, made anew for each request.
pub(super) type Page = Arc<dyn Fn() -> String + Send + Sync>;

/// Answers until it is dropped.
#[expect(clippy::disallowed_methods, reason = "its clients are not in the simulator")]
pub(super) async fn serve(listener: TcpListener, page: Page, patience: Duration) -> Infallible {
    let mut open = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        open.retain(|task: &tokio::task::JoinHandle<()>| !task.is_finished());
        if open.len() >= MOST_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let page = Arc::clone(&page);
        open.push_back(tokio::spawn(async move {
            // Nobody is told of a client that is slow or gone.
            let _ = timeout(patience, answer(stream, &page)).await;
        }));
    }
}

/// Reads a request, and answers it.
async fn answer(mut stream: TcpStream, page: &Page) -> io::Result<()> {
    let (read, mut write) = stream.split();
    let mut read = BufReader::new(read.take(LONGEST_REQUEST));
    let (mut request, mut header) = (Vec::new(), Vec::new());
    read.read_until(b'\n', &mut request).await?;
    // The headers change nothing.
    let complete = loop {
        header.clear();
        read.read_until(b'\n', &mut header).await?;
        match &header[..] {
            b"\r\n" | b"\n" => break true,
            line if line.ends_with(b"\n") => {}
            // The end of the stream, or of the room for it.
            _ => break false,
        }
    };
    let (status, body) = match complete {
        true => respond(&request, page),
        false if read.get_ref().limit() == 0 => ("431 Request Header Fields Too Large", String::new()),
        false => ("400 Bad Request", String::new()),
    };
    let allow = if status.starts_with("405") { "Allow: GET\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n{allow}\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    write.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await?;
    write.shutdown().await?;
    // With bytes that were not read, the system would take the answer back.
    let mut rest = read.into_inner().into_inner().take(LONGEST_REQUEST);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await.map(drop)
}

/// Returns the status and the body for the first line of a request.
fn respond(request: &[u8], page: &Page) -> (&'static str, String) {
    let mut words = request.trim_ascii_end().split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return ("400 Bad Request", String::new());
    };
    let path = target.split(|byte| *byte == b'?').next();
    match (method, path) {
        _ if !version.starts_with(b"HTTP/1.") => ("400 Bad Request", String::new()),
        (_, path) if path != Some(b"/metrics") => ("404 Not Found", String::new()),
        (b"GET", _) => ("200 OK", page()),
        _ => ("405 Method Not Allowed", String::new()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, SocketAddr, TcpStream};
    use std::thread;

    use super::*;

    /// Longer than any test waits for what must come.
    const LIMIT: Duration = Duration::from_secs(60);

    /// Serves a page until the process ends.
    fn started(patience: Duration) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let page: Page = Arc::new(|| "one 1\n".repeat(100_000));
            runtime.block_on(async { serve(TcpListener::from_std(listener).unwrap(), page, patience).await })
        };
        thread::Builder::new().spawn(run).unwrap();
        addr
    }

    fn connected(addr: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    /// Returns all that the server answers.
    fn asked(addr: SocketAddr, pieces: &[&[u8]]) -> String {
        let mut stream = connected(addr);
        pieces.iter().for_each(|piece| stream.write_all(piece).unwrap());
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn is_answered(addr: SocketAddr) {
        let answer = asked(addr, &[b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n"]);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("Content-Length: 600000\r\n"), "{head}");
        assert!(body.len() == 600_000 && body.ends_with("one 1\n"));
    }

    #[test]
    fn one_path_and_one_method_are_answered() {
        let addr = started(LIMIT);
        is_answered(addr);
        let long = [b"GET /metrics HTTP/1.1\r\nA: ".to_vec(), vec![b'a'; LONGEST_REQUEST as usize]].concat();
        let many = "GET /metrics HTTP/1.1\r\n".repeat(1000);
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404 "),
            (b"POST /x HTTP/1.1\r\n\r\n", "404 "),
            (b"POST /metrics HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", "405 "),
            (b"GET http://a/metrics HTTP/1.1\r\n\r\n", "404 "),
            (b"GET /metrics\r\n\r\n", "400 "),
            (b"GET  /metrics HTTP/1.1\r\n\r\n", "400 "),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400 "),
            (b"\0\xff\xfe\n\n", "400 "),
            (b"\n\n", "400 "),
            (&long, "431 "),
            (many.as_bytes(), "431 "),
        ] {
            let answer = asked(addr, &[request]);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{:?}: {answer}", request.escape_ascii());
            assert!(answer.ends_with("\r\n\r\n"), "{answer}");
        }
        // Byte by byte, with the bare ends of lines that the standard lets a server take.
        let bytes: Vec<&[u8]> = b"GET /metrics HTTP/1.1\n\n".chunks(1).collect();
        assert!(asked(addr, &bytes).starts_with("HTTP/1.1 200 OK"));
    }

    #[test]
    fn garbage_and_streams_that_end_early_do_no_harm() {
        let addr = started(LIMIT);
        let whole = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
        for cut in 0..whole.len() {
            let mut stream = connected(addr);
            stream.write_all(&whole[..cut]).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 400 "), "{cut}: {answer}");
        }
        for seed in 0..200_u32 {
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            let garbage: Vec<u8> = (0..usize::from(next()) * 50).map(|_| next()).collect();
            // It may be refused before all of it is there.
            let _ = connected(addr).write_all(&garbage);
        }
        is_answered(addr);
    }

    /// More clients than there are places say nothing. The oldest of them lose their places.
    #[test]
    fn slow_clients_keep_nobody_out() {
        let addr = started(LIMIT);
        let mut silent: Vec<TcpStream> = (0..5 * MOST_CONNECTIONS).map(|_| connected(addr)).collect();
        is_answered(addr);
        for stream in &mut silent[..4 * MOST_CONNECTIONS] {
            assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)));
        }
        // Clients that ask and do not read are no better.
        let asks = |_| {
            let mut stream = connected(addr);
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            stream
        };
        let _deaf: Vec<TcpStream> = (0..2 * MOST_CONNECTIONS).map(asks).collect();
        is_answered(addr);
    }

    #[test]
    fn a_connection_ends_when_its_time_is_over() {
        let addr = started(Duration::from_millis(20));
        let mut stream = connected(addr);
        stream.write_all(b"GET /metrics HT").unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "it is closed without an answer");
    }
}
