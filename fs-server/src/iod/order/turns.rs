//! Turns at a resource that only a few can use at the same time. Clients take turns, one each,
//! however many requests each of them has.
//!
//! **Why.** A disk handles requests in the order in which it gets them. If every unit were handed
//! to it as soon as its buffer is ready, a small read would queue behind all units of all clients.
//! A client with ten requests would get ten times as much as a client with one. So units wait here,
//! and small requests do not wait: only the units in progress are ahead of them, as many as there
//! are places.
//!
//! **Invariants**
//! 1. At most `places` turns are held. A turn that is dropped, or lasts longer than its patience,
//!    is passed to the next client.
//! 2. Waiting clients get one turn each and then go to the end of the queue. Units of one client
//!    get turns in the order in which they asked. So for each earlier unit of its own client, a
//!    unit waits for at most one turn of each other client.
//! 3. *No deadlock.* Work during a turn waits only for network or disk.
//! 4. The event loops of a server share the places. The lock is held for a look at the row, and no
//!    turn is passed on, dropped or waited for meanwhile.
//!
//! **Source.** [PVFS-IB §3.4]: the communication manager schedules transfers, to avoid delaying
//! other traffic.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::lock::lock;

/// The places and the clients that wait for one. A clone is another handle to the same places.
#[derive(Clone)]
pub(in crate::iod) struct Turns<C: Copy + Ord>(Arc<Mutex<Row<C>>>);

struct Row<C: Copy + Ord> {
    free: usize,
    /// Waiting clients, the next one first.
    clients: VecDeque<C>,
    waiting: BTreeMap<C, VecDeque<oneshot::Sender<Turn<C>>>>,
}

/// A place, held until it is dropped.
pub(in crate::iod) struct Turn<C: Copy + Ord>(Option<Turns<C>>);

impl<C: Copy + Ord> Drop for Turn<C> {
    fn drop(&mut self) {
        if let Some(turns) = self.0.take() {
            turns.pass_on();
        }
    }
}

impl<C: Copy + Ord> Turns<C> {
    pub(in crate::iod) fn new(places: usize) -> Turns<C> {
        Turns(Arc::new(Mutex::new(Row { free: places.max(1), clients: VecDeque::new(), waiting: BTreeMap::new() })))
    }

