//! Scripted responses of the model server, as data.

use std::time::Duration;

use serde_json::{Value, json};

#[derive(Debug, Clone)]
pub enum ScriptedResponse {
    /// Status 200 and an event stream.
    Stream(ScriptedStream),
    /// A plain response with this status.
    Status { code: u16, headers: Vec<(String, String)>, body: String },
    /// Reads the request and sends nothing, not even a status line.
    SilentBeforeHeaders,
}

impl ScriptedResponse {
    pub fn text(text: impl Into<String>) -> Self {
        ScriptedStream::new().text(text).into()
    }

    /// A complete answer with one tool call.
    pub fn tool_call(id: impl Into<String>, name: impl Into<String>, arguments: &Value) -> Self {
        ScriptedStream::new().tool_call(id, name, arguments).into()
    }

    /// An error status with a body in the provider's form.
    pub fn status(code: u16) -> Self {
        Self::error(code, Vec::new(), &format!("scripted status {code}"), "scripted")
    }

    /// 529, the overload status of the Anthropic API.
    pub fn overloaded() -> Self {
        Self::error(529, Vec::new(), "Overloaded", "overloaded_error")
    }

    /// 429 with `Retry-After`, as text so that dates and invalid values can be sent too.
    pub fn rate_limited(retry_after: impl Into<String>) -> Self {
        Self::error(429, vec![("retry-after".into(), retry_after.into())], "scripted status 429", "scripted")
    }

    fn error(code: u16, headers: Vec<(String, String)>, message: &str, kind: &str) -> Self {
        let body = json!({"type": "error", "error": {"message": message, "type": kind}});
        Self::Status { code, headers, body: body.to_string() }
    }

    /// Streams `text`, then is silent until the client disconnects.
    pub fn silent_mid_stream(text: impl Into<String>) -> Self {
        ScriptedStream::new().text(text).step(StreamStep::Silent).into()
    }

    /// At least `bytes` bytes of text in frames of 4 KiB.
    pub fn huge_output(bytes: usize) -> Self {
        ScriptedStream::new().step(StreamStep::HugeOutput { bytes }).into()
    }

    /// One token every `every`, until the client disconnects.
    pub fn tokens_forever(every: Duration) -> Self {
        ScriptedStream::new().step(StreamStep::TokensForever { every }).into()
    }

    /// Streams `text`, then an error object in place of a chunk, then ends.
    pub fn error_inside_stream(text: impl Into<String>, message: impl Into<String>) -> Self {
        ScriptedStream::new().text(text).step(StreamStep::Error { message: message.into() }).into()
    }
}

impl From<ScriptedStream> for ScriptedResponse {
    fn from(stream: ScriptedStream) -> Self {
        Self::Stream(stream)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamStep {
    /// Visible text, in one frame.
    Text(String),
    /// Reasoning text, in one frame. In the Anthropic dialect and the Responses API it is signed when another block
    /// follows.
    Thinking(String),
    /// Reasoning that only the provider can read; skipped in a dialect without it.
    Redacted(String),
    /// A tool call: one frame starts it, further frames bring its arguments.
    ToolCall {
        id: String,
        name: String,
        /// Text of the arguments, JSON or not.
        arguments: String,
    },
    /// A search of the web by the provider itself; skipped in a dialect without it.
    WebSearch(String),
    /// A page that the text before it is based on, with its title; skipped in a dialect without it.
    Citation { url: String, title: String },
    /// Waits until the test opens the gate of this name.
    WaitFor(String),
    /// Sends nothing for this time.
    Pause(Duration),
    /// Sends nothing more, until the client disconnects.
    Silent,
    /// One token every `every`, until the client disconnects.
    TokensForever { every: Duration },
    /// Text frames of 4 KiB until this many bytes of text are sent.
    HugeOutput { bytes: usize },
    /// An error object in place of a chunk; the last step.
    Error { message: String },
    /// These bytes of the body as they are, this many times.
    Raw { bytes: Vec<u8>, times: usize },
    /// Closes the connection; the last step.
    Disconnect,
}

/// When the usage frame is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UsageReporting {
    /// When the request asks by `stream_options.include_usage`; always in the dialects without such an option.
    #[default]
    AsAsked,
    Always,
}

/// The token counts of an answer. Cached tokens are a part of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ScriptedTokens {
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) cached: u64,
}

