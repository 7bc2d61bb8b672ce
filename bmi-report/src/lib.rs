//! Results of benchmarks: what was measured in each round, what follows from it, and how people
//! look at it.
//!
//! **Why.** Every benchmark of this project has to answer the same questions: how wide is the
//! interval, does A differ from B, did a change make something slower. This crate answers them
//! once. It knows no transport and times nothing.
//!
//! | module | what is there |
//! |---|---|
//! | [`report`] | a [`Report`]: hosts, rows, rounds, plans; its JSON |
//! | [`host`] | what this host is: processors, kernel, link, devices |
//! | [`histogram`] | latencies with three digits, from nanoseconds to an hour |
//! | [`stats`] | medians and ratios with bootstrap intervals, warm-up, when to stop |
//! | [`groups`] | rows side by side: ratios and verdicts |
//! | [`answer`] | the answer in sentences |
//! | [`text`], [`csv`] | a report as tables for a terminal, and for a spreadsheet |
//! | [`html`] | a report as one page with pictures |
//! | [`mod@compare`] | two reports compared, and a rule by which that fails |
//! | [`figures`] | the figures that documents quote |
//! | `output` (feature `clap`) | where a report goes, as options of a program |
//! | [`units`], [`table`] | figures and tables for people |

pub mod answer;
pub mod compare;
pub mod csv;
pub mod figures;
pub mod groups;
pub mod histogram;
pub mod host;
pub mod html;
#[cfg(feature = "clap")]
pub mod output;
pub mod report;
pub mod stats;
pub mod table;
pub mod text;
pub mod units;

pub use compare::{Comparison, FailIf, compare};
pub use figures::Figures;
pub use histogram::Histogram;
pub use report::{Cost, Host, Kind, Plan, Report, Row, Step, Unit};
