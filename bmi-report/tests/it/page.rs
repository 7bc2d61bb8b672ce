//! Facts that hold for the page, the tables and the CSV of a report, whatever they look like.

#[path = "../../examples/sample/mod.rs"]
mod sample;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bmi_report::compare::Change;
use bmi_report::{Cost, Histogram, Host, Kind, Plan, Report, Row, Step, Unit, compare, csv, html, text};
use serde_json::json;

/// Elements without an end.
const VOID: [&str; 1] = ["meta"];
/// Text that would run if a page contained it as it is.
const HOSTILE: &str = "</script></style></title>\"'><script>alert(1)</script><img src=x onerror=alert(1)>&";

/// The sample, and its page and tables, which many tests look at.
static SAMPLE: LazyLock<Report> = LazyLock::new(sample::report);
static PAGE: LazyLock<String> = LazyLock::new(|| html::render(&SAMPLE));
static TEXT: LazyLock<String> = LazyLock::new(|| text::render(&SAMPLE));

/// Returns the tags of a page in order, without those in scripts, styles and comments.
fn tags(page: &str) -> Vec<&str> {
    let (mut tags, mut rest) = (Vec::new(), page);
    while let Some(begin) = rest.find('<') {
        let end = begin + rest[begin..].find('>').expect("each tag ends");
        let tag = &rest[begin + 1..end];
        rest = &rest[end + 1..];
        tags.push(tag);
        for raw in ["script", "style"] {
            if tag.split(' ').next() == Some(raw) {
                rest = &rest[rest.find(&format!("</{raw}>")).expect("it ends")..];
            }
        }
    }
    tags
}

fn assert_balanced(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    for tag in tags(page) {
        let name = tag.split([' ', '\n']).next().unwrap_or_default();
        if let Some(name) = name.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "inside of {open:?}");
        } else if !tag.ends_with('/') && !VOID.contains(&name) && !tag.starts_with('!') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

/// A report in which all texts are hostile.
fn hostile() -> Report {
    let h = || HOSTILE.to_owned();
    let row = |over: &str, kind, path: Option<&str>| Row {
        test: h(),
        over: over.to_owned() + HOSTILE,
        kind,
        size: Some(8),
        setup: BTreeMap::from([(path.unwrap_or(HOSTILE).to_owned(), h()), ("rate".into(), "7".into())]),
        rounds: (0..8).map(|round| Step { round, value: f64::from(round + 1) }).collect(),
        histogram: Some(Histogram::new()),
        cost: BTreeMap::from([(h(), Cost { cpu: 1.0, switches: 1.0, calls: None })]),
        stages: vec![(h(), 1.0), ("b".into(), 1.0)],
        notes: vec![h()],
        ..Row::default()
    };
    let mut rows = vec![row("a", Kind::Library, None), row("b", Kind::Library, None), row("c", Kind::Baseline, None)];
    rows.push(row("d", Kind::Model, Some("path")));
    let mut by_size = row("a", Kind::Library, None);
    by_size.setup = BTreeMap::from([("s".into(), h())]);
    rows.extend([Row { over: h(), ..by_size.clone() }, by_size]);
    Report {
        interrupted: Some(h()),
        command: vec![h()],
        hosts: vec![Host { role: h(), name: h(), facts: vec![(h(), h())] }],
        rows,
        plans: vec![Plan { over: h(), direction: h(), size: 8, path: h(), why: h() }],
        notes: vec![h()],
        timeline: Some(json!([{"ph": "X", "name": HOSTILE, "args": {HOSTILE: HOSTILE}}])),
        ..Report::new(HOSTILE, HOSTILE)
    }
}

#[test]
fn a_page_is_whole_and_loads_nothing() {
    let page = &*PAGE;
    assert_balanced(page);
    for load in ["http:", "https:", "src=", "@import", "url(", "<link", "<img", "<iframe", "fetch(", "import("] {
        assert!(!page.contains(load), "{load}");
    }
    // What is called http is the policy that forbids loads.
    assert_eq!(page.matches("http").count(), page.matches("http-equiv=\"Content-Security-Policy\"").count());
    for id in [
        "speed",
        "ratios",
        "processor",
        "percentiles",
        "rate",
        "paths",
        "plan",
        "stages",
        "timeline",
        "figures",
        "hosts",
        "repeat",
        "words",
    ] {
        assert_eq!(page.matches(&format!("<section id=\"{id}\">")).count(), 1, "{id}");
        assert!(page.contains(&format!("<a href=\"#{id}\">")), "{id}");
    }
    assert!(!page.contains("NaN") && !page.contains("inf "));
}

