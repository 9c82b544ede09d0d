//! Bodies of approvals: calls that wait for a person.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::{AgentId, CallId, Principal, RunId, SessionKey};
use crate::question::{ServerQuestion, parse_answer_fields};
use crate::sandbox::SandboxMode;
use crate::verdict::Requester;
use crate::word_enum::word_enum;

/// State of an approval. Once it is not pending it never changes again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ApprovalState {
    /// The call waits for a person.
    Pending,
    /// A person allowed the call, or as many as it needed.
    Allowed {
        /// The person whose answer was the last that was needed, and its surface.
        by: Requester,
    },
    /// A person denied the call.
    Denied {
        /// The person, and the surface of the answer.
        by: Requester,
        /// Why, in the words of that person. The model is told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// No answer came in time. The call did not run.
    TimedOut,
    /// The run was stopped before an answer came. The call did not run.
    Cancelled,
}

impl ApprovalState {
    /// The decision as `approval.resolved` carries it; `pending` while there is none.
    #[must_use]
    pub fn decision_str(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Allowed { .. } => "allow",
            Self::Denied { .. } => "deny",
            Self::TimedOut => "timeout",
            Self::Cancelled => "cancelled",
        }
    }
}

/// An approval, as the API returns it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRow {
    pub id: String,
    /// The run whose call waits.
    pub run_id: RunId,
    pub session_key: SessionKey,
    pub agent: AgentId,
    /// The principal of the run. This principal may deny the call. Allowing it needs the scope `approve`, and another
    /// principal or a verified person.
    pub principal: Principal,
    pub call_id: CallId,
    pub tool: String,
    /// The arguments as the model gave them, without `escalate`. Outside of the sandbox a path is one without symbolic
    /// links.
    #[schema(value_type = Object)]
    pub arguments: serde_json::Value,
    /// Present if the call asks to run outside of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalation: Option<Escalation>,
    /// Present if an MCP server asks the user something during the call. Allowing it accepts the question with the
    /// fields of the answer, and denying it declines the question; the call goes on in both cases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<Box<ServerQuestion>>,
    /// The fields of the accepted answer to the question. They go to the server alone.
    #[serde(skip)]
    #[schema(ignore)]
    pub answer_fields: Option<Map<String, Value>>,
    /// Time of the request, RFC 3339.
    pub requested_at: String,
    /// Time after which the call is denied if nobody has answered, RFC 3339.
    pub expires_at: String,
    /// True if the session of this run, or of a run above it, has a model or an MCP endpoint of its own. Only an admin
    /// may then allow the call.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_model: bool,
    /// Number of different principals that must allow the call.
    #[serde(default = "default_quorum")]
    pub quorum: u32,
    /// Those who have allowed the call so far, each principal once.
    #[serde(default)]
    pub allowed_by: Vec<Requester>,
    #[serde(flatten)]
    pub state: ApprovalState,
}

/// What a call gets that asks to run outside of its agent's sandbox, if people allow it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Escalation {
    /// Why the call needs it, in the words of the model.
    pub reason: String,
    /// The mode of the sandbox that holds the call back.
    pub mode: SandboxMode,
    /// What that sandbox permits, for people.
    pub rule: String,
    /// What the call could reach instead, for people.
    pub opens: String,
}

/// The quorum of an approval that names none.
#[must_use]
pub fn default_quorum() -> u32 {
    1
}

impl ApprovalRow {
    /// Number of principals that still have to allow the call.
    #[must_use]
    pub fn missing_allowances(&self) -> usize {
        usize::try_from(self.quorum).unwrap_or(usize::MAX).max(1).saturating_sub(self.allowed_by.len())
    }

    /// The text that a pattern matches.
    #[must_use]
    pub fn pattern_subject(&self) -> Option<&str> {
        self.arguments.get(subject_field(&self.tool)?)?.as_str()
    }

    /// See [`may_be_allowed_for_session`].
    #[must_use]
    pub fn may_be_allowed_for_session(&self) -> bool {
        may_be_allowed_for_session(self.escalation.as_ref(), self.question.as_deref(), self.quorum)
    }
}

/// True if an answer may allow all calls of the tool in the session. Outside of the sandbox it would allow what nobody has
/// read; a question has no later call; what needs several people is allowed for one call.
#[must_use]
pub fn may_be_allowed_for_session(
    escalation: Option<&Escalation>,
    question: Option<&ServerQuestion>,
    quorum: u32,
) -> bool {
    escalation.is_none() && question.is_none() && quorum <= 1
}

