//! The Anthropic messages dialect: the events of the stream. The request's body is in `body`. It opens no socket.

mod body;

use quell_protocol::Usage;
use serde::Deserialize;
use serde_json::Value;

use super::answer::{Bad, Partial, Taken, null_is_default};
use super::calls::Fragment;
use super::report::Report;
use super::sse::Event;
use super::{Finish, ModelSink};

pub(super) use body::body;

/// The version of the API that is spoken here; without the header every request is refused.
pub(super) const VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");

/// One event. Which further ones a new model brings, nobody knows: they are passed over, and so are pings.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Happening {
    MessageStart {
        message: Message,
    },
    ContentBlockStart {
        #[serde(default)]
        index: u64,
        content_block: Block,
    },
    ContentBlockDelta {
        #[serde(default)]
        index: u64,
        delta: Delta,
    },
    MessageDelta {
        delta: Ending,
        #[serde(default)]
        usage: Value,
    },
    MessageStop,
    Error {
        #[serde(default)]
        error: Value,
    },
    #[serde(other)]
    Other,
}

/// A whole body.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Whole {
    Message(Message),
    Error {
        #[serde(default)]
        error: Value,
    },
}

/// An answer: whole in a body, without content at the start of a stream.
#[derive(Deserialize)]
struct Message {
    #[serde(default, deserialize_with = "null_is_default")]
    content: Vec<Block>,
    #[serde(default, deserialize_with = "null_is_default")]
    stop_reason: String,
    #[serde(default)]
    usage: Value,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    Text {
        #[serde(default, deserialize_with = "null_is_default")]
        text: String,
    },
    Thinking {
        #[serde(default, deserialize_with = "null_is_default")]
        thinking: String,
        #[serde(default, deserialize_with = "null_is_default")]
        signature: String,
    },
    RedactedThinking {
        data: String,
    },
    ToolUse {
        #[serde(default, deserialize_with = "null_is_default")]
        id: String,
        #[serde(default, deserialize_with = "null_is_default")]
        name: String,
        #[serde(default)]
        input: Value,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Delta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Ending {
    #[serde(default, deserialize_with = "null_is_default")]
    stop_reason: String,
}

/// Takes one event of the stream.
pub(super) fn take(event: &Event, partial: &mut Partial, sink: &mut dyn ModelSink) -> Result<Taken, Bad> {
    let data = event.data.trim();
    if data.is_empty() {
        return Ok(Taken::More);
    }
    let happening = serde_json::from_str::<Happening>(data)
        .map_err(|error| Bad::Unreadable(format!("an event that is none of the messages API: {error}")))?;
    match happening {
        Happening::MessageStart { message } => take_message(message, partial, sink)?,
        Happening::ContentBlockStart { index, content_block } => take_block(index, content_block, partial, sink)?,
        Happening::ContentBlockDelta { index, delta } => take_delta(index, delta, partial, sink)?,
        Happening::MessageDelta { delta, usage } => {
            count(&usage, partial);
            end(delta.stop_reason, partial);
        }
        Happening::MessageStop => return Ok(Taken::Done),
        Happening::Error { error } => return Err(Bad::Reported(report(&error))),
        Happening::Other => {}
    }
    Ok(Taken::More)
}

/// Takes a whole answer, of a server that was asked to stream and did not.
pub(super) fn take_whole(body: &[u8], partial: &mut Partial, sink: &mut dyn ModelSink) -> Result<(), Bad> {
    let whole = serde_json::from_slice::<Whole>(body)
        .map_err(|error| Bad::Unreadable(format!("a body that is no message: {error}")))?;
    match whole {
        Whole::Message(message) => {
            take_message(message, partial, sink)?;
            partial.usage = partial.usage.map(|usage| Usage { estimated: false, ..usage });
            Ok(())
        }
        Whole::Error { error } => Err(Bad::Reported(report(&error))),
    }
}

fn take_message(message: Message, partial: &mut Partial, sink: &mut dyn ModelSink) -> Result<(), Bad> {
    partial.begun = true;
    count(&message.usage, partial);
    // What it says of the output now is a beginning.
    partial.usage = partial.usage.map(|usage| Usage { estimated: true, ..usage });
    for (index, block) in (0..).zip(message.content) {
        take_block(index, block, partial, sink)?;
    }
    end(message.stop_reason, partial);
    Ok(())
}

fn take_block(index: u64, block: Block, partial: &mut Partial, sink: &mut dyn ModelSink) -> Result<(), Bad> {
    partial.begun = true;
    match block {
        Block::Text { text } => partial.text(&text, sink),
        Block::Thinking { thinking, signature } => {
            partial.begin_thinking();
            partial.thinking(&thinking, sink)?;
            partial.sign(&signature)
        }
        Block::RedactedThinking { data } => partial.redacted(data),
        Block::ToolUse { id, name, input } => {
            // A stream begins with an empty object and brings the input piece by piece.
            let whole = input.as_object().is_some_and(|fields| !fields.is_empty());
            let arguments = if whole { input.to_string() } else { String::new() };
            partial.call(0, Fragment { index: Some(index), id, name, arguments })
        }
        Block::Other => Ok(()),
    }
}

fn take_delta(index: u64, delta: Delta, partial: &mut Partial, sink: &mut dyn ModelSink) -> Result<(), Bad> {
    match delta {
        Delta::Text { text } => partial.text(&text, sink),
        Delta::Thinking { thinking } => partial.thinking(&thinking, sink),
        Delta::Signature { signature } => partial.sign(&signature),
        Delta::InputJson { partial_json } => {
            partial.call(0, Fragment { index: Some(index), arguments: partial_json, ..Fragment::default() })
        }
        Delta::Other => Ok(()),
    }
}

/// Takes a count. Input comes at the start or at the end or at both, output grows; what is absent or 0 says nothing.
fn count(usage: &Value, partial: &mut Partial) {
    let field = |name: &str| usage.get(name).and_then(Value::as_u64);
    let (input, output) = (field("input_tokens"), field("output_tokens"));
    if input.is_none() && output.is_none() {
        return;
    }
    // What the cache took and gave is not in `input_tokens`, and was read by the model all the same.
    let cached = ["cache_creation_input_tokens", "cache_read_input_tokens"].into_iter().filter_map(field);
    let input = input.map(|fresh| cached.fold(fresh, u64::saturating_add));
    let before = partial.usage.unwrap_or_default();
    partial.usage = Some(Usage {
        input_tokens: input.unwrap_or_default().max(before.input_tokens),
        output_tokens: output.unwrap_or_default().max(before.output_tokens),
        // The input alone is no count of the whole.
        estimated: output.is_none(),
    });
}

fn end(reason: String, partial: &mut Partial) {
    if reason.is_empty() {
        return;
    }
    partial.finish = Some(match reason.as_str() {
        "end_turn" | "stop_sequence" => Finish::Stop,
        "tool_use" => Finish::ToolCalls,
        "max_tokens" | "model_context_window_exceeded" => Finish::Length,
        "refusal" => Finish::ContentFilter,
        "pause_turn" => Finish::Paused,
        _ => Finish::Other(reason),
    });
}

/// An error report; inside a stream its type stands for the status that an answer would have had.
fn report(error: &Value) -> Report {
    let status = match error.get("type").and_then(Value::as_str) {
        Some("invalid_request_error") => Some(400),
        Some("authentication_error") => Some(401),
        Some("billing_error") => Some(402),
        Some("permission_error") => Some(403),
        Some("not_found_error") => Some(404),
        Some("request_too_large") => Some(413),
        Some("rate_limit_error") => Some(429),
        Some("api_error") => Some(500),
        Some("timeout_error") => Some(504),
        Some("overloaded_error") => Some(529),
        Some(_) | None => None,
    };
    let mut report = Report::from_json(error);
    report.status = report.status.or(status);
    report
}

#[cfg(test)]
mod tests;
