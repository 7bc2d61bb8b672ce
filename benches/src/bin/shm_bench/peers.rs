//! Measures other libraries with their own benchmark programs, if these are installed, on the same
//! processors and with the same sizes.

use std::process::{Child, Command, Stdio};

use crate::{Row, Test};

/// A server that is ended after its client, even if the client failed.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It ends after one client. Kill it in case it did not.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `program` twice, as server and as client, and returns the output of the client.
#[expect(clippy::disallowed_methods, reason = "a benchmark waits for another program to listen")]
fn run(program: &str, settings: &[(&str, &str)], server: &[String], client: &[String]) -> Option<String> {
    let start = |processor: &str, args: &[String]| {
        let mut command = Command::new("taskset");
        command.args(["-c", processor, program]).args(args);
        command.env("UCX_WARN_UNUSED_ENV_VARS", "n").envs(settings.iter().copied());
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    };
    let _server = Server(start("1", server).stdout(Stdio::null()).spawn().ok()?);
    std::thread::sleep(std::time::Duration::from_millis(300));
    let output = start("0", client).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn count(row: &Row, quick: bool) -> usize {
    let full = match row.test {
        Test::Latency | Test::WriteLatency | Test::Immediate => (400_000_000 / (row.size + 400)).min(500_000),
        Test::Rate => 5_000_000,
        _ => (4usize << 30) / row.size,
    };
    (if quick { full / 10 } else { full }).max(16)
}

/// The settings of UCX between two processes of a host: its own choice; without the kernel;
/// everything eager. Each is the best for some sizes.
pub(crate) const UCX: [&[(&str, &str)]; 3] = [
    &[("UCX_TLS", "shm,self")],
    &[("UCX_TLS", "posix,self")],
    &[("UCX_TLS", "posix,cma,self"), ("UCX_RNDV_THRESH", "inf")],
];

/// The settings of libfabric: the default; and without the kernel.
pub(crate) const LIBFABRIC: [&[(&str, &str)]; 2] = [&[], &[("FI_SHM_DISABLE_CMA", "1")]];

/// Measures a row with `ucx_perftest` and these settings.
pub(crate) fn ucx(row: &Row, settings: &[(&str, &str)], quick: bool) -> Option<f64> {
    if !installed("ucx_perftest") {
        return None;
    }
    let test = match row.test {
        Test::Immediate => return None,
        Test::Latency => "tag_lat",
        Test::WriteLatency => "ucp_put_lat",
        Test::Send | Test::Rate => "tag_bw",
        Test::Write => "ucp_put_bw",
        Test::Read => "ucp_get",
    };
    let args = |host: Option<&str>| -> Vec<String> {
        let numbers = [row.size.to_string(), count(row, quick).to_string()];
        let mut args: Vec<String> = host.into_iter().map(str::to_owned).collect();
        args.extend(["-t", test, "-f", "-v", "-p", "13377", "-s"].map(str::to_owned));
        args.extend([numbers[0].clone(), "-n".to_owned(), numbers[1].clone(), "-w".to_owned(), "100".to_owned()]);
        args
    };
    let printed = run("ucx_perftest", settings, &args(None), &args(Some("127.0.0.1")))?;
    // iterations, latency at the percentile, of now, overall (us), bandwidth now, overall (MB/s of
    // 2^20), rate now, overall
    let numbers = |line: &str| line.split(',').filter_map(|cell| cell.trim().parse().ok()).collect::<Vec<f64>>();
    let figures = printed.lines().map(numbers).rfind(|cells| cells.len() >= 8)?;
    Some(match row.test {
        _ if row.test.is_time() => figures[3] * 1e-6,
        Test::Rate => figures[7],
        _ => figures[5] * f64::from(1 << 20),
    })
}

/// Measures a row with `fi_pingpong` over the provider `shm`, which has only messages.
pub(crate) fn libfabric(row: &Row, settings: &[(&str, &str)], quick: bool) -> Option<f64> {
    if !installed("fi_pingpong") || !matches!(row.test, Test::Latency | Test::Send) {
        return None;
    }
    let args = |host: Option<&str>| -> Vec<String> {
        let numbers = [row.size.to_string(), (count(row, quick) / 4).max(16).to_string()];
        let mut args: Vec<String> = ["-p", "shm", "-e", "rdm", "-S"].map(str::to_owned).to_vec();
        args.extend([numbers[0].clone(), "-I".to_owned(), numbers[1].clone()]);
        args.extend(host.into_iter().map(str::to_owned));
        args
    };
    let printed = run("fi_pingpong", settings, &args(None), &args(Some("127.0.0.1")))?;
    // bytes, sent, acknowledged, total, time, MB/s, microseconds per transfer, transfers per second
    let line = printed.lines().next_back()?;
    let cells: Vec<&str> = line.split_whitespace().collect();
    let micros: f64 = cells.get(6)?.parse().ok()?;
    Some(if row.test == Test::Latency { micros * 1e-6 } else { row.size as f64 / (micros * 1e-6) })
}
