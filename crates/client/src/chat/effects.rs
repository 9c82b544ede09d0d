//! What goes into the core and what comes out of it, and when it is time to ask the daemon again.

use std::time::Duration;

use crossterm::event::KeyEvent;
use quell_protocol::api::{AgentRow, HistoryMessage, Hold, List, RunView, SendRequest, SessionRow, StopAnswer};
use quell_protocol::approval::{ApprovalRow, Decision};
use quell_protocol::session::SessionView;
use quell_protocol::{RunEvent, RunId, SessionKey};

use super::clock::Moment;
use crate::link::{LinkError, Sent, StopReply};

/// Something happened.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "inputs are taken one at a time and kept nowhere")]
pub(crate) enum Input {
    Key(KeyEvent),
    Paste(String),
    /// Time has passed.
    Tick,
    /// The oldest row of the page is on the screen.
    TopSeen,
    /// Something about a run that is followed.
    Seen(RunId, RunSeen),
    /// The daemon answered, or could not.
    Answer(Answer),
}

/// What following a run brought.
#[derive(Debug)]
pub(crate) enum RunSeen {
    Event(Box<RunEvent>),
    Lost(String),
    Back,
    /// It cannot be followed any more.
    Gone(Failure),
}

/// Why the daemon did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) text: String,
    pub(crate) kind: FailureKind,
}

/// What a failure says about the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// Nobody answers, or not for now: the same may go well in a moment.
    Away,
    NotFound,
    /// It answered, and said no.
    Refused,
}

impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Self {
        let kind = match &error {
            // These stand until somebody changes something: to ask again would not help, and the daemon is there.
            LinkError::Refused(problem) if matches!(problem.code.as_str(), "held" | "queue_full" | "spend_limit") => {
                FailureKind::Refused
            }
            error if error.may_pass() => FailureKind::Away,
            error if error.is_not_found() => FailureKind::NotFound,
            _ => FailureKind::Refused,
        };
        let text = match error {
            LinkError::Lost { cause, .. } => cause,
            LinkError::NoDaemon { tried } => tried,
            other => other.to_string(),
        };
        Self { text, kind }
    }
}

/// An answer, or why there is none.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// Answers of the daemon, each with what it answers.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "answers are taken one at a time and kept nowhere")]
pub(crate) enum Answer {
    Sent { run: RunId, result: Outcome<Sent> },
    SessionStopped { session: SessionKey, result: Outcome<StopAnswer> },
    RunStopped { run: RunId, result: Outcome<StopReply> },
    Session { key: SessionKey, result: Outcome<SessionView> },
    Run { run: RunId, result: Outcome<RunView> },
    Active(Outcome<Vec<RunView>>),
    Approvals(Outcome<Vec<ApprovalRow>>),
    Answered { id: String, result: Outcome<ApprovalRow> },
    Hold { result: Outcome<Hold>, asked: bool },
    Agents(Outcome<Vec<AgentRow>>),
    Sessions(Outcome<Vec<SessionRow>>),
    History { session: SessionKey, which: Page, result: Outcome<List<HistoryMessage>> },
    ModelSet { model: String, result: Outcome<SessionView> },
}

/// Which page of the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Page {
    /// The newest, at the beginning.
    Newest,
    /// The one that ends before this cursor.
    Before(String),
    /// The newest turn again, to learn what became of a text that was cut off.
    LastTurn,
}

/// Something to do outside.
#[derive(Debug, PartialEq)]
pub(crate) enum Effect {
    Send {
        run: RunId,
        session: SessionKey,
        request: Box<SendRequest>,
    },
    StopSession {
        session: SessionKey,
        force: bool,
    },
    StopRun {
        run: RunId,
        force: bool,
    },
    /// Follow a run's events behind a number.
    Follow {
        run: RunId,
        after: u64,
    },
    /// Follow none any more.
    FollowNone,
    Ask(Question),
    AnswerApproval {
        id: String,
        decision: Decision,
    },
    SetHold(bool),
    SetModel {
        session: SessionKey,
        model: String,
    },
    Scroll(Scroll),
    /// Paint everything anew.
    Redraw,
    Leave,
}

/// What the daemon is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Question {
    Session(SessionKey),
    Run(RunId),
    Active,
    Approvals,
    Hold,
    Agents,
    Sessions,
    History { session: SessionKey, page: Page },
}

/// A move over the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scroll {
    PageUp,
    PageDown,
    LineUp,
    LineDown,
    Bottom,
}

/// How often the daemon is asked about the session, its approvals and the hold.
const SLOW: Duration = Duration::from_millis(500);
/// How often it is asked about runs of other sessions while something runs.
const ROUND: Duration = Duration::from_secs(1);
/// How often it is asked what is left while something is being stopped.
const FAST: Duration = Duration::from_millis(100);
/// A question without an answer for so long is asked again.
const FORGOTTEN: Duration = Duration::from_secs(35);

/// One question that is asked again and again: when it is due, and whether its answer is awaited.
#[derive(Debug, Default)]
pub(super) struct Poll {
    due: Moment,
}

impl Poll {
    /// True when it is time; then it counts as asked.
    pub(super) fn is_due(&mut self, now: Moment) -> bool {
        let due = now >= self.due;
        if due {
            self.due = now.plus(FORGOTTEN);
        }
        due
    }

    /// The answer came.
    pub(super) fn answered(&mut self, now: Moment, pace: Pace) {
        self.due = now.plus(match pace {
            Pace::Slow => SLOW,
            Pace::Round => ROUND,
            Pace::Fast => FAST,
        });
    }

    /// Makes it due at once.
    pub(super) fn hurry(&mut self) {
        self.due = Moment::default();
    }
}

/// How soon a question is asked again.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pace {
    Slow,
    Round,
    Fast,
}

/// The questions that are asked again and again.
#[derive(Debug, Default)]
pub(super) struct Polls {
    pub(super) session: Poll,
    pub(super) approvals: Poll,
    pub(super) hold: Poll,
    pub(super) active: Poll,
    pub(super) held: Poll,
    pub(super) unsettled: Poll,
    /// Asked once, and again after the daemon was away.
    pub(super) agents: bool,
}

#[cfg(test)]
mod tests;
