//! The OpenAI chat-completions dialect: the request's body, and the events of the stream. It opens no socket.

use quell_protocol::Usage;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answer::{Bad, Partial, Taken, null_is_default};
use super::calls::Fragment;
use super::provider::Provider;
use super::report::Report;
use super::sse::Event;
use super::{Finish, ModelRequest, ModelSink, ToolSpec};

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: &'a [Value],
    stream: bool,
    stream_options: StreamOptions,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u32>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
struct Tool<'a> {
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
}

/// One event, and just as well a whole answer of a server that does not stream. What servers fill with differing types is
/// read as any JSON, so that a field that we do not need cannot break an answer.
#[derive(Deserialize)]
struct Chunk {
    #[serde(default, deserialize_with = "null_is_default")]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Value,
    #[serde(default)]
    error: Value,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u64,
    #[serde(default, deserialize_with = "null_is_default")]
    delta: Delta,
    #[serde(default, deserialize_with = "null_is_default")]
    message: Delta,
    #[serde(default, deserialize_with = "null_is_default")]
    finish_reason: String,
}

#[derive(Deserialize, Default)]
struct Delta {
    #[serde(default)]
    content: Value,
    #[serde(default)]
    refusal: Value,
    #[serde(default)]
    reasoning_content: Value,
    #[serde(default)]
    reasoning: Value,
    #[serde(default, deserialize_with = "null_is_default")]
    tool_calls: Vec<CallDelta>,
}

#[derive(Deserialize)]
struct CallDelta {
    #[serde(default)]
    index: Option<u64>,
    #[serde(default, deserialize_with = "null_is_default")]
    id: String,
    #[serde(default, deserialize_with = "null_is_default")]
    function: FunctionDelta,
}

#[derive(Deserialize, Default)]
struct FunctionDelta {
    #[serde(default, deserialize_with = "null_is_default")]
    name: String,
    #[serde(default)]
    arguments: Value,
}

/// The body of a request for `model`.
pub(super) fn body(provider: &Provider, model: &str, request: &ModelRequest<'_>) -> serde_json::Result<String> {
    // OpenAI's reasoning models refuse the old name, which is the only one that most other servers know.
    let (max_tokens, max_completion_tokens) =
        if is_openai(provider) { (None, request.max_tokens) } else { (request.max_tokens, None) };
    serde_json::to_string(&Body {
        model,
        messages: &request.conversation.messages,
        stream: true,
        stream_options: StreamOptions { include_usage: true },
        tools: request.tools.iter().map(tool).collect(),
        temperature: request.temperature,
        max_tokens,
        max_completion_tokens,
    })
}

/// Takes one event of the stream.
pub(super) fn take(event: &Event, partial: &mut Partial, sink: &mut dyn ModelSink) -> Result<Taken, Bad> {
    let data = event.data.trim();
    if data == "[DONE]" {
        return Ok(Taken::Done);
    }
    if data.is_empty() {
        return Ok(Taken::More);
    }
    if event.name == "error" {
        return Err(Bad::Reported(Report::from_body(data)));
    }
    let chunk = serde_json::from_str::<Chunk>(data)
        .map_err(|error| Bad::Unreadable(format!("an event that is no chat completion chunk: {error}")))?;
    take_chunk(chunk, partial, sink)?;
    Ok(Taken::More)
}

/// Takes a whole answer, of a server that was asked to stream and did not.
pub(super) fn take_whole(body: &[u8], partial: &mut Partial, sink: &mut dyn ModelSink) -> Result<(), Bad> {
    let chunk = serde_json::from_slice::<Chunk>(body)
        .map_err(|error| Bad::Unreadable(format!("a body that is no chat completion: {error}")))?;
    take_chunk(chunk, partial, sink)
}

fn take_chunk(chunk: Chunk, partial: &mut Partial, sink: &mut dyn ModelSink) -> Result<(), Bad> {
    if !chunk.error.is_null() {
        return Err(Bad::Reported(Report::from_json(&chunk.error)));
    }
    // Some servers count on from chunk to chunk, so the last count is the right one.
    partial.usage = usage(&chunk.usage).or(partial.usage);
    // One answer is asked for; what a server adds to it is not ours.
    for choice in chunk.choices.into_iter().filter(|choice| choice.index == 0) {
        partial.begun = true;
        take_delta(choice.delta, partial, sink)?;
        take_delta(choice.message, partial, sink)?;
        if !choice.finish_reason.is_empty() {
            partial.finish = Some(finish(choice.finish_reason));
        }
    }
    Ok(())
}

fn take_delta(delta: Delta, partial: &mut Partial, sink: &mut dyn ModelSink) -> Result<(), Bad> {
    // Servers that know both names send the same text under both.
    match &delta.reasoning_content {
        Value::Null => partial.thinking(delta.reasoning.as_str().unwrap_or_default(), sink)?,
        reasoning => partial.open_thinking(reasoning.as_str().unwrap_or_default(), sink)?,
    }
    take_content(&delta.content, partial, sink)?;
    partial.text(delta.refusal.as_str().unwrap_or_default(), sink)?;
    for (place, call) in delta.tool_calls.into_iter().enumerate() {
        let arguments = match call.function.arguments {
            Value::String(text) => text,
            Value::Null => String::new(),
            // Some servers send the arguments as they are instead of as text.
            json => json.to_string(),
        };
        partial.call(place, Fragment { index: call.index, id: call.id, name: call.function.name, arguments })?;
    }
    Ok(())
}

/// Text, or a list of parts, as Mistral's reasoning models send it: `text` parts, and `thinking` parts with parts of their own.
fn take_content(content: &Value, partial: &mut Partial, sink: &mut dyn ModelSink) -> Result<(), Bad> {
    let text_of = |part: &Value| part.get("text").and_then(Value::as_str).unwrap_or_default().to_owned();
    match content {
        Value::String(text) => partial.text(text, sink),
        Value::Array(parts) => parts.iter().try_for_each(|part| match part.get("thinking") {
            Some(Value::Array(thoughts)) => {
                thoughts.iter().try_for_each(|thought| partial.thinking(&text_of(thought), sink))
            }
            Some(thinking) => partial.thinking(thinking.as_str().unwrap_or_default(), sink),
            None => partial.text(&text_of(part), sink),
        }),
        _ => Ok(()),
    }
}

fn tool(tool: &ToolSpec) -> Tool<'_> {
    let function = Function { name: &tool.name, description: &tool.description, parameters: &tool.parameters };
    Tool { r#type: "function", function }
}

fn is_openai(provider: &Provider) -> bool {
    let host = provider.endpoint.host_str().unwrap_or_default();
    host == "api.openai.com" || host.ends_with(".openai.azure.com")
}

fn finish(reason: String) -> Finish {
    match reason.as_str() {
        "stop" => Finish::Stop,
        "length" => Finish::Length,
        "tool_calls" | "function_call" => Finish::ToolCalls,
        "content_filter" => Finish::ContentFilter,
        _ => Finish::Other(reason),
    }
}

fn usage(usage: &Value) -> Option<Usage> {
    let count = |name: &str| usage.get(name).and_then(Value::as_u64);
    let (input, output) = (count("prompt_tokens"), count("completion_tokens"));
    if input.is_none() && output.is_none() {
        return None;
    }
    Some(Usage { input_tokens: input.unwrap_or_default(), output_tokens: output.unwrap_or_default(), estimated: false })
}

#[cfg(test)]
mod tests;
