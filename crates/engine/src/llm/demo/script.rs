//! What the demo model says: a pure function of its script and of the conversation it was sent.

use serde::Deserialize;
use serde_json::Value;

use super::DemoScript;
use crate::llm::answer::estimate;

/// The tool that the tour calls.
pub(super) const SHELL: &str = "shell";

/// How much of other people's words is repeated.
const QUOTE_CHARS: usize = 80;

/// Words by which a note in the history says that a request was stopped.
const STOP_WORDS: [&str; 4] = ["stopped", "aborted", "interrupted", "cancelled"];

/// A request, as far as the demo model reads it.
#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    pub(super) model: String,
    messages: Vec<Message>,
    #[serde(default)]
    tools: Vec<Value>,
}

#[derive(Debug, Deserialize)]
struct Message {
    role: String,
    #[serde(default)]
    content: Value,
    #[serde(default)]
    tool_calls: Value,
}

/// An answer: what is said, and then the command that is to be run, if any.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) text: String,
    pub(super) command: Option<String>,
}

impl Asked {
    /// About how many tokens the conversation has.
    pub(super) fn tokens(&self) -> u64 {
        self.messages.iter().map(|message| estimate(&message.text())).sum()
    }

    fn offers_shell(&self) -> bool {
        self.tools.iter().any(|tool| tool.pointer("/function/name").and_then(Value::as_str) == Some(SHELL))
    }

    fn last_user(&self) -> Option<usize> {
        self.messages.iter().rposition(|message| message.role == "user")
    }
}

impl Message {
    /// Its text, also when it comes in parts.
    fn text(&self) -> String {
        match &self.content {
            Value::String(text) => text.clone(),
            Value::Array(parts) => {
                parts.iter().filter_map(|part| part.get("text")?.as_str()).collect::<Vec<_>>().join("\n")
            }
            _ => String::new(),
        }
    }

    fn calls(&self) -> bool {
        self.tool_calls.as_array().is_some_and(|calls| !calls.is_empty())
    }
}

/// The answer to a conversation.
pub(super) fn reply(script: &DemoScript, asked: &Asked) -> Reply {
    match script {
        DemoScript::Chat => say(chat(asked)),
        DemoScript::Tour { command } => tour(asked, command),
    }
}

fn chat(asked: &Asked) -> String {
    let said = asked.last_user().map(|at| asked.messages[at].text()).unwrap_or_default();
    format!(
        "Hello! I am the demo model that is built into Quell. I need no key, and I know only this text. \
         You said: \"{}\". To talk with a real model, set OPENAI_API_KEY (and OPENAI_BASE_URL for any server that speaks \
         the same API), or set ANTHROPIC_API_KEY or OLLAMA_HOST, or add a [providers.X] section to quell.toml; then start Quell again. \
         Until then you can practise the most important thing with me: stop me while I am talking.",
        quote(last_paragraph(&said))
    )
}

fn tour(asked: &Asked, command: &str) -> Reply {
    let Some(last_user) = asked.last_user() else {
        return say("I was sent no message of a user, so there is nothing to answer.".to_owned());
    };
    let (before, after) = asked.messages.split_at(last_user);
    if let Some(result) = after.iter().rev().find(|message| message.role == "tool") {
        return say(format!("The command is over. Its output begins: \"{}\".", quote(&result.text())));
    }
    if before.iter().any(Message::calls) {
        return say(after_a_stop(before, &after[0].text()));
    }
    if !asked.offers_shell() {
        return say("I would like to run a command, but I was offered no tool named `shell`.".to_owned());
    }
    Reply {
        text: "I start a command for you now. It runs until it is done or until you stop me. ".to_owned(),
        command: Some(command.to_owned()),
    }
}

/// Proves by quoting that the history was read, and that it says what became of the earlier request.
fn after_a_stop(before: &[Message], now: &str) -> String {
    let asked = before.iter().find(|message| message.role == "user").map(Message::text).unwrap_or_default();
    // The note may stand in a message of its own or before the text of the new one.
    let earlier = before.iter().skip_while(|message| message.role != "user").skip(1).map(Message::text);
    let fresh = last_paragraph(now);
    let preface = now.strip_suffix(fresh).unwrap_or_default().to_owned();
    let note = earlier.chain([preface]).find_map(|text| stop_note(&text));
    let earlier = format!("I have read our conversation. Earlier you asked: \"{}\".", quote(last_paragraph(&asked)));
    let fresh = quote(fresh);
    match note {
        Some(note) => format!(
            "{earlier} The history says of it: \"{note}\" So that request was stopped, and I do not take it up again. \
             Now you say: \"{fresh}\". I am ready."
        ),
        None => format!("{earlier} The history does not say that it was stopped. Now you say: \"{fresh}\"."),
    }
}

/// The line that speaks of a stop.
fn stop_note(text: &str) -> Option<String> {
    let speaks = |line: &&str| {
        let line = line.to_lowercase();
        STOP_WORDS.iter().any(|word| line.contains(word))
    };
    text.lines().find(speaks).map(quote)
}

/// The newest of several messages that were merged with blank lines.
fn last_paragraph(text: &str) -> &str {
    text.trim_end().rsplit("\n\n").next().unwrap_or_default()
}

fn quote(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(QUOTE_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn say(text: String) -> Reply {
    Reply { text, command: None }
}
