//! How the scripted server answers one request, as data.

use std::time::Duration;

use serde_json::Value;

/// The answer to one request.
#[derive(Debug, Clone)]
pub enum Behaviour {
    /// Status 200 and an event stream.
    Stream(Stream),
    /// A plain answer with this status; the next request gets the next behaviour.
    Status {
        /// The status code.
        code: u16,
        /// Headers beside length and type.
        headers: Vec<(String, String)>,
        /// The body.
        body: String,
    },
    /// Takes the request and sends nothing, not even a status line.
    SilentBeforeHeaders,
    /// Takes the request and resets the connection.
    Reset,
    /// Sends these bytes, headers and all, as they are, and closes.
    Verbatim(Vec<u8>),
}

impl Behaviour {
    /// A complete short answer.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Stream::new().text(text).into()
    }

    /// One tool call, complete.
    #[must_use]
    pub fn tool_call(id: impl Into<String>, name: impl Into<String>, arguments: &Value) -> Self {
        Stream::new().tool_call(id, name, arguments).into()
    }

    /// An error status with a body in the provider's form.
    #[must_use]
    pub fn status(code: u16) -> Self {
        let body = serde_json::json!({"error": {"message": format!("scripted status {code}"), "type": "scripted"}});
        Self::Status { code, headers: Vec::new(), body: body.to_string() }
    }

    /// 529, as the Anthropic API says that it is overloaded.
    #[must_use]
    pub fn overloaded() -> Self {
        let body = serde_json::json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
        Self::Status { code: 529, headers: Vec::new(), body: body.to_string() }
    }

    /// 429 with `Retry-After`, as text so that dates and nonsense can be sent too.
    #[must_use]
    pub fn rate_limited(retry_after: impl Into<String>) -> Self {
        match Self::status(429) {
            Self::Status { code, body, .. } => {
                Self::Status { code, headers: vec![("retry-after".into(), retry_after.into())], body }
            }
            other => other,
        }
    }

    /// Streams `text`, then is silent until the client leaves.
    #[must_use]
    pub fn silent_mid_stream(text: impl Into<String>) -> Self {
        Stream::new().text(text).step(Step::Silent).into()
    }

    /// Streams `text`, then half an event, then closes the socket.
    #[must_use]
    pub fn cut_mid_event(text: impl Into<String>) -> Self {
        Stream::new().text(text).end(End::MidEvent).into()
    }

    /// Streams `text`, then ends the body properly but without finish reason and `[DONE]`.
    #[must_use]
    pub fn cut_without_terminal(text: impl Into<String>) -> Self {
        Stream::new().text(text).end(End::WithoutTerminal).into()
    }

    /// An answer of at least `bytes` bytes of text in frames of 4 KiB.
    #[must_use]
    pub fn huge_output(bytes: usize) -> Self {
        Stream::new().step(Step::HugeOutput { bytes }).into()
    }

    /// Two calls with the same id in one answer.
    #[must_use]
    pub fn duplicate_call_ids(id: &str, name: &str, arguments: &Value) -> Self {
        Stream::new().tool_call(id, name, arguments).tool_call(id, name, arguments).into()
    }

    /// A call whose arguments are not JSON.
    #[must_use]
    pub fn bad_json_arguments(id: impl Into<String>, name: impl Into<String>) -> Self {
        Stream::new().raw_tool_call(id, name, r#"{"command": "ls"#).into()
    }

    /// One token every `every`, until the client leaves.
    #[must_use]
    pub fn tokens_forever(every: Duration) -> Self {
        Stream::new().step(Step::TokensForever { every }).into()
    }

    /// Streams `text`, then an error object in place of a chunk, then ends.
    #[must_use]
    pub fn error_inside_stream(text: impl Into<String>, message: impl Into<String>) -> Self {
        let broken = Stream::new().text(text).step(Step::Error { message: message.into() });
        broken.end(End::WithoutTerminal).into()
    }
}

impl From<Stream> for Behaviour {
    fn from(stream: Stream) -> Self {
        Self::Stream(stream)
    }
}

/// One thing a stream does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A piece of visible text, one frame.
    Text(String),
    /// A piece of reasoning text, one frame. The Anthropic dialect signs it when something else follows.
    Thinking(String),
    /// Reasoning that only the provider can read; passed over in a dialect that has none.
    Redacted(String),
    /// A tool call: one frame opens it, further frames bring its arguments.
    ToolCall {
        /// The call's id.
        id: String,
        /// The tool.
        name: String,
        /// The arguments' text, JSON or not.
        arguments: String,
    },
    /// Waits until the test opens the gate of this name.
    WaitFor(String),
    /// Sends nothing more; only the client's leaving ends it.
    Silent,
    /// One token every `every`, until the client leaves.
    TokensForever {
        /// Pause between tokens.
        every: Duration,
    },
    /// Text frames of 4 KiB until this many bytes of text are out.
    HugeOutput {
        /// How much.
        bytes: usize,
    },
    /// One frame with this much text: a single line that a bounded decoder must refuse.
    HugeFrame {
        /// How much.
        bytes: usize,
    },
    /// An error object where a chunk should be.
    Error {
        /// Its message.
        message: String,
    },
    /// An SSE comment, as keep-alives are.
    Comment(String),
    /// These bytes, as they are.
    Raw(Vec<u8>),
}

