//! Log lines that peers cause, in virtual time.

use std::time::Duration;

use bmi_conformance::log::capture;
use bmi_core::{Config, Options};
use bmi_sim::World;
use tracing::Level;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_thousand_refusals_are_a_few_lines_and_their_number() {
    let world = World::new(1);
    let node = world.node("server");
    let server = node.endpoint(Config::default().max_peers(1)).unwrap();
    let addr = server.listen(&node.addr(1)).unwrap();
    let [first, late] = ["first", "late"].map(|name| world.node(name).endpoint(Config::default()).unwrap());
    world.block_on(async { first.connect(&addr, Options::default()).await.unwrap() });
    let ((), lines) = capture(|| {
        world.block_on(async {
            for _ in 0..1000 {
                late.connect(&addr, late.within(SECOND)).await.unwrap_err();
            }
            server.sleep(15 * SECOND).await;
        });
    });
    let lines: Vec<_> = lines.into_iter().filter(|line| line.level <= Level::INFO).collect();
    assert_eq!(lines.len(), 6, "{lines:?}");
    assert!(lines[..5].iter().all(|line| line.text.starts_with("connection refused")), "{lines:?}");
    assert!(lines[5].text.contains("left_out=995") && lines[5].text.contains("from=\"late\""), "{lines:?}");
    assert_eq!(server.next_deadline(), None, "nothing more is to be reported");
}
