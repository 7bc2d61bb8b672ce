//! The table of all keys of the configuration, for `docs/operating.md`.
//!
//! **Why here.** A table that is written by hand lacks what was added later, and has defaults that
//! have changed. This one is made of the sections themselves: a key without a row does not compile,
//! and the defaults are those of the code. The test below compares the document with it, and writes
//! the table into the document if `WRITE_KEYS` is set:
//!
//! ```text
//! WRITE_KEYS=1 cargo test -p fs-server --lib keys
//! ```

use std::path::Path;

use serde::Serialize;

use super::cache::{SHARE_OF_MEMORY, SHARE_OF_VIEWS};
use super::{CacheSection, Cluster, Config, LimitSection, SecuritySection, Storage, default_strip};

/// The first line of the table.
const HEAD: &str = "| key | default | meaning |";

/// A key, with its default and its meaning as they are in the table.
struct Key {
    section: &'static str,
    name: &'static str,
    default: String,
    meaning: &'static str,
}

/// Returns a value as it is written in a configuration.
fn written(value: impl Serialize) -> String {
    let text = toml::Value::try_from(value).unwrap().to_string();
    if text.starts_with('"') { format!("`{text}`") } else { text }
}

fn text(text: &str) -> String {
    text.to_owned()
}

/// Returns the keys of a section. There is one for each field of its type.
macro_rules! section {
    ($section:literal, $type:ident { $($name:ident: $default:expr, $meaning:literal;)* }) => {{
        let _ = |section: $type| { let $type { $($name: _,)* } = section; };
        [$(Key { section: $section, name: stringify!($name), default: $default, meaning: $meaning }),*]
    }};
}

/// Returns all keys.
fn keys() -> Vec<Key> {
    let (limits, cache, security) = (LimitSection::default(), CacheSection::default(), SecuritySection::default());
    let part = |part: u64| format!("1/{part} of the machine's memory");
    // Each section has its keys below.
    let _ = |config: Config| {
        let Config { metrics: _, cluster: _, storage: _, limits: _, cache: _, security: _ } = config;
    };
    let metrics = Key {
        section: "",
        name: "metrics",
        default: text("off"),
        meaning: "an IP address and a port, in front of all sections: where the manager serves what it counts. I/O \
                  server N has the port N + 1 above it; see *Metrics*",
    };
    let cluster = section!("cluster", Cluster {
        manager: text("required"), "the manager's address, or a list of addresses";
        iods: text("required"),
            "the I/O servers' addresses, 1 to 256 servers. Files know their servers by the place in this list: append, \
             never reorder";
        strip_size: written(default_strip()), "strip size of files that ask for no other, 4K to 1G";
    });
    let storage = section!("storage", Storage {
        manager: text("required"), "the manager's directory, on its machine";
        iod: text("required"),
            "the I/O servers' directories; `{index}` stands for the server's number and is required with several servers";
        logs: text("`logs` beside the manager's directory"), "the directory for the logs of servers in the background";
        checksums: written(false), "the I/O servers keep checksums of what they store; see *Checksums*";
    });
    let limits = section!("limits", LimitSection {
        threads: written(limits.threads), "event loops of each server, 1 to 64; see *Several event loops*";
        request_timeout_s: written(limits.request_timeout_s), "longest time for one request, 1 to 86400 s";
        buffers: written(limits.buffers), "memory of an I/O server's buffers in all, at least two units";
        connections: written(limits.connections),
            "connections at a time, over each transport, 16 or more. The server lowers it, with a warning, if its limit \
             of open files is too low";
        idle_s: written(limits.idle_s),
            "a newcomer beyond `connections` takes the place of the connection that was idle longest, if it was idle for \
             this long; 3 to 86400 s";
        peer_timeout_s: written(limits.peer_timeout_s),
            "a host that answers nothing is given up after about this time (up to one and a half times as long; with \
             Linux before 6.15 it may take minutes if its buffers were full), 1 to 86400 s (TCP). Programs that hang or \
             do not read keep their connections: their hosts answer. Linux itself gives up after about 15 minutes";
        streams: written(limits.streams),
            "TCP connections for each connection of a client or server, 1 to 16. More than one is for paths that a \
             single flow does not fill: long ones with losses, or with a limit for each flow. Each takes a descriptor \
             at both ends. Clients take as many as the server has";
    });
    let cache = section!("cache", CacheSection {
        service: written(cache.service),
            "how an I/O server moves data: `\"normal\"`, `\"mmap\"` or `\"unifier\"`; see *The cache of an I/O server*. \
             All other keys of `[cache]` are for `\"unifier\"`";
        memory: part(SHARE_OF_MEMORY), "memory of the cache of each I/O server, with the part for views; 4M or more";
        dir: written(cache.dir), "where the cache is: a file system in memory";
        age_ms: written(cache.age_ms), "the disk gets them after this time, 10 ms or more";
        write_through: written(cache.write_through), "every write reaches the disk before it is acknowledged";
        views: format!("1/{SHARE_OF_VIEWS} of the memory, if the rest is enough for a cache"),
            "the part of the memory that clients on this host may read in place; `\"0\"` turns it off";
    });
    let security = section!("security", SecuritySection {
        dir: text("off"),
            "the directory of certificates, on each machine: `manager.pem`, `manager.key`, or `iod-N.pem`, `iod-N.key`; \
             `authority.pem`; `revoked.pem` if some are revoked. With it all that goes over a network is TLS; see \
             *Certificates*";
        tickets: written(security.tickets),
            "with certificates: I/O servers let clients use only the files that the manager has opened for them";
        manager_down_s: written(security.manager_down_s),
            "seconds that files which are open can be used while the manager is down";
    });
    [metrics].into_iter().chain(cluster).chain(storage).chain(limits).chain(cache).chain(security).collect()
}

/// Returns the lines of the table.
fn table() -> Vec<String> {
    let row = |Key { section, name, default, meaning }: Key| {
        let dot = if section.is_empty() { "" } else { "." };
        format!("| `{section}{dot}{name}` | {default} | {meaning} |")
    };
    [text(HEAD), text("|---|---|---|")].into_iter().chain(keys().into_iter().map(row)).collect()
}

#[test]
fn the_document_has_the_table_of_all_keys_with_their_defaults() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operating.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let mut lines: Vec<String> = document.lines().map(text).collect();
    let begin = lines.iter().position(|line| line == HEAD).expect("the head of the table");
    let end = begin + lines[begin..].iter().position(|line| !line.starts_with('|')).unwrap();
    if std::env::var_os("WRITE_KEYS").is_some() {
        lines.splice(begin..end, table());
        return std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    }
    for (found, expected) in lines[begin..end].iter().zip(table()) {
        assert_eq!(*found, expected, "WRITE_KEYS=1 writes the table anew");
    }
    assert_eq!(end - begin, table().len(), "WRITE_KEYS=1 writes the table anew");
}

/// What has no default is in a comment.
#[test]
fn the_template_has_all_keys() {
    let template = Config::template(Path::new("/srv/pvfs"), 2, 7000, &[bmi::Scheme::Tcp], false).unwrap();
    for Key { section, name, .. } in keys() {
        let rest = match section {
            "" => &template[..],
            _ => template.split_once(&format!("\n[{section}]\n")).unwrap().1,
        };
        let mut own = rest.lines().take_while(|line| !line.starts_with('[')).map(|line| line.trim_start_matches("# "));
        assert!(own.any(|line| line.starts_with(&format!("{name} = "))), "{section}.{name}");
    }
}
