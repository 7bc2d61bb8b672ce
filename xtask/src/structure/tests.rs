//! Small directories, measured as a whole.

use serde_json::Value;

use super::report::Report;
use super::source::parse;
use super::{ENDPOINT, Surroundings, measure};

/// Measures files, each a path and a text.
fn report(files: &[(&str, &str)]) -> Report {
    report_with(files, &[])
}

/// Measures files of the directory `endpoint` of a crate that defines these methods elsewhere.
fn report_with(files: &[(&str, &str)], outside: &[&str]) -> Report {
    let place = Some(vec!["endpoint".to_owned()]);
    let around = Surroundings { place, outside: outside.iter().map(|name| (*name).to_owned()).collect() };
    Report::new("endpoint", &parse(files.iter().copied()).unwrap(), around, "Endpoint")
}

fn json(report: &Report) -> Value {
    serde_json::to_value(report).unwrap()
}

/// Returns the calls from file to file, each as `file:caller -> file:callee`.
fn calls(report: &Report) -> Vec<String> {
    let mut calls = Vec::new();
    for edge in json(report)["edges"].as_array().unwrap() {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        for call in edge["calls"].as_array().unwrap() {
            let (from, to) = (text(&edge["from"]), text(&edge["to"]));
            calls.push(format!("{from}:{} -> {to}:{}", text(&call["caller"]), text(&call["callee"])));
        }
    }
    calls
}

/// Returns the names of the ambiguous calls.
fn ambiguous(report: &Report) -> Vec<String> {
    let json = json(report);
    let all = json["ambiguous"].as_array().unwrap();
    all.iter().map(|call| call["name"].as_str().unwrap().to_owned()).collect()
}

/// One type with methods in four files, which call each other in a ring.
const RING: [(&str, &str); 5] = [
    ("mod.rs", "mod a; mod b; mod c; mod d;\npub struct Endpoint<T> { transport: T, work: usize }\n"),
    ("a.rs", "use super::Endpoint;\nimpl<T> Endpoint<T> {\n    fn receive(&mut self) { self.deliver(); }\n}\n"),
    ("b.rs", "use super::Endpoint;\nimpl<T> Endpoint<T> {\n    fn deliver(&mut self) { self.finish(); }\n}\n"),
    ("c.rs", "use super::Endpoint;\nimpl<T> Endpoint<T> {\n    fn finish(&mut self) { self.send(); }\n}\n"),
    ("d.rs", "use super::Endpoint;\nimpl<T> Endpoint<T> {\n    fn send(&mut self) { self.receive(); }\n}\n"),
];

#[test]
fn a_cycle_of_four_files_is_found_and_explained() {
    let report = report(&RING);
    assert_eq!(report.longest_cycle(), 4);
    let complaint = report.complaint(3).unwrap();
    for expected in [
        "4 files of endpoint call each other in a cycle, at most 3 may: a.rs, b.rs, c.rs, d.rs",
        "a.rs:Endpoint::receive -> b.rs:Endpoint::deliver",
        "d.rs:Endpoint::send -> a.rs:Endpoint::receive",
        "then no cycle is left",
        "Turn a call that goes up the layers around",
    ] {
        assert!(complaint.contains(expected), "{expected}:\n{complaint}");
    }
    assert_eq!(report.complaint(4), None);
}

#[test]
fn the_same_parts_as_functions_that_return_what_is_to_be_done_have_no_cycle() {
    let files = [
        (
            "mod.rs",
            "struct Endpoint { ops: ops::Ops, peers: peers::Peers }\n\
                    impl Endpoint { fn poll(&mut self) { receive::on_message(&mut self.ops, &mut self.peers); send::pump(&mut self.peers); } }",
        ),
        (
            "receive.rs",
            "use super::ops::Ops; use super::peers::{self, Peers};\n\
                        pub fn on_message(ops: &mut Ops, peers: &mut Peers) { ops.finish(); peers.remove(); peers::note(); }",
        ),
        ("send.rs", "pub(super) fn pump(peers: &mut super::peers::Peers) { peers.remove() }"),
        ("ops.rs", "pub struct Ops; impl Ops { pub fn finish(&mut self) {} }"),
        ("peers.rs", "pub struct Peers; impl Peers { pub fn remove(&mut self) {} }\npub fn note() {}"),
    ];
    let report = report(&files);
    assert_eq!(
        calls(&report),
        [
            "mod.rs:Endpoint::poll -> receive.rs:on_message",
            "mod.rs:Endpoint::poll -> send.rs:pump",
            "receive.rs:on_message -> ops.rs:Ops::finish",
            "receive.rs:on_message -> peers.rs:Peers::remove",
            "receive.rs:on_message -> peers.rs:note",
            "send.rs:pump -> peers.rs:Peers::remove",
        ]
    );
    assert_eq!((report.longest_cycle(), report.complaint(0)), (0, None));
}

