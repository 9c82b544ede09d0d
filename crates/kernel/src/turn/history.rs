//! A turn as people read it: the same content as the models get, and what only people get to see.

use quell_protocol::api::{HistoryCall, HistoryMessage};

use super::{AnsweredCall, Item, PartialPolicy, Turn, blank, for_people};

impl Turn {
    /// The turn's messages, in order.
    #[must_use]
    pub fn history(&self) -> Vec<HistoryMessage> {
        let mut messages = Vec::new();
        for (at, item) in self.items.iter().enumerate() {
            match item {
                Item::User { text, at: came } => {
                    messages.extend(self.thoughts(at));
                    messages.push(self.message_at("user", text, came.as_ref()));
                }
                Item::Assistant(said) => {
                    let streamed: String = self.for_people.thoughts_before(at).collect();
                    let own = || for_people::readable(said.thinking());
                    let thinking = if streamed.is_empty() { own() } else { streamed };
                    let calls = said.calls().map(made).collect();
                    let message = self.message_at("assistant", &said.text(), said.at.as_ref());
                    messages.push(HistoryMessage { calls, thinking, ..message });
                    messages.extend(said.calls().map(|call| self.result(call)));
                }
            }
        }
        messages.extend(self.thoughts(self.items.len()));
        messages.extend(self.cut_message());
        messages.extend(self.note().map(|note| self.message("note", note)));
        if let Some(last) = messages.last_mut() {
            last.verdict = Some(self.verdict.clone());
        }
        messages
    }

    fn message(&self, role: &str, text: &str) -> HistoryMessage {
        self.message_at(role, text, None)
    }

    /// Where nobody wrote down when it came, it came before the turn was sealed.
    fn message_at(&self, role: &str, text: &str, at: Option<&String>) -> HistoryMessage {
        HistoryMessage::new(Some(self.run_id.clone()), role, text, at.unwrap_or(&self.sealed_at))
    }

    /// Reasoning of messages that said nothing.
    fn thoughts(&self, item: usize) -> impl Iterator<Item = HistoryMessage> {
        let message = |text: &str| HistoryMessage { thinking: text.to_owned(), ..self.message("assistant", "") };
        self.for_people.thoughts_before(item).map(message)
    }

    fn result(&self, call: &AnsweredCall) -> HistoryMessage {
        let (AnsweredCall { call, result, .. }, end) = (call, Some(call.result.end));
        let message = self.message_at("tool", &result.output, result.at.as_ref());
        HistoryMessage { call_id: Some(call.id.to_string()), end, code: result.code, ms: result.ms(), ..message }
    }

    /// What had streamed, and whether the model reads it too.
    fn cut_message(&self) -> Option<HistoryMessage> {
        let partial = self.partial.as_ref()?;
        let text = if blank(&partial.text) { "" } else { &partial.text };
        let message = HistoryMessage { thinking: partial.thinking.clone(), ..self.message("assistant", text) };
        match partial.policy {
            _ if text.is_empty() => message.is_thinking_alone().then_some(message),
            PartialPolicy::Keep => Some(HistoryMessage { kept: true, ..message }),
            PartialPolicy::Discard => Some(HistoryMessage { partial: true, ..message }),
        }
    }
}

fn made(call: &AnsweredCall) -> HistoryCall {
    let call = &call.call;
    HistoryCall { id: call.id.to_string(), tool: call.tool.clone(), arguments: call.arguments.clone() }
}
