//! The servers that the configuration describes, run by this process.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;

use bmi::config::Security;
use bmi::driver::Waiting;
use bmi::{Addr, OpenOptions, Scheme};
use fs_proto::Holder;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::output::{Failure, announce, announce_listening};
use super::units;
use crate::config::{Config, DEFAULT_OFFLOAD, ServerAddrs};
use crate::control::{self, ServerName};
use crate::embedded::{Neighbours, Role, Server};
use crate::manager::{HEARTBEAT, ManagerSettings};

pub(super) fn manager(config: &Config, restored: Option<fn(&str)>) -> Result<(Server, Neighbours), Failure> {
    let settings = ManagerSettings { strip_size: config.cluster.strip_size.0, ..ManagerSettings::new(Vec::new()) };
    let tickets = config.security.tickets().is_some();
    let role = Role::Manager { dir: config.storage.manager.clone(), settings, restored, tickets };
    let iods: Neighbours = config.cluster.iods.iter().map(|addrs| addrs.primary().clone()).collect();
    let own = config.security.of(&Holder::Manager.label())?;
    Ok((server(config, role, "manager".to_owned(), &config.cluster.manager, &iods, own), iods))
}

pub(super) fn iod(
    config: &Config,
    index: usize,
    replace: bool,
    discard_cache: Option<fn(&str)>,
) -> Result<(Server, Neighbours), Failure> {
    let Some(listen) = config.cluster.iods.get(index) else {
        let text = format!("there is no I/O server {index}; the configuration has {}", config.cluster.iods.len());
        return Err(Failure::Usage(text));
    };
    let (settings, offload) = (config.limits.iod(), DEFAULT_OFFLOAD);
    let number = u32::try_from(index).unwrap_or(u32::MAX);
    let role = Role::Iod {
        index: number,
        dir: config.iod_dir(index),
        settings,
        offload,
        heartbeat: HEARTBEAT,
        service: config.cache.service(),
        checksums: config.storage.checksums,
        cache_dir: config.cache.dir.clone(),
        replace,
        discard_cache,
        tickets: config.security.tickets(),
    };
    let manager = vec![config.cluster.manager.primary().clone()];
    let own = config.security.of(&Holder::Iod(number).label())?;
    Ok((server(config, role, format!("iod{index}"), listen, &manager, own), manager))
}

fn server(
    config: &Config,
    role: Role,
    name: String,
    listen: &ServerAddrs,
    neighbours: &[Addr],
    own: Option<Security>,
) -> Server {
    Server {
        role,
        listen: listen.all().to_vec(),
        connects: neighbours.iter().map(Addr::scheme).collect(),
        host: bmi::backend::host_id().unwrap_or_default(),
        transports: own.iter().fold(config.limits.transports(), OpenOptions::secure),
        endpoint: config.limits.endpoint(name),
        limits: config.limits.service(),
        threads: config.limits.threads,
        balance: true,
        waiting: Waiting::default(),
        sharers: 1,
    }
}

/// Tells what a server proves itself with.
fn tell_security(server: &Server) {
    let Some(own) = &server.transports.tcp.security else { return };
    let verbs = server.listen.iter().any(|addr| addr.scheme() == Scheme::Ib);
    let setup_only = if verbs { "; over verbs setup-only: what queue pairs carry is in the clear" } else { "" };
    tracing::info!("TLS 1.3, as {}{setup_only}", own.identity());
}

/// Reads certificates again, for connections from now on.
fn reload(all: &[Security]) {
    for own in all {
        match own.reload() {
            Ok(()) => tracing::info!("read the certificates of {} again", own.identity()),
            Err(error) => tracing::error!(%error, "certificates stay as they were"),
        }
    }
}

/// Runs one server on this thread. Serves what it counts at the address `metrics`, if there is one.
pub(super) fn serve(server: Server, neighbours: Neighbours, metrics: Option<SocketAddr>) -> Result<(), Failure> {
    begin_log("info", server.threads > 1);
    tell_security(&server);
    serve_metrics(metrics)?;
    let ready = |addrs: &[Addr]| {
        announce_listening("", addrs);
        Ok(neighbours)
    };
    let serving = || {
        announce("serving\n");
        units::serving();
    };
    let own = server.transports.tcp.security.clone().into_iter().collect();
    Ok(server.run(ready, serving, stop_signal(own))?)
}

/// Runs servers on threads of their own, like [`serve`].
pub(super) fn run_all(
    servers: Vec<(ServerName, Server, Neighbours)>,
    metrics: Option<SocketAddr>,
) -> Result<(), Failure> {
    begin_log("info", true);
    servers.iter().for_each(|(_, server, _)| tell_security(server));
    serve_metrics(metrics)?;
    let listening = |name: ServerName, addrs: &[Addr]| announce_listening(&format!("{name}: "), addrs);
    let left = Cell::new(servers.len());
    let serving = |name: ServerName| {
        announce(&format!("{name}: serving\n"));
        left.set(left.get() - 1);
        if left.get() == 0 {
            units::serving();
        }
    };
    let own = servers.iter().filter_map(|(_, server, _)| server.transports.tcp.security.clone()).collect();
    control::run(servers, listening, serving, stop_signal(own)).map_err(Failure::Runtime)
}

fn serve_metrics(addr: Option<SocketAddr>) -> Result<(), Failure> {
    let Some(addr) = addr else { return Ok(()) };
    crate::metrics::serve(addr).map_err(|error| Failure::Runtime(format!("metrics at {addr}: {error}")))?;
    tracing::info!("metrics at http://{addr}/metrics");
    Ok(())
}

/// Logs to standard error, with the names of threads if several servers share the log. `usual` is
/// what is logged unless RUST_LOG says otherwise.
pub(super) fn begin_log(usual: &str, shared: bool) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(usual));
    // A program that calls this function may have set a subscriber already.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let _ = log.with_ansi(io::stderr().is_terminal()).with_thread_names(shared).try_init();
}

/// Waits for SIGTERM or SIGINT. Reads the certificates `own` again at each SIGHUP. Catches the
/// signal of the limit on file sizes (`ulimit -f`), which would end the server: what exceeds the
/// limit is an error of the request.
pub(super) async fn stop_signal(own: Vec<Security>) {
    // Once caught, it remains so.
    let _ = signal(SignalKind::from_raw(libc::SIGXFSZ));
    let (term, int) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    match (term, int) {
        (Ok(mut term), Ok(mut int)) => {
            // Without certificates, the signal does what it does by default.
            let mut hangup = (!own.is_empty()).then(|| signal(SignalKind::hangup()).ok()).flatten();
            loop {
                let asked = async {
                    match &mut hangup {
                        Some(hangup) => hangup.recv().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    _ = term.recv() => break,
                    _ = int.recv() => break,
                    _ = asked => reload(&own),
                }
            }
            units::stopping();
        }
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "no signal handler; only SIGKILL stops this server");
            std::future::pending::<()>().await;
        }
    }
}
