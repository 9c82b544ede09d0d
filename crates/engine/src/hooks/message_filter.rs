//! Let hooks change or cancel chat messages, one after the other; a failing hook changes nothing.
//!
//! Each hook gets the text that the previous one returned. A broken hook must not silence people, so a failure leaves
//! the text unchanged. The text of a message is never logged.

use std::collections::BTreeMap;

use quell_protocol::ResourceKind;
use quell_protocol::hook::HookEvent;
use quell_scope::{Cancelled, Point, Release, Scope};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::command::first_line;
use super::lifecycle::{self, HookCodeError, MessageAnswer};
use super::{HookFailure, HookJob, HookTrigger, Hooks, RegisteredHook, command, log_failure, to_json, webhook};

/// The maximum size of a text that a hook returns, in bytes.
const MAX_CONTENT_BYTES: usize = 1024 * 1024;
/// The maximum size of the answer of a command or a webhook. JSON may need six bytes for one (`\u0007`); the rest is
/// for names and white space.
const MAX_ANSWER_BYTES: usize = 6 * MAX_CONTENT_BYTES + 4096;
/// The maximum number of unknown fields that are named in the log.
const MAX_LOGGED_FIELDS: usize = 3;

impl Hooks {
    /// Calls every hook for [`HookTrigger::for_received_message`] or [`HookTrigger::for_outgoing_message`] in turn,
    /// each with the text that the previous one returned, until one cancels. A hook that fails, times out or gives an
    /// invalid answer is logged.
    ///
    /// The ledger of `scope` holds all of it. When the scope is cancelled, running hooks are killed at once and this
    /// returns.
    ///
    /// # Cancel safety
    /// Safe: running hooks are killed, and the scope waits for that.
    pub async fn filter_message(&self, trigger: HookTrigger, scope: &Scope) -> Result<MessageAnswer, Cancelled> {
        let event = trigger.event;
        let Some(registered) = self.0.message_hooks_by_event.get(&event) else { return Ok(MessageAnswer::Unchanged) };
        let mut job = self.create_job(trigger);
        if let Some(run) = &job.body.run {
            job.process_run_id = run.run_id.clone();
        }
        let mut answer = MessageAnswer::Unchanged;
        let held = scope.hold(ResourceKind::Hook, event.as_str());
        for entry in registered {
            match scope.race(Point::Hook, self.call_registered_hook(entry, &job, scope)).await? {
                Ok(MessageAnswer::Unchanged) => {}
                Ok(MessageAnswer::Content(content)) => {
                    job.set_content(&content);
                    answer = MessageAnswer::Content(content);
                }
                Ok(MessageAnswer::Cancel { reason }) => {
                    let (id, hook) = (&job.body.id, entry.display_name());
                    tracing::info!(%event, id, hook, reason, "a hook kept a message back");
                    answer = MessageAnswer::Cancel { reason };
                    break;
                }
                Err(failure) => log_failure(&job, &entry.display_name(), &failure),
            }
        }
        held.release(Release::Finished);
        Ok(answer)
    }

    async fn call_registered_hook(
        &self,
        entry: &RegisteredHook,
        job: &HookJob,
        scope: &Scope,
    ) -> Result<MessageAnswer, HookFailure> {
        let reply = match entry {
            RegisteredHook::Embedded(hook) => {
                // waits: for at most the timeout; `filter_message` races it against the scope, like all below.
                let answer = lifecycle::call_message_hook(hook.as_ref(), &job.body, self.0.timeout).await;
                return answer.map_err(|problem| hook_code_failure(hook.name(), &problem)).and_then(validate_answer);
            }
            RegisteredHook::Command(command) => {
                command::run_command_for_answer(&self.0, command, job, MAX_ANSWER_BYTES, scope).await?
            }
            RegisteredHook::Url(webhook_queue) => {
                webhook::send_until_answered(&self.0, &webhook_queue.receiver, job, MAX_ANSWER_BYTES, scope).await?
            }
        };
        let MessageHookReply { content, cancel, rest } =
            MessageHookReply::parse(&reply).map_err(HookFailure::from_description)?;
        if !rest.is_empty() {
            let names: Vec<&str> = rest.keys().take(MAX_LOGGED_FIELDS).map(String::as_str).collect();
            let (event, id, hook) = (job.body.event, &job.body.id, entry.display_name());
            let ignored = first_line(&names.join(", "));
            tracing::warn!(%event, id, hook, ignored, "a hook answered more than `content` or `cancel`; that has no effect");
        }
        match (content, cancel) {
            (None, None) => Ok(MessageAnswer::Unchanged),
            (Some(content), None) => validate_answer(MessageAnswer::Content(content)),
            (None, Some(reason)) => validate_answer(MessageAnswer::Cancel { reason }),
            (Some(_), Some(_)) => {
                Err(HookFailure::from_description("it answered both `content` and `cancel`".to_owned()))
            }
        }
    }
}

