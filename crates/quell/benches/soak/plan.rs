//! What a round does, drawn at random before it starts.

use std::time::Duration;

use fastrand::Rng;

/// The dialect of the round's agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SoakDialect {
    OpenAi,
    Anthropic,
}

impl SoakDialect {
    pub(crate) const ALL: [Self; 2] = [Self::OpenAi, Self::Anthropic];

    pub(crate) fn draw(random: &mut Rng) -> Self {
        if random.bool() { Self::OpenAi } else { Self::Anthropic }
    }

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

/// An enum whose variants have a name in the report, and a weight: how often they are drawn.
macro_rules! weighted_enum {
    ($(#[$doc:meta])* $name:ident: $($variant:ident = $text:literal, $weight:literal;)*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum $name {
            $($variant),*
        }

        impl $name {
            const WEIGHTS: &[(u64, Self)] = &[$(($weight, Self::$variant)),*];

            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text),*
                }
            }
        }
    };
}

weighted_enum! {
    /// The state of a run when its stop arrives.
    SoakScene:
    Silent = "silent model", 9;
    Streaming = "streaming", 12;
    BackOff = "back-off", 7;
    Tool = "plain tool", 8;
    IgnoresTerm = "TERM-ignoring child", 5;
    EscapedChild = "escaped child", 7;
    Background = "background process", 6;
    Mcp = "MCP call", 6;
    SubAgent = "sub-agent, waiting", 7;
    BackgroundSubAgent = "sub-agent, behind", 5;
    Queued = "queued message", 7;
    Interrupt = "interrupting message", 4;
    Steer = "steered message", 5;
    Approval = "pending approval", 6;
    Compaction = "compaction", 6;
}

weighted_enum! {
    /// The way in which a stop is requested.
    StopMethod:
    HttpRun = "HTTP run", 170;
    HttpSession = "HTTP session", 150;
    HttpAll = "HTTP all", 4;
    AgentAbort = "agent abort", 30;
    WsRun = "WS run", 90;
    WsSession = "WS session", 90;
    WsSessionsAbort = "sessions.abort", 90;
    StopText = "stop text", 90;
    CallerDropped = "caller dropped", 90;
    TimeOut = "time-out", 80;
    NoStop = "no stop", 100;
}

impl SoakScene {
    /// True when it can end without a stop.
    fn can_finish(self) -> bool {
        !matches!(self, Self::Silent | Self::IgnoresTerm)
    }
}

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
    pub(crate) fn draw(random: &mut Rng) -> Self {
        let scene = draw_weighted(random, SoakScene::WEIGHTS);
        let drawn = draw_weighted(random, StopMethod::WEIGHTS);
        let stop_method = if drawn == StopMethod::NoStop && !scene.can_finish() { StopMethod::HttpRun } else { drawn };
        let may_last = stop_method != StopMethod::NoStop;
        Self {
            scene,
            stop_method,
            dialect: SoakDialect::draw(random),
            needs_stop: may_last && (!scene.can_finish() || !one_in(random, 5)),
            stop_delay: draw_stop_delay(random),
            forced: one_in(random, 4),
            stop_twice: one_in(random, 6),
            wait_for_end: random.bool(),
            reader_leaves: one_in(random, 8),
            reset: one_in(random, 6),
            variant_bits: random.u64(..),
        }
    }
}

/// Draws a time: at once, during the first steps, or late enough to reach the scene's state on a busy machine.
fn draw_stop_delay(random: &mut Rng) -> Duration {
    let most = draw_weighted(random, &[(1, 1), (2, 10_000), (3, 150_000), (3, 700_000)]);
    Duration::from_micros(random.u64(..most))
}

/// True once in `n` times on average.
fn one_in(random: &mut Rng, n: u64) -> bool {
    random.u64(..n) == 0
}

/// Draws one of the values, with a probability by its weight.
fn draw_weighted<T: Copy>(random: &mut Rng, from: &[(u64, T)]) -> T {
    let sum: u64 = from.iter().map(|(weight, _)| weight).sum();
    let mut at = random.u64(..sum);
    for (weight, value) in from {
        if at < *weight {
            return *value;
        }
        at -= weight;
    }
    from[0].1
}
