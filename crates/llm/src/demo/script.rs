//! Choose the demo model's reply from its script and the request; no I/O.

use quell_protocol::display_text::shorten;
use serde::Deserialize;
use serde_json::Value;

use super::DemoScript;
use crate::partial_answer::estimate_tokens;

/// The tool that the tour calls.
pub(super) const SHELL_TOOL: &str = "shell";

/// The maximum length of quoted text, in characters.
const QUOTE_CHARS: usize = 80;

/// Words by which a note about a stop is recognised in the history.
const STOP_WORDS: [&str; 4] = ["stopped", "aborted", "interrupted", "cancelled"];

/// The fields of a request that the demo model reads.
#[derive(Debug, Deserialize)]
pub(super) struct DemoRequest {
    pub(super) model: String,
    messages: Vec<DemoMessage>,
    #[serde(default)]
    tools: Vec<Value>,
}

#[derive(Debug, Deserialize)]
struct DemoMessage {
    role: String,
    #[serde(default)]
    content: Value,
    #[serde(default)]
    tool_calls: Value,
}

/// A reply: its text, and an optional shell command to call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DemoReply {
    pub(super) text: String,
    pub(super) command: Option<String>,
}

impl DemoRequest {
    pub(super) fn estimate_tokens(&self) -> u64 {
        self.messages.iter().map(|message| estimate_tokens(&message.text())).sum()
    }

    fn offers_shell(&self) -> bool {
        self.tools.iter().any(|tool| tool.pointer("/function/name").and_then(Value::as_str) == Some(SHELL_TOOL))
    }

    fn last_user_index(&self) -> Option<usize> {
        self.messages.iter().rposition(|message| message.role == "user")
    }
}

impl DemoMessage {
    /// The text of the message, also when it consists of parts.
    fn text(&self) -> String {
        match &self.content {
            Value::String(text) => text.clone(),
            Value::Array(parts) => {
                parts.iter().filter_map(|part| part.get("text")?.as_str()).collect::<Vec<_>>().join("\n")
            }
            _ => String::new(),
        }
    }

    fn has_tool_calls(&self) -> bool {
        self.tool_calls.as_array().is_some_and(|calls| !calls.is_empty())
    }
}

pub(super) fn build_reply(script: &DemoScript, request: &DemoRequest) -> DemoReply {
    match script {
        DemoScript::Chat => text_reply(chat_text(request)),
        DemoScript::Tour { command } => tour_reply(request, command),
    }
}

fn chat_text(request: &DemoRequest) -> String {
    let said = request.last_user_index().map(|at| request.messages[at].text()).unwrap_or_default();
    format!(
        "Hello! I am the demo model that is built into Quell. I need no key, and I know only this text. \
         You said: \"{}\". To talk with a real model, set OPENAI_API_KEY (and OPENAI_BASE_URL for any server that speaks \
         the same API), or set ANTHROPIC_API_KEY or OLLAMA_HOST, or add a [providers.X] section to quell.toml; then start Quell again. \
         Until then you can practise the most important thing with me: stop me while I am talking.",
        quote(last_paragraph(&said))
    )
}

fn tour_reply(request: &DemoRequest, command: &str) -> DemoReply {
    let Some(last_user) = request.last_user_index() else {
        return text_reply("I was sent no message of a user, so there is nothing to answer.".to_owned());
    };
    let (before, after) = request.messages.split_at(last_user);
    if let Some(result) = after.iter().rev().find(|message| message.role == "tool") {
        return text_reply(format!("The command is over. Its output begins: \"{}\".", quote(&result.text())));
    }
    if before.iter().any(DemoMessage::has_tool_calls) {
        return text_reply(text_after_stop(before, &after[0].text()));
    }
    if !request.offers_shell() {
        return text_reply("I would like to run a command, but I was offered no tool named `shell`.".to_owned());
    }
    DemoReply {
        text: "I start a command for you now. It runs until it is done or until you stop me. ".to_owned(),
        command: Some(command.to_owned()),
    }
}

/// Quotes the history, to prove that it was read and that it contains the outcome of the earlier request.
fn text_after_stop(before: &[DemoMessage], now: &str) -> String {
    let first_request = before.iter().find(|message| message.role == "user").map(DemoMessage::text).unwrap_or_default();
    // The note may be in a message of its own or before the text of the new message.
    let earlier = before.iter().skip_while(|message| message.role != "user").skip(1).map(DemoMessage::text);
    let new_text = last_paragraph(now);
    let preface = now.strip_suffix(new_text).unwrap_or_default().to_owned();
    let note = earlier.chain([preface]).find_map(|text| find_stop_note(&text));
    let earlier =
        format!("I have read our conversation. Earlier you asked: \"{}\".", quote(last_paragraph(&first_request)));
    let fresh = quote(new_text);
    match note {
        Some(note) => format!(
            "{earlier} The history says of it: \"{note}\" So that request was stopped, and I do not take it up again. \
             Now you say: \"{fresh}\". I am ready."
        ),
        None => format!("{earlier} The history does not say that it was stopped. Now you say: \"{fresh}\"."),
    }
}

/// The first line that mentions a stop.
fn find_stop_note(text: &str) -> Option<String> {
    let mentions_stop = |line: &&str| {
        let line = line.to_lowercase();
        STOP_WORDS.iter().any(|word| line.contains(word))
    };
    text.lines().find(mentions_stop).map(quote)
}

/// The last of several messages that were merged with blank lines.
fn last_paragraph(text: &str) -> &str {
    text.trim_end().rsplit("\n\n").next().unwrap_or_default()
}

fn quote(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    shorten(&text, QUOTE_CHARS, "...")
}

fn text_reply(text: String) -> DemoReply {
    DemoReply { text, command: None }
}
