//! What a lifecycle hook is told: one body for commands (on standard input), webhooks and programs that embed the engine.
//!
//! It never holds the text of a message, and no secret.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{AgentId, Principal, RunId, SessionKey};
use crate::receipt::Receipt;
use crate::verdict::{By, Surface, Verdict};

/// A moment in the life of the daemon, of a session, or of a run.
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
}

impl HookEvent {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Create,
        Self::Activate,
        Self::Expire,
        Self::Terminate,
        Self::RunStart,
        Self::RunEnd,
        Self::Start,
        Self::Shutdown,
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
        };
        let expected = serde_json::json!({
            "id": "0198", "event": "on_create", "at": "2026-01-02T03:04:05.000006Z",
            "session": {"key": "alice", "agent": "main", "userId": "u1", "revived": true},
        });
        assert_eq!(serde_json::to_value(&body).unwrap(), expected);
        assert_eq!(serde_json::from_value::<HookBody>(expected).unwrap(), body);
    }
}
