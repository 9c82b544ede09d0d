//! State of the chat; only [`crate::update`] and the methods that it calls change it. No IO.

use std::collections::{BTreeMap, BTreeSet};

use quell_protocol::api::{AgentRow, Hold, OnBusy, RunView, SessionRow};
use quell_protocol::approval::ApprovalRow;
use quell_protocol::mcp::{McpListKind, McpListedItem};
use quell_protocol::{AgentId, Resource, RunId, SessionKey};

use crate::composer::Composer;
use crate::effects::{ChatEffect, DaemonQuery, PollTimers};
use crate::texts::Texts;
use crate::transcript::{ChatTranscript, NoticeLevel};
use crate::unix_millis::UnixMillis;

pub(crate) struct ChatState {
    pub(crate) texts: Texts,
    pub(crate) now: UnixMillis,
    pub(crate) ids: ChatIdGenerator,
    pub(crate) session: SessionKey,
    /// The agent that the user chose; otherwise the session's agent answers.
    pub(crate) agent: Option<AgentId>,
    pub(crate) session_info: ChatSessionInfo,
    pub(crate) agents: Vec<AgentRow>,
    pub(crate) composer: Composer,
    pub(crate) transcript: ChatTranscript,
    /// Runs of the session that have not ended, in the order of their messages.
    pub(crate) runs: Vec<ChatRun>,
    /// Active runs that other clients started and whose details are being queried.
    pub(crate) pending_run_lookups: Vec<RunId>,
    /// Messages that may have arrived although their answer was lost; their texts are back in the input.
    pub(crate) unconfirmed_sends: Vec<(RunId, String)>,
    /// Ended runs whose receipt may still be amended, and until when they are polled.
    pub(crate) unsettled_runs: Vec<(RunId, UnixMillis)>,
    /// Messages without an answer whose session the user has left.
    pub(crate) detached_sends: Vec<DetachedSend>,
    /// Withdrawn messages whose texts are back in the input: two answers may name the same one.
    pub(crate) restored_runs: BTreeSet<RunId>,
    pub(crate) busy_policy: OnBusy,
    pub(crate) stop: Option<ChatStop>,
    pub(crate) exit_plan: ExitPlan,
    pub(crate) menu: Option<Menu>,
    pub(crate) completion: CommandCompletion,
    pub(crate) approvals: Vec<ChatApproval>,
    pub(crate) shown_approval: Option<ShownApproval>,
    /// The approval that a command in the input refers to: the one shown when the user started typing.
    pub(crate) command_approval: Option<String>,
    pub(crate) connection: DaemonConnectionStatus,
    pub(crate) hold: Hold,
    pub(crate) notice: Option<StatusNotice>,
    pub(crate) details: DetailsMode,
    pub(crate) history: HistoryPaging,
    pub(crate) poll_timers: PollTimers,
    /// What the input that is being applied asks for; [`ChatState::update`] returns it.
    pub(crate) effects: Vec<ChatEffect>,
}

/// Generates run ids and session keys in the client. So a message can be sent again, and its run stopped before the
/// daemon has confirmed it.
#[derive(Debug)]
pub(crate) struct ChatIdGenerator {
    /// Globally unique prefix of run ids.
    pub(crate) run_prefix: String,
    /// Prefix of the keys of new sessions.
    pub(crate) session_prefix: String,
    pub(crate) session_count: u32,
    pub(crate) run_count: u32,
}

/// Session details in the header.
#[derive(Debug, Default)]
pub(crate) struct ChatSessionInfo {
    pub(crate) agent: Option<AgentId>,
    pub(crate) model: Option<String>,
    /// False until the daemon knows the session.
    pub(crate) exists: bool,
}

/// A run that has not ended.
#[derive(Debug)]
pub(crate) struct ChatRun {
    pub(crate) id: RunId,
    pub(crate) text: String,
    pub(crate) state: ChatRunState,
    pub(crate) since: UnixMillis,
    /// `seq` of the last event.
    pub(crate) last_seq: u64,
    pub(crate) followed: bool,
    /// True if this client sent the message.
    pub(crate) sent_here: bool,
}

