//! Executes events: who is called for which. Describes a world that does not go on.

use super::connection::State;
use super::handles::Action;
use crate::engine::{Event, Executor, Side};
use crate::model::Core;

impl Core {
    // ---- events ---------------------------------------------------------------------------------

    /// Returns whether the event would have no effect. The deadline of an operation that has ended
    /// must not move time.
    fn is_stale(&self, event: &Event) -> bool {
        match event {
            Event::Timer { slot, generation } => self.timers.is_stale(*slot, *generation),
            Event::ConnectDeadline { conn } => self.conn(*conn).is_none_or(|conn| conn.state != State::Connecting),
            Event::CloseDeadline { conn } | Event::PeerGone { conn } | Event::GivenUp { conn } => {
                self.conn(*conn).is_none()
            }
            Event::LinkDead { a, b, epoch } => {
                self.links.get(&(*a, *b)).is_none_or(|link| !link.down || link.epoch != *epoch)
            }
            _ => false,
        }
    }

    /// Returns when the next event happens that has an effect.
    pub(crate) fn next_time(&mut self) -> Option<u64> {
        while let Some((event, _)) = self.queue.peek() {
            if !self.is_stale(event) {
                break;
            }
            self.queue.pop();
        }
        self.queue.next_time()
    }

    /// Executes the next event. If it is an action, it is returned: the caller has to call it with
    /// nothing borrowed.
    pub(crate) fn execute_next(&mut self) -> Option<Action> {
        let (time, event) = self.queue.pop()?;
        self.queue.executed(time, &event);
        match event {
            Event::Timer { slot, generation } => {
                let waker = self.drop_timer((slot, generation));
                self.wakes.extend(waker);
            }
            Event::Port { node, side } => self.go_on(node, side),
            Event::Arrive { .. } | Event::Answer { .. } => self.arrive(event),
            Event::Deliver { node, len, packet } => {
                self.take_in(node, len, packet);
                self.go_on(node, Side::Receive);
            }
            Event::Take { node, packet } => self.deliver(node, packet),
            Event::CpuFree { node } => self.released.push_back(node),
            Event::Refuse { conn, why } => self.handle_refusal(conn, why),
            Event::ConnectDeadline { conn } => self.handle_connect_deadline(conn),
            Event::CloseDeadline { conn } => self.handle_close_deadline(conn),
            Event::PeerGone { conn } => self.peer_gone(conn),
            Event::LinkDead { a, b, epoch } => self.link_dead(a, b, epoch),
            Event::GivenUp { conn } => self.give_up(conn),
            Event::Fault { index } => return self.actions[index as usize].take(),
        }
        None
    }

    // ---- for people -----------------------------------------------------------------------------

    pub(crate) fn describe(&self, executor: &Executor) -> String {
        use std::fmt::Write as _;
        let mut text = String::new();
        let line = &mut text;
        // Writing to a string cannot fail.
        let _ = writeln!(line, "  world: {} tasks on no node", executor.count(None));
        for (index, node) in self.nodes.iter().enumerate() {
            let state = if !node.alive {
                "killed"
            } else if node.paused {
                "paused"
            } else {
                "up"
            };
            let _ = writeln!(line, "  node {:?}: {state}, {} tasks", node.name, executor.count(Some(index)));
            for adapter in (0..self.adapters.len() as u32).filter(|id| self.adapters[*id as usize].node == index as u32)
            {
                for at in self.conns_of(adapter).into_iter().take(16) {
                    let Some(conn) = self.conn(at) else { continue };
                    let (sends, reads, receives) = (conn.sends.len(), conn.reads.len(), conn.receives.len());
                    let _ = writeln!(
                        line,
                        "    to {}: {:?}, {sends} sends, {reads} reads, {receives} receives posted, {} events not polled",
                        conn.peer_name,
                        conn.state,
                        self.adapters[adapter as usize].reports.len()
                    );
                }
            }
        }
        text
    }
}
