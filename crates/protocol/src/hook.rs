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

/// An event in the life of the daemon, a session, a run, or a message of a chat network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
pub enum HookEvent {
    /// A session is about to be created. The hook may refuse it and give a reason.
    #[serde(rename = "on_create")]
    Create,
    /// A session is used.
    #[serde(rename = "on_activate")]
    Activate,
    /// A session was idle for too long; its clean-up comes next.
    #[serde(rename = "on_expire")]
    Expire,
    /// A session is cleaned up.
    #[serde(rename = "on_terminate")]
    Terminate,
    /// A run is about to take its first step.
    #[serde(rename = "on_run_start")]
    RunStart,
    /// A run has ended, and its end has been announced.
    #[serde(rename = "on_run_end")]
    RunEnd,
    /// The daemon is ready.
    #[serde(rename = "on_start")]
    Start,
    /// The daemon begins to shut down.
    #[serde(rename = "on_shutdown")]
    Shutdown,
    /// A message has come from a chat network. The hook may change its text, or drop it and give a reason.
    #[serde(rename = "on_message_received")]
    MessageReceived,
    /// An answer is about to be sent to a chat network. The hook may change its text, or withhold it and give a reason.
    #[serde(rename = "on_message_sending")]
    MessageSending,
}

impl HookEvent {
    pub const ALL: [Self; 10] = [
        Self::Create,
        Self::Activate,
        Self::Expire,
        Self::Terminate,
        Self::RunStart,
        Self::RunEnd,
        Self::Start,
        Self::Shutdown,
        Self::MessageReceived,
        Self::MessageSending,
    ];

    /// The name of the event in the configuration and on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "on_create",
            Self::Activate => "on_activate",
            Self::Expire => "on_expire",
            Self::Terminate => "on_terminate",
            Self::RunStart => "on_run_start",
            Self::RunEnd => "on_run_end",
            Self::Start => "on_start",
            Self::Shutdown => "on_shutdown",
            Self::MessageReceived => "on_message_received",
            Self::MessageSending => "on_message_sending",
        }
    }

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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookBody {
    /// The id of the event. A repeated delivery to a webhook has the same id, so that its receiver can recognise it.
    pub id: String,
    /// The kind of event.
    pub event: HookEvent,
    /// Time of the event, RFC 3339 in UTC with microseconds.
    pub at: String,
    /// The session of the event; absent for events of the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionFacts>,
    /// The run of the event, or the run that caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunFacts>,
    /// The principal who caused the event, if a person or a program did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Requester>,
    /// The message of the event: the fields `content` and `message`.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionFacts {
    /// The key of the session.
    pub key: SessionKey,
    /// The agent of the session.
    pub agent: AgentId,
    /// The user that the session belongs to, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    /// The chat that the session belongs to, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_id: Option<String>,
    /// The model provider, if the session names one itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// True if the session existed before and returns with its history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revived: Option<bool>,
}

/// Data about a run, for hooks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunFacts {
    /// The id of the run.
    pub run_id: RunId,
    /// The agent that runs.
    pub agent: AgentId,
    /// The run that started this sub-run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunId>,
    /// The principal of the run.
    pub principal: Principal,
    /// The surface through which the message came.
    pub surface: Surface,
    /// The verdict of the run; only with `on_run_end`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// The receipt of the run; only with `on_run_end`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_spelled_as_in_the_configuration() {
        for event in HookEvent::ALL {
            assert_eq!(serde_json::to_value(event).unwrap(), event.as_str());
        }
    }

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