#[derive(Debug, Clone, Default)]
#[must_use]
pub struct ScriptedStream {
    pub(super) hold_headers: Option<String>,
    pub(super) steps: Vec<StreamStep>,
    pub(super) finish_reason: Option<String>,
    pub(super) write_size: Option<usize>,
    pub(super) arguments_chunk_size: Option<usize>,
    pub(super) usage: UsageReporting,
    pub(super) tokens: ScriptedTokens,
}

impl ScriptedStream {
    /// A stream without steps: a complete, empty answer.
    pub fn new() -> Self {
        Self { tokens: ScriptedTokens { input: 10, output: 5, cached: 0 }, ..Self::default() }
    }

    pub fn step(mut self, step: StreamStep) -> Self {
        self.steps.push(step);
        self
    }

    pub fn text(self, text: impl Into<String>) -> Self {
        self.step(StreamStep::Text(text.into()))
    }

    pub fn thinking(self, text: impl Into<String>) -> Self {
        self.step(StreamStep::Thinking(text.into()))
    }

    /// Adds reasoning that only the provider can read.
    pub fn redacted(self, data: impl Into<String>) -> Self {
        self.step(StreamStep::Redacted(data.into()))
    }

    pub fn tool_call(self, id: impl Into<String>, name: impl Into<String>, arguments: &Value) -> Self {
        self.raw_tool_call(id, name, arguments.to_string())
    }

    /// Adds a tool call whose arguments are this text, JSON or not.
    pub fn raw_tool_call(self, id: impl Into<String>, name: impl Into<String>, arguments: impl Into<String>) -> Self {
        self.step(StreamStep::ToolCall { id: id.into(), name: name.into(), arguments: arguments.into() })
    }

    /// Adds a search of the web by the provider itself.
    pub fn web_search(self, query: impl Into<String>) -> Self {
        self.step(StreamStep::WebSearch(query.into()))
    }

    /// Names a page that the text before it is based on.
    pub fn citation(self, url: impl Into<String>, title: impl Into<String>) -> Self {
        self.step(StreamStep::Citation { url: url.into(), title: title.into() })
    }

    /// Waits here for the gate of this name.
    pub fn wait_for_gate(self, gate: impl Into<String>) -> Self {
        self.step(StreamStep::WaitFor(gate.into()))
    }

    /// Sends nothing, not even the status line, until the gate of this name is open.
    pub fn hold_headers(mut self, gate: impl Into<String>) -> Self {
        self.hold_headers = Some(gate.into());
        self
    }

    /// Replaces the dialect's default finish reason.
    pub fn finish_reason(mut self, reason: impl Into<String>) -> Self {
        self.finish_reason = Some(reason.into());
        self
    }

    /// Splits everything into writes of `bytes` bytes: inside an event, a line end, a UTF-8 character.
    pub fn split_writes(mut self, bytes: usize) -> Self {
        self.write_size = Some(bytes.max(1));
        self
    }

    /// Splits the arguments of tool calls into frames of `chars` characters.
    pub fn split_arguments(mut self, chars: usize) -> Self {
        self.arguments_chunk_size = Some(chars.max(1));
        self
    }

    /// When usage is sent, and the token counts.
    pub fn usage(mut self, frame: UsageReporting, input: u64, output: u64) -> Self {
        self.usage = frame;
        self.tokens = ScriptedTokens { input, output, ..self.tokens };
        self
    }

    /// How many tokens of the input the provider read from its cache.
    pub fn cached_tokens(mut self, cached: u64) -> Self {
        self.tokens.cached = cached;
        self
    }

    /// Sends these bytes as they are, this many times.
    pub fn raw(self, bytes: impl Into<Vec<u8>>, times: usize) -> Self {
        self.step(StreamStep::Raw { bytes: bytes.into(), times })
    }
}
