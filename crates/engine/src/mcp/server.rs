//! A configured server: its section made ready, and what is known of its tools.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_kernel::StopTimes;
use rmcp::model::Tool;
use tokio::time::Instant;

use super::config::{BadServer, McpConfig, Reach};
use super::names;
use crate::llm::{self, ToolSpec};

/// Unused for so long, a server is closed.
const IDLE: Duration = Duration::from_secs(300);
/// A server that has not told its tools by then does not work.
const START: Duration = Duration::from_secs(10);
/// A call that is not answered and reports nothing for so long is cancelled.
const CALL: Duration = Duration::from_secs(300);
/// From a cancel until a server that goes on is restarted.
const GRACE: Duration = Duration::from_millis(1000);
/// After a start that failed the next one waits so long: a broken server does not cost each run its time to start. While it
/// has never worked, each pause is twice as long as the one before.
const PAUSE: Duration = Duration::from_secs(10);
/// No pause is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// The longest description that is passed on.
const MAX_ABOUT: usize = 8 * 1024;

/// A configured server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) config: McpConfig,
    pub(super) grace: Duration,
    pub(super) idle: Duration,
    pub(super) call_timeout: Duration,
    pub(super) start_timeout: Duration,
    /// For one that is reached by URL.
    pub(super) client: Option<reqwest::Client>,
    facts: Mutex<Facts>,
}

#[derive(Debug, Default)]
struct Facts {
    listed: Option<Tools>,
    failed: Option<Failure>,
}

/// A start that failed.
#[derive(Debug)]
struct Failure {
    at: Instant,
    why: String,
    /// None is tried before so long has gone by.
    pause: Duration,
}

impl Failure {
    fn is_recent(&self) -> bool {
        self.at.elapsed() < self.pause
    }
}

/// The tools of a server.
pub(super) type Tools = Arc<[Offered]>;

/// One tool of a server.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Offered {
    /// As the model sees it.
    pub(super) spec: ToolSpec,
    /// As the server calls it.
    pub(super) own_name: String,
}

impl Server {
    pub(super) fn new(name: &str, config: McpConfig, times: StopTimes) -> Result<Self, BadServer> {
        config.check(name)?;
        let bad = |problem| BadServer { server: name.to_owned(), key: "url", problem };
        let start_timeout = config.start_timeout_s.map_or(START, Duration::from_secs);
        let client = match config.reach() {
            Ok(Reach::Url(url)) => Some(llm::http_client(&url, config.addresses, start_timeout).map_err(bad)?),
            Ok(Reach::Command(_)) | Err(_) => None,
        };
        Ok(Self {
            name: name.to_owned(),
            grace: config.grace_ms.map_or(GRACE.min(times.grace / 2), Duration::from_millis),
            idle: config.idle_s.map_or(IDLE, Duration::from_secs),
            call_timeout: config.call_timeout_s.map_or(CALL, Duration::from_secs),
            start_timeout,
            config,
            client,
            facts: Mutex::default(),
        })
    }

    /// Its tools as it told them last, in any session.
    pub(super) fn listed(&self) -> Option<Tools> {
        self.facts().listed.clone()
    }

    /// It works, and these are its tools.
    pub(super) fn works(&self, tools: &Tools) {
        *self.facts() = Facts { listed: Some(Arc::clone(tools)), failed: None };
    }

    /// It could not be started.
    pub(super) fn failed(&self, why: &str) {
        let mut facts = self.facts();
        let pause = match &facts.failed {
            // Starts that were under way at once are one failure.
            Some(before) if before.is_recent() => before.pause,
            Some(before) if facts.listed.is_none() => (before.pause * 2).min(LONGEST_PAUSE),
            Some(_) | None => PAUSE,
        };
        facts.failed = Some(Failure { at: Instant::now(), why: why.to_owned(), pause });
    }

    /// Why it was not long ago that it could not be started.
    pub(super) fn trouble(&self) -> Option<String> {
        self.facts().failed.as_ref().filter(|failure| failure.is_recent()).map(|failure| failure.why.clone())
    }

    /// A server's own tools as they are offered.
    pub(super) fn offer(&self, tools: Vec<Tool>) -> Tools {
        tools.into_iter().map(|tool| self.offer_one(tool)).collect()
    }

    fn offer_one(&self, tool: Tool) -> Offered {
        let mut about = tool.description.or(tool.title.map(Into::into)).unwrap_or_default().into_owned();
        about.truncate(about.floor_char_boundary(MAX_ABOUT));
        let mut parameters = (*tool.input_schema).clone();
        // Providers demand both of them.
        parameters.entry("type").or_insert_with(|| "object".into());
        parameters.entry("properties").or_insert_with(|| serde_json::json!({}));
        let name = names::offered(&self.name, &tool.name);
        let spec = ToolSpec { name, description: about, parameters: Arc::new(parameters.into()) };
        Offered { spec, own_name: tool.name.into_owned() }
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
