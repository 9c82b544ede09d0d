//! Audit log entries: who did what, when and from where.

use serde::{Deserialize, Serialize};

use crate::{Principal, Surface};

macro_rules! actions {
    ($($(#[doc = $doc:literal])* $name:ident $word:literal;)*) => {
        /// Actions that are written to the audit log. The words are stable.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Action {
            $($(#[doc = $doc])* $name,)*
        }

        impl Action {
            /// All actions, for the documentation and its test.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The stable word of the action.
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
    /// New runs are accepted again.
    LiftHold "lift_hold";
    /// A waiting call was allowed.
    Approve "approve";
    /// A waiting call was denied.
    Deny "deny";
    /// The history of a session was emptied.
    ResetSession "reset_session";
    /// A session was deleted with all its data.
    DeleteSession "delete_session";
    /// A session was created or configured without a message.
    ConfigureSession "configure_session";
    /// A session was imported.
    ImportSession "import_session";
    /// A note was forgotten.
    ForgetNote "forget_note";
    /// All notes of a sender were forgotten.
    ForgetSender "forget_sender";
    /// A token was created.
    CreateToken "create_token";
    /// A token was revoked.
    RevokeToken "revoke_token";
    /// An agent was created.
    CreateAgent "create_agent";
    /// An agent was deleted.
    DeleteAgent "delete_agent";
    /// A copy of the whole database was made.
    Backup "backup";
    /// A text was sent to a chat network through a channel.
    SendToChannel "send_to_channel";
}

/// One entry of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AuditRow {
    /// The number of the entry. Numbers rise and are never used again.
    pub seq: u64,
    /// Time of the action, RFC 3339.
    pub at: String,
    /// The principal who acted; `quell` is the daemon itself.
    pub principal: Principal,
    /// The surface through which the request came.
    pub surface: Surface,
    /// The address that the request came from, and the address that a proxy on this machine reported. Absent for
    /// actions of the daemon itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The stable word of the action.
    pub action: String,
    /// The object of the action: its kind, a space, and its name, such as `session cli:default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Further details, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}
