//! What the worst legal request of each kind costs the event loop that serves it.
//!
//! **Why.** An event loop serves all clients of a server, and while it works on something without a
//! break, it serves nobody. One legal request stopped an I/O server for minutes, because nobody had
//! looked at what it costs there. So each request has a row here, and a request without a row does
//! not compile.
//!
//! **A row** has the request at its worst: the longest lists and paths, on a server that has much.
//! It bounds the steps of inner loops ([`bmi::hooks::step`]) between two points at which other
//! tasks run: of the longest poll of a task of the server's node, until the server has nothing left
//! to do. What a real server hands over to worker threads is done at once here, and has a bound of
//! its own.
//!
//! A bound is what the lengths in the request allow. It does not grow with what the server has, or
//! the row says why.

mod iod;
mod manager;

use super::*;

/// A request at its worst.
struct Row<S> {
    request: &'static str,
    worst: &'static str,
    /// Most steps without a break.
    most: u64,
    /// Sends the request. Returns the steps, and those of the longest piece that was handed over.
    cost: fn(&S) -> Cost,
}

/// Steps without a break, on the loop and of a worker thread.
type Cost = (u64, u64);

/// Most steps of something that is handed over to a worker thread. Others wait for the thread, too.
const HANDED_OVER: u64 = 1 << 14;

// The requests of each kind of server have a table, and a Hello has a row beside each.
const _: fn(&RequestBody) = |body| match body {
    RequestBody::Manager(_) | RequestBody::Iod(_) | RequestBody::Hello(_) => {}
};

/// Makes the rows of a kind of server. Each request has one: the match has no wildcard.
macro_rules! rows {
    ($rows:ident of $request:ident for $server:ty {
        $($variant:pat => $worst:expr, $most:expr, $cost:expr;)*
    }) => {
        const $rows: &[Row<$server>] =
            &[$(Row { request: stringify!($variant), worst: $worst, most: $most, cost: $cost }),*];
        const _: fn(&$request) = |request| match request {
            $($variant => {})*
        };
    };
}
use rows;

/// Sends all requests of a table, and prints it.
///
/// # Panics
/// If one of them takes more steps than it may.
fn check<S>(server: &S, rows: &[Row<S>]) {
    for Row { request, worst, most, cost } in rows {
        let (steps, handed_over) = cost(server);
        let row = format!("{steps:>9} of {most:>9} steps, {handed_over:>9} handed over: {request}: {worst}");
        println!("{row}");
        // At once: with a seeded bug, the other rows take long.
        assert!(steps <= *most && handed_over <= HANDED_OVER, "too many steps without a break:\n{row}");
    }
}

/// Returns what something costs a node, until nothing is left to do for it.
fn cost_on(world: &World, node: &Node, work: impl AsyncFnOnce()) -> Cost {
    let longest = || (node.longest_piece(), bmi::hooks::longest_job());
    // What was before does not count.
    longest();
    world.block_on(work());
    world.run_for(Duration::from_millis(100));
    longest()
}
