//! A turn as people read it: the same content as the models get, and what only people get to see.

use quell_protocol::api::{HistoryCall, HistoryMessage};

use super::{AnsweredCall, Item, PartialPolicy, Turn, blank};

impl Turn {
    /// The turn's messages, in order.
    #[must_use]
    pub fn history(&self) -> Vec<HistoryMessage> {
        let mut messages = Vec::new();
        for item in &self.items {
            match item {
                Item::User { text, at } => messages.push(self.message_at("user", text, at.as_ref())),
                Item::Assistant(said) => {
                    let calls = said.calls().map(made).collect();
                    let message = self.message_at("assistant", &said.text(), said.at.as_ref());
                    messages.push(HistoryMessage { calls, ..message });
                    messages.extend(said.calls().map(|call| self.result(call)));
                }
            }
        }
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
        HistoryMessage {
            run_id: Some(self.run_id.clone()),
            role: role.into(),
            text: text.into(),
            at: at.unwrap_or(&self.sealed_at).clone(),
            calls: Vec::new(),
            call_id: None,
            end: None,
            code: None,
            ms: None,
            partial: false,
            kept: false,
            verdict: None,
        }
    }

    fn result(&self, call: &AnsweredCall) -> HistoryMessage {
        let (AnsweredCall { call, result, .. }, end) = (call, Some(call.result.end));
        let message = self.message_at("tool", &result.output, result.at.as_ref());
        HistoryMessage { call_id: Some(call.id.to_string()), end, code: result.code, ms: result.ms(), ..message }
    }

    /// What had streamed, and whether the model reads it too.
    fn cut_message(&self) -> Option<HistoryMessage> {
        let partial = self.partial.as_ref().filter(|partial| !blank(&partial.text))?;
        Some(match partial.policy {
            PartialPolicy::Keep => HistoryMessage { kept: true, ..self.message("assistant", &partial.text) },
            PartialPolicy::Discard => HistoryMessage { partial: true, ..self.message("assistant", &partial.text) },
        })
    }
}

fn made(call: &AnsweredCall) -> HistoryCall {
    let call = &call.call;
    HistoryCall { id: call.id.to_string(), tool: call.tool.clone(), arguments: call.arguments.clone() }
}