#[test]
fn no_text_of_a_report_becomes_markup() {
    let report = hostile();
    let page = html::render(&report);
    assert_balanced(&page);
    let scripts = |page: &str| page.matches("<script").count();
    assert_eq!(scripts(&page), scripts(&PAGE));
    assert!(!page.contains("<img") && !page.contains("<script>alert"));
    // An attribute that a text could end would make one of its words an attribute.
    for tag in tags(&page) {
        let outside: String = tag.split('"').step_by(2).collect();
        assert!(!outside.contains("alert") && !outside.contains("onerror"), "{tag}");
    }
    // Each kind of text was in the page, else nothing is tested.
    for id in
        ["speed", "ratios", "processor", "rate", "paths", "plan", "stages", "timeline", "figures", "notes", "hosts"]
    {
        assert!(page.contains(&format!("<section id=\"{id}\">")), "{id}");
    }
}

#[test]
fn the_page_of_a_comparison_is_whole_and_shows_every_row() {
    let a = &*SAMPLE;
    let mut b = a.clone();
    let factor = |number: usize| [1.0, 1.3, 0.7][number % 3];
    for (number, row) in b.rows.iter_mut().enumerate() {
        row.rounds.iter_mut().for_each(|step| step.value *= factor(number));
    }
    b.rows.pop();
    let comparison = compare(a, &b);
    let page = html::render_comparison(&comparison);
    assert_balanced(&page);
    assert_eq!(page.matches("http").count(), page.matches("http-equiv=\"Content-Security-Policy\"").count());
    assert_eq!(page.matches("<tr><td>").count(), a.rows.len());
    let with_ratio = comparison.rows.iter().filter(|line| line.ratio.is_some()).count();
    assert_eq!(page.matches("class=\"band\"").count(), with_ratio);
    assert!(page.contains("<section id=\"slower\">") && page.contains("<section id=\"faster\">"));
    assert!(page.contains("Only in A (1)") && !page.contains("NaN"));
    // The worst is the first one.
    let slower = page.split("<section id=\"slower\">").nth(1).unwrap();
    let first: Vec<&str> = slower.split("× ").skip(1).map(|part| part.split('<').next().unwrap()).collect();
    let count = comparison.count(Change::Slower);
    assert!(count > 3 && first[..count].is_sorted_by(|a, b| a >= b), "{first:?}");

    let page = html::render_comparison(&compare(&hostile(), &hostile()));
    assert_balanced(&page);
    assert!(!page.contains("<img") && !page.contains("<script>alert"));
    let nothing = html::render_comparison(&compare(&Report::new("", ""), &Report::new("", "")));
    assert_balanced(&nothing);
    assert!(nothing.contains("Nothing can be compared"));
}

#[test]
fn every_row_is_in_every_form() {
    let report = &*SAMPLE;
    let figures = PAGE.split("<section id=\"figures\">").nth(1).unwrap();
    let (text, csv) = (&*TEXT, csv::render(report));
    assert_eq!(csv.matches("\r\n").count(), report.rows.len() + 1);
    for row in &report.rows {
        let median = row.unit.figure(row.median().middle);
        assert!(text.contains(&median), "{} of {}", median, row.name());
        let median = median.replace(" us", " µs");
        assert!(figures.contains(&format!("<td class=\"n\">{median}</td>")), "{} of {}", median, row.name());
    }
    // A line of the first table for each row, and nothing besides.
    let lines: usize = figures
        .split("<details>")
        .skip(1)
        .map(|part| part.split("</table>").next().unwrap().matches("<tr><td>").count())
        .sum();
    assert_eq!(lines, report.rows.len());
}

#[test]
fn points_are_inside_of_the_picture() {
    let mut points = 0;
    for part in PAGE.split("data-x=\"").skip(1) {
        let x: f64 = part.split('"').next().unwrap().parse().unwrap();
        assert!((64.0..=478.0).contains(&x), "{x}");
        points += 1;
    }
    assert!(points > 300, "{points}");
}

/// A segment of a strip of paths: the left and the right end, and its strip's place.
fn segments(page: &str) -> Vec<(f64, f64, String)> {
    let section = page.split("<section id=\"plan\">").nth(1).unwrap().split("</section>").next().unwrap();
    let value = |part: &str, name: &str| {
        part.split_once(&format!(" {name}=\"")).unwrap().1.split('"').next().unwrap().to_owned()
    };
    let segment = |part: &str| {
        let [x, width] = ["x", "width"].map(|name| value(part, name).parse::<f64>().unwrap());
        (x, x + width, value(part, "y"))
    };
    section.split("<rect").skip(1).map(segment).collect()
}

