//! `cache`: what the caches of the I/O servers hold, and how well they work.
//!
//! ```text
//! server                         service   most  resident    cached  dirty   ready    hits  ahead used  …
//! tcp://127.0.0.1:7001 (iod 0)   unifier  1 GiB   640 MiB   612 MiB  3 MiB  512 MiB  97.1 %    40.2 MiB  …
//! tcp://127.0.0.1:7002 (iod 1)   normal       -         -         -      -        -       -           -  …
//! ```

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::{CacheHints, CacheStat, CacheState, CachedFile, Client, FsPath, ServerCache, ServerName};
use serde_json::{Value, json};

use super::output::{Output, table};
use super::size;
use crate::program::{Stop, printable};

/// What is shown, and how often.
pub(crate) struct Show {
    pub(crate) path: Option<FsPath>,
    /// Number of datafiles to show.
    pub(crate) files: Option<u32>,
    /// How long to wait before it is shown again.
    pub(crate) watch: Option<Duration>,
}

pub(crate) async fn cache(client: &Client, show: &Show, output: &mut Output) -> Result<(), Stop> {
    let mut before = BTreeMap::new();
    loop {
        match &show.path {
            Some(path) => file(client, path, output).await?,
            None => servers(client.cache_state(show.files.unwrap_or(0) as usize).await, show, &mut before, output),
        }
        let Some(pause) = show.watch else { return Ok(()) };
        if !output.show_page()? {
            return Ok(());
        }
        client.endpoint().sleep(pause).await;
    }
}

/// Shows all servers. With `watch`, counters count since the last time, as noted in `before`.
fn servers(caches: Vec<ServerCache>, show: &Show, before: &mut BTreeMap<ServerName, CacheStat>, output: &mut Output) {
    let (mut rows, mut fields, mut files) = (vec![TITLES.map(str::to_owned).to_vec()], Vec::new(), Vec::new());
    let (mut sum, mut with_cache) = (CacheStat::default(), 0);
    for ServerCache { server, result } in caches {
        let name = server.to_string();
        match result {
            Ok(CacheState { service, cache, files: busy, .. }) => {
                let earlier = cache.filter(|_| show.watch.is_some()).and_then(|now| before.insert(server, now));
                let cache = cache.map(|now| earlier.map_or(now, |earlier| now.since(earlier)));
                rows.push(row(&name, service.as_str(), cache.as_ref()));
                fields.push(state_json(&name, service.as_str(), cache.as_ref()));
                files.extend(busy.into_iter().map(|file| (name.clone(), file)));
                sum = cache.map_or(sum, |cache| sum.plus(cache));
                with_cache += usize::from(cache.is_some());
            }
            Err(error) => {
                rows.push(row(&name, "?", None));
                fields.push(json!({ "server": name, "error": error.to_string() }));
                output.failure(error);
            }
        }
    }
    if with_cache > 1 {
        rows.push(row("all", "", Some(&sum)));
    }
    table(&rows, 2).into_iter().for_each(|line| output.line(line));
    output.field("servers", json!(fields));
    if let Some(most) = show.files {
        busiest(files, most, output);
    }
}

const TITLES: [&str; 12] = [
    "server",
    "service",
    "most",
    "resident",
    "cached",
    "dirty",
    "ready",
    "hits",
    "ahead used",
    "unused",
    "failed writes",
    "ignored hints",
];

/// Returns the row of a server.
fn row(server: &str, service: &str, cache: Option<&CacheStat>) -> Vec<String> {
    let Some(cache) = cache else {
        let none = std::iter::repeat_n("-".to_owned(), TITLES.len() - 2);
        return [server.to_owned(), service.to_owned()].into_iter().chain(none).collect();
    };
    let bytes = [cache.most, cache.resident, cache.cached, cache.dirty, cache.ready].map(size::show_bytes);
    let ahead = [cache.ahead_used, cache.ahead_unused].map(size::show_bytes);
    let counts = [cache.failed_flushes, cache.ignored_hints].map(|count| count.to_string());
    let first = [server.to_owned(), service.to_owned()];
    first.into_iter().chain(bytes).chain([share(cache.hit, cache.asked)]).chain(ahead).chain(counts).collect()
}

fn state_json(server: &str, service: &str, cache: Option<&CacheStat>) -> Value {
    json!({ "server": server, "service": service, "cache": cache })
}

