//! What a round is going to do, drawn from chance before it begins.

use std::time::Duration;

use crate::chance::Chance;

/// The wire dialect of the agent that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
}

impl Dialect {
    pub(crate) const ALL: [Self; 2] = [Self::OpenAi, Self::Anthropic];

    /// The provider's kind, and its name here.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
        }
    }

    /// The agent in this role that speaks it.
    pub(crate) fn agent(self, role: &str) -> String {
        format!("{role}-{}", self.kind())
    }
}

/// What a run is doing when its stop comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scene {
    Silent,
    Streaming,
    BackOff,
    Tool,
    Deaf,
    Escaped,
    Background,
    Mcp,
    SubAgent,
    SubBehind,
    Queued,
    Interrupt,
    Steer,
    Approval,
    Compaction,
}

impl Scene {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent model",
            Self::Streaming => "streaming",
            Self::BackOff => "back-off",
            Self::Tool => "plain tool",
            Self::Deaf => "TERM-ignoring child",
            Self::Escaped => "escaped child",
            Self::Background => "background process",
            Self::Mcp => "MCP call",
            Self::SubAgent => "sub-agent, waiting",
            Self::SubBehind => "sub-agent, behind",
            Self::Queued => "queued message",
            Self::Interrupt => "interrupting message",
            Self::Steer => "steered message",
            Self::Approval => "pending approval",
            Self::Compaction => "compaction",
        }
    }

    /// True when it can come to an end without a stop.
    fn can_finish(self) -> bool {
        !matches!(self, Self::Silent | Self::Deaf)
    }
}

/// How a stop is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Surface {
    HttpRun,
    HttpSession,
    HttpAll,
    AgentAbort,
    WsRun,
    WsSession,
    WsSessionsAbort,
    StopText,
    Dropped,
    TimeOut,
    Nobody,
}

impl Surface {
    /// As the head of a column.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::HttpRun => "HTTP run",
            Self::HttpSession => "HTTP session",
            Self::HttpAll => "HTTP all",
            Self::AgentAbort => "agent abort",
            Self::WsRun => "WS run",
            Self::WsSession => "WS session",
            Self::WsSessionsAbort => "sessions.abort",
            Self::StopText => "stop text",
            Self::Dropped => "caller dropped",
            Self::TimeOut => "time-out",
            Self::Nobody => "no stop",
        }
    }
}

const SCENES: &[(u64, Scene)] = &[
    (9, Scene::Silent),
    (12, Scene::Streaming),
    (7, Scene::BackOff),
    (8, Scene::Tool),
    (5, Scene::Deaf),
    (7, Scene::Escaped),
    (6, Scene::Background),
    (6, Scene::Mcp),
    (7, Scene::SubAgent),
    (5, Scene::SubBehind),
    (7, Scene::Queued),
    (4, Scene::Interrupt),
    (5, Scene::Steer),
    (6, Scene::Approval),
    (6, Scene::Compaction),
];

const SURFACES: &[(u64, Surface)] = &[
    (170, Surface::HttpRun),
    (150, Surface::HttpSession),
    (4, Surface::HttpAll),
    (30, Surface::AgentAbort),
    (90, Surface::WsRun),
    (90, Surface::WsSession),
    (90, Surface::WsSessionsAbort),
    (90, Surface::StopText),
    (90, Surface::Dropped),
    (80, Surface::TimeOut),
    (100, Surface::Nobody),
];

/// One round of one session.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) scene: Scene,
    pub(crate) surface: Surface,
    pub(crate) dialect: Dialect,
    /// True when only a stop ends it.
    pub(crate) lasting: bool,
    /// From the answer to the message to the stop; the run's time where that is to stop it.
    pub(crate) moment: Duration,
    pub(crate) forced: bool,
    /// The same stop twice at the same time.
    pub(crate) doubled: bool,
    /// Whether the caller waits for the end, where the surface lets it choose.
    pub(crate) waits: bool,
    /// One who reads the run's events leaves in the middle of them.
    pub(crate) deserted: bool,
    /// The session is emptied afterwards, so that histories do not grow without end.
    pub(crate) reset: bool,
    /// For choices among the forms of a scene.
    pub(crate) form: u64,
}

impl Plan {
    pub(crate) fn draw(chance: &mut Chance) -> Self {
        let scene = chance.weighted(SCENES);
        let drawn = chance.weighted(SURFACES);
        let surface = if drawn == Surface::Nobody && !scene.can_finish() { Surface::HttpRun } else { drawn };
        let may_last = surface != Surface::Nobody;
        Self {
            scene,
            surface,
            dialect: chance.pick(&Dialect::ALL),
            lasting: may_last && (!scene.can_finish() || !chance.one_in(5)),
            moment: moment(chance),
            forced: chance.one_in(4),
            doubled: chance.one_in(6),
            waits: chance.one_in(2),
            deserted: chance.one_in(8),
            reset: chance.one_in(6),
            form: chance.next(),
        }
    }

    /// The agent in this role.
    pub(crate) fn agent(&self, role: &str) -> String {
        self.dialect.agent(role)
    }
}

/// At once, in the first steps, or when the state of the scene is reached on a busy machine.
fn moment(chance: &mut Chance) -> Duration {
    let most = chance.weighted(&[(1, 1), (2, 10_000), (3, 150_000), (3, 700_000)]);
    Duration::from_micros(chance.below(most))
}
