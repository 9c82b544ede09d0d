//! Hooks that are asked about a message: each may change its text or end its way, and the next one sees what the one before made
//! of it.
//!
//! Whoever fails to answer has changed nothing: a broken hook must not silence people. No word of a message gets into the log.

use std::collections::BTreeMap;

use quell_protocol::ResourceKind;
use quell_protocol::hook::HookEvent;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::command::first_line;
use super::lifecycle::{self, MessageAnswer, Problem};
use super::{Doer, Errand, Failure, Happening, Hooks, command, json_of, warn, webhook};
use crate::scope::{Cancelled, Point, Scope};

/// The longest text that a hook may put in place of another, in bytes.
const CONTENT: usize = 1024 * 1024;
/// The longest answer of a command or a webhook: JSON writes a byte in six (`\u0007`), and the rest is for names and spaces.
const ANSWER: usize = 6 * CONTENT + 4096;
/// Names of fields that mean nothing, as many as a line in the log can bear.
const NAMED: usize = 3;

impl Hooks {
    /// Asks every hook of [`Happening::of_received`] or [`Happening::of_sending`] in turn, each about the text that the one
    /// before made of it, until one cancels. A hook that fails, takes too long or answers nonsense is a line in the log.
    ///
    /// All of it is held in the ledger of `scope`. When that is cancelled, what was started is killed at once and this returns.
    ///
    /// # Errors
    /// [`Cancelled`] when the scope was cancelled first.
    ///
    /// # Cancel safety
    /// Safe: what was started is killed, and the scope waits for that.
    pub async fn ask_message(&self, happening: Happening, scope: &Scope) -> Result<MessageAnswer, Cancelled> {
        let event = happening.event;
        let Some(readers) = self.0.readers.get(&event) else { return Ok(MessageAnswer::Unchanged) };
        let mut errand = self.errand(happening);
        if let Some(run) = &errand.body.run {
            errand.mark = run.run_id.clone();
        }
        let mut answer = MessageAnswer::Unchanged;
        let held = scope.hold(ResourceKind::Hook, event.word());
        for reader in readers {
            match scope.race(Point::Hook, self.ask_one(reader, &errand, scope)).await? {
                Ok(MessageAnswer::Unchanged) => {}
                Ok(MessageAnswer::Content(content)) => {
                    errand.change(&content);
                    answer = MessageAnswer::Content(content);
                }
                Ok(MessageAnswer::Cancel { reason }) => {
                    let (id, hook) = (&errand.body.id, reader.shown());
                    tracing::info!(%event, id, hook, reason, "a hook kept a message back");
                    answer = MessageAnswer::Cancel { reason };
                    break;
                }
                Err(failure) => warn(&errand, &reader.shown(), &failure),
            }
        }
        held.release("finished");
        Ok(answer)
    }

    async fn ask_one(&self, reader: &Doer, errand: &Errand, scope: &Scope) -> Result<MessageAnswer, Failure> {
        let reply = match reader {
            Doer::Embedded(hook) => {
                // waits: for at most the limit; `ask_message` races it against the scope, like all below.
                let answer = lifecycle::ask(hook.as_ref(), &errand.body, self.0.limit).await;
                return answer.map_err(|problem| panicked_or_late(hook.name(), &problem)).and_then(checked);
            }
            Doer::Command(command) => command::ask(&self.0, command, errand, ANSWER, scope).await?,
            Doer::Url(lane) => webhook::ask(&self.0, &lane.receiver, errand, ANSWER, scope).await?,
        };
        let Reply { content, cancel, rest } = Reply::parse(&reply).map_err(Failure::of)?;
        if !rest.is_empty() {
            let names: Vec<&str> = rest.keys().take(NAMED).map(String::as_str).collect();
            let (event, id, hook) = (errand.body.event, &errand.body.id, reader.shown());
            let ignored = first_line(&names.join(", "));
            tracing::warn!(%event, id, hook, ignored, "a hook answered more than `content` or `cancel`; that has no effect");
        }
        match (content, cancel) {
            (None, None) => Ok(MessageAnswer::Unchanged),
            (Some(content), None) => checked(MessageAnswer::Content(content)),
            (None, Some(reason)) => checked(MessageAnswer::Cancel { reason }),
            (Some(_), Some(_)) => Err(Failure::of("it answered both `content` and `cancel`".to_owned())),
        }
    }
}

impl Errand {
    /// The next hook is asked about this text.
    fn change(&mut self, content: &str) {
        if let Some(facts) = &mut self.body.message {
            content.clone_into(&mut facts.content);
            if self.body.event == HookEvent::MessageReceived {
                // What one hook has taken out of a message, the next one must not find.
                content.clone_into(&mut facts.message.content);
            }
        }
        self.json = json_of(&self.body);
    }
}