/// Shows the busiest of the servers' busiest datafiles.
fn busiest(mut files: Vec<(String, CachedFile)>, most: u32, output: &mut Output) {
    files.sort_by_key(|(_, file)| Reverse(file.moved()));
    files.truncate(most as usize);
    let titles = ["server", "datafile", "hints", "unit", "cached", "dirty", "read", "hits", "written", ""];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    for (server, file) in &files {
        rows.push(vec![
            server.clone(),
            file.datafile.to_string(),
            show_hints(&file.hints),
            size::show_bytes(file.unit.into()),
            size::show_bytes(file.cached),
            size::show_bytes(file.dirty),
            size::show_bytes(file.asked),
            share(file.hit, file.asked),
            size::show_bytes(file.written),
            if file.failed { "the last write to the disk FAILED" } else { "" }.to_owned(),
        ]);
    }
    output.line("");
    table(&rows, 3).into_iter().for_each(|line| output.line(line));
    output.field("files", files.iter().map(|(server, file)| file_json(server, file)).collect());
}

fn file_json(server: &str, file: &CachedFile) -> Value {
    let CacheHints { unit, policy, pattern, write_through } = file.hints;
    json!({
        "server": server,
        "datafile": file.datafile.to_string(),
        "unit": file.unit,
        "hints": {
            "unit": unit, "policy": policy.as_str(), "pattern": pattern.as_str(), "write_through": write_through,
        },
        "cached": file.cached,
        "dirty": file.dirty,
        "asked": file.asked,
        "hit": file.hit,
        "written": file.written,
        "failed": file.failed,
    })
}

/// Formats those hints that are not the default.
fn show_hints(hints: &CacheHints) -> String {
    let CacheHints { unit, policy, pattern, write_through } = *hints;
    let mut shown = Vec::new();
    shown.extend((policy != CacheHints::default().policy).then(|| policy.to_string()));
    shown.extend((pattern != CacheHints::default().pattern).then(|| pattern.to_string()));
    shown.extend(unit.map(|unit| size::show_exact(unit.into())));
    shown.extend(write_through.then(|| "write-through".to_owned()));
    if shown.is_empty() { "-".to_owned() } else { shown.join(", ") }
}

/// Shows how much of a file is in the caches of its servers.
async fn file(client: &Client, path: &FsPath, output: &mut Output) -> Result<(), Stop> {
    let file = client.open(path).await?;
    let bytes = file.size().await?;
    let cached = file.cached(0, bytes).await?;
    let total = cached.total;
    let titles = ["server", "datafile", "bytes", "cached", "of these", "dirty", "ready"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    let mut fields = Vec::new();
    for server in &cached.servers {
        let name = server.server.to_string();
        let values = match server.coverage {
            Some(own) => {
                let [cached, dirty, ready] = [own.cached, own.dirty, own.ready].map(size::show_bytes);
                [cached, share(own.cached, server.len), dirty, ready]
            }
            None => ["no cache", "-", "-", "-"].map(str::to_owned),
        };
        let first = [name.clone(), server.datafile.to_string(), size::show_bytes(server.len)];
        rows.push(first.into_iter().chain(values).collect());
        fields.push(json!({
            "server": name, "datafile": server.datafile.to_string(), "bytes": server.len, "coverage": server.coverage,
        }));
    }
    let [all, held, dirty, ready] = [bytes, total.cached, total.dirty, total.ready].map(size::show_bytes);
    let part = share(total.cached, bytes);
    output.line(format!("{}: {all}, {held} of it cached ({part}), {dirty} dirty, {ready} ready", printable(path)));
    table(&rows, 2).into_iter().for_each(|line| output.line(line));
    output.fields(&json!({ "path": path.to_string(), "size": bytes, "coverage": total, "servers": fields }))
}

/// Formats a part of a whole in percent.
fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_owned(),
        // Rounded down, so that only all is 100 %.
        _ => format!("{:.1} %", (part as f64 / whole as f64 * 1000.0).floor() / 10.0),
    }
}

#[cfg(test)]
mod tests {
    use crate::{AccessPattern, CachePolicy, ErrorCode, ServiceKind};

    use super::*;

    fn server(number: u32, state: CacheState) -> ServerCache {
        let addr = bmi::Addr::tcp("h", 7001 + number as u16);
        ServerCache { server: ServerName { addr, iod: Some(number) }, result: Ok(state) }
    }

    fn unifier(asked: u64, hit: u64) -> CacheState {
        let cache = CacheStat {
            most: 1 << 30,
            resident: 640 << 20,
            cached: 3 << 19,
            dirty: 17,
            ready: 512 << 20,
            asked,
            hit,
            ahead_used: 2048,
            failed_flushes: 3,
            ignored_hints: 1,
            ..CacheStat::default()
        };
        CacheState { service: ServiceKind::Unifier, cache: Some(cache), ..CacheState::default() }
    }

