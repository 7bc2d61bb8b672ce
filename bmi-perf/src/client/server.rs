//! The control connection of a client, and all that happens while it measures.

use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use crate::control::{self, Answer, Ask, Lines, Trouble};
use crate::stop::Stop;
use crate::work::Said;

/// The reason of a run that its user ended.
pub(crate) const INTERRUPTED: &str = "interrupted by a signal";

/// What happens.
pub(super) enum Event {
    Answered(Box<Answer>),
    /// The server has gone, or sent something odd.
    Gone(Option<Trouble>),
    Said(Said),
    Interrupted,
}

/// The server, and what this side's threads tell.
pub(super) struct Server {
    pub(super) to: TcpStream,
    pub(super) peer: IpAddr,
    pub(super) tell: Sender<Event>,
    events: Receiver<Event>,
    pub(super) stop: Arc<Stop>,
}

impl Server {
    pub(super) fn new(lines: Lines, to: TcpStream, peer: IpAddr) -> Result<Server, Trouble> {
        let (tell, events) = channel();
        read_answers(lines, tell.clone())?;
        watch_for_interrupt(tell.clone())?;
        Ok(Server { to, peer, tell, events, stop: Arc::default() })
    }

    /// Returns why a part failed: what the server says within a moment, or `own`.
    pub(super) fn reason(&mut self, own: &str) -> Trouble {
        match self.events.recv_timeout(Duration::from_millis(500)) {
            Ok(Event::Answered(answer)) => match *answer {
                Answer::Failed { why } => Trouble::new(format!("{own}; the server: {why}")),
                _ => Trouble::new(own),
            },
            Ok(Event::Gone(_)) => Trouble::new(format!("{own}; the server at {} has gone", self.peer)),
            Ok(Event::Interrupted) => Trouble::new(INTERRUPTED),
            Ok(Event::Said(_)) | Err(_) => Trouble::new(own),
        }
    }

    /// Asks the server.
    pub(super) fn ask(&mut self, ask: &Ask) -> Result<(), Trouble> {
        control::tell(&mut self.to, ask)
    }

    /// Returns the server's answer.
    pub(super) fn answer(&mut self, patience: Duration) -> Result<Answer, Trouble> {
        loop {
            if let Event::Answered(answer) = self.event(patience)? {
                return Ok(*answer);
            }
        }
    }

    /// Returns what happens next. The end of the run is an error.
    pub(super) fn event(&mut self, patience: Duration) -> Result<Event, Trouble> {
        let ended = match self.events.recv_timeout(patience) {
            Ok(Event::Gone(None)) => {
                Trouble::new(format!("the server at {} has gone in the middle of the run", self.peer))
            }
            Ok(Event::Gone(Some(trouble))) => Trouble::new(format!("the server at {}: {trouble}", self.peer)),
            Ok(Event::Interrupted) => Trouble::new(INTERRUPTED),
            Ok(event) => return Ok(event),
            Err(RecvTimeoutError::Timeout) => {
                Trouble::new(format!("nothing has come from {} for {} s", self.peer, patience.as_secs()))
            }
            Err(RecvTimeoutError::Disconnected) => Trouble::new("no thread is left"),
        };
        self.stop.now(ended.to_string());
        Err(ended)
    }
}

/// Returns the trouble of an answer that does not fit.
pub(super) fn unexpected(answer: &Answer) -> Trouble {
    match answer {
        Answer::Failed { why } => Trouble::new(format!("the server: {why}")),
        other => Trouble::new(format!("an answer of the server that does not fit: {other:?}")),
    }
}

fn read_answers(mut lines: Lines, tell: Sender<Event>) -> Result<(), Trouble> {
    let read = move || {
        loop {
            let event = match lines.next::<Answer>() {
                Ok(Some(answer)) => Event::Answered(Box::new(answer)),
                Ok(None) => Event::Gone(None),
                Err(trouble) => Event::Gone(Some(trouble)),
            };
            let is_last = matches!(event, Event::Gone(_));
            if tell.send(event).is_err() || is_last {
                return;
            }
        }
    };
    Builder::new().name("control".to_owned()).spawn(read).map(drop).map_err(|error| Trouble::new(error.to_string()))
}

/// Tells when the user ends the run by ctrl-C, or the system by SIGTERM.
fn watch_for_interrupt(tell: Sender<Event>) -> Result<(), Trouble> {
    use tokio::signal::unix::{SignalKind, signal};
    let io = |error: std::io::Error| Trouble::new(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(io)?;
    let watch = move || {
        runtime.block_on(async {
            let (Ok(mut interrupt), Ok(mut terminate)) =
                (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
            else {
                return;
            };
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            // A run that has ended needs no word.
            let _ = tell.send(Event::Interrupted);
        });
    };
    Builder::new().name("signals".to_owned()).spawn(watch).map(drop).map_err(io)
}
