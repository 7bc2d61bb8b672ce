//! A writer of Chrome's trace event format, which `chrome://tracing` and Perfetto open directly.
//!
//! **Why.** The simulator and real endpoints draw different rows, and a reader must not care. So
//! the format is written here, once. This writer knows events and nothing of what they mean.
//!
//! **Layout.** One JSON document: `displayTimeUnit`, `otherData`, and the array `traceEvents`.
//! Times are in µs with three decimals, which are nanoseconds. A row is a process and a thread:
//!
//! | method | phases | for |
//! |---|---|---|
//! | [`ChromeWriter::process`], [`ChromeWriter::row`] | `M` | names; the order of rows is that of their numbers |
//! | [`ChromeWriter::span`] | `X` | spans that nest or follow each other in their row |
//! | [`ChromeWriter::overlapping`] | `b`, `e` | spans that overlap |
//! | [`ChromeWriter::instant`] | `i` | a point in time |
//! | [`ChromeWriter::counter`] | `C` | a number that changes |
//! | [`ChromeWriter::arrow_from`], [`ChromeWriter::arrow_to`] | `s`, `f` | the ends of an arrow, each within a span of its row |
//!
//! **Source.** "Trace Event Format", Google.
//!
//! **Tests.** Below, `timeline/trace.rs`, and `bmi-sim/tests/it/simulator/timeline.rs`.

use std::fmt;
use std::io::{self, BufWriter, Write};

/// A row: a thread of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The number of the process.
    pub process: u32,
    /// The number of the row in it, which is its position too.
    pub number: u32,
}

/// The value of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arg<'a> {
    /// A number. Readers lose digits beyond 2^53.
    Number(i128),
    /// A text. It is escaped.
    Text(&'a str),
}

/// Named arguments. The names are not escaped.
pub type Args<'a> = &'a [(&'a str, Arg<'a>)];

/// Writes one document. The order of events is free, except that a process is named before its
/// events.
pub struct ChromeWriter<W: Write> {
    out: BufWriter<W>,
    separator: &'static str,
}

/// Nanoseconds, displayed as the format's microseconds.
struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000, self.0 % 1_000)
    }
}

/// A text, displayed as it stands between quotes.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c.is_control() => f.write_char(' ')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Arguments, displayed as an object.
struct Object<'a>(Args<'a>);

impl fmt::Display for Object<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (at, (name, value)) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "," };
            match value {
                Arg::Number(number) => write!(f, "{separator}\"{name}\":{number}")?,
                Arg::Text(text) => write!(f, "{separator}\"{name}\":\"{}\"", Escaped(text))?,
            }
        }
        f.write_str("}")
    }
}

impl<W: Write> ChromeWriter<W> {
    /// Begins a document. `other` is shown with it.
    ///
    /// # Errors
    /// Those of `out`, as in all methods.
    pub fn begin(out: W, other: Args<'_>) -> io::Result<ChromeWriter<W>> {
        let mut out = BufWriter::new(out);
        write!(out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{},\"traceEvents\":[", Object(other))?;
        Ok(ChromeWriter { out, separator: "" })
    }

    /// Writes the fields of one event, without braces.
    fn event(&mut self, fields: fmt::Arguments<'_>) -> io::Result<()> {
        let separator = std::mem::replace(&mut self.separator, ",");
        write!(self.out, "{separator}\n{{{fields}}}")
    }

    /// Names a process.
    ///
    /// # Errors
    /// Those of the output.
    pub fn process(&mut self, process: u32, name: &str) -> io::Result<()> {
        let name = Escaped(name);
        self.event(format_args!(
            "\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{process},\"args\":{{\"name\":\"{name}\"}}"
        ))
    }

    /// Names a row, and sets its position. Counters and overlapping spans need no name: they have
    /// rows of their own.
    ///
    /// # Errors
    /// Those of the output.
    pub fn row(&mut self, Row { process, number }: Row, name: &str) -> io::Result<()> {
        let at = format_args!("\"pid\":{process},\"tid\":{number}").to_string();
        let name = Escaped(name);
        self.event(format_args!("\"ph\":\"M\",\"name\":\"thread_name\",{at},\"args\":{{\"name\":\"{name}\"}}"))?;
        self.event(format_args!(
            "\"ph\":\"M\",\"name\":\"thread_sort_index\",{at},\"args\":{{\"sort_index\":{number}}}"
        ))
    }

