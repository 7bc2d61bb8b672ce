//! `viewdist`: which server holds which ranges of a file, as a picture and as JSON.
//!
//! ```text
//! /data/a: 400000 bytes, strips of 64K on 4 servers
//!                A: tcp://…:7001 (iod 0)   B: …
//!          0  A  B  C  D
//!     262144  A  B  c
//! ```
//!
//! Each line is one stripe. A lower-case letter is a strip that is not full.

use std::fmt::Display;

use crate::{Client, Distribution, FsPath, Region};
use serde_json::{Value, json};

use super::args::LayoutArgs;
use super::output::Output;
use super::size;
use crate::program::{Stop, printable};

/// Most strips listed in JSON. The totals are always complete.
const MOST_STRIPS: usize = 4096;

struct Server {
    name: String,
    bytes: u64,
}

pub(crate) async fn file(client: &Client, path: &FsPath, rows: u64, output: &mut Output) -> Result<(), Stop> {
    let stat = client.stat(path).await?;
    let Some(distribution) = stat.distribution else {
        return Err(Stop::failed(format!("viewdist {path}: is no file; only files are striped")));
    };
    let server = |datafile: &crate::Datafile| Server { name: datafile.server.to_string(), bytes: datafile.size };
    let servers: Vec<Server> = stat.datafiles.iter().map(server).collect();
    draw(path, stat.attr.size, &distribution, &servers, rows, output)
}

/// Draws an imaginary file.
pub(crate) fn imagined(file_size: u64, layout: &LayoutArgs, rows: u64, output: &mut Output) -> Result<(), Stop> {
    let strip = layout.strip_size.map_or(fs_proto::limits::DEFAULT_STRIP, u64::from);
    let count = layout.servers.unwrap_or(4);
    let distribution = Distribution::simple_stripe(strip, count).map_err(|error| Stop::usage(error.to_string()))?;
    if file_size > fs_proto::limits::MAX_OFFSET {
        return Err(Stop::usage(format!("a file has at most {} bytes", fs_proto::limits::MAX_OFFSET)));
    }
    let bytes = |index: usize| distribution.datafile_size(index, file_size);
    let server = |index: usize| Server { name: format!("iod {index}"), bytes: bytes(index) };
    let servers: Vec<Server> = (0..count as usize).map(server).collect();
    draw("(not stored)", file_size, &distribution, &servers, rows, output)
}

fn draw(
    name: impl Display,
    file_size: u64,
    distribution: &Distribution,
    servers: &[Server],
    rows: u64,
    output: &mut Output,
) -> Result<(), Stop> {
    let strip_size = distribution.strip_size();
    let strip = size::show_exact(strip_size);
    output.line(format!("{}: {file_size} bytes, strips of {strip} on {} servers", printable(&name), servers.len()));
    for (index, server) in servers.iter().enumerate() {
        output.line(format!("  {}  {}, {} bytes", label(index), server.name, server.bytes));
    }
    let stripe = strip_size * servers.len() as u64;
    let stripes = file_size.div_ceil(stripe);
    for row in 0..stripes.min(rows) {
        let region = Region::new(row * stripe, stripe.min(file_size - row * stripe));
        let cells: Vec<String> = distribution
            .strips(region)
            .map(|strip| {
                let label = label(strip.at.server);
                if strip.len < strip_size { label.to_lowercase() } else { label }
            })
            .collect();
        output.line(format!("{:>14}  {}", row * stripe, cells.join(" ")));
    }
    if stripes > rows {
        output.line(format!("{:>14}  and {} stripes more", "…", stripes - rows));
    }
    let ranges = |strip: fs_proto::Strip| json!({ "offset": strip.logical, "len": strip.len, "server": strip.at.server, "physical": strip.at.physical });
    let strips: Vec<Value> = distribution.strips(Region::new(0, file_size)).take(MOST_STRIPS).map(ranges).collect();
    let named: Vec<Value> =
        servers.iter().map(|server| json!({ "server": server.name, "bytes": server.bytes })).collect();
    output.fields(&json!({
        "name": name.to_string(), "size": file_size, "strip_size": strip_size, "servers": named, "strips": strips,
        "strips_total": file_size.div_ceil(strip_size),
    }))
}

/// Returns the label of a server: `A` to `Z`, then `A1`, …
fn label(index: usize) -> String {
    let letter = char::from(b'A' + (index % 26) as u8);
    match index / 26 {
        0 => letter.to_string(),
        round => format!("{letter}{round}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_distinct() {
        let labels: std::collections::BTreeSet<_> = (0..256).map(label).collect();
        assert_eq!(labels.len(), 256);
        assert_eq!((label(0), label(25), label(26)), ("A".into(), "Z".into(), "A1".into()));
    }
}
