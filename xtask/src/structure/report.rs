//! What was measured, as a table for people and as JSON for programs.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde::Serialize;

use super::Surroundings;
use super::calls::{self, Call};
use super::definitions::Definitions;
use super::graph::Graph;
use super::names::Names;
use super::source::Source;

/// The measures of a directory.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    directory: String,
    totals: Totals,
    /// The measures of one type.
    #[serde(rename = "type")]
    of_type: TypeReport,
    files: Vec<FileReport>,
    edges: Vec<Edge>,
    /// Calls that may be from file to file.
    ambiguous: Vec<AmbiguousReport>,
    /// The cycles, the largest first.
    cycles: Vec<Cycle>,
}

#[derive(Debug, Serialize)]
struct Totals {
    files: usize,
    /// Lines outside of tests.
    lines: usize,
    /// Those of them that are neither empty nor a comment.
    code: usize,
    /// Functions and methods.
    functions: usize,
    expects: usize,
    /// Pairs of files of which the first calls the second.
    edges: usize,
    /// Calls from file to file.
    calls: usize,
    /// Calls of methods that may be such, and that were not counted.
    ambiguous: usize,
    /// Number of files in the largest cycle; 0 without a cycle.
    longest_cycle: usize,
}

#[derive(Debug, Serialize)]
struct TypeReport {
    name: String,
    /// `None` if the directory has no structure of this name.
    fields: Option<usize>,
    methods: usize,
    /// Files with an `impl`.
    files: usize,
}

#[derive(Debug, Serialize)]
struct FileReport {
    path: String,
    lines: usize,
    code: usize,
    functions: usize,
    /// Methods of the measured type.
    methods: usize,
    expects: usize,
    /// Number of files that this one calls.
    calls: usize,
    /// Number of files that call this one.
    called_by: usize,
    /// The number of its cycle, from 1.
    cycle: Option<usize>,
}

/// The calls from a file to another one.
#[derive(Clone, Debug, Serialize)]
struct Edge {
    from: String,
    to: String,
    calls: Vec<CallReport>,
}

#[derive(Clone, Debug, Serialize)]
struct CallReport {
    caller: String,
    callee: String,
    line: usize,
}

#[derive(Debug, Serialize)]
struct AmbiguousReport {
    from: String,
    line: usize,
    name: String,
}

#[derive(Debug, Serialize)]
struct Cycle {
    files: Vec<String>,
    /// Calls that lead through files of the cycle and back.
    round: Vec<Edge>,
    /// The edges without which the cycle would be the smallest.
    weakest: Vec<Weak>,
}

#[derive(Debug, Serialize)]
struct Weak {
    edge: Edge,
    /// Number of files in the largest cycle that is left.
    left: usize,
}

/// The number of edges that are proposed to be removed from a cycle.
const PROPOSALS: usize = 3;

impl Report {
    /// Measures the files of a directory.
    pub(super) fn new(directory: &str, sources: &[Source], around: Surroundings, of_type: &str) -> Report {
        let names = Names::new(sources, around.place);
        let definitions = Definitions::new(sources, &names);
        let found = calls::find(sources, &names, &definitions, &around.outside);
        let (expects, ambiguous) = (found.expects, found.ambiguous);
        let graph = Graph::new(sources.len(), found.calls);
        let cycles = graph.cycles();
        let methods = definitions.implementations.get(of_type).cloned().unwrap_or_default();
        let file = |(number, source): (usize, &Source)| FileReport {
            path: source.path.clone(),
            lines: source.lines,
            code: source.code,
            functions: definitions.counts[number],
            methods: methods.get(&number).copied().unwrap_or(0),
            expects: expects[number],
            calls: graph.edges.keys().filter(|(from, _)| *from == number).count(),
            called_by: graph.edges.keys().filter(|(_, to)| *to == number).count(),
            cycle: cycles.iter().position(|cycle| cycle.contains(&number)).map(|at| at + 1),
        };
        let files: Vec<FileReport> = sources.iter().enumerate().map(file).collect();
        let totals = Totals {
            files: files.len(),
            lines: files.iter().map(|file| file.lines).sum(),
            code: files.iter().map(|file| file.code).sum(),
            functions: definitions.counts.iter().sum(),
            expects: expects.iter().sum(),
            edges: graph.edges.len(),
            calls: graph.calls(),
            ambiguous: ambiguous.len(),
            longest_cycle: cycles.first().map_or(0, BTreeSet::len),
        };
        let of_type = TypeReport {
            name: of_type.to_owned(),
            fields: definitions.field_count(of_type),
            methods: methods.values().sum(),
            files: methods.len(),
        };
        let ambiguous = ambiguous.into_iter().map(|call| AmbiguousReport {
            from: sources[call.from].path.clone(),
            line: call.line,
            name: call.name,
        });
        let ambiguous = ambiguous.collect();
        let edges = graph.edges.keys().map(|edge| edge_report(sources, &graph, *edge)).collect();
        let cycles = cycles.iter().map(|cycle| cycle_report(sources, &graph, cycle)).collect();
        Report { directory: directory.to_owned(), totals, of_type, files, edges, ambiguous, cycles }
    }

    /// Returns the number of files in the largest cycle; 0 without a cycle.
    pub(super) fn longest_cycle(&self) -> usize {
        self.totals.longest_cycle
    }

