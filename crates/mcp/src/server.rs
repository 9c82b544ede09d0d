//! A configured server: timeouts, HTTP client, last known tools, pause after failed starts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use quell_kernel::StopTimeouts;
use rmcp::model::Tool;
use tokio::time::Instant;

use super::config::{McpConfig, McpConfigError, ServerLocation};
use super::oauth::TokenFile;
use super::tool_names;
use quell_kernel::ToolSpec;

/// How long a server stays open while it is unused.
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a server may take to start and list its tools.
const DEFAULT_START_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a call may go without an answer or progress before it is cancelled.
const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(300);
/// The upper limit of the default time from a cancel until a server that goes on is restarted.
const MAX_DEFAULT_CANCEL_GRACE: Duration = Duration::from_millis(1000);
/// The pause after a failed start, so that a broken server does not cost each run its start timeout. Until the server
/// has worked once, each pause is twice as long as the one before.
const MIN_RESTART_PAUSE: Duration = Duration::from_secs(10);
const MAX_RESTART_PAUSE: Duration = Duration::from_secs(300);
/// The maximum length of a tool's description; a longer one is cut.
const MAX_DESCRIPTION_BYTES: usize = 8 * 1024;

#[derive(Debug)]
pub(super) struct McpServer {
    pub(super) name: String,
    pub(super) config: McpConfig,
    pub(super) cancel_grace: Duration,
    pub(super) idle_timeout: Duration,
    pub(super) call_timeout: Duration,
    pub(super) start_timeout: Duration,
    /// For a server that is reached by URL.
    pub(super) http_client: Option<reqwest::Client>,
    /// The tokens of a sign-in, for a server that asks for one.
    pub(super) token_file: Option<TokenFile>,
    state: Mutex<McpServerState>,
}

#[derive(Debug, Default)]
struct McpServerState {
    tools: Option<OfferedTools>,
    start_failure: Option<StartFailure>,
}

#[derive(Debug)]
struct StartFailure {
    at: Instant,
    cause: String,
    /// No start is tried until this time has passed.
    pause: Duration,
    /// When the tokens had last changed. A sign-in ends the pause.
    tokens_changed_at: Option<SystemTime>,
}

impl StartFailure {
    fn is_recent(&self) -> bool {
        self.at.elapsed() < self.pause
    }
}

pub(super) type OfferedTools = Arc<[OfferedTool]>;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct OfferedTool {
    /// The description for the model.
    pub(super) spec: ToolSpec,
    /// The server's own name of the tool.
    pub(super) own_name: String,
    /// Whether the server says that a call changes nothing.
    pub(super) is_read_only: bool,
}

impl McpServer {
    pub(super) fn new(name: &str, config: McpConfig, times: StopTimeouts) -> Result<Self, McpConfigError> {
        config.check(name)?;
        let url_error = |problem| McpConfigError { server: name.to_owned(), key: "url", problem };
        let start_timeout = config.start_timeout_s.map_or(DEFAULT_START_TIMEOUT, Duration::from_secs);
        let client = match config.location() {
            Ok(ServerLocation::Url(url)) => {
                Some(quell_net::build_http_client(&url, config.addresses, start_timeout).map_err(url_error)?)
            }
            Ok(ServerLocation::Command(_)) | Err(_) => None,
        };
        Ok(Self {
            name: name.to_owned(),
            cancel_grace: config.grace_ms.map_or(MAX_DEFAULT_CANCEL_GRACE.min(times.grace / 2), Duration::from_millis),
            idle_timeout: config.idle_s.map_or(DEFAULT_IDLE_TIMEOUT, Duration::from_secs),
            call_timeout: config.call_timeout_s.map_or(DEFAULT_CALL_TIMEOUT, Duration::from_secs),
            start_timeout,
            config,
            http_client: client,
            token_file: None,
            state: Mutex::default(),
        })
    }

    /// The tools that the server listed last, in any session.
    pub(super) fn last_listed_tools(&self) -> Option<OfferedTools> {
        self.lock_state().tools.clone()
    }

    /// Records a successful start with its tools.
    pub(super) fn record_started(&self, tools: &OfferedTools) {
        *self.lock_state() = McpServerState { tools: Some(Arc::clone(tools)), start_failure: None };
    }

    pub(super) fn record_start_failure(&self, why: &str) {
        let mut state = self.lock_state();
        let tokens_changed_at = self.tokens_changed_at();
        let pause = match &state.start_failure {
            // Starts that failed at the same time count as one failure.
            Some(before) if before.is_recent() => before.pause,
            Some(before) if state.tools.is_none() => (before.pause * 2).min(MAX_RESTART_PAUSE),
            Some(_) | None => MIN_RESTART_PAUSE,
        };
        state.start_failure =
            Some(StartFailure { at: Instant::now(), cause: why.to_owned(), pause, tokens_changed_at });
    }

    fn tokens_changed_at(&self) -> Option<SystemTime> {
        self.token_file.as_ref().and_then(TokenFile::changed_at)
    }

    /// The cause of the last failed start, while its pause lasts.
    pub(super) fn recent_start_failure(&self) -> Option<String> {
        self.lock_state()
            .start_failure
            .as_ref()
            .filter(|failure| failure.is_recent() && failure.tokens_changed_at == self.tokens_changed_at())
            .map(|failure| failure.cause.clone())
    }

    /// Converts the tools of the server to the form in which they are offered.
    pub(super) fn to_offered_tools(&self, tools: Vec<Tool>) -> OfferedTools {
        tools.into_iter().map(|tool| self.to_offered_tool(tool)).collect()
    }

    fn to_offered_tool(&self, tool: Tool) -> OfferedTool {
        let mut description = tool.description.or(tool.title.map(Into::into)).unwrap_or_default().into_owned();
        description.truncate(description.floor_char_boundary(MAX_DESCRIPTION_BYTES));
        let mut parameters = (*tool.input_schema).clone();
        // Providers require both keys.
        parameters.entry("type").or_insert_with(|| "object".into());
        parameters.entry("properties").or_insert_with(|| serde_json::json!({}));
        let name = tool_names::offered_tool_name(&self.name, &tool.name);
        let spec = ToolSpec { name, description, parameters: Arc::new(parameters.into()) };
        let is_read_only = tool.annotations.as_ref().and_then(|hints| hints.read_only_hint).unwrap_or(false);
        OfferedTool { spec, own_name: tool.name.into_owned(), is_read_only }
    }

    fn lock_state(&self) -> MutexGuard<'_, McpServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_tool_is_read_only_if_its_server_says_so() {
        let config = McpConfig { url: Some("http://127.0.0.1:1/mcp".to_owned()), ..McpConfig::default() };
        let server = McpServer::new("files", config, StopTimeouts::default()).unwrap();
        let is_read_only = |annotations: Value| {
            let tool = json!({"name": "read", "inputSchema": {"type": "object"}, "annotations": annotations});
            server.to_offered_tool(serde_json::from_value(tool).unwrap()).is_read_only
        };
        assert!(is_read_only(json!({"readOnlyHint": true})));
        assert!(!is_read_only(json!({"readOnlyHint": false})));
        assert!(!is_read_only(json!({"idempotentHint": true})) && !is_read_only(Value::Null));
    }
}