#[test]
fn strips_have_no_gaps_and_each_segment_has_its_reason() {
    let plan = |direction: &str, size, path: &str, why: &str| Plan {
        over: "tcp".into(),
        direction: direction.into(),
        size,
        path: path.into(),
        why: why.into(),
    };
    let mut report = Report::new("", "");
    report.plans = vec![
        plan("message", 0, "inline", "copied as it is posted"),
        plan("message", 193, "eager", "fits in a receive of the peer"),
        plan("message", 200, "fast-rdma", "in a <slot>"),
        plan("message", 69_633, "rendezvous read", "too long for a slot"),
        plan("write", 0, "inline", "it is short"),
        plan("write", 4097, "server-based", "it is long"),
    ];
    report.rows.push(row("latency", "tcp", Some(8), Unit::Seconds, 1e-6));
    // Survives a file, so that a page can be drawn later.
    let page = html::render(&Report::from_json(&report.to_json()).unwrap());
    assert_balanced(&page);
    let all = segments(&page);
    assert_eq!(all.len(), 6);
    let (first, last) = (all[0].0, all.iter().map(|segment| segment.1).fold(0.0, f64::max));
    for strip in all.chunk_by(|a, b| a.2 == b.2) {
        assert!(strip.windows(2).all(|pair| (pair[0].1 - pair[1].0).abs() < 0.2), "{strip:?}");
        assert!(strip[0].0 == first && (strip[strip.len() - 1].1 - last).abs() < 0.2, "{strip:?}");
    }
    // A narrow segment has its reason in the list below.
    assert!(page.contains("<b>a</b> eager, 193 B to 199 B: message, fits in a receive of the peer</li>"), "{page}");
    let plain = page.replace("</text><text class=\"inside why\"", "");
    for plan in &report.plans {
        let last = plan.why.split(' ').next_back().unwrap().replace('<', "&lt;").replace('>', "&gt;");
        assert!(plain.contains(&format!("{last}<")) && plain.contains(&plan.path), "{}", plan.why);
    }
    let text = text::render(&report);
    assert!(text.contains("tcp: write\n  up to 4 KiB      inline           it is short\n"), "{text}");
}

/// Returns a row of eight rounds.
fn row(test: &str, over: &str, size: Option<u64>, unit: Unit, value: f64) -> Row {
    let rounds = (0..8).map(|round| Step { round, value: value * (1.0 + f64::from(round) / 100.0) }).collect();
    Row { test: test.into(), over: over.into(), size, unit, rounds, ..Row::default() }
}

/// A bar of a page: its left end, its width, and the ends of its whisker.
#[derive(Clone, Copy, Debug)]
struct Bar {
    left: f64,
    width: f64,
    whisker: Option<(f64, f64)>,
}

fn bars(page: &str) -> Vec<Bar> {
    let number = |text: &str, name: &str| -> Option<f64> {
        let (_, rest) = text.split_once(&format!("{name}=\""))?;
        rest.split('"').next()?.parse().ok()
    };
    let bar = |part: &str| {
        let part = part.split("</g>").next()?;
        let whisker = number(part, "data-low").zip(number(part, "data-high"));
        Some(Bar { left: number(part, " x")?, width: number(part, "width")?, whisker })
    };
    page.split("<g class=\"bar").skip(1).map(|part| bar(part).expect("a bar has a place")).collect()
}

/// Rows without a size, as those of `pvfs bench meta` and of the main job, had no picture at all.
#[test]
fn rows_without_a_size_have_a_picture() {
    let mut report = Report::new("pvfs", "pvfs bench meta");
    for (test, value) in [("create", 4e3), ("stat", 9e3), ("remove", 2e3)] {
        report.rows.extend(["tcp", "shm"].map(|over| row(test, over, None, Unit::PerSecond, value)));
    }
    let page = html::render(&report);
    assert_balanced(&page);
    assert_eq!((page.matches("<svg").count(), bars(&page).len()), (3 + 3, 6 + 3), "figures, and ratios of shm to tcp");
    assert!(page.contains(">Create<") && !page.contains("against size"), "{page}");
    assert!(!page.contains("NaN") && page.contains("<section id=\"speed\">"));
}