/// The argument that a pattern matches: the command of a shell, or the path of a file tool.
#[must_use]
pub fn subject_field(tool: &str) -> Option<&'static str> {
    match tool {
        "shell" => Some("command"),
        "read_file" | "write_file" | "edit_file" | "list_files" | "search_files" => Some("path"),
        _ => None,
    }
}

/// A person's answer to an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Allow,
    Deny,
}

word_enum! {
    /// The calls that an allowance covers.
    AllowanceScope {
        /// The call that waits.
        Once "once",
        /// Also later calls of the same tool in the same session, but for calls that ask to run outside of the sandbox.
        Session "session",
        /// Also later calls of the same tool by the same agent and principal whose command or path matches a pattern.
        Pattern "pattern",
    }
}

/// Body of `POST /api/approvals/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApprovalAnswer {
    pub decision: Decision,
    /// What an allowance covers; `once` if absent. An allowance is remembered for calls of the same kind: one inside of
    /// the sandbox never covers a call that asks to run outside, nor the reverse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<AllowanceScope>,
    /// The pattern of `scope: pattern`: the command of `shell`, or the path of a file tool. A `*` stands for any
    /// characters but those by which a shell starts or joins other commands, and for no `..`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1000)]
    pub pattern: Option<String>,
    /// Why, with a denial: the model is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 2000)]
    pub reason: Option<String>,
    /// The values of the fields of a question, by name, with an allowance. Text is converted to the type of its field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub fields: Option<Map<String, Value>>,
}

impl From<Decision> for ApprovalAnswer {
    /// The answer without a reason.
    fn from(decision: Decision) -> Self {
        Self { decision, scope: None, pattern: None, reason: None, fields: None }
    }
}

impl ApprovalAnswer {
    /// Allows the call and later calls of its tool in the same session.
    #[must_use]
    pub fn for_session() -> Self {
        Self { scope: Some(AllowanceScope::Session), ..Decision::Allow.into() }
    }

    /// Allows the call and later calls whose command or path matches the pattern.
    #[must_use]
    pub fn for_pattern(pattern: String) -> Self {
        Self { scope: Some(AllowanceScope::Pattern), pattern: Some(pattern), ..Decision::Allow.into() }
    }

    /// Accepts a question with the values of its fields.
    #[must_use]
    pub fn with_fields(fields: Map<String, Value>) -> Self {
        Self { fields: Some(fields), ..Decision::Allow.into() }
    }

    /// Parses the words behind the id of an approval in a command for people: nothing for this call alone, `session`,
    /// `pattern` with a pattern, or the fields of an answer to a question. Returns `None` for anything else.
    #[must_use]
    pub fn parse_allowance(words: &str) -> Option<Self> {
        let words = words.trim();
        let (scope, rest) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
        match (scope.to_ascii_lowercase().as_str(), rest.trim()) {
            ("", "") => Some(Decision::Allow.into()),
            ("session", "") => Some(Self::for_session()),
            ("pattern", pattern) if !pattern.is_empty() => Some(Self::for_pattern(pattern.to_owned())),
            _ => parse_answer_fields(words).map(Self::with_fields),
        }
    }

    /// A denial; the model is told the reason.
    #[must_use]
    pub fn denial(reason: Option<String>) -> Self {
        Self { reason, ..Decision::Deny.into() }
    }
}

/// An allowance that is remembered until somebody deletes it or the daemon ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRule {
    pub id: String,
    pub agent: AgentId,
    /// The principal of the runs whose calls it covers.
    pub principal: Principal,
    pub tool: String,
    /// True if it covers calls that ask to run outside of the sandbox, and only those.
    pub escalated: bool,
    /// The session whose calls it covers; absent if a pattern says which calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_key: Option<SessionKey>,
    /// The pattern of the commands or paths that it covers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// How a command that the pattern covers must run: `cwd` and `background`, as in the call that was allowed.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Object)]
    pub arguments: Map<String, Value>,
    /// True if it covers the calls of a model that the session configured, and only those.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_model: bool,
    /// Who gave it.
    pub allowed_by: Requester,
    /// Time of the answer, RFC 3339.
    pub allowed_at: String,
}

/// Maximum number of characters in a pattern.
pub const MAX_PATTERN_CHARS: usize = 1000;

/// Maximum number of characters in the reason of a denial.
pub const MAX_REASON_CHARS: usize = 2000;