    /// Formats the measures of the files as a table.
    pub(super) fn table(&self) -> String {
        let width = self.files.iter().map(|file| file.path.len()).max().unwrap_or(0).max("file".len());
        let methods = format!("of {}", self.of_type.name);
        let wide = methods.len().max(5);
        let mut text = format!(
            "{:<width$}  lines   code  functions  {methods:>wide$}  expects  calls  called by  cycle\n",
            "file"
        );
        for file in &self.files {
            let cycle = file.cycle.map_or("-".to_owned(), |number| number.to_string());
            let _ = writeln!(
                text,
                "{:<width$}  {:>5}  {:>5}  {:>9}  {:>wide$}  {:>7}  {:>5}  {:>9}  {cycle:>5}",
                file.path,
                file.lines,
                file.code,
                file.functions,
                file.methods,
                file.expects,
                file.calls,
                file.called_by
            );
        }
        text
    }

    /// Formats the sums.
    pub(super) fn summary(&self) -> String {
        let (totals, of) = (&self.totals, &self.of_type);
        let fields =
            of.fields.map_or("no fields, as it is not defined here".to_owned(), |count| count_of(count, "field"));
        let cycle = match self.cycles.first() {
            Some(cycle) => format!("{}: {}", count_of(cycle.files.len(), "file"), cycle.files.join(", ")),
            None => "none".to_owned(),
        };
        let rows = [
            (self.directory.as_str(), count_of(totals.files, "file")),
            ("lines", format!("{} outside of tests, {} of them code", totals.lines, totals.code)),
            ("functions", totals.functions.to_string()),
            (&of.name, format!("{fields}, {} in {}", count_of(of.methods, "method"), count_of(of.files, "file"))),
            ("expect", count_of(totals.expects, "call")),
            (
                "calls",
                format!(
                    "{} from file to file, in {}; {} of methods are ambiguous and do not count",
                    totals.calls,
                    count_of(totals.edges, "pair"),
                    totals.ambiguous
                ),
            ),
            ("longest cycle", cycle),
        ];
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        rows.map(|(name, text)| format!("{name:<width$}  {text}\n")).concat()
    }

    /// Formats the calls from file to file, each with its functions, and the ambiguous ones.
    pub(super) fn edges(&self) -> String {
        let mut text = String::new();
        for edge in &self.edges {
            let _ = writeln!(text, "{} -> {}: {}", edge.from, edge.to, count_of(edge.calls.len(), "call"));
            for call in &edge.calls {
                let _ = writeln!(text, "    {}:{} {} -> {}", edge.from, call.line, call.caller, call.callee);
            }
        }
        let _ = writeln!(text, "ambiguous: {}", count_of(self.ambiguous.len(), "call"));
        for call in &self.ambiguous {
            let _ = writeln!(text, "    {}:{} {}", call.from, call.line, call.name);
        }
        text
    }

    /// Returns what is wrong with the first cycle of more than `most` files, and what to do about
    /// it. Returns `None` if there is no such cycle.
    pub(super) fn complaint(&self, most: usize) -> Option<String> {
        let cycle = self.cycles.first().filter(|cycle| cycle.files.len() > most)?;
        let mut text = format!(
            "{} of {} call each other in a cycle, at most {most} may: {}\n",
            count_of(cycle.files.len(), "file"),
            self.directory,
            cycle.files.join(", ")
        );
        let _ = writeln!(text, "One round of these calls:\n  {}", path(&cycle.round));
        if !cycle.weakest.is_empty() {
            text += "Any one of these, removed, makes the cycle smaller:\n";
        }
        for weak in &cycle.weakest {
            let largest = if weak.left < 2 { "no cycle".to_owned() } else { format!("a cycle of {} files", weak.left) };
            let calls = count_of(weak.edge.calls.len(), "call");
            let _ = writeln!(text, "  {}: {calls}, then {largest} is left", path(std::slice::from_ref(&weak.edge)));
        }
        text += "Turn a call that goes up the layers around: return to the caller what is to be done, put it into a\n\
                 queue that the caller drains, or move what both files need into a file below them.\n\
                 cargo xtask structure --edges lists every call.\n";
        Some(text)
    }
}

/// Formats a path of calls, each with the first of its functions: `a.rs:f -> b.rs:g, b.rs:h -> …`.
fn path(edges: &[Edge]) -> String {
    let steps = edges.iter().map(|edge| {
        let names = edge.calls.first().map_or(("", ""), |call| (call.caller.as_str(), call.callee.as_str()));
        format!("{}:{} -> {}:{}", edge.from, names.0, edge.to, names.1)
    });
    steps.collect::<Vec<_>>().join("\n  ")
}

/// Formats a number of things.
fn count_of(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn edge_report(sources: &[Source], graph: &Graph, edge: (usize, usize)) -> Edge {
    let call = |call: &Call| CallReport { caller: call.caller.clone(), callee: call.to.name.clone(), line: call.line };
    let calls = graph.edges.get(&edge).map(|calls| calls.iter().map(call).collect()).unwrap_or_default();
    Edge { from: sources[edge.0].path.clone(), to: sources[edge.1].path.clone(), calls }
}

fn cycle_report(sources: &[Source], graph: &Graph, cycle: &BTreeSet<usize>) -> Cycle {
    let weakest = graph.weakest(cycle).into_iter().take(PROPOSALS);
    Cycle {
        files: cycle.iter().map(|&file| sources[file].path.clone()).collect(),
        round: graph.round(cycle).into_iter().map(|edge| edge_report(sources, graph, edge)).collect(),
        weakest: weakest.map(|(edge, left)| Weak { edge: edge_report(sources, graph, edge), left }).collect(),
    }
}
