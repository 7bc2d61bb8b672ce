//! The tasks of a host.
//!
//! **Invariants**
//! 1. Every task answers every order, so a phase ends when all have answered.
//! 2. If one fails, the others are stopped.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::{Builder, JoinHandle};

use bmi_report::{Host, host};
use tokio::sync::{mpsc as orders, watch};

use super::job::{Job, Order, Part, Ready};
use super::task;
use super::usage::Usage;

/// Stops the tasks of a crew, from any thread.
#[derive(Clone, Debug)]
pub(crate) struct Stopper(Arc<watch::Sender<bool>>);

impl Stopper {
    /// Creates one for a crew that is to come.
    pub(crate) fn new() -> Stopper {
        Stopper(Arc::new(watch::Sender::new(false)))
    }

    /// Ends the phase, or with `false` allows the next one to begin.
    pub(crate) fn set(&self, stop: bool) {
        self.0.send_replace(stop);
    }
}

struct Hand {
    orders: orders::UnboundedSender<Order>,
    thread: JoinHandle<()>,
}

/// The tasks of this host.
pub(crate) struct Crew {
    hands: Vec<Hand>,
    answers: Receiver<Result<Part, String>>,
    stopper: Stopper,
    ready: Ready,
}

impl Crew {
    /// Starts the tasks, and waits until all are connected.
    ///
    /// # Errors
    /// If the job makes no sense, or a task cannot reach a server.
    pub(crate) fn start(job: Job, name: String, stopper: Stopper) -> Result<Crew, String> {
        job.check()?;
        let job = Arc::new(job);
        let (answered, answers) = mpsc::channel();
        let (started, starts) = mpsc::channel();
        let mut hands = Vec::new();
        for number in 0..job.tasks {
            let (sender, orders) = orders::unbounded_channel();
            let stop = stopper.0.subscribe();
            let ends = task::Ends { orders, started: started.clone(), answers: answered.clone(), stop };
            let (job, rank) = (job.clone(), job.first + number);
            let body = move || task::run(job, rank, ends);
            let thread = Builder::new().name(format!("task-{rank}")).spawn(body).map_err(|error| error.to_string())?;
            hands.push(Hand { orders: sender, thread });
        }
        drop((started, answered));
        let ready =
            Ready { host: Host { name, ..host::describe("client", None) }, labels: Vec::new(), servers: Vec::new() };
        let mut crew = Crew { hands, answers, stopper, ready };
        for _ in 0..crew.hands.len() {
            let (labels, servers) = starts.recv().unwrap_or_else(|_| Err("a task ended".to_owned()))?;
            crew.ready.labels = merged(std::mem::take(&mut crew.ready.labels), labels);
            crew.ready.servers = servers;
        }
        Ok(crew)
    }

    /// Returns what this host is, and how it reaches the servers.
    pub(crate) fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Lets all tasks do a phase, and waits for them.
    ///
    /// # Errors
    /// The first error of a task.
    pub(crate) fn run(&self, order: Order) -> Result<Part, String> {
        let before = Usage::now();
        let told = self.hands.iter().filter(|hand| hand.orders.send(order).is_ok()).count();
        let mut result = if told < self.hands.len() { Err("a task has ended".to_owned()) } else { Ok(Part::default()) };
        for _ in 0..told {
            let answer = self.answers.recv().unwrap_or_else(|_| Err("a task ended".to_owned()));
            match (&mut result, answer) {
                (Ok(all), Ok(part)) => all.add(part),
                (Ok(_), Err(error)) => {
                    result = Err(error);
                    self.stopper.set(true);
                }
                (Err(_), _) => {}
            }
        }
        let after = Usage::now();
        if let Ok(part) = &mut result {
            part.cpu = after.cpu - before.cpu;
            part.switches = (after.switches - before.switches).max(0.0);
        }
        result
    }
}

impl Drop for Crew {
    /// Ends the tasks, so that their connections end in order.
    fn drop(&mut self) {
        for Hand { orders, thread } in self.hands.drain(..) {
            drop(orders);
            // A task that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

/// Merges the schemes of each transport.
pub(crate) fn merged(one: Vec<Vec<String>>, other: Vec<Vec<String>>) -> Vec<Vec<String>> {
    if one.is_empty() {
        return other;
    }
    let both = one.into_iter().zip(other).map(|(mut one, other)| {
        one.extend(other);
        one.sort();
        one.dedup();
        one
    });
    both.collect()
}