    /// Writes a span from `start` to `end`, both in nanoseconds as all times.
    ///
    /// # Errors
    /// Those of the output.
    pub fn span(&mut self, row: Row, name: &str, (start, end): (u64, u64), args: Args<'_>) -> io::Result<()> {
        let (at, long) = (At { row, name, time: start }, Micros(end.saturating_sub(start)));
        self.event(format_args!("\"ph\":\"X\",\"cat\":\"work\",{at},\"dur\":{long},\"args\":{}", Object(args)))
    }

    /// Writes a span that may overlap others of its `category`. All with one `name` share rows.
    /// Their `id` is unique in the category.
    ///
    /// # Errors
    /// Those of the output.
    pub fn overlapping(
        &mut self,
        row: Row,
        (category, id): (&str, u64),
        name: &str,
        (start, end): (u64, u64),
        args: Args<'_>,
    ) -> io::Result<()> {
        let (from, to) = (At { row, name, time: start }, At { row, name, time: end.max(start) });
        let tie = format!("\"cat\":\"{category}\",\"id\":{id}");
        self.event(format_args!("\"ph\":\"b\",{tie},{from},\"args\":{}", Object(args)))?;
        self.event(format_args!("\"ph\":\"e\",{tie},{to}"))
    }

    /// Writes a point in time.
    ///
    /// # Errors
    /// Those of the output.
    pub fn instant(&mut self, row: Row, name: &str, time: u64, args: Args<'_>) -> io::Result<()> {
        let at = At { row, name, time };
        self.event(format_args!("\"ph\":\"i\",\"s\":\"t\",\"cat\":\"work\",{at},\"args\":{}", Object(args)))
    }

    /// Writes the value of a counter from `time` on.
    ///
    /// # Errors
    /// Those of the output.
    pub fn counter(&mut self, row: Row, name: &str, time: u64, args: Args<'_>) -> io::Result<()> {
        let at = At { row, name, time };
        self.event(format_args!("\"ph\":\"C\",{at},\"args\":{}", Object(args)))
    }

    /// Writes the beginning of an arrow, in the span of the row at this time.
    ///
    /// # Errors
    /// Those of the output.
    pub fn arrow_from(&mut self, row: Row, id: u64, time: u64) -> io::Result<()> {
        let at = At { row, name: "message", time };
        self.event(format_args!("\"ph\":\"s\",\"cat\":\"flow\",\"id\":{id},{at}"))
    }

    /// Writes the end of an arrow, in the span of the row at this time.
    ///
    /// # Errors
    /// Those of the output.
    pub fn arrow_to(&mut self, row: Row, id: u64, time: u64) -> io::Result<()> {
        let at = At { row, name: "message", time };
        self.event(format_args!("\"ph\":\"f\",\"bp\":\"e\",\"cat\":\"flow\",\"id\":{id},{at}"))
    }

    /// Ends the document.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<()> {
        writeln!(self.out, "\n]}}")?;
        self.out.flush()
    }
}

/// Name, place and time of an event, displayed as fields.
struct At<'a> {
    row: Row,
    name: &'a str,
    time: u64,
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let At { row: Row { process, number }, name, time } = *self;
        let (name, ts) = (Escaped(name), Micros(time));
        write!(f, "\"name\":\"{name}\",\"pid\":{process},\"tid\":{number},\"ts\":{ts}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_json_whatever_the_texts_are() {
        let mut text = Vec::new();
        let row = Row { process: 1, number: 2 };
        let mut chrome = ChromeWriter::begin(&mut text, &[("lost", Arg::Number(-3))]).unwrap();
        chrome.process(1, "a \"quoted\\ name\n").unwrap();
        chrome.row(row, "row\u{1}").unwrap();
        chrome.span(row, "s\"", (1_001, 2_500), &[("what", Arg::Text("\\")), ("n", Arg::Number(7))]).unwrap();
        chrome.overlapping(row, ("units", 4), "u", (5, 3), &[]).unwrap();
        chrome.arrow_from(row, 9, 1_001).unwrap();
        chrome.finish().unwrap();
        let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(json["otherData"]["lost"], -3);
        let events = json["traceEvents"].as_array().unwrap();
        assert_eq!(events[0]["args"]["name"], "a \"quoted\\ name ");
        let span = &events[3];
        assert_eq!((span["name"].as_str(), span["args"]["what"].as_str()), (Some("s\""), Some("\\")));
        assert_eq!((span["ts"].as_f64(), span["dur"].as_f64()), (Some(1.001), Some(1.499)));
        assert_eq!(events[4]["ts"], events[5]["ts"], "no span ends before it begins");
        assert_eq!((events[6]["ph"].as_str(), events[6]["id"].as_u64()), (Some("s"), Some(9)));
    }
}
