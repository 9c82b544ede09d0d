//! A response as an object and as the events of its stream. Pure.
//!
//! At most one item of reasoning and one of text is open; both stay open until the end, because the reasoning to send
//! back is known only then. The calls follow them.

use quell_kernel::client_request::AnswerEnd;
use quell_kernel::client_request::openai_responses::{ReasoningPlace, SealedBlocks, encode_reasoning, seal_blocks};
use quell_kernel::turn::{AssistantMessage, CODE_REFUSED, Thinking, ToolCall};
use quell_protocol::{StopReason, Usage, Verdict};
use serde_json::{Value, json};

use super::ids::ResponseIds;
use crate::answer_stream::push_json_text;

/// An event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ResponseEvent {
    pub(super) number: u64,
    /// The frame of a stream of server-sent events.
    pub(super) frame: String,
}

/// How a response ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ResponseVerdict {
    Completed,
    /// The reason, in the word of the API.
    Incomplete(&'static str),
    /// The code, in the word of the API, and a text for people.
    Failed(&'static str, String),
    /// Somebody stopped it.
    Cancelled,
}

impl ResponseVerdict {
    pub(super) fn of(verdict: &Verdict, end: Option<&AnswerEnd>) -> Self {
        match verdict {
            Verdict::Completed => match end {
                Some(AnswerEnd::Length) => Self::Incomplete("max_output_tokens"),
                Some(AnswerEnd::Filtered) => Self::Incomplete("content_filter"),
                Some(AnswerEnd::Done | AnswerEnd::StopSequence(_) | AnswerEnd::Calls) => Self::Completed,
                None => Self::Failed("server_error", "the run ended without an answer".to_owned()),
            },
            Verdict::Failed { code, .. } if code == "truncated" => Self::Incomplete("max_output_tokens"),
            Verdict::Failed { code, .. } if code == CODE_REFUSED => Self::Incomplete("content_filter"),
            Verdict::Failed { code, message } if code == "rate_limit" => {
                Self::Failed("rate_limit_exceeded", message.clone())
            }
            Verdict::Failed { message, .. } => Self::Failed("server_error", message.clone()),
            Verdict::Aborted { reason, .. } => match reason {
                StopReason::User
                | StopReason::Command
                | StopReason::Superseded
                | StopReason::Disconnect
                | StopReason::Other(_) => Self::Cancelled,
                StopReason::Timeout
                | StopReason::Steps
                | StopReason::Tokens
                | StopReason::DailyLimit
                | StopReason::Shutdown
                | StopReason::DaemonStopped => Self::Failed("server_error", format!("the run was stopped: {reason}")),
            },
        }
    }

    fn status(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Incomplete(_) => "incomplete",
            Self::Failed(..) => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The last event. The API has none for a cancelled response: clients take this one without an exception.
    fn event(&self) -> &'static str {
        match self {
            Self::Completed => "response.completed",
            Self::Incomplete(_) | Self::Cancelled => "response.incomplete",
            Self::Failed(..) => "response.failed",
        }
    }
}

/// An item that grows.
#[derive(Debug)]
struct GrowingItem {
    id: String,
    index: usize,
    text: String,
}

#[derive(Debug)]
pub(super) struct ResponseEncoder {
    ids: ResponseIds,
    /// The object, without its items.
    response: Value,
    includes_encrypted_reasoning: bool,
    next_number: u64,
    next_index: usize,
    reasoning: Option<GrowingItem>,
    message: Option<GrowingItem>,
    /// The items that are done, with the reasoning to send back.
    output: Vec<(usize, Value)>,
}

impl ResponseEncoder {
    /// `response` is the object as it begins, see [`super::object::new_response`].
    pub(super) fn new(ids: ResponseIds, response: Value, includes_encrypted_reasoning: bool) -> Self {
        Self {
            ids,
            response,
            includes_encrypted_reasoning,
            next_number: 0,
            next_index: 0,
            reasoning: None,
            message: None,
            output: Vec::new(),
        }
    }

    pub(super) fn ids(&self) -> &ResponseIds {
        &self.ids
    }

    /// The response so far, as clients get it.
    pub(super) fn snapshot(&self) -> Value {
        let mut response = self.response.clone();
        let mut items: Vec<(usize, Value)> = self.output.clone();
        items.extend(self.reasoning.iter().map(|open| (open.index, open.reasoning_item("in_progress"))));
        items.extend(self.message.iter().map(|open| (open.index, open.message_item("in_progress"))));
        items.sort_by_key(|(index, _)| *index);
        response["output"] = items.into_iter().map(|(_, item)| self.shown(item)).collect();
        response
    }

    /// The items to continue from, with the reasoning to send back.
    pub(super) fn output(&self) -> Vec<Value> {
        self.output.iter().map(|(_, item)| item.clone()).collect()
    }

    pub(super) fn begin(&mut self, events: &mut Vec<ResponseEvent>) {
        for kind in ["response.created", "response.in_progress"] {
            let response = self.snapshot();
            self.push(events, kind, json!({"response": response}));
        }
    }

    pub(super) fn push_text(&mut self, delta: &str, events: &mut Vec<ResponseEvent>) {
        if self.message.is_none() {
            let open = self.open_item(self.ids.message());
            let (id, index) = (open.id.clone(), open.index);
            let item =
                json!({"id": id, "type": "message", "status": "in_progress", "role": "assistant", "content": []});
            self.message = Some(open);
            self.push(events, "response.output_item.added", json!({"output_index": index, "item": item}));
            let part = text_part("");
            let place = json!({"item_id": id, "output_index": index, "content_index": 0, "part": part});
            self.push(events, "response.content_part.added", place);
        }
        let Some(open) = &mut self.message else { return };
        open.text.push_str(delta);
        let (id, index, number) = (&open.id, open.index, self.next_number);
        // The one that is written for each token.
        let mut frame = format!(
            "event: response.output_text.delta\ndata: {{\"type\":\"response.output_text.delta\",\"item_id\":\"{id}\",\
             \"output_index\":{index},\"content_index\":0,\"logprobs\":[],\"sequence_number\":{number},\"delta\":"
        );
        push_json_text(delta, &mut frame);
        frame.push_str("}\n\n");
        self.next_number += 1;
        events.push(ResponseEvent { number, frame });
    }

    pub(super) fn push_thinking(&mut self, delta: &str, events: &mut Vec<ResponseEvent>) {
        if self.reasoning.is_none() {
            let open = self.open_item(self.ids.reasoning(0));
            let (id, index) = (open.id.clone(), open.index);
            let item = json!({"id": id, "type": "reasoning", "status": "in_progress", "summary": []});
            self.reasoning = Some(open);
            self.push(events, "response.output_item.added", json!({"output_index": index, "item": item}));
            let part = summary_part("");
            let place = json!({"item_id": id, "output_index": index, "summary_index": 0, "part": part});
            self.push(events, "response.reasoning_summary_part.added", place);
        }
        let Some(open) = &mut self.reasoning else { return };
        open.text.push_str(delta);
        let data = json!({"item_id": open.id, "output_index": open.index, "summary_index": 0, "delta": delta});
        self.push(events, "response.reasoning_summary_text.delta", data);
    }

    /// Closes the open items, adds the calls, and ends the response. `message` is the last one of the model, `model` the
    /// one that the client named.
    pub(super) fn finish(&mut self, finish: ResponseFinish, events: &mut Vec<ResponseEvent>) {
        let ResponseFinish { end, message, calls, usage, ended_at } = finish;
        let status = if end == ResponseVerdict::Completed { "completed" } else { "incomplete" };
        let SealedBlocks { leading, calls: sealed } = seal_blocks(message.unwrap_or_default());
        self.close_reasoning(status, &leading, events);
        self.close_message(status, events);
        for (number, call) in calls.iter().enumerate() {
            let before = sealed.iter().find(|(_, of_message)| of_message.id == call.id);
            if let Some(blocks) = before.map(|(blocks, _)| blocks.as_slice()).filter(|blocks| !blocks.is_empty()) {
                self.add_reasoning(self.ids.reasoning(number + 1), status, (blocks, ReasoningPlace::Here), events);
            }
            self.add_call(number, call, status, events);
        }
        self.output.sort_by_key(|(index, _)| *index);
        self.response["status"] = end.status().into();
        self.response["usage"] = usage_object(usage);
        match &end {
            ResponseVerdict::Completed => self.response["completed_at"] = ended_at.into(),
            ResponseVerdict::Incomplete(reason) => self.response["incomplete_details"] = json!({"reason": reason}),
            ResponseVerdict::Failed(code, message) => {
                self.response["error"] = json!({"code": code, "message": message});
            }
            ResponseVerdict::Cancelled => {}
        }
        let response = self.snapshot();
        self.push(events, end.event(), json!({"response": response}));
    }

    /// Replaces the last event: the response has failed after all.
    pub(super) fn replace_end(&mut self, message: &str, events: &mut Vec<ResponseEvent>) {
        if events.pop().is_some() {
            self.next_number -= 1;
        }
        self.response["status"] = "failed".into();
        self.response["error"] = json!({"code": "server_error", "message": message});
        for absent in ["completed_at", "incomplete_details"] {
            self.response[absent] = Value::Null;
        }
        let response = self.snapshot();
        self.push(events, "response.failed", json!({"response": response}));
    }

    fn open_item(&mut self, id: String) -> GrowingItem {
        let index = self.next_index;
        self.next_index += 1;
        GrowingItem { id, index, text: String::new() }
    }

    fn close_reasoning(&mut self, status: &str, leading: &[Thinking], events: &mut Vec<ResponseEvent>) {
        let Some(open) = self.reasoning.take() else {
            if !leading.is_empty() {
                self.add_reasoning(self.ids.reasoning(0), status, (leading, ReasoningPlace::Leading), events);
            }
            return;
        };
        let place = json!({"item_id": open.id, "output_index": open.index, "summary_index": 0});
        let with = |name: &str, value: Value| {
            let mut data = place.clone();
            data[name] = value;
            data
        };
        self.push(events, "response.reasoning_summary_text.done", with("text", json!(open.text)));
        self.push(events, "response.reasoning_summary_part.done", with("part", summary_part(&open.text)));
        let mut item = open.reasoning_item(status);
        if let Some(encrypted) = encode_reasoning(self.model(), leading, ReasoningPlace::Leading) {
            item["encrypted_content"] = encrypted.into();
        }
        self.finish_item(open.index, item, events);
    }

    fn close_message(&mut self, status: &str, events: &mut Vec<ResponseEvent>) {
        let Some(open) = self.message.take() else { return };
        let (id, index, text) = (&open.id, open.index, &open.text);
        let done = json!({"item_id": id, "output_index": index, "content_index": 0, "text": text, "logprobs": []});
        self.push(events, "response.output_text.done", done);
        let part = json!({"item_id": id, "output_index": index, "content_index": 0, "part": text_part(text)});
        self.push(events, "response.content_part.done", part);
        self.finish_item(index, open.message_item(status), events);
    }

    /// Reasoning that nobody can read, which the client sends back.
    fn add_reasoning(
        &mut self,
        id: String,
        status: &str,
        (blocks, place): (&[Thinking], ReasoningPlace),
        events: &mut Vec<ResponseEvent>,
    ) {
        let Some(encrypted) = encode_reasoning(self.model(), blocks, place) else { return };
        let open = self.open_item(id);
        let mut item = json!({"id": open.id, "type": "reasoning", "status": "in_progress", "summary": []});
        self.push(events, "response.output_item.added", json!({"output_index": open.index, "item": item}));
        item["status"] = status.into();
        item["encrypted_content"] = encrypted.into();
        self.finish_item(open.index, item, events);
    }

    fn add_call(&mut self, number: usize, call: &ToolCall, status: &str, events: &mut Vec<ResponseEvent>) {
        let open = self.open_item(self.ids.call(number));
        let (id, index) = (&open.id, open.index);
        // Arguments are JSON inside a string in this format.
        let arguments = call.arguments.to_string();
        let mut item = json!({"id": id, "type": "function_call", "status": "in_progress", "call_id": call.id,
            "name": call.tool, "arguments": ""});
        self.push(events, "response.output_item.added", json!({"output_index": index, "item": item}));
        let delta = json!({"item_id": id, "output_index": index, "delta": arguments});
        self.push(events, "response.function_call_arguments.delta", delta);
        let done = json!({"item_id": id, "output_index": index, "arguments": arguments, "name": call.tool});
        self.push(events, "response.function_call_arguments.done", done);
        item["arguments"] = arguments.into();
        item["status"] = status.into();
        self.finish_item(index, item, events);
    }

    fn finish_item(&mut self, index: usize, item: Value, events: &mut Vec<ResponseEvent>) {
        let shown = self.shown(item.clone());
        self.push(events, "response.output_item.done", json!({"output_index": index, "item": shown}));
        self.output.push((index, item));
    }

    /// The item as clients get it: with the reasoning to send back if they asked for it.
    fn shown(&self, item: Value) -> Value {
        if self.includes_encrypted_reasoning { item } else { without_encrypted_reasoning(item) }
    }

    fn model(&self) -> &str {
        self.response["model"].as_str().unwrap_or_default()
    }

    fn push(&mut self, events: &mut Vec<ResponseEvent>, kind: &str, mut data: Value) {
        let number = self.next_number;
        self.next_number += 1;
        data["type"] = kind.into();
        data["sequence_number"] = number.into();
        events.push(ResponseEvent { number, frame: format!("event: {kind}\ndata: {data}\n\n") });
    }
}

/// What is known at the end of a run.
#[derive(Debug)]
pub(super) struct ResponseFinish {
    pub(super) end: ResponseVerdict,
    /// The last message of the model.
    pub(super) message: Option<AssistantMessage>,
    /// The calls that the client carries out.
    pub(super) calls: Vec<ToolCall>,
    pub(super) usage: Usage,
    /// Seconds since 1970.
    pub(super) ended_at: i64,
}

impl GrowingItem {
    fn message_item(&self, status: &str) -> Value {
        json!({"id": self.id, "type": "message", "status": status, "role": "assistant",
            "content": [text_part(&self.text)]})
    }

    fn reasoning_item(&self, status: &str) -> Value {
        json!({"id": self.id, "type": "reasoning", "status": status, "summary": [summary_part(&self.text)]})
    }
}

/// A response whose end nobody may know yet.
pub(super) fn as_in_progress(mut response: Value) -> Value {
    response["status"] = "in_progress".into();
    for absent in ["error", "incomplete_details", "completed_at", "usage"] {
        response[absent] = Value::Null;
    }
    response
}

/// An item without the reasoning that only its model reads.
pub(super) fn without_encrypted_reasoning(mut item: Value) -> Value {
    if item["type"] == "reasoning"
        && let Some(fields) = item.as_object_mut()
    {
        fields.remove("encrypted_content");
    }
    item
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn summary_part(text: &str) -> Value {
    json!({"type": "summary_text", "text": text})
}

fn usage_object(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input_tokens.saturating_add(usage.output_tokens),
    })
}

#[cfg(test)]
mod tests;
