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
        SCENES.iter().find(|(scene, ..)| *scene == self).map_or("", |(_, name, _)| name)
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
        STOP_METHODS.iter().find(|(method, ..)| *method == self).map_or("", |(_, name, _)| name)
    }
}

/// Each scene with its name in the table, and how often it is drawn.
const SCENES: [(SoakScene, &str, u64); 15] = [
    (SoakScene::Silent, "silent model", 9),
    (SoakScene::Streaming, "streaming", 12),
    (SoakScene::BackOff, "back-off", 7),
    (SoakScene::Tool, "plain tool", 8),
    (SoakScene::IgnoresTerm, "TERM-ignoring child", 5),
    (SoakScene::EscapedChild, "escaped child", 7),
    (SoakScene::Background, "background process", 6),
    (SoakScene::Mcp, "MCP call", 6),
    (SoakScene::SubAgent, "sub-agent, waiting", 7),
    (SoakScene::BackgroundSubAgent, "sub-agent, behind", 5),
    (SoakScene::Queued, "queued message", 7),
    (SoakScene::Interrupt, "interrupting message", 4),
    (SoakScene::Steer, "steered message", 5),
    (SoakScene::Approval, "pending approval", 6),
    (SoakScene::Compaction, "compaction", 6),
];

/// Each kind of stop with the heading of its column, and how often it is drawn.
const STOP_METHODS: [(StopMethod, &str, u64); 11] = [
    (StopMethod::HttpRun, "HTTP run", 170),
    (StopMethod::HttpSession, "HTTP session", 150),
    (StopMethod::HttpAll, "HTTP all", 4),
    (StopMethod::AgentAbort, "agent abort", 30),
    (StopMethod::WsRun, "WS run", 90),
    (StopMethod::WsSession, "WS session", 90),
    (StopMethod::WsSessionsAbort, "sessions.abort", 90),
    (StopMethod::StopText, "stop text", 90),
    (StopMethod::CallerDropped, "caller dropped", 90),
    (StopMethod::TimeOut, "time-out", 80),
    (StopMethod::NoStop, "no stop", 100),
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
        let scene = random.weighted(&SCENES.map(|(scene, _, weight)| (weight, scene)));
        let drawn = random.weighted(&STOP_METHODS.map(|(method, _, weight)| (weight, method)));
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