impl HookJob {
    fn set_content(&mut self, content: &str) {
        if let Some(facts) = &mut self.body.message {
            content.clone_into(&mut facts.content);
            if self.body.event == HookEvent::MessageReceived {
                // A part that one hook has removed must not reach the next hook.
                content.clone_into(&mut facts.message.content);
            }
        }
        self.json = to_json(&self.body);
    }
}

impl HookFailure {
    fn from_description(description: String) -> Self {
        Self { stated_reason: None, description }
    }
}

/// The answer of a command or a webhook. It has no field for a destination.
#[derive(Debug, Default, Deserialize)]
struct MessageHookReply {
    content: Option<String>,
    cancel: Option<String>,
    #[serde(flatten)]
    rest: BTreeMap<String, IgnoredAny>,
}

impl MessageHookReply {
    /// Parses an empty text or one JSON object. The error quotes nothing of it.
    fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() > MAX_ANSWER_BYTES {
            return Err(format!("its answer is longer than {MAX_ANSWER_BYTES} bytes"));
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

/// Refuses a blank or too long text, and shortens a reason to one line.
fn validate_answer(answer: MessageAnswer) -> Result<MessageAnswer, HookFailure> {
    match answer {
        MessageAnswer::Content(content) if content.trim().is_empty() => {
            Err(HookFailure::from_description("its text is blank; to drop the message, answer `cancel`".to_owned()))
        }
        MessageAnswer::Content(content) if content.len() > MAX_CONTENT_BYTES => {
            Err(HookFailure::from_description(format!("its text is longer than {MAX_CONTENT_BYTES} bytes")))
        }
        MessageAnswer::Cancel { reason } => {
            let reason = first_line(&reason).unwrap_or_else(|| "no reason given".to_owned());
            Ok(MessageAnswer::Cancel { reason })
        }
        valid @ (MessageAnswer::Unchanged | MessageAnswer::Content(_)) => Ok(valid),
    }
}

/// The message of a panic may quote a chat message, so it is not repeated here.
fn hook_code_failure(hook: &str, problem: &HookCodeError) -> HookFailure {
    let outcome = match problem {
        HookCodeError::Panicked(_) => "panicked".to_owned(),
        HookCodeError::TimedOut(limit) => format!("took longer than {limit:?}"),
        HookCodeError::Failed(_) => "failed".to_owned(),
    };
    HookFailure::from_description(format!("the hook {hook} {outcome}"))
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
        let reply = MessageHookReply::parse(text.as_bytes()).unwrap();
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
        let error = MessageHookReply::parse(text.as_bytes()).unwrap_err();
        assert!(error.starts_with("its answer is no JSON object") && !error.contains("quiet"), "{error}");
    }

    #[test]
    fn no_utf8_and_what_is_too_long_are_nonsense() {
        assert!(MessageHookReply::parse(b"{\"content\": \"\xff\"}").is_err());
        let error = MessageHookReply::parse(&vec![b' '; MAX_ANSWER_BYTES + 1]).unwrap_err();
        assert_eq!(error, "its answer is longer than 6295552 bytes");
    }

    #[test]
    fn the_longest_text_fits_however_it_is_written() {
        let text = "\u{7}".repeat(MAX_CONTENT_BYTES);
        let written = serde_json::to_vec(&serde_json::json!({ "content": text })).unwrap();
        let content = MessageHookReply::parse(&written).unwrap().content.unwrap();
        assert_eq!(
            validate_answer(MessageAnswer::Content(content.clone())),
            Ok(MessageAnswer::Content(content.clone()))
        );
        assert!(validate_answer(MessageAnswer::Content(content + "x")).is_err());
        assert!(validate_answer(MessageAnswer::Content(" \n".to_owned())).is_err());
    }

    #[test]
    fn a_reason_is_one_line() {
        let cancel = |reason: &str| validate_answer(MessageAnswer::Cancel { reason: reason.to_owned() });
        let expected = |reason: &str| Ok(MessageAnswer::Cancel { reason: reason.to_owned() });
        assert_eq!(cancel("\n no\u{7}t here\nmore"), expected("not here"));
        assert_eq!(cancel(" "), expected("no reason given"));
    }
}
