//! Inputs and effects of the state machine, and the timers of its polls.

use std::time::Duration;

use crossterm::event::KeyEvent;
use quell_client::daemon_client::{ClientError, SendReply, StopReply};
use quell_protocol::api::{AgentRow, HistoryMessage, Hold, Page, RunView, SendRequest, SessionRow, StopAnswer};
use quell_protocol::approval::{ApprovalAnswer, ApprovalRow};
use quell_protocol::mcp::{McpContent, McpContentCommand, McpList, McpListKind};
use quell_protocol::session::SessionView;
use quell_protocol::undo::UndoReport;
use quell_protocol::{AgentId, RunEvent, RunId, SessionKey};

use crate::unix_millis::UnixMillis;

/// Input of the state machine.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "inputs are handled one at a time and not stored")]
pub(crate) enum ChatInput {
    Key(KeyEvent),
    Paste(String),
    Tick,
    /// The oldest row of the transcript is on the screen.
    TopReached,
    RunUpdate(RunId, ChatRunUpdate),
    Response(DaemonResponse),
}

#[derive(Debug)]
pub(crate) enum ChatRunUpdate {
    Event(Box<RunEvent>),
    Disconnected(String),
    Reconnected,
    /// The run cannot be followed any more.
    FollowFailed(DaemonFailure),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DaemonFailure {
    pub(crate) text: String,
    pub(crate) kind: DaemonFailureKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DaemonFailureKind {
    /// No answer, or a temporary refusal: a retry may succeed.
    Unreachable,
    NotFound,
    Refused,
}

impl From<ClientError> for DaemonFailure {
    fn from(error: ClientError) -> Self {
        let kind = match &error {
            // These refusals last until somebody changes something, so a retry would not help; the daemon is reachable.
            ClientError::Refused(problem)
                if matches!(problem.code.as_str(), "held" | "queue_full" | "spend_limit" | "mcp_unavailable") =>
            {
                DaemonFailureKind::Refused
            }
            error if error.is_transient() => DaemonFailureKind::Unreachable,
            error if error.is_not_found() => DaemonFailureKind::NotFound,
            _ => DaemonFailureKind::Refused,
        };
        let text = match error {
            ClientError::ConnectionLost { cause, .. } => cause,
            ClientError::NoDaemon { tried } => tried,
            other => other.to_string(),
        };
        Self { text, kind }
    }
}

pub(crate) type DaemonResult<T> = Result<T, DaemonFailure>;

/// Responses of the daemon, each with the request that it answers.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "responses are handled one at a time and not stored")]
pub(crate) enum DaemonResponse {
    Sent { run: RunId, result: DaemonResult<SendReply> },
    SessionStopped { session: SessionKey, result: DaemonResult<StopAnswer> },
    RunStopped { run: RunId, result: DaemonResult<StopReply> },
    Session { key: SessionKey, result: DaemonResult<SessionView> },
    Run { run: RunId, result: DaemonResult<RunView> },
    ActiveRuns(DaemonResult<Vec<RunView>>),
    Approvals(DaemonResult<Vec<ApprovalRow>>),
    ApprovalAnswered { id: String, result: DaemonResult<ApprovalRow> },
    Hold { result: DaemonResult<Hold>, by_user: bool },
    Agents(DaemonResult<Vec<AgentRow>>),
    Sessions(DaemonResult<Vec<SessionRow>>),
    History { session: SessionKey, page: HistorySlice, result: DaemonResult<Page<HistoryMessage>> },
    Undone(DaemonResult<UndoReport>),
    ModelSet { model: String, result: DaemonResult<SessionView> },
    McpList { kind: McpListKind, result: DaemonResult<McpList> },
    McpContent { text: String, result: DaemonResult<McpContent> },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HistorySlice {
    /// The newest page, loaded first.
    NewestPage,
    /// The page that ends before this cursor.
    PageBefore(String),
    /// The newest turn again, to learn whether the model sees a text that was cut off.
    LastTurn,
}

/// Action outside of the state machine.
#[derive(Debug, PartialEq)]
pub(crate) enum ChatEffect {
    SendMessage {
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
    /// Follow the events of a run after this `seq`.
    FollowRun {
        run: RunId,
        after: u64,
    },
    UnfollowAll,
    Query(DaemonQuery),
    AnswerApproval {
        id: String,
        answer: ApprovalAnswer,
    },
    SetHold(bool),
    UndoRun(RunId),
    SetModel {
        session: SessionKey,
        model: String,
    },
    Scroll(Scroll),
    /// Repaint the whole screen.
    Redraw,
    Exit,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DaemonQuery {
    Session(SessionKey),
    Run(RunId),
    ActiveRuns,
    Approvals,
    Hold,
    Agents,
    Sessions,
    History { session: SessionKey, page: HistorySlice },
    McpList { kind: McpListKind, agent: Option<AgentId> },
    McpContent { command: Box<McpContentCommand>, agent: Option<AgentId> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scroll {
    PageUp,
    PageDown,
    LineUp,
    LineDown,
    Bottom,
}

/// Interval of the polls for the session, its approvals and the hold.
const NORMAL_POLL: Duration = Duration::from_millis(500);
/// Interval of the poll for runs of other sessions while something runs.
const RELAXED_POLL: Duration = Duration::from_secs(1);
/// Interval of the poll for what is left while something is being stopped.
const FAST_POLL: Duration = Duration::from_millis(100);
/// An unanswered poll is sent again after this time.
const UNANSWERED_POLL: Duration = Duration::from_secs(35);

/// When one repeated query is due; a query without an answer is not sent again before [`UNANSWERED_POLL`].
#[derive(Debug, Default)]
pub(crate) struct PollTimer {
    next_due: UnixMillis,
}

impl PollTimer {
    /// True when the query is due; it then counts as sent.
    pub(crate) fn start_if_due(&mut self, now: UnixMillis) -> bool {
        let due = now >= self.next_due;
        if due {
            self.next_due = now.plus(UNANSWERED_POLL);
        }
        due
    }

    /// Schedules the next query after an answer.
    pub(crate) fn schedule_next(&mut self, now: UnixMillis, pace: PollInterval) {
        self.next_due = now.plus(match pace {
            PollInterval::Normal => NORMAL_POLL,
            PollInterval::Relaxed => RELAXED_POLL,
            PollInterval::Fast => FAST_POLL,
        });
    }

    pub(crate) fn make_due(&mut self) {
        self.next_due = UnixMillis::default();
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum PollInterval {
    Normal,
    Relaxed,
    Fast,
}

#[derive(Debug, Default)]
pub(crate) struct PollTimers {
    pub(crate) session: PollTimer,
    pub(crate) approvals: PollTimer,
    pub(crate) hold: PollTimer,
    pub(crate) active: PollTimer,
    pub(crate) stopping_runs: PollTimer,
    pub(crate) unsettled_runs: PollTimer,
    /// Agents are queried once, and again after a lost connection.
    pub(crate) agents_requested: bool,
}

#[cfg(test)]
mod tests;