#[test]
fn two_files_that_call_each_other_are_a_cycle_of_two() {
    let report = report(&[
        ("mod.rs", "fn begin() { left::go() }"),
        ("left.rs", "pub fn go() { super::right::go() } pub fn end() {}"),
        ("right.rs", "use super::left::*; pub fn go() { end() }"),
    ]);
    assert_eq!(report.longest_cycle(), 2);
    assert_eq!((report.complaint(2), report.complaint(1).is_some()), (None, true));
    assert!(
        report.table().lines().any(|line| line.starts_with("left.rs") && line.ends_with('1')),
        "{}",
        report.table()
    );
}

#[test]
fn what_tests_call_does_not_count() {
    let report = report(&[
        (
            "a.rs",
            "pub fn f() {}\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn t() { super::super::b::g(); Some(1).expect(\"one\"); }\n}\n",
        ),
        ("b.rs", "pub fn g() { super::a::f() }"),
    ]);
    assert_eq!(calls(&report), ["b.rs:g -> a.rs:f"]);
    assert_eq!(json(&report)["totals"]["expects"], 0);
    assert_eq!(json(&report)["totals"]["functions"], 2);
}

/// The files that [`methods`] adds a caller to.
const PARTS: [(&str, &str); 3] = [
    (
        "peer.rs",
        "pub struct Peer { pub grant: super::grant::Grant, pub queue: VecDeque<u8> }\n\
                 impl Peer { pub fn unpark(&mut self) {} pub fn len(&self) -> usize { 0 } pub fn bytes(&self) {} pub fn grant(&self) -> &super::grant::Grant { &self.grant } }",
    ),
    (
        "grant.rs",
        "pub struct Grant; impl Grant { pub fn bytes(&self) {} pub fn spend(&mut self) {} pub fn is_free(&self) -> bool { true } }",
    ),
    ("idle.rs", "use super::peer::Peer; impl Peer { pub fn rest(&self) {} }"),
];

/// Returns what a function with this body calls, and the ambiguous calls in it.
fn methods(body: &str) -> (Vec<String>, Vec<String>) {
    let parameters = "known: &mut Peer, found: Option<&mut Peer>, all: &mut Table<Peer>, other: Stranger";
    let text = format!("use super::peer::{{self, Peer}};\nfn f({parameters}) {{ {body} }}");
    let report = report_with(&[&[("caller.rs", text.as_str())], &PARTS[..]].concat(), &["spend"]);
    let calls = calls(&report).into_iter().filter_map(|call| Some(call.strip_prefix("caller.rs:f -> ")?.to_owned()));
    let calls = calls.collect();
    (calls, ambiguous(&report))
}

#[test]
fn methods_of_receivers_whose_type_is_known_are_exact() {
    for (body, expected) in [
        ("known.len();", "peer.rs:Peer::len"),
        ("known.bytes();", "peer.rs:Peer::bytes"),
        ("known.rest();", "idle.rs:Peer::rest"),
        ("known.grant.bytes();", "grant.rs:Grant::bytes"),
        ("known.grant.spend();", "grant.rs:Grant::spend"),
        ("let Peer { grant, .. } = known; grant.bytes();", "grant.rs:Grant::bytes"),
        ("let grant = &mut known.grant; grant.spend();", "grant.rs:Grant::spend"),
        ("if let Some(peer) = found { peer.len(); }", "peer.rs:Peer::len"),
        ("let Some(peer) = all.get_mut(1) else { return }; peer.len();", "peer.rs:Peer::len"),
        ("all.get(1).expect(\"there\").len();", "peer.rs:Peer::len"),
        ("all.get(1)?.len();", "peer.rs:Peer::len"),
        ("all.get(1).is_some_and(|peer| peer.len() > 1);", "peer.rs:Peer::len"),
        ("match all.first() { Some(peer) if peer.len() > 0 => {} _ => {} }", "peer.rs:Peer::len"),
        ("for peer in all.iter() { peer.len(); }", "peer.rs:Peer::len"),
        ("assert!(known.len() > 1, \"{}\", 1);", "peer.rs:Peer::len"),
        ("debug!(peer = %known.len(), \"gone\");", "peer.rs:Peer::len"),
        ("all.map(Peer::len);", "peer.rs:Peer::len"),
    ] {
        assert_eq!(methods(body), (vec![expected.to_owned()], vec![]), "{body}");
    }
}