/// A single size had a chart of two dots on axes that were cut: what differed by 5 % looked as far
/// apart as what differed by a factor of ten.
#[test]
fn a_single_size_has_bars_from_zero_with_whiskers() {
    let mut report = Report::new("", "");
    let of = |over: &str, value: f64| row("latency", over, Some(8), Unit::Seconds, value);
    report.rows = vec![of("tcp", 1e-6), of("shm", 2e-6)];
    // So that their ratio has an interval.
    report.rows[1].rounds.reverse();
    (0..).zip(&mut report.rows[1].rounds).for_each(|(round, step)| step.round = round);
    report.rows[0].cost.insert("client".into(), Cost { cpu: 1e-6, switches: 0.0, calls: None });
    let page = html::render(&report);
    assert_balanced(&page);
    assert!(!page.contains("class=\"line") && !page.contains("class=\"band"), "no lines of one point");
    assert!(page.contains("Latency of 8 B"), "{page}");
    let bars = bars(&page);
    // Two medians, a ratio, and a processor time.
    assert_eq!(bars.len(), 2 + 1 + 1);
    let [tcp, shm] = [bars[0], bars[1]];
    // From zero: twice as much is twice as long.
    assert!(tcp.left == shm.left && (shm.width / tcp.width - 2.0).abs() < 0.02, "{bars:?}");
    for Bar { left, width, whisker } in &bars[..3] {
        let (low, high) = whisker.unwrap();
        assert!(low <= left + width && left + width <= high && low > *left, "{bars:?}");
    }
    assert_eq!(bars[3].whisker, None, "a processor time has no interval");
    // Two sizes are a line again.
    report.rows.push(row("latency", "tcp", Some(64), Unit::Seconds, 1e-6));
    assert!(html::render(&report).contains("class=\"line"));
}

/// The processor time of rows that know only the client's was headed *of all hosts*, and said to be
/// that of client and server together.
#[test]
fn processor_time_names_whose_it_is() {
    let title = |roles: &[&str]| {
        let mut report = Report::new("", "");
        let mut row = row("write", "tcp", Some(8), Unit::BytesPerSecond, 1e9);
        let cost = Cost { cpu: 1e-6, switches: 0.0, calls: None };
        row.cost = roles.iter().map(|role| ((*role).to_owned(), cost)).collect();
        report.rows.push(row);
        let page = html::render(&report);
        let section = page.split("<section id=\"processor\">").nth(1).unwrap().split("</section>").next().unwrap();
        assert!(!section.contains("all hosts"), "{section}");
        section.split("<b>").nth(1).unwrap().split("</b>").next().unwrap().to_owned()
    };
    assert_eq!(title(&["client"]), "Write: processor time of client");
    assert_eq!(title(&["client", "server"]), "Write: processor time of client and server");
}

#[test]
fn the_answer_comes_first_and_an_interruption_before_it() {
    let place = |page: &str, text: &str| page.find(text).unwrap_or_else(|| panic!("no {text}"));
    assert!(place(&PAGE, "than tcp") < place(&PAGE, "<svg"));
    let mut report = SAMPLE.clone();
    report.rows.truncate(3);
    report.interrupted = Some("the server is gone".into());
    let (page, text) = (html::render(&report), text::render(&report));
    let said = "The run was interrupted: the server is gone.";
    assert!(place(&page, said) < place(&page, "than tcp"));
    assert!(place(&page, said) < place(&page, "<nav"));
    assert_eq!(text.lines().nth(2).map(|line| line.starts_with(said)), Some(true));
}

#[test]
fn tables_fit_a_terminal() {
    let long: Vec<&str> = TEXT.lines().filter(|line| line.chars().count() > 100).collect();
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn a_report_with_nothing_in_it_is_shown_too() {
    let page = html::render(&Report::new("", ""));
    assert_balanced(&page);
    assert!(page.contains("Nothing was measured.") && !page.contains("<svg"));
    assert!(text::render(&Report::new("", "")).contains("Nothing was measured."));
    // Rows without rounds, sizes or anything else.
    let mut report = Report::new("", "");
    report.rows = vec![Row::default(), Row { size: Some(0), test: "a".into(), ..Row::default() }];
    let page = html::render(&report);
    assert_balanced(&page);
    assert!(!page.contains("NaN"));
    // What no picture shows can be read without opening it.
    assert_eq!((page.matches("<details open>").count(), page.matches("<details>").count()), (1, 1));
}
