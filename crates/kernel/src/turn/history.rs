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
                Item::User { text } => messages.push(self.message("user", text)),
                Item::Assistant(said) => {
                    let calls = said.calls().map(made).collect();
                    messages.push(HistoryMessage { calls, ..self.message("assistant", &said.text()) });
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
        HistoryMessage {
            run_id: Some(self.run_id.clone()),
            role: role.into(),
            text: text.into(),
            at: self.sealed_at.clone(),
            calls: Vec::new(),
            call_id: None,
            end: None,
            partial: false,
            kept: false,
            verdict: None,
        }
    }

    fn result(&self, call: &AnsweredCall) -> HistoryMessage {
        let (call_id, end) = (Some(call.call.id.to_string()), Some(call.result.end));
        HistoryMessage { call_id, end, ..self.message("tool", &call.result.output) }
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