impl Failure {
    fn of(how: String) -> Self {
        Self { said: None, how }
    }
}

/// What a command or a webhook answers. A destination is none of its fields.
#[derive(Debug, Default, Deserialize)]
struct Reply {
    content: Option<String>,
    cancel: Option<String>,
    #[serde(flatten)]
    rest: BTreeMap<String, IgnoredAny>,
}

impl Reply {
    /// Nothing, or one JSON object. The error quotes nothing of it.
    fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() > ANSWER {
            return Err(format!("its answer is longer than {ANSWER} bytes"));
        }
        if text.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_slice(text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            format!("its answer is no JSON object with a text as `content` or `cancel` (line {line}, column {column})")
        })
    }
}

/// Refuses a text that nobody can be meant to read, and shortens a reason to a line.
fn checked(answer: MessageAnswer) -> Result<MessageAnswer, Failure> {
    match answer {
        MessageAnswer::Content(content) if content.trim().is_empty() => {
            Err(Failure::of("its text is blank; who wants nothing to go on answers `cancel`".to_owned()))
        }
        MessageAnswer::Content(content) if content.len() > CONTENT => {
            Err(Failure::of(format!("its text is longer than {CONTENT} bytes")))
        }
        MessageAnswer::Cancel { reason } => {
            let reason = first_line(&reason).unwrap_or_else(|| "no reason given".to_owned());
            Ok(MessageAnswer::Cancel { reason })
        }
        fine @ (MessageAnswer::Unchanged | MessageAnswer::Content(_)) => Ok(fine),
    }
}

/// A panic's words may quote a message: they stay where the panic was reported.
fn panicked_or_late(hook: &str, problem: &Problem) -> Failure {
    let what = match problem {
        Problem::Panicked(_) => "panicked".to_owned(),
        Problem::TookTooLong(limit) => format!("took longer than {limit:?}"),
        Problem::Failed(_) => "failed".to_owned(),
    };
    Failure::of(format!("the hook {hook} {what}"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing("", None, None)]
    #[case::blanks(" \n", None, None)]
    #[case::an_empty_object("{}", None, None)]
    #[case::nulls(r#"{"content": null, "cancel": null}"#, None, None)]
    #[case::content("{\"content\": \"new\"}\n", Some("new"), None)]
    #[case::cancel(r#"{"cancel": "why"}"#, None, Some("why"))]
    #[case::a_destination(r#"{"content": "new", "replyTarget": "elsewhere"}"#, Some("new"), None)]
    fn an_answer_is_nothing_or_one_object(
        #[case] text: &str,
        #[case] content: Option<&str>,
        #[case] cancel: Option<&str>,
    ) {
        let reply = Reply::parse(text.as_bytes()).unwrap();
        assert_eq!((reply.content.as_deref(), reply.cancel.as_deref()), (content, cancel));
    }

    #[rstest]
    #[case::text("quiet please")]
    #[case::a_json_text(r#""quiet please""#)]
    #[case::another_type(r#"{"content": ["quiet please"]}"#)]
    #[case::two_objects(r#"{"content": "quiet please"} {}"#)]
    #[case::twice(r#"{"content": "quiet", "content": "please"}"#)]
    #[case::cut_off(r#"{"content": "quiet plea"#)]
    fn nonsense_is_named_and_not_quoted(#[case] text: &str) {
        let error = Reply::parse(text.as_bytes()).unwrap_err();
        assert!(error.starts_with("its answer is no JSON object") && !error.contains("quiet"), "{error}");
    }

    #[test]
    fn no_utf8_and_what_is_too_long_are_nonsense() {
        assert!(Reply::parse(b"{\"content\": \"\xff\"}").is_err());
        let error = Reply::parse(&vec![b' '; ANSWER + 1]).unwrap_err();
        assert_eq!(error, "its answer is longer than 6295552 bytes");
    }

    #[test]
    fn the_longest_text_fits_however_it_is_written() {
        let text = "\u{7}".repeat(CONTENT);
        let written = serde_json::to_vec(&serde_json::json!({ "content": text })).unwrap();
        let content = Reply::parse(&written).unwrap().content.unwrap();
        assert_eq!(checked(MessageAnswer::Content(content.clone())), Ok(MessageAnswer::Content(content.clone())));
        assert!(checked(MessageAnswer::Content(content + "x")).is_err());
        assert!(checked(MessageAnswer::Content(" \n".to_owned())).is_err());
    }

    #[test]
    fn a_reason_is_one_line() {
        let cancel = |reason: &str| checked(MessageAnswer::Cancel { reason: reason.to_owned() });
        let expected = |reason: &str| Ok(MessageAnswer::Cancel { reason: reason.to_owned() });
        assert_eq!(cancel("\n no\u{7}t here\nmore"), expected("not here"));
        assert_eq!(cancel(" "), expected("no reason given"));
    }
}
