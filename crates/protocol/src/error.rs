//! Error bodies (`application/problem+json`, RFC 9457) and their stable codes.

use serde::{Deserialize, Serialize};

/// An error body.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Problem {
    pub status: u16,
    /// Stable word for programs.
    pub code: String,
    /// The same word as `code`, for clients that read `error`.
    pub error: String,
    /// Short text for people.
    pub title: String,
    /// Text for people: what happened and what to do next.
    pub detail: Option<String>,
}

impl Problem {
    /// Makes the body of an error; `detail` says what happened and what to do next.
    #[must_use]
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self {
            status: code.status(),
            code: code.as_str().into(),
            error: code.as_str().into(),
            title: code.title().into(),
            detail: Some(detail.into()),
        }
    }
}

macro_rules! codes {
    ($($name:ident $word:literal $status:literal $title:literal;)*) => {
        /// All codes of error bodies.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ErrorCode {
            $(#[doc = $title] $name,)*
        }

        impl ErrorCode {
            /// All codes, for the documentation and its test.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The stable word of the code.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            #[must_use]
            pub fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }
        }
    };
}

codes! {
    MalformedJson "malformed_json" 400 "The body is not valid JSON";
    InvalidRequest "invalid_request" 400 "The request is not valid";
    MissingAgentId "missing_agent_id" 400 "The agent id is missing";
    ContextOverflow "context_length_exceeded" 400 "The conversation is too long for the model";
    Unauthorized "unauthorized" 401 "A valid token is needed";
    BadSignature "bad_signature" 401 "The signature is wrong";
    StaleTimestamp "stale_timestamp" 401 "The timestamp of the request is too far from now";
    Forbidden "forbidden" 403 "This token may not do that";
    SessionRefused "session_refused" 403 "A hook refused the session";
    BadOrigin "bad_origin" 403 "This web origin is not allowed";
    NotFound "not_found" 404 "Not found";
    RunNotFound "run_not_found" 404 "There is no such run";
    SessionNotFound "session_not_found" 404 "There is no such session";
    AgentNotFound "agent_not_found" 404 "There is no such agent";
    ModelNotFound "model_not_found" 404 "There is no such model";
    ChannelNotFound "channel_not_found" 404 "There is no such channel";
    MethodNotAllowed "method_not_allowed" 405 "This route does not support the method";
    BodyTimeout "body_timeout" 408 "The body was not received in time";
    Conflict "conflict" 409 "The request conflicts with an earlier one";
    AgentBusy "agent_busy" 409 "The agent has runs that have not ended";
    Busy "busy" 409 "The session has an active run";
    ConversationLocked "conversation_locked" 409 "A response is being made in the conversation";
    Stopped "stopped" 409 "The run was stopped";
    FilesChanged "files_changed" 409 "Files are not what the run has written";
    BodyTooLarge "body_too_large" 413 "The body is too large";
    UnsupportedMediaType "unsupported_media_type" 415 "Send application/json";
    BadHost "bad_host" 421 "The host name is not one of this daemon";
    AgentConfigurationError "agent_configuration_error" 422 "The session cannot be created with this configuration";
    SpendLimit "spend_limit" 429 "A daily limit is reached";
    QueueFull "queue_full" 429 "Too many messages wait in this session";
    ProviderRateLimit "provider_rate_limit" 429 "The provider of the model takes no more requests now";
    StorageLimit "storage_limit" 429 "The conversations of this token take too much room";
    TooManyRequests "too_many_requests" 429 "Too many requests of this token";
    TooManyAttempts "too_many_attempts" 429 "Too many requests with a bad token";
    SocietyNotInitialized "society_not_initialized" 500 "The engine is not ready";
    Internal "internal" 500 "Internal error";
    RunFailed "run_failed" 500 "The run failed";
    ProviderFailed "provider_failed" 502 "The provider of the model failed";
    McpUnavailable "mcp_unavailable" 502 "The MCP server cannot be used";
    Held "held" 503 "New runs are on hold";
    ShuttingDown "shutting_down" 503 "The daemon is shutting down";
    StoreUnavailable "store_unavailable" 503 "The database cannot be written";
    NodeUnreachable "node_unreachable" 503 "A node of the cluster does not answer";
    TooManyConnections "too_many_connections" 503 "All streaming connections are taken";
    TooMuchAtOnce "too_much_at_once" 503 "Too much is being received at the same time";
}