/// A message without an answer whose session the user has left.
#[derive(Debug)]
pub(crate) struct DetachedSend {
    pub(crate) run: RunId,
    pub(crate) session: SessionKey,
    pub(crate) text: String,
    /// True if a stop of its run was requested before.
    pub(crate) stop_requested: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChatRunState {
    /// The daemon has not answered yet.
    Sending,
    Queued,
    Running,
    Ending,
}

/// A stop that has not finished.
#[derive(Debug)]
pub(crate) struct ChatStop {
    pub(crate) since: UnixMillis,
    pub(crate) force: bool,
    /// Runs that the stop covers and that have not ended.
    pub(crate) stopping_runs: BTreeMap<RunId, StoppingRun>,
    /// Why the request failed.
    pub(crate) problem: Option<String>,
    /// Requests of this stop without an answer.
    pub(crate) pending_requests: Vec<ChatStopRequest>,
    /// Texts of messages that were withdrawn before the answer, which gives their order.
    pub(crate) withdrawn_texts: Vec<(RunId, String)>,
}

/// A request of a stop. Each uses a connection of its own, so one answer says nothing about another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChatStopRequest {
    Session,
    Run(RunId),
    /// A stop text, sent as a message.
    Text(RunId),
}

impl ChatStopRequest {
    /// True when the answer names the withdrawn messages.
    pub(crate) fn returns_texts(&self) -> bool {
        !matches!(self, Self::Run(_))
    }
}

impl ChatStop {
    pub(crate) fn new(since: UnixMillis) -> Self {
        let (stopping_runs, pending_requests, withdrawn_texts) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { since, force: false, stopping_runs, problem: None, pending_requests, withdrawn_texts }
    }

    /// True while an answer may still return texts of withdrawn messages.
    pub(crate) fn awaits_texts(&self) -> bool {
        self.pending_requests.iter().any(ChatStopRequest::returns_texts)
    }

    /// True when no run and no answer is missing. A failed request does not matter then.
    pub(crate) fn is_finished(&self) -> bool {
        self.stopping_runs.is_empty() && self.pending_requests.is_empty()
    }
}

/// What a stopping run still holds, as far as known.
#[derive(Debug, Default)]
pub(crate) struct StoppingRun {
    pub(crate) delivered: bool,
    pub(crate) resources: Vec<Resource>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ExitPlan {
    #[default]
    Stay,
    /// Exit as soon as everything that is being stopped has ended.
    WhenStopped,
}

/// The open menu, which takes the keys.
#[derive(Debug)]
pub(crate) enum Menu {
    Help,
    ConfirmLeave,
    Picker(Picker),
}

#[derive(Debug)]
pub(crate) struct Picker {
    pub(crate) list: PickerList,
    pub(crate) chosen: PickerSelection,
    /// Runs whose stop was requested in this list.
    pub(crate) stop_requested_runs: Vec<RunId>,
    /// Filter that the user typed.
    pub(crate) filter: String,
}

/// The selected row of a picker, by value and not by index, because the list may change at any time.
#[derive(Debug)]
pub(crate) enum PickerSelection {
    /// The first row, as soon as there is one.
    First,
    /// This row and its last index. If the row is gone, nothing is selected until the next key.
    Item(PickerItem, usize),
}

/// Value of a row of a picker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PickerItem {
    Session(SessionKey),
    Run(RunId, SessionKey),
    Agent(AgentId),
    Model(String),
    /// A resource, or a prompt of an MCP server.
    Mcp(McpListKind, Box<McpListedItem>),
}

/// None while the list is loading.
#[derive(Debug)]
pub(crate) enum PickerList {
    Sessions(Option<Vec<SessionRow>>),
    Runs(Option<Vec<RunView>>),
    Agents,
    Models,
    Mcp(McpListKind, Option<Vec<McpListedItem>>),
}

/// Completion of slash commands; most of it follows from the input.
#[derive(Debug, Default)]
pub(crate) struct CommandCompletion {
    pub(crate) chosen: usize,
    /// The input for which the user closed the completion.
    pub(crate) closed_for: Option<String>,
}

#[derive(Debug)]
pub(crate) struct ChatApproval {
    pub(crate) row: ApprovalRow,
    pub(crate) answered: bool,
}

