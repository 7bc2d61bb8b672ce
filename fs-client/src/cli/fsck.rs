//! The commands `fsck` and `scrub`.
//!
//! ```text
//! lost: /data/a.bin: data:1000000e100 at tcp://10.0.0.2:7001 (iod 0): data:1000000e100 does not exist
//! unowned: data:1000000e1ff at tcp://10.0.0.2:7001 (iod 0): 4096 bytes that belong to no file
//!     repair: it becomes /lost+found/iod0-000001000000e1ff
//! checked 210 files, 12 directories, 2248 datafiles: 2 findings, 1 of which --repair can mend
//! ```

use std::cell::Cell;
use std::io::Write;

use indicatif::HumanBytes;
use serde_json::{Value, json};

use super::output::Output;
use crate::program::{Stop, printable};
use crate::{Client, Error, Finding, Report, ScrubOptions, ScrubReport, ServerName};

/// What is to be done with the findings.
pub(crate) struct How {
    pub(crate) repair: bool,
    pub(crate) yes: bool,
}

pub(crate) async fn fsck(client: &Client, how: How, output: &mut Output) -> Result<(), Stop> {
    let space = client.statfs().await?;
    let datafiles: u64 =
        space.servers.iter().filter_map(|server| server.result.as_ref().ok()).map(|s| s.datafiles).sum();
    // Each file has an object and a name, and a datafile is listed and asked for its size.
    let bar = output.steps(2 * (space.manager.files + space.manager.dirs) + 2 * datafiles);
    let report = client.check(|count| bar.inc(count)).await?;
    bar.finish_and_clear();
    show(&report, output);
    let mut repaired = Vec::new();
    if how.repair && report.repairable().next().is_some() {
        output.print()?;
        if how.yes || agrees()? {
            let result = client.repair(&report, |finding, result| match result {
                Ok(()) => repaired.push(finding.to_string()),
                Err(error) => output.failure(format!("{finding}: {error}")),
            });
            let result = result.await;
            output.summary(format!("repaired {} of {}", repaired.len(), report.repairable().count()));
            result.unwrap_or_else(|error| output.failure(error));
        } else {
            output.summary("nothing was changed");
        }
    }
    output.field("repaired", json!(repaired));
    Ok(())
}

fn show(report: &Report, output: &mut Output) {
    for finding in &report.findings {
        output.line(printable(finding));
        if let Some(remedy) = &finding.remedy {
            output.line(printable(format!("    repair: {remedy}")));
        }
    }
    let Report { findings, unchecked, files, dirs, datafiles, empty, .. } = report;
    tell_unchecked(unchecked, output);
    if *empty > 0 {
        output.summary(format!("{empty} empty datafiles belong to no file, which is harmless"));
    }
    let result = match (findings.len(), report.repairable().count()) {
        (0, _) if unchecked.is_empty() => "nothing is wrong".to_owned(),
        (0, _) => "nothing is wrong, as far as it was checked".to_owned(),
        (found, 0) => format!("{found} findings"),
        (found, repairable) => format!("{found} findings, {repairable} of which --repair can mend"),
    };
    output.summary(format!("checked {files} files, {dirs} directories, {datafiles} datafiles: {result}"));
    output.found(findings.len());
    output.field("findings", findings.iter().map(document).collect());
    for (name, value) in [("files", files), ("directories", dirs), ("datafiles", datafiles), ("empty_datafiles", empty)]
    {
        output.field(name, json!(value));
    }
}

fn document(finding: &Finding) -> Value {
    let Finding { kind, path, datafile, text, remedy, .. } = finding;
    let (server, datafile) =
        datafile.as_ref().map(|(server, datafile)| (server.to_string(), datafile.to_string())).unzip();
    json!({ "kind": kind, "path": path, "server": server, "datafile": datafile, "text": text, "repair": remedy })
}

pub(crate) async fn scrub(client: &Client, options: ScrubOptions, output: &mut Output) -> Result<(), Stop> {
    let space = client.statfs().await?;
    let is_asked = |iod: Option<u32>| options.server.is_none() || iod == options.server;
    let asked = space.servers.iter().filter(|server| is_asked(server.server.iod));
    let bar = output.steps(asked.filter_map(|server| server.result.as_ref().ok()).map(|s| s.datafiles).sum());
    let total = Cell::new(0);
    let report = client.scrub(options, |datafiles, bytes| {
        total.set(total.get() + bytes);
        bar.inc(datafiles);
        bar.set_message(HumanBytes(total.get()).to_string());
    });
    let report = report.await?;
    bar.finish_and_clear();
    let ScrubReport { findings, unchecked, datafiles, summed, read } = &report;
    findings.iter().for_each(|finding| output.line(printable(finding)));
    tell_unchecked(unchecked, output);
    let result = match findings.len() {
        0 => "no damage".to_owned(),
        found => format!("{found} findings"),
    };
    output.summary(format!("compared {} of {summed} datafiles: {result}", HumanBytes(*read)));
    output.found(findings.len());
    output.field("findings", findings.iter().map(document).collect());
    for (name, value) in [("datafiles", datafiles), ("datafiles_with_checksums", summed), ("bytes", read)] {
        output.field(name, json!(value));
    }
    Ok(())
}

/// Tells which servers were not asked, or not to the end.
fn tell_unchecked(unchecked: &[(ServerName, Error)], output: &mut Output) {
    for (server, error) in unchecked {
        output.failure(format!("{server} was not checked: {error}"));
    }
    let unchecked =
        unchecked.iter().map(|(server, error)| json!({ "server": server.to_string(), "error": error.to_string() }));
    output.field("unchecked", unchecked.collect());
}

/// Asks the user. The end of the input is a no.
fn agrees() -> Result<bool, Stop> {
    eprint!("repair this? [y/N] ");
    let failed = |error| Stop::failed(format!("standard input: {error}"));
    std::io::stderr().flush().map_err(failed)?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(failed)?;
    Ok(matches!(line.trim(), "y" | "yes"))
}
