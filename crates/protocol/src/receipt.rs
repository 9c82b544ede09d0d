//! Receipt of a run: the resources it held, how they were released, and what is left.

pub mod summary_line;

use serde::{Deserialize, Serialize};

use crate::ids::RunId;
use crate::sandbox::SandboxFacts;
use crate::verdict::Verdict;

/// A point in time: wall clock, and milliseconds since the stop was requested, if there was a stop.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Instant {
    /// RFC 3339 with microseconds, UTC.
    pub at: String,
    /// Milliseconds since the stop was requested; negative before it; absent without a stop.
    pub ms: Option<f64>,
}

/// Record of the resources that a run held and how each was released.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    pub run_id: RunId,
    pub verdict: Verdict,
    /// Time at which the first stop was requested; absent if there was none.
    pub requested_at: Option<Instant>,
    /// Time at which the scope was cancelled and all wardens had been told; absent if there was no stop.
    pub delivered_at: Option<Instant>,
    /// Time at which nothing was owed any more, or the hard limit passed.
    pub settled_at: Instant,
    /// The strongest means that the end of the run needed.
    pub rung: Rung,
    /// All resources that the run held, in the order of opening.
    pub resources: Vec<Resource>,
    /// Resources that could not be released, by name. Empty if all were released.
    pub leftovers: Vec<Leftover>,
    pub usage: Usage,
    pub turn: TurnRecord,
    /// Facts that became known after the end, oldest first. The rest of the receipt stays as `run.ended` sent it.
    #[serde(default)]
    pub amendments: Vec<Amendment>,
    /// True if the daemon died before the run had ended, so that the record of its resources is lost. `resources` then
    /// holds the calls that began and did not end according to the journal, each with the end `lost`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recovered: bool,
}

/// A fact about a resource that became known after the run had ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Amendment {
    /// Time at which the fact became known.
    pub at: Instant,
    /// Number of the resource within the run, or 0 when it is not known.
    pub resource: u64,
    pub kind: AmendmentKind,
    /// The fact for people, in one line.
    pub text: String,
    /// Resources that could not be released, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<Leftover>,
}

/// Later facts about a call whose server had not confirmed the cancellation (`unconfirmed`) when the run ended, and about
/// processes that the run kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AmendmentKind {
    /// The server answered that the call was cancelled.
    Confirmed,
    /// The server reported progress of the call long after its cancellation.
    LateProgress,
    /// The server finished the call; its result was dropped.
    LateResult,
    /// The server had continued with the call and was ended.
    ServerEnded,
    /// The daemon died while the ended run kept a background command, and processes of it are still alive.
    OutlivedDaemon,
}

/// The strongest means that a stop needed, the weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// Nothing had to be stopped.
    #[default]
    None,
    /// Futures were cancelled and sockets closed.
    Cancel,
    /// Processes got SIGTERM.
    Term,
    /// Processes got SIGKILL.
    Kill,
    /// The hard limit passed while something was still held.
    Abandoned,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResourceKind {
    /// A request to a model provider, with its socket.
    ModelRequest,
    /// A process with all its descendants.
    Process,
    /// A call to an MCP server.
    McpCall,
    /// A sub-run.
    Run,
    Approval,
    /// A timer, such as the delay before a retry.
    Timer,
    /// The right to run. The number of permits bounds the runs in flight.
    Permit,
    /// An HTTP request of a tool.
    HttpRequest,
    /// Blocking work on a thread.
    Task,
    Hook,
    /// An answer that is being sent to a chat network, or a file that is being fetched from there.
    Delivery,
}

/// A resource that the run held.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    pub kind: ResourceKind,
    /// The number within the run, from 1.
    pub id: u64,
    /// Text for people: model name, command line, URL.
    pub label: String,
    /// Time at which the run took the resource.
    pub opened_at: Instant,
    /// Time at which the resource was released; absent for a leftover.
    pub released_at: Option<Instant>,
    /// How the resource was released: `finished`, `closed`, `cancelled`, `exited`, `term`, `kill`, `failed`; `lost` if
    /// the daemon died first. `unconfirmed`: the MCP server reads, was told to cancel the call, and did not answer.
    /// `undelivered`, `partly`, `unknown` or `withheld`: an answer that is not shown as a whole. `kept`: work in the
    /// background that outlives its run. `held`: a leftover.
    pub how: String,
    /// Only for processes.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = ProcessFactsIfAny)]
    pub process: Option<ProcessFacts>,
}

/// Fields of `ProcessFacts` in the schema of a `Resource`: all are present for a process and absent for any other
/// resource.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessFactsIfAny {
    /// Process id of the leader.
    pub pid: Option<u32>,
    /// The command as given.
    pub command: Option<String>,
    /// Descendants other than the leader that had to be ended.
    pub swept: Option<u32>,
    /// Exit code of the leader, if it exited.
    pub exit_code: Option<i32>,
    /// Signal that ended the leader, if one did.
    pub signal: Option<i32>,
    /// The means that contains the descendants; absent if the command never ran.
    pub held_by: Option<Containment>,
    /// What held the command back; absent if it ran without a sandbox, or never ran.
    pub sandbox: Option<SandboxFacts>,
}

/// The warden's report about a process tree.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessFacts {
    /// Process id of the leader.
    pub pid: u32,
    /// The command as given.
    pub command: String,
    /// Descendants other than the leader that had to be ended.
    pub swept: u32,
    /// Exit code of the leader, if it exited.
    pub exit_code: Option<i32>,
    /// Signal that ended the leader, if one did.
    pub signal: Option<i32>,
    /// The means that contains the descendants; absent if the command never ran.
    pub held_by: Option<Containment>,
    /// What held the command back; absent if it ran without a sandbox, or never ran.
    pub sandbox: Option<SandboxFacts>,
}

/// Means to end the descendants of a command, the surest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Containment {
    /// A PID namespace of its own: the kernel kills all its processes at once.
    Namespace,
    /// A cgroup of its own: the kernel kills all its processes at once.
    Cgroup,
    /// Quell looks for the descendants in `/proc` and kills each one.
    Sweep,
}

impl Containment {
    /// Text for people.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::Namespace => "a PID namespace",
            Self::Cgroup => "a cgroup",
            Self::Sweep => "a search of /proc",
        }
    }
}

/// Something that is still there after the hard limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Leftover {
    pub kind: ResourceKind,
    /// The name, with all that a person needs to end it: `pid 4242 (sudo), cannot be signalled`.
    pub name: String,
}

/// Tokens of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Input, with what the provider read from its cache.
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// The part of the input that the provider read from its prompt cache; absent if there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cached_tokens: u64,
    /// True if any part is an estimate because the provider sent no figures.
    pub estimated: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// State of the turn of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TurnRecord {
    /// True if the turn is in the database. False if the run left no turn (it was withdrawn while queued), or if
    /// recording failed or is still owed.
    pub recorded: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::SandboxMode;

    #[test]
    fn the_schema_of_process_facts_has_all_of_them() {
        let facts = ProcessFacts {
            pid: 7,
            command: "x".into(),
            swept: 1,
            exit_code: Some(0),
            signal: Some(9),
            held_by: Some(Containment::Namespace),
            sandbox: Some(SandboxFacts {
                mode: SandboxMode::Workspace,
                user: None,
                layers: Vec::new(),
                missing: Vec::new(),
            }),
        };
        let written = serde_json::to_value(&facts).unwrap();
        let read: ProcessFactsIfAny = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), written);
    }
}