/// The approval on the screen. Only this one can be answered by a letter, because only this one could be read.
#[derive(Debug)]
pub(crate) struct ShownApproval {
    pub(crate) id: String,
    /// When it appeared; before, it may have waited behind another approval or a menu.
    pub(crate) since: UnixMillis,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DaemonConnectionStatus {
    /// No answer yet.
    Connecting,
    Live,
    Lost {
        since: UnixMillis,
        cause: String,
    },
}

/// A short notice about the last action; it disappears by itself.
#[derive(Debug)]
pub(crate) struct StatusNotice {
    pub(crate) level: NoticeLevel,
    pub(crate) text: String,
    pub(crate) until: UnixMillis,
}

/// Whether output and thinking are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum DetailsMode {
    #[default]
    Folded,
    Open,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct HistoryPaging {
    /// Cursor of the next older page.
    pub(crate) next_cursor: Option<String>,
    pub(crate) requested_first: bool,
    pub(crate) request_pending: bool,
}

impl ChatState {
    /// A chat with this session; it has not sent any request yet.
    pub(crate) fn new(texts: Texts, ids: ChatIdGenerator, session: SessionKey, agent: Option<AgentId>) -> Self {
        Self {
            texts,
            now: UnixMillis::default(),
            ids,
            session,
            agent,
            session_info: ChatSessionInfo::default(),
            agents: Vec::new(),
            composer: Composer::default(),
            transcript: ChatTranscript::default(),
            runs: Vec::new(),
            pending_run_lookups: Vec::new(),
            unconfirmed_sends: Vec::new(),
            unsettled_runs: Vec::new(),
            detached_sends: Vec::new(),
            restored_runs: BTreeSet::new(),
            busy_policy: OnBusy::Queue,
            stop: None,
            exit_plan: ExitPlan::Stay,
            menu: None,
            completion: CommandCompletion::default(),
            approvals: Vec::new(),
            shown_approval: None,
            command_approval: None,
            connection: DaemonConnectionStatus::Connecting,
            hold: Hold::default(),
            notice: None,
            details: DetailsMode::default(),
            history: HistoryPaging::default(),
            poll_timers: PollTimers::default(),
            effects: Vec::new(),
        }
    }

    /// True while the session has a run that has not ended, or a message without an answer.
    pub(crate) fn is_active(&self) -> bool {
        !self.runs.is_empty()
    }

    pub(crate) fn session(&self) -> &SessionKey {
        &self.session
    }

    /// True once the session has a message.
    pub(crate) fn has_session(&self) -> bool {
        self.session_info.exists || self.is_active()
    }

    pub(crate) fn details(&self) -> DetailsMode {
        self.details
    }

    pub(crate) fn query(&mut self, query: DaemonQuery) {
        self.effects.push(ChatEffect::Query(query));
    }

    pub(crate) fn run_mut(&mut self, id: &RunId) -> Option<&mut ChatRun> {
        self.runs.iter_mut().find(|run| run.id == *id)
    }

    pub(crate) fn effective_agent(&self) -> Option<&AgentId> {
        let default = || self.agents.iter().find(|row| row.default).map(|row| &row.id);
        self.agent.as_ref().or(self.session_info.agent.as_ref()).or_else(default)
    }

    pub(crate) fn effective_model(&self) -> Option<&str> {
        let agent = self.effective_agent();
        let of_agent = || self.agents.iter().find(|row| Some(&row.id) == agent).map(|row| row.model.as_str());
        match (&self.agent, &self.session_info.model) {
            // The session's model belongs to the session's agent.
            (Some(chosen), _) if self.session_info.agent.as_ref() != Some(chosen) => of_agent(),
            (_, model) => model.as_deref().or_else(of_agent),
        }
    }

    pub(crate) fn next_approval(&self) -> Option<&ChatApproval> {
        self.approvals.iter().find(|asked| !asked.answered)
    }
}

impl ChatIdGenerator {
    pub(crate) fn next_run_id(&mut self) -> Option<RunId> {
        self.run_count += 1;
        RunId::parse(format!("{}.{}", self.run_prefix, self.run_count)).ok()
    }

    pub(crate) fn next_session_key(&mut self) -> Result<SessionKey, quell_protocol::BadId> {
        self.session_count += 1;
        match self.session_count {
            1 => SessionKey::parse(&self.session_prefix),
            nth => SessionKey::parse(format!("{}-{nth}", self.session_prefix)),
        }
    }
}
