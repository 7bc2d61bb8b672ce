//! The names of all values, and those of them that a server is asked for from time to time.

use crate::store::SumsStat;
use bmi::memory::zone::ZoneCounters;
use fs_proto::{CacheStat, IodStat, ManagerStat};
use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Values with their names. Those whose names end in `_total` are counters, the others gauges.
pub(crate) type Values = Vec<(&'static str, u64)>;

/// What request loops count.
const REQUESTS: &[(&str, &str)] = &[
    ("pvfs_requests_total", "requests, by `request`, their kind"),
    ("pvfs_request_errors_total", "requests that were answered with an error"),
    ("pvfs_requests_in_progress", "requests in progress"),
    ("pvfs_request_seconds", "time of a request in seconds, from its arrival to the end of its reply: a histogram"),
];

/// Lists the fields of a type, with the name and the meaning of each. A field that is missing here
/// does not compile.
macro_rules! values {
    ($table:ident, $of:ident, $type:ident $(without $out:ident)? {
        $($field:ident = $name:literal, $meaning:literal;)*
    }) => {
        const $table: &[(&str, &str)] = &[$(($name, $meaning)),*];

        pub(crate) fn $of(all: &$type) -> Values {
            let $type { $($field,)* $($out: _,)? } = *all;
            vec![$(($name, $field)),*]
        }
    };
}

values!(MANAGER, of_manager, ManagerStat {
    files = "pvfs_files", "manager: files";
    dirs = "pvfs_directories", "manager: directories, with the root";
    nameless = "pvfs_nameless_files", "manager: files without a name";
    orphans = "pvfs_orphaned_datafiles", "manager: datafiles of removed files that must still be removed";
    prepared = "pvfs_prepared_datafiles", "manager: datafiles that I/O servers have created in advance";
});

/// The I/O servers that the manager knows to be up.
pub(crate) const UP: &str = "pvfs_iods_up";
const MEMBERS: &[(&str, &str)] = &[(UP, "manager: I/O servers that are up")];

values!(STORE, of_store, IodStat without disk {
    capacity = "pvfs_store_capacity_bytes", "I/O server: size of the store";
    free = "pvfs_store_free_bytes", "I/O server: free bytes in the store";
    datafiles = "pvfs_datafiles", "I/O server: datafiles, with those created in advance";
});

values!(BUFFERS, of_buffers, ZoneCounters {
    takes = "pvfs_buffer_takes_total", "I/O server: buffers requested";
    waits = "pvfs_buffer_waits_total", "I/O server: those of them that had to wait";
    exact = "pvfs_buffer_exact_total", "I/O server: those that got a buffer of the right size";
    larger = "pvfs_buffer_larger_total", "I/O server: those that got a larger one";
    cut = "pvfs_buffer_cut_total", "I/O server: those that got a smaller one, so that the transfer was cut";
    made = "pvfs_buffers_made_total", "I/O server: buffers allocated and registered";
    retired = "pvfs_buffers_retired_total", "I/O server: buffers returned to the system";
    failed = "pvfs_buffers_failed_total", "I/O server: buffers that could not be allocated or registered";
    leased = "pvfs_buffer_leased_bytes", "I/O server: bytes of buffers in use";
    most_leased = "pvfs_buffer_most_leased_bytes", "I/O server: most bytes of buffers in use at the same time";
    bytes = "pvfs_buffer_bytes", "I/O server: bytes of all buffers";
});

values!(SUMS, of_sums, SumsStat {
    checked = "pvfs_checksum_right_bytes_total", "I/O server: bytes that were read and match their checksums";
    damaged = "pvfs_checksum_damaged_total", "I/O server: reads that found a block that does not match its checksum";
});

values!(CACHE, of_cache, CacheStat {
    most = "pvfs_cache_most_bytes", "`unifier`: most bytes that the cache may have";
    resident = "pvfs_cache_resident_bytes", "`unifier`: bytes of memory that it has";
    cached = "pvfs_cache_cached_bytes", "`unifier`: bytes of datafiles in it";
    dirty = "pvfs_cache_dirty_bytes", "`unifier`: those of them that the disk does not have";
    ready = "pvfs_cache_ready_bytes", "`unifier`: bytes of memory that stay registered";
    asked = "pvfs_cache_asked_bytes_total", "`unifier`: bytes that readers asked for";
    hit = "pvfs_cache_hit_bytes_total", "`unifier`: those of them that were in the cache";
    written = "pvfs_cache_written_bytes_total", "`unifier`: bytes written into the cache";
    flushed = "pvfs_cache_flushed_bytes_total", "`unifier`: bytes written to the disk";
    filled = "pvfs_cache_filled_bytes_total", "`unifier`: bytes read from the disk";
    evicted = "pvfs_cache_evicted_units_total", "`unifier`: units that gave their place to another one";
    ahead_used = "pvfs_cache_ahead_used_bytes_total", "`unifier`: bytes read ahead and used";
    ahead_unused = "pvfs_cache_ahead_unused_bytes_total", "`unifier`: bytes read ahead and dropped unused";
    failed_flushes = "pvfs_cache_failed_flushes_total", "`unifier`: writes to the disk that failed";
    taken_over = "pvfs_cache_taken_over_bytes_total", "`unifier`: dirty bytes taken over from an earlier process";
    ignored_hints = "pvfs_cache_ignored_hints_total", "`unifier`: hints that made no sense";
    refused_growth = "pvfs_cache_refused_growth_total", "`unifier`: times that the cache got no more memory";
});

/// Returns all names with their meanings.
fn all() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    [REQUESTS, MANAGER, MEMBERS, STORE, SUMS, BUFFERS, CACHE].into_iter().flatten()
}

/// Tells the recorder what the values are.
pub(super) fn describe() {
    for (name, meaning) in all().copied() {
        let unit = if name.contains("bytes") { Unit::Bytes } else { Unit::Count };
        if name.ends_with("_total") {
            describe_counter!(name, unit, meaning);
        } else if name.ends_with("_seconds") {
            describe_histogram!(name, Unit::Seconds, meaning);
        } else {
            describe_gauge!(name, unit, meaning);
        }
    }
}

/// The document has the table of all names. `WRITE_NAMES=1` writes it anew.
#[test]
fn the_document_has_the_table_of_all_names() {
    const HEAD: &str = "| counter | meaning |";
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operating.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let rows = all().map(|(name, meaning)| format!("| `{name}` | {meaning} |"));
    let table: Vec<String> = [HEAD, "|---|---|"].map(str::to_owned).into_iter().chain(rows).collect();
    let mut lines: Vec<String> = document.lines().map(str::to_owned).collect();
    let begin = lines.iter().position(|line| line == HEAD).expect("the head of the table");
    let end = begin + lines[begin..].iter().position(|line| !line.starts_with('|')).unwrap();
    if std::env::var_os("WRITE_NAMES").is_some() {
        lines.splice(begin..end, table);
        return std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    }
    assert_eq!(lines[begin..end], table, "WRITE_NAMES=1 writes the table anew");
}
