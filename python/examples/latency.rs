//! Measures a call from Rust, as `latency.py` does from Python: the client blocks, and the server
//! is a process of its own. `cargo run --release -p bmi-python --example latency`.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bmi::runtime::Instant;
use bmi::{Client, Server};

const COUNT: usize = 3000;

/// Echoes requests and data, and prints where it listens.
fn serve(at: &str) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    Ok(runtime.block_on(async {
        let server = Server::builder().bind([at]).await?;
        println!("{}", server.addrs()[0]);
        let echo = |call: bmi::Call| async move {
            let (request, data) = (call.request_bytes(), call.data().await?);
            call.reply(request).data(data).await
        };
        server.serve(echo).await
    })?)
}

/// A server that ends with this program.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(at) = std::env::args().nth(1) {
        return serve(&at);
    }
    let folder = tempfile::tempdir()?;
    for at in ["tcp://127.0.0.1:0".to_owned(), format!("shm://{}/run/socket", folder.path().display())] {
        let mut server = Process(Command::new(std::env::current_exe()?).arg(at).stdout(Stdio::piped()).spawn()?);
        let mut addr = String::new();
        BufReader::new(server.0.stdout.take().ok_or("no output")?).read_line(&mut addr)?;
        let client = Client::new([addr.trim()]);
        for size in [8, 4096, 65536] {
            let mut times: Vec<Duration> = Vec::with_capacity(COUNT);
            for _ in 0..COUNT {
                let begin = Instant::now();
                // A short request travels by itself, a long one as data.
                match size {
                    0..=4096 => client.call(vec![0; size]).wait()?,
                    _ => client.call(b"").data(vec![0; size]).wait()?,
                };
                times.push(begin.elapsed());
            }
            times.sort();
            println!("{} {size:6} B   blocking {:7.1} us", &addr[..3], times[COUNT / 2].as_secs_f64() * 1e6);
        }
    }
    Ok(())
}
