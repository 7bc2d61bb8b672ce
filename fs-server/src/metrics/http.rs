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
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted, for lack of descriptors mostly.
const PAUSE: Duration = Duration::from_millis(100);

/// The text that is served, made anew for each request.
pub(super) type Page = Arc<dyn Fn() -> String + Send + Sync>;

/// Answers until it is dropped.
#[expect(clippy::disallowed_methods, reason = "its clients are not in the simulator")]
pub(super) async fn serve(listener: TcpListener, page: Page) -> Infallible {
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
            let _ = timeout(PATIENCE, answer(stream, &page)).await;
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
