//! What a lifecycle hook is told: one body for commands (on standard input), webhooks and programs that embed the engine.
//!
//! It never holds a secret, and the text of a message with two events only: `on_message_received` and `on_message_sending`,
//! which are asked about that text and told to nobody else.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::channel::ChannelMessage;
use crate::ids::{AgentId, Principal, RunId, SessionKey};
use crate::receipt::Receipt;
use crate::verdict::{By, Surface, Verdict};

/// A moment in the life of the daemon, of a session, of a run, or of a message of a chat network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
pub enum HookEvent {
    /// A session is about to be made; the hook may refuse that, with a reason.
    #[serde(rename = "on_create")]
    Create,
    /// A session is used.
    #[serde(rename = "on_activate")]
    Activate,
    /// A session has been idle for too long; its clean-up comes next.
    #[serde(rename = "on_expire")]
    Expire,
    /// A session is cleaned up.
    #[serde(rename = "on_terminate")]
    Terminate,
    /// A run is about to take its first step.
    #[serde(rename = "on_run_start")]
    RunStart,
    /// A run is over; its end has been announced.
    #[serde(rename = "on_run_end")]
    RunEnd,
    /// The daemon is ready.
    #[serde(rename = "on_start")]
    Start,
    /// The daemon begins to shut down.
    #[serde(rename = "on_shutdown")]
    Shutdown,
    /// A message has come from a chat network; the hook may change its text, or drop it with a reason.
    #[serde(rename = "on_message_received")]
    MessageReceived,
    /// An answer is about to go to a chat network; the hook may change its text, or keep it back with a reason.
    #[serde(rename = "on_message_sending")]
    MessageSending,
}

impl HookEvent {
    /// All of them.
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

    /// The event as it stands in the configuration and on the wire.
    #[must_use]
    pub fn word(self) -> &'static str {
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

    /// True for the events that hold the text of a message.
    #[must_use]
    pub fn holds_text(self) -> bool {
        match self {
            Self::MessageReceived | Self::MessageSending => true,
            Self::Create | Self::Activate | Self::Expire | Self::Terminate => false,
            Self::RunStart | Self::RunEnd | Self::Start | Self::Shutdown => false,
        }
    }
}

impl fmt::Display for HookEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// One event, as every hook gets it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookBody {
    /// The event's own id. A webhook that is sent again has the same one, so that its receiver can tell a repeat.
    pub id: String,
    /// What happened.
    pub event: HookEvent,
    /// When, as RFC 3339 in UTC with microseconds.
    pub at: String,
    /// The session it is about, except for events of the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionFacts>,
    /// The run it is about, or the run that caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunFacts>,
    /// Who asked for it, where a person or a program did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<By>,
    /// The message it is about: the fields `content` and `message`.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub message: Option<MessageFacts>,
}

/// What a hook is told of a message of a chat network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessageFacts {
    /// The text that the hook is asked about: with `on_message_received` that of the message, with `on_message_sending` that of
    /// the answer.
    pub content: String,
    /// The message that has come, or the one that is answered.
    pub message: ChannelMessage,
}

/// What a hook is told of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionFacts {
    /// Its key.
    pub key: SessionKey,
    /// Its agent.
    pub agent: AgentId,
    /// The user it belongs to, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    /// The chat it belongs to, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_id: Option<String>,
    /// The model provider that serves it, where it says so itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// True when it was there before and comes back with its history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revived: Option<bool>,
}

/// What a hook is told of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunFacts {
    /// Its id.
    pub run_id: RunId,
    /// The agent that runs.
    pub agent: AgentId,
    /// The run that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunId>,
    /// For whom it works.
    pub principal: Principal,
    /// The door that it came through.
    pub surface: Surface,
    /// How it ended; with `on_run_end` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// What it held and how that was given back; with `on_run_end` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_spelled_as_in_the_configuration() {
        for event in HookEvent::ALL {
            assert_eq!(serde_json::to_value(event).unwrap(), event.word());
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