    /// Returns what is shown of these caches and of so many files.
    fn shown(json: bool, files: Option<u32>, caches: Vec<ServerCache>) -> Output {
        let mut output = Output::new(&crate::cli::args::Global::for_tests(json));
        servers(caches, &Show { path: None, files, watch: None }, &mut BTreeMap::new(), &mut output);
        output
    }

    #[test]
    fn a_row_for_each_server_and_one_for_all() {
        let caches = vec![server(0, unifier(1000, 999)), server(1, CacheState::default()), server(2, unifier(0, 0))];
        let output = shown(false, None, caches);
        let text = [
            "server                service   most  resident   cached  dirty    ready    hits  ahead used  unused  failed writes  ignored hints",
            "tcp://h:7001 (iod 0)  unifier  1 GiB   640 MiB  1.5 MiB   17 B  512 MiB  99.9 %       2 KiB     0 B              3              1",
            "tcp://h:7002 (iod 1)  normal       -         -        -      -        -       -           -       -              -              -",
            "tcp://h:7003 (iod 2)  unifier  1 GiB   640 MiB  1.5 MiB   17 B  512 MiB       -       2 KiB     0 B              3              1",
            "all                            2 GiB   1.2 GiB    3 MiB   34 B    1 GiB  99.9 %       4 KiB     0 B              6              2",
        ];
        assert_eq!(output.text().lines().collect::<Vec<_>>(), text);
        let json = &output.document()["servers"];
        assert_eq!((&json[0]["cache"]["hit"], &json[1]["cache"]), (&json!(999), &Value::Null));
        assert_eq!((&json[0]["service"], &json[1]["service"]), (&json!("unifier"), &json!("normal")));
    }

    #[test]
    fn watching_shows_what_has_happened_since() {
        let show = Show { path: None, files: None, watch: Some(Duration::from_secs(1)) };
        let mut before = BTreeMap::new();
        let mut round = |asked, hit| {
            let mut output = Output::new(&crate::cli::args::Global::for_tests(false));
            servers(vec![server(0, unifier(asked, hit))], &show, &mut before, &mut output);
            let line = output.text().lines().nth(1).unwrap().to_owned();
            line.split("  ").filter(|cell| !cell.trim().is_empty()).nth(7).unwrap().trim().to_owned()
        };
        assert_eq!(round(1000, 500), "50.0 %");
        assert_eq!(round(1100, 590), "90.0 %", "90 of 100");
        assert_eq!(round(1100, 590), "-");
        assert_eq!(round(10, 1), "10.0 %", "it was restarted");
    }

    #[test]
    fn a_server_that_does_not_answer_does_not_hide_the_others() {
        let mut lost = server(0, CacheState::default());
        lost.result = Err(crate::Error::from(crate::Failure::here(ErrorCode::Unreachable, "gone")));
        let output = shown(true, Some(1), vec![lost, server(1, unifier(1, 1))]);
        let json = output.document();
        assert!(json["servers"][0]["error"].as_str().unwrap().contains("gone"));
        assert_eq!((&json["servers"][1]["service"], &json["files"]), (&json!("unifier"), &json!([])));
        assert!(output.has_failures());
    }

    #[test]
    fn the_busiest_files_of_all_servers() {
        let file = |number: u64, asked| CachedFile {
            datafile: fs_proto::DatafileHandle(number),
            unit: 4096,
            hints: CacheHints::default(),
            cached: 8192,
            dirty: 0,
            asked,
            hit: asked / 2,
            written: 10,
            failed: false,
        };
        let hints = CacheHints {
            unit: Some(4096),
            policy: CachePolicy::Stream,
            pattern: AccessPattern::Random,
            write_through: true,
        };
        let odd = CachedFile { hints, failed: true, ..file(3, 20) };
        let one = CacheState { files: vec![file(1, 30), file(2, 10)], ..unifier(0, 0) };
        let other = CacheState { files: vec![odd], ..unifier(0, 0) };
        let output = shown(false, Some(2), vec![server(0, one), server(1, other)]);
        let text: Vec<_> = output.text().lines().skip(5).collect();
        assert_eq!(text.len(), 3, "a title and two files: {text:#?}");
        assert!(text[1].starts_with("tcp://h:7001 (iod 0)") && text[1].contains(" 30 B  50.0 %"), "{text:#?}");
        assert!(text[2].contains("stream, random, 4K, write-through") && text[2].ends_with("FAILED"), "{text:#?}");
        let json = &output.document()["files"];
        assert_eq!((&json[1]["hints"]["policy"], &json[1]["failed"]), (&json!("stream"), &json!(true)));
    }

    #[test]
    fn only_all_is_a_hundred_percent() {
        assert_eq!(
            [share(1, 3), share(99_999, 100_000), share(5, 5), share(0, 0)],
            ["33.3 %", "99.9 %", "100.0 %", "-"]
        );
    }
}
