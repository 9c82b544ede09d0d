//! What a round does, drawn at random before it starts.

use std::time::Duration;

use crate::random::SoakRandom;

/// The dialect of the round's agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SoakDialect {
    OpenAi,
    Anthropic,
}

impl SoakDialect {
    pub(crate) const ALL: [Self; 2] = [Self::OpenAi, Self::Anthropic];

    /// The provider's kind, which is also its name here.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
        }
    }

    /// The agent with this role and dialect.
    pub(crate) fn agent_id(self, role: &str) -> String {
        format!("{role}-{}", self.kind())
    }
}

/// The state of a run when its stop arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SoakScene {
    Silent,
    Streaming,
    BackOff,
    Tool,
    IgnoresTerm,
    EscapedChild,
    Background,
    Mcp,
    SubAgent,
    BackgroundSubAgent,
    Queued,
    Interrupt,
    Steer,
    Approval,
    Compaction,
}

impl SoakScene {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent model",
            Self::Streaming => "streaming",
            Self::BackOff => "back-off",
            Self::Tool => "plain tool",
            Self::IgnoresTerm => "TERM-ignoring child",
            Self::EscapedChild => "escaped child",
            Self::Background => "background process",
            Self::Mcp => "MCP call",
            Self::SubAgent => "sub-agent, waiting",
            Self::BackgroundSubAgent => "sub-agent, behind",
            Self::Queued => "queued message",
            Self::Interrupt => "interrupting message",
            Self::Steer => "steered message",
            Self::Approval => "pending approval",
            Self::Compaction => "compaction",
        }
    }

    /// True when it can end without a stop.
    fn can_finish(self) -> bool {
        !matches!(self, Self::Silent | Self::IgnoresTerm)
    }
}

/// The way in which a stop is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StopMethod {
    HttpRun,
    HttpSession,
    HttpAll,
    AgentAbort,
    WsRun,
    WsSession,
    WsSessionsAbort,
    StopText,
    CallerDropped,
    TimeOut,
    NoStop,
}

impl StopMethod {
    /// The heading of its column.
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
            Self::CallerDropped => "caller dropped",
            Self::TimeOut => "time-out",
            Self::NoStop => "no stop",
        }
    }
}

const SCENES: &[(u64, SoakScene)] = &[
    (9, SoakScene::Silent),
    (12, SoakScene::Streaming),
    (7, SoakScene::BackOff),
    (8, SoakScene::Tool),
    (5, SoakScene::IgnoresTerm),
    (7, SoakScene::EscapedChild),
    (6, SoakScene::Background),
    (6, SoakScene::Mcp),
    (7, SoakScene::SubAgent),
    (5, SoakScene::BackgroundSubAgent),
    (7, SoakScene::Queued),
    (4, SoakScene::Interrupt),
    (5, SoakScene::Steer),
    (6, SoakScene::Approval),
    (6, SoakScene::Compaction),
];

const STOP_METHODS: &[(u64, StopMethod)] = &[
    (170, StopMethod::HttpRun),
    (150, StopMethod::HttpSession),
    (4, StopMethod::HttpAll),
    (30, StopMethod::AgentAbort),
    (90, StopMethod::WsRun),
    (90, StopMethod::WsSession),
    (90, StopMethod::WsSessionsAbort),
    (90, StopMethod::StopText),
    (90, StopMethod::CallerDropped),
    (80, StopMethod::TimeOut),
    (100, StopMethod::NoStop),
];

#[derive(Debug, Clone)]
pub(crate) struct RoundPlan {
    pub(crate) scene: SoakScene,
    pub(crate) stop_method: StopMethod,
    pub(crate) dialect: SoakDialect,
    /// True when only a stop ends the round's run.
    pub(crate) needs_stop: bool,
    /// Time from the answer to the message until the stop; for [`StopMethod::TimeOut`] the run's timeout.
    pub(crate) stop_delay: Duration,
    pub(crate) forced: bool,
    /// The same stop is sent twice at the same time.
    pub(crate) stop_twice: bool,
    /// Whether the caller waits for the end, where the surface lets it choose.
    pub(crate) wait_for_end: bool,
    /// A reader of the run's events disconnects in the middle.
    pub(crate) reader_leaves: bool,
    /// The session is reset afterwards, so that histories stay short.
    pub(crate) reset: bool,
    /// Random bits for the variants of a scene.
    pub(crate) variant_bits: u64,
}

impl RoundPlan {
    pub(crate) fn draw(random: &mut SoakRandom) -> Self {
        let scene = random.weighted(SCENES);
        let drawn = random.weighted(STOP_METHODS);
        let stop_method = if drawn == StopMethod::NoStop && !scene.can_finish() { StopMethod::HttpRun } else { drawn };
        let may_last = stop_method != StopMethod::NoStop;
        Self {
            scene,
            stop_method,
            dialect: random.pick(&SoakDialect::ALL),
            needs_stop: may_last && (!scene.can_finish() || !random.one_in(5)),
            stop_delay: draw_stop_delay(random),
            forced: random.one_in(4),
            stop_twice: random.one_in(6),
            wait_for_end: random.one_in(2),
            reader_leaves: random.one_in(8),
            reset: random.one_in(6),
            variant_bits: random.next(),
        }
    }

    pub(crate) fn agent_id(&self, role: &str) -> String {
        self.dialect.agent_id(role)
    }
}

/// Draws a time: at once, during the first steps, or late enough to reach the scene's state on a busy machine.
fn draw_stop_delay(random: &mut SoakRandom) -> Duration {
    let most = random.weighted(&[(1, 1), (2, 10_000), (3, 150_000), (3, 700_000)]);
    Duration::from_micros(random.below(most))
}