    /// Waits for a turn of `client`.
    pub(in crate::iod) async fn take(&self, client: C) -> Turn<C> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut row = lock(&self.0);
            if row.free > 0 {
                row.free -= 1;
                return Turn(Some(self.clone()));
            }
            let Row { clients, waiting, .. } = &mut *row;
            let queue = waiting.entry(client).or_insert_with(|| {
                clients.push_back(client);
                VecDeque::new()
            });
            queue.push_back(sender);
        }
        receiver.await.expect("turns are passed on as long as anybody has a handle to them")
    }

    /// Runs `work` in a turn of `client`. `work` is called when the turn has come. After `patience`
    /// the turn passes to another client, and the work continues without it. So stalled work does
    /// not stop others.
    pub(in crate::iod) async fn during<F: Future>(
        &self,
        client: C,
        work: impl FnOnce() -> F,
        patience: impl AsyncFnOnce(),
    ) -> F::Output {
        let turn = self.take(client).await;
        let mut work = pin!(work());
        tokio::select! {
            biased;
            result = &mut work => return result,
            () = patience() => drop(turn),
        }
        work.await
    }

    /// Gives a free place to the next waiting client.
    fn pass_on(self) {
        let mut turn = Turn(Some(self.clone()));
        loop {
            let next = {
                let mut row = lock(&self.0);
                let Row { clients, waiting, free } = &mut *row;
                let Some(client) = clients.pop_front() else {
                    *free += 1;
                    turn.0 = None;
                    return;
                };
                let queue = waiting.get_mut(&client).expect("those in the row wait");
                let next = queue.pop_front();
                if queue.is_empty() {
                    waiting.remove(&client);
                } else {
                    clients.push_back(client);
                }
                next
            };
            // If the future of the waiting unit was dropped, the turn comes back.
            match next.map(|sender| sender.send(turn)) {
                Some(Ok(())) => return,
                Some(Err(returned)) => turn = returned,
                None => unreachable!("nobody stands in the row without a reason"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::*;

    #[test]
    fn clients_take_turns_whatever_they_ask_for() {
        let turns = Turns::new(1);
        let first = turns.take(0).now_or_never().unwrap();
        let order = RefCell::new(Vec::new());
        let one = async |client: u8| {
            let turn = turns.take(client).await;
            order.borrow_mut().push(client);
            drop(turn);
        };
        let mut all = pin!(join_all([1, 1, 1, 2, 3, 3].map(one)));
        assert!(all.as_mut().now_or_never().is_none(), "one place");
        drop(first);
        // One poll of all futures visits each once, in an order that differs from that of the
        // turns.
        assert!((0..6).any(|_| all.as_mut().now_or_never().is_some()));
        assert_eq!(*order.borrow(), [1, 2, 3, 1, 3, 1]);
        assert!(turns.take(9).now_or_never().is_some(), "the place is free again");
    }

    #[test]
    fn who_is_gone_is_passed_over_and_loses_no_place() {
        let turns = Turns::new(1);
        let held = turns.take(1).now_or_never().unwrap();
        let (mut gone, mut stays) = (Box::pin(turns.take(2)), Box::pin(turns.take(2)));
        assert!(gone.as_mut().now_or_never().is_none() && stays.as_mut().now_or_never().is_none());
        drop(gone);
        drop(held);
        let turn = stays.now_or_never().expect("its turn has come");
        let mut waits = Box::pin(turns.take(3));
        assert!(waits.as_mut().now_or_never().is_none());
        // The turn is passed to a future that never takes it.
        drop(turn);
        drop(waits);
        assert!(turns.take(4).now_or_never().is_some());
    }

    #[test]
    fn a_turn_ends_with_its_patience_and_the_work_goes_on() {
        let turns = Turns::new(1);
        let (go, gone) = oneshot::channel::<()>();
        let mut slow = Box::pin(turns.during(1, || gone, async || {}));
        assert!(slow.as_mut().now_or_never().is_none(), "the work has not ended");
        let quick = turns.during(2, || async { 7 }, async || pending().await);
        assert_eq!(quick.now_or_never(), Some(7), "the place is free");
        go.send(()).unwrap();
        assert_eq!(slow.now_or_never(), Some(Ok(())));
    }

    /// Threads take turns, let them pass on after their patience, and give up waiting for them.
    /// There are never more turns than places, no thread waits for ever, and all places come back.
    #[test]
    fn threads_share_the_places() {
        const THREADS: usize = 4;
        let (turns, held) = (Turns::new(2), AtomicUsize::new(0));
        // All wait at the beginning, whatever the scheduler does.
        let first = [0, 1].map(|client| turns.take(client).now_or_never().unwrap());
        thread::scope(|scope| {
            for client in 10..10 + THREADS {
                let (turns, held) = (&turns, &held);
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    for round in 0..3000 {
                        if round % 5 == 4 {
                            drop(turns.take(client).now_or_never());
                            continue;
                        }
                        let turn = runtime.block_on(turns.take(client));
                        assert!(held.fetch_add(1, Ordering::SeqCst) < 2, "more turns than places");
                        thread::yield_now();
                        held.fetch_sub(1, Ordering::SeqCst);
                        drop(turn);
                    }
                });
            }
            while lock(&turns.0).waiting.len() < THREADS {
                thread::yield_now();
            }
            drop(first);
        });
        let row = lock(&turns.0);
        assert!(row.free == 2 && row.clients.is_empty() && row.waiting.is_empty());
    }
}
