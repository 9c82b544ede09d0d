//! Audit log entries: who did what, when and from where.

use serde::{Deserialize, Serialize};

use crate::word_enum::word_enum;
use crate::{Principal, Surface};

word_enum! {
    /// Actions that are written to the audit log. The words are stable.
    Action {
        /// Runs or background processes were stopped.
        Stop "stop",
        EndProcess "end_process",
        /// New runs are refused.
        Hold "hold",
        /// New runs are accepted again.
        LiftHold "lift_hold",
        Approve "approve",
        Deny "deny",
        /// A remembered allowance was deleted.
        ForgetApprovalRule "forget_approval_rule",
        /// The history of a session was emptied.
        ResetSession "reset_session",
        /// A session was deleted with all its data.
        DeleteSession "delete_session",
        /// A session was created or configured without a message.
        ConfigureSession "configure_session",
        /// A session was shared, or made private again.
        ShareSession "share_session",
        ImportSession "import_session",
        /// The file changes of a run were taken back.
        UndoRun "undo_run",
        ForgetNote "forget_note",
        /// All notes of a sender were forgotten.
        ForgetSender "forget_sender",
        CreateSchedule "create_schedule",
        PauseSchedule "pause_schedule",
        ResumeSchedule "resume_schedule",
        /// Its text or its policy was changed.
        ChangeSchedule "change_schedule",
        DeleteSchedule "delete_schedule",
        CreateToken "create_token",
        /// A token got a new secret.
        RotateToken "rotate_token",
        RevokeToken "revoke_token",
        CreateAgent "create_agent",
        DeleteAgent "delete_agent",
        /// A request was refused because its caller may not do that.
        Refused "refused",
        /// A token was used from an address for the first time.
        NewAddress "new_address",
        /// The daemon applied a changed configuration.
        ReloadConfig "reload_config",
        /// A copy of the whole database was made.
        Backup "backup",
        /// A node of a cluster takes no new sessions.
        Drain "drain",
        /// It takes new sessions again.
        EndDrain "end_drain",
        /// A text was sent to a chat network through a channel.
        SendToChannel "send_to_channel",
    }
}

/// One entry of the audit log.
#[serde_with::skip_serializing_none]
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
    pub from: Option<String>,
    /// The stable word of the action.
    pub action: String,
    /// The object of the action: its kind, a space, and its name, such as `session cli:default`.
    pub target: Option<String>,
    /// Further details, for people.
    pub detail: Option<String>,
}