/// How a stream ends after its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum End {
    /// Finish reason, usage as configured, end mark (`[DONE]` or `message_stop`), end of body.
    #[default]
    Complete,
    /// As complete, without the end mark.
    WithoutDone,
    /// The end mark without a finish reason before it.
    WithoutFinish,
    /// The body ends properly, with neither finish reason nor end mark.
    WithoutTerminal,
    /// Half an event, then the socket closes.
    MidEvent,
    /// The socket closes after the last whole event.
    Dropped,
    /// The connection is reset after the last whole event.
    Reset,
}

/// Line ends of the event stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LineEnd {
    /// `\n`.
    #[default]
    Lf,
    /// `\r\n`.
    CrLf,
    /// `\r`.
    Cr,
}

impl LineEnd {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Lf => "\n",
            Self::CrLf => "\r\n",
            Self::Cr => "\r",
        }
    }
}

/// How the body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transfer {
    /// HTTP chunks; the connection can be used again.
    #[default]
    Chunked,
    /// Until the connection closes, as old servers do: a cut looks like an end.
    UntilClose,
}

/// When the usage frame is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UsageFrame {
    /// When the request asks by `stream_options.include_usage`; always in the Anthropic dialect, which knows no asking.
    #[default]
    AsAsked,
    /// Always.
    Always,
    /// Never, as some servers do whatever they are asked.
    Never,
}

/// A scripted event stream.
#[derive(Debug, Clone, Default)]
pub struct Stream {
    pub(super) hold_headers: Option<String>,
    pub(super) steps: Vec<Step>,
    pub(super) end: End,
    pub(super) finish_reason: Option<String>,
    pub(super) piece: Option<usize>,
    pub(super) arguments_piece: Option<usize>,
    pub(super) line_end: LineEnd,
    pub(super) transfer: Transfer,
    pub(super) usage: UsageFrame,
    pub(super) tokens: (u64, u64),
}

impl Stream {
    /// A stream without steps: a complete, empty answer.
    #[must_use]
    pub fn new() -> Self {
        Self { tokens: (10, 5), ..Self::default() }
    }

    /// Adds a step.
    #[must_use]
    pub fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Adds visible text.
    #[must_use]
    pub fn text(self, text: impl Into<String>) -> Self {
        self.step(Step::Text(text.into()))
    }

    /// Adds reasoning text.
    #[must_use]
    pub fn thinking(self, text: impl Into<String>) -> Self {
        self.step(Step::Thinking(text.into()))
    }

    /// Adds reasoning that only the provider can read.
    #[must_use]
    pub fn redacted(self, data: impl Into<String>) -> Self {
        self.step(Step::Redacted(data.into()))
    }

    /// Adds a tool call.
    #[must_use]
    pub fn tool_call(self, id: impl Into<String>, name: impl Into<String>, arguments: &Value) -> Self {
        self.raw_tool_call(id, name, arguments.to_string())
    }

    /// Adds a tool call whose arguments are this text, JSON or not.
    #[must_use]
    pub fn raw_tool_call(self, id: impl Into<String>, name: impl Into<String>, arguments: impl Into<String>) -> Self {
        self.step(Step::ToolCall { id: id.into(), name: name.into(), arguments: arguments.into() })
    }

    /// Waits here for the gate of this name.
    #[must_use]
    pub fn wait_for(self, gate: impl Into<String>) -> Self {
        self.step(Step::WaitFor(gate.into()))
    }

    /// Holds even the status line back until the gate of this name is open.
    #[must_use]
    pub fn hold_headers(mut self, gate: impl Into<String>) -> Self {
        self.hold_headers = Some(gate.into());
        self
    }

    /// How it ends.
    #[must_use]
    pub fn end(mut self, end: End) -> Self {
        self.end = end;
        self
    }

    /// The finish reason, instead of the dialect's word for a complete answer or for calls.
    #[must_use]
    pub fn finish_reason(mut self, reason: impl Into<String>) -> Self {
        self.finish_reason = Some(reason.into());
        self
    }

    /// Cuts everything into writes of `bytes` bytes: inside an event, a line end, a UTF-8 character.
    #[must_use]
    pub fn chunked(mut self, bytes: usize) -> Self {
        self.piece = Some(bytes.max(1));
        self
    }

    /// Cuts the arguments of tool calls into frames of `chars` characters.
    #[must_use]
    pub fn arguments_in_pieces_of(mut self, chars: usize) -> Self {
        self.arguments_piece = Some(chars.max(1));
        self
    }

    /// Line ends of the events.
    #[must_use]
    pub fn line_end(mut self, line_end: LineEnd) -> Self {
        self.line_end = line_end;
        self
    }

    /// How the body is delimited.
    #[must_use]
    pub fn transfer(mut self, transfer: Transfer) -> Self {
        self.transfer = transfer;
        self
    }

    /// When usage is sent, and the counts.
    #[must_use]
    pub fn usage(mut self, frame: UsageFrame, input: u64, output: u64) -> Self {
        self.usage = frame;
        self.tokens = (input, output);
        self
    }
}
