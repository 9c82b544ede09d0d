//! Lifecycle hook events and the body that hooks get: commands on standard input, webhooks, and programs that embed the
//! engine.
//!
//! The body never holds a secret. Only two events hold the text of a message, `on_message_received` and
//! `on_message_sending`: they ask the hook about this text, and only hooks of these events get it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::channel::ChannelMessage;
use crate::ids::{AgentId, Principal, RunId, SessionKey};
use crate::receipt::Receipt;
use crate::verdict::{Requester, Surface, Verdict};
use crate::word_enum::word_enum;

word_enum! {
    /// An event in the life of the daemon, a session, a run, or a message of a chat network.
    HookEvent {
        /// A session is about to be created. The hook may refuse it and give a reason.
        Create "on_create",
        /// A session is used.
        Activate "on_activate",
        /// A session was idle for too long; its clean-up comes next.
        Expire "on_expire",
        /// A session is cleaned up.
        Terminate "on_terminate",
        /// A run is about to take its first step.
        RunStart "on_run_start",
        /// A run has ended, and its end has been announced.
        RunEnd "on_run_end",
        /// The daemon is ready.
        Start "on_start",
        /// The daemon begins to shut down.
        Shutdown "on_shutdown",
        /// A message has come from a chat network. The hook may change its text, or drop it and give a reason.
        MessageReceived "on_message_received",
        /// An answer is about to be sent to a chat network. The hook may change its text, or withhold it and give a
        /// reason.
        MessageSending "on_message_sending",
    }
}

impl HookEvent {
    /// True for events that hold the text of a message.
    #[must_use]
    pub fn has_message_text(self) -> bool {
        match self {
            Self::MessageReceived | Self::MessageSending => true,
            Self::Create | Self::Activate | Self::Expire | Self::Terminate => false,
            Self::RunStart | Self::RunEnd | Self::Start | Self::Shutdown => false,
        }
    }
}

impl fmt::Display for HookEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Body of an event, as every hook gets it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookBody {
    /// The id of the event. A repeated delivery to a webhook has the same id, so that its receiver can recognise it.
    pub id: String,
    pub event: HookEvent,
    /// Time of the event, RFC 3339 in UTC with microseconds.
    pub at: String,
    /// The session of the event; absent for events of the daemon.
    pub session: Option<SessionFacts>,
    /// The run of the event, or the run that caused it.
    pub run: Option<RunFacts>,
    /// The principal who caused the event, if a person or a program did.
    pub by: Option<Requester>,
    /// The message of the event: the fields `content` and `message`.
    #[serde(flatten)]
    pub message: Option<MessageFacts>,
}

/// Data about a message of a chat network, for hooks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessageFacts {
    /// The text that the hook is asked about: of the message with `on_message_received`, of the answer with
    /// `on_message_sending`.
    pub content: String,
    /// The message that came, or the message that is answered.
    pub message: ChannelMessage,
}

/// Data about a session, for hooks.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionFacts {
    pub key: SessionKey,
    pub agent: AgentId,
    /// The user that the session belongs to, if it is known.
    pub user_id: Option<String>,
    /// The chat that the session belongs to, if it is known.
    pub chat_id: Option<String>,
    /// The model provider, if the session names one itself.
    pub provider: Option<String>,
    /// True if the session existed before and returns with its history.
    pub revived: Option<bool>,
}

/// Data about a run, for hooks.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunFacts {
    pub run_id: RunId,
    pub agent: AgentId,
    /// The run that started this sub-run.
    pub parent: Option<RunId>,
    pub principal: Principal,
    /// The surface through which the message came.
    pub surface: Surface,
    /// The verdict of the run; only with `on_run_end`.
    pub verdict: Option<Verdict>,
    /// The receipt of the run; only with `on_run_end`.
    pub receipt: Option<Receipt>,
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};
    use utoipa::PartialSchema;

    use super::*;
    use crate::Surface;
    use crate::api::TokenScope;

    #[test]
    fn a_body_has_camel_case_names_and_leaves_out_what_is_not_known() {
        let body = HookBody {
            id: "0198".to_owned(),
            event: HookEvent::Create,
            at: "2026-01-02T03:04:05.000006Z".to_owned(),
            session: Some(SessionFacts {
                key: SessionKey::parse("alice").unwrap(),
                agent: AgentId::parse("main").unwrap(),
                user_id: Some("u1".to_owned()),
                chat_id: None,
                provider: None,
                revived: Some(true),
            }),
            run: None,
            by: None,
            message: None,
        };
        let expected = serde_json::json!({
            "id": "0198", "event": "on_create", "at": "2026-01-02T03:04:05.000006Z",
            "session": {"key": "alice", "agent": "main", "userId": "u1", "revived": true},
        });
        assert_eq!(serde_json::to_value(&body).unwrap(), expected);
        assert_eq!(serde_json::from_value::<HookBody>(expected).unwrap(), body);
    }

    #[test]
    fn a_word_is_the_same_in_json_in_the_schema_and_as_text() {
        let surfaces = [
            "http",
            "ws",
            "cli",
            "tui",
            "page",
            "channel",
            "openai",
            "anthropic",
            "acp",
            "mcp",
            "a2a",
            "daemon",
            "embedded",
        ];
        assert_eq!(Surface::ALL.map(Surface::as_str), surfaces);
        let check = |words: &[&str], values: serde_json::Value, schema: serde_json::Value| {
            assert_eq!((json!(words), &schema["enum"]), (values.clone(), &values));
        };
        let (hooks, surfaces, scopes) = (HookEvent::ALL, Surface::ALL, TokenScope::ALL);
        check(&hooks.map(HookEvent::as_str), json!(hooks), to_value(HookEvent::schema()).unwrap());
        check(&surfaces.map(Surface::as_str), json!(surfaces), to_value(Surface::schema()).unwrap());
        check(&scopes.map(TokenScope::as_str), json!(scopes), to_value(TokenScope::schema()).unwrap());
    }

    #[test]
    fn the_text_of_a_message_stands_beside_the_message() {
        let message = ChannelMessage {
            channel: "irc".to_owned(),
            id: "7".to_owned(),
            sender: "alice".to_owned(),
            sender_name: None,
            reply_target: "#lab".to_owned(),
            content: "how late is it?".to_owned(),
            thread: None,
            scope_id: None,
            group: true,
            attachments: Vec::new(),
        };
        let body = HookBody {
            id: "0198".to_owned(),
            event: HookEvent::MessageSending,
            at: "2026-01-02T03:04:05.000006Z".to_owned(),
            session: None,
            run: None,
            by: None,
            message: Some(MessageFacts { content: "noon".to_owned(), message }),
        };
        let expected = serde_json::json!({
            "id": "0198", "event": "on_message_sending", "at": "2026-01-02T03:04:05.000006Z", "content": "noon",
            "message": {
                "channel": "irc", "id": "7", "sender": "alice", "replyTarget": "#lab", "content": "how late is it?",
                "group": true,
            },
        });
        assert_eq!(serde_json::to_value(&body).unwrap(), expected);
        assert_eq!(serde_json::from_value::<HookBody>(expected).unwrap(), body);
    }
}