#[test]
fn the_result_of_a_method_is_known_too() {
    let expected = ["peer.rs:Peer::grant", "grant.rs:Grant::bytes"].map(str::to_owned).to_vec();
    assert_eq!(methods("known.grant().bytes();"), (expected, vec![]));
}

#[test]
fn methods_of_other_types_reach_nothing() {
    for body in
        ["other.unpark();", "known.queue.len();", "found.len();", "all.unpark();", "let x: usize = y(); x.len();"]
    {
        assert_eq!(methods(body), (vec![], vec![]), "{body}");
    }
}

#[test]
fn methods_of_unknown_receivers_are_found_by_a_name_that_only_one_file_has() {
    assert_eq!(methods("y().unpark();"), (vec!["peer.rs:Peer::unpark".to_owned()], vec![]));
    assert_eq!(methods("let known = y(); known.is_free();"), (vec!["grant.rs:Grant::is_free".to_owned()], vec![]));
    // Two files have it; the standard library has it; the rest of the crate has it.
    for (body, name) in [("y().bytes();", "bytes"), ("y().len();", "len"), ("y().spend();", "spend")] {
        assert_eq!(methods(body), (vec![], vec![name.to_owned()]), "{body}");
    }
}

#[test]
fn a_variable_is_no_function() {
    let report = report(&[
        ("a.rs", "use super::b::*; fn f(g: impl Fn()) { g(); let h = || 1; h(); k(g) }"),
        ("b.rs", "pub fn g() {} pub fn h() {} pub fn k(g: u8) {}"),
    ]);
    assert_eq!(calls(&report), ["a.rs:f -> b.rs:k"]);
}

#[test]
fn functions_in_tables_and_default_methods_of_traits_count() {
    let report = report(&[
        (
            "a.rs",
            "const STEPS: [fn(); 1] = [super::b::g];\ntrait Steps { fn all(&self) { self.one(); super::b::g(); } fn one(&self); }",
        ),
        ("b.rs", "pub fn g() {}\nfn h(steps: &dyn super::a::Steps) { steps.one() }"),
    ]);
    assert_eq!(calls(&report), ["a.rs:STEPS -> b.rs:g", "a.rs:Steps::all -> b.rs:g", "b.rs:h -> a.rs:Steps::one"]);
}

#[test]
fn json_has_all_measures() {
    let json = json(&report(&RING));
    assert_eq!(json["directory"], "endpoint");
    assert_eq!(json["type"], serde_json::json!({ "name": "Endpoint", "fields": 2, "methods": 4, "files": 4 }));
    let totals = serde_json::json!({
        "files": 5, "lines": 18, "code": 18, "functions": 4, "expects": 0, "edges": 4, "calls": 4, "ambiguous": 0, "longest_cycle": 4,
    });
    assert_eq!(json["totals"], totals);
    assert_eq!(json["files"][1]["path"], "a.rs");
    assert_eq!(json["files"][1]["cycle"], 1);
    assert_eq!(json["files"][0]["cycle"], Value::Null);
    assert_eq!(json["edges"][0]["calls"][0]["line"], 3);
    assert_eq!(json["cycles"][0]["files"], serde_json::json!(["a.rs", "b.rs", "c.rs", "d.rs"]));
    assert_eq!(json["cycles"][0]["round"].as_array().unwrap().len(), 4);
}

#[test]
fn people_read_the_sums_and_the_calls() {
    let report = report(&RING);
    let summary = report.summary();
    assert!(summary.contains("Endpoint       2 fields, 4 methods in 4 files\n"), "{summary}");
    assert!(summary.contains("longest cycle  4 files: a.rs, b.rs, c.rs, d.rs\n"), "{summary}");
    assert!(report.edges().starts_with("a.rs -> b.rs: 1 call\n    a.rs:3 Endpoint::receive -> Endpoint::deliver\n"));
}

#[test]
fn the_checked_directory_can_be_measured() {
    let json = json(&measure(&crate::root(), ENDPOINT.as_ref(), "Endpoint").unwrap());
    for measured in [&json["totals"]["calls"], &json["type"]["fields"], &json["type"]["methods"]] {
        assert!(measured.as_u64().unwrap() > 0, "{json:#}");
    }
    assert!(measure(&crate::root(), "no/such/src".as_ref(), "Endpoint").is_err());
}
