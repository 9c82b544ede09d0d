//! The list of who did what, when and from where.

use serde::{Deserialize, Serialize};

use crate::{Principal, Surface};

macro_rules! actions {
    ($($(#[doc = $doc:literal])* $name:ident $word:literal;)*) => {
        /// What is written into the list. The words are stable.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Action {
            $($(#[doc = $doc])* $name,)*
        }

        impl Action {
            /// All of them, for the documentation and its test.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The stable word.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }
        }
    };
}

actions! {
    /// Runs or background processes were stopped.
    Stop "stop";
    /// One background process was ended.
    EndProcess "end_process";
    /// New runs are refused.
    Hold "hold";
    /// New runs are let in again.
    LiftHold "lift_hold";
    /// A call that waited was allowed.
    Approve "approve";
    /// A call that waited was denied.
    Deny "deny";
    /// A session's history was emptied.
    ResetSession "reset_session";
    /// A session was deleted with all it left.
    DeleteSession "delete_session";
    /// A session was made or configured without a message.
    ConfigureSession "configure_session";
    /// A session came in from elsewhere.
    ImportSession "import_session";
    /// A note was forgotten.
    ForgetNote "forget_note";
    /// All notes of a sender were forgotten.
    ForgetSender "forget_sender";
    /// A token was made.
    CreateToken "create_token";
    /// A token was revoked.
    RevokeToken "revoke_token";
    /// An agent was made.
    CreateAgent "create_agent";
    /// An agent was deleted.
    DeleteAgent "delete_agent";
    /// The whole database was copied out.
    Backup "backup";
    /// Something was said in a chat network in the name of a channel.
    SendToChannel "send_to_channel";
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AuditRow {
    /// Its number. Numbers rise and are never used again.
    pub seq: u64,
    /// RFC 3339.
    pub at: String,
    /// Who; `quell` is the daemon itself.
    pub principal: Principal,
    /// Through which door.
    pub surface: Surface,
    /// The address that the request came from, and what a proxy on this machine said of it; absent for what happened inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The stable word of an [`Action`].
    pub action: String,
    /// What it was done to: a kind, a space, its name, such as `session cli:default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// More about it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}
