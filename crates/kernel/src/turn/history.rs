//! Converts a turn to history messages of the API: the content that models get, and the content for people only.

use quell_protocol::api::{HistoryCall, HistoryMessage};

use super::{AnsweredCall, PartialPolicy, Turn, TurnItem, display_only, is_blank};

impl Turn {
    pub fn history(&self) -> Vec<HistoryMessage> {
        let mut messages = Vec::new();
        for (at, item) in self.items.iter().enumerate() {
            match item {
                TurnItem::User { text, at: asked_at } => {
                    messages.extend(self.thinking_messages(at));
                    messages.push(self.message_at("user", text, asked_at.as_ref()));
                }
                TurnItem::Assistant(answer) => {
                    let streamed: String = self.for_people.thoughts_before(at).collect();
                    let own = || display_only::readable_thinking(answer.thinking());
                    let thinking = if streamed.is_empty() { own() } else { streamed };
                    let calls = answer.calls().map(history_call).collect();
                    let message = self.message_at("assistant", &answer.text(), answer.at.as_ref());
                    messages.push(HistoryMessage { calls, thinking, ..message });
                    messages.extend(answer.calls().map(|call| self.result_message(call)));
                }
            }
        }
        messages.extend(self.thinking_messages(self.items.len()));
        messages.extend(self.partial_message());
        messages.extend(self.note().map(|note| self.message("note", note)));
        if let Some(last) = messages.last_mut() {
            last.verdict = Some(self.verdict.clone());
        }
        messages
    }

    fn message(&self, role: &str, text: &str) -> HistoryMessage {
        self.message_at(role, text, None)
    }

    /// Without a time of its own a message gets the time of the seal.
    fn message_at(&self, role: &str, text: &str, at: Option<&String>) -> HistoryMessage {
        HistoryMessage::new(Some(self.run_id.clone()), role, text, at.unwrap_or(&self.sealed_at))
    }

    /// Reasoning of messages without text and calls.
    fn thinking_messages(&self, item: usize) -> impl Iterator<Item = HistoryMessage> {
        let message = |text: &str| HistoryMessage { thinking: text.to_owned(), ..self.message("assistant", "") };
        self.for_people.thoughts_before(item).map(message)
    }

    fn result_message(&self, call: &AnsweredCall) -> HistoryMessage {
        let (AnsweredCall { call, result, .. }, end) = (call, Some(call.result.end));
        let message = self.message_at("tool", &result.output, result.at.as_ref());
        HistoryMessage {
            call_id: Some(call.id.to_string()),
            end,
            code: result.code,
            diff: result.diff.as_deref().map(str::to_owned),
            ms: result.duration_ms(),
            ..message
        }
    }

    /// The streamed part of a message that was cut off, marked by whether the model reads it too.
    fn partial_message(&self) -> Option<HistoryMessage> {
        let partial = self.partial.as_ref()?;
        let text = if is_blank(&partial.text) { "" } else { &partial.text };
        let message = HistoryMessage { thinking: partial.thinking.clone(), ..self.message("assistant", text) };
        match partial.policy {
            _ if text.is_empty() => message.is_thinking_alone().then_some(message),
            PartialPolicy::Keep => Some(HistoryMessage { kept: true, ..message }),
            PartialPolicy::Discard => Some(HistoryMessage { partial: true, ..message }),
        }
    }
}

fn history_call(call: &AnsweredCall) -> HistoryCall {
    let call = &call.call;
    HistoryCall { id: call.id.to_string(), tool: call.tool.clone(), arguments: call.arguments.clone() }
}
