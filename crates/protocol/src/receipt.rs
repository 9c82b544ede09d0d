//! The receipt: what a run held, what a stop released, and when.

pub mod line;

use serde::{Deserialize, Serialize};

use crate::ids::RunId;
use crate::verdict::Verdict;

/// A point in time: wall clock, and milliseconds since the stop was requested where there was one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Instant {
    /// RFC 3339 with microseconds, UTC.
    pub at: String,
    /// Milliseconds since the stop was requested; negative for what happened before it; absent without a stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ms: Option<f64>,
}

/// The record of what a run held and how each thing was given back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// The run.
    pub run_id: RunId,
    /// How it ended.
    pub verdict: Verdict,
    /// When the first stop was asked for; absent when nobody asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<Instant>,
    /// When the token had fired and the wardens had been told; absent when nobody asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_at: Option<Instant>,
    /// When nothing was owed any more, or the hard limit passed.
    pub settled_at: Instant,
    /// The highest rung of the ladder that was needed.
    pub rung: Rung,
    /// Everything the run held, in the order of opening.
    pub resources: Vec<Resource>,
    /// What could not be given back, by name. Empty is the promise.
    pub leftovers: Vec<Leftover>,
    /// Tokens.
    pub usage: Usage,
    /// What became of the turn.
    pub turn: TurnRecord,
    /// What became known after the end, oldest first. The rest of the receipt stays as it was told with `run.ended`.
    #[serde(default)]
    pub amendments: Vec<Amendment>,
    /// True when the daemon died before the run was over: the record of what the run held died with it. `resources` are the
    /// calls that its journal knows to have begun and not to have ended, each with the end `lost`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recovered: bool,
}

/// Something that became known of a run's resource after the run had ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Amendment {
    /// When it became known.
    pub at: Instant,
    /// Number of the resource within the run.
    pub resource: u64,
    /// What became known.
    pub kind: AmendmentKind,
    /// The same for people, in one line.
    pub text: String,
    /// What could not be ended, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<Leftover>,
}

/// What became known of a call whose server had not confirmed its cancel (`unconfirmed`) when the run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AmendmentKind {
    /// The server answered that the call was cancelled.
    Confirmed,
    /// The server reported progress of the call long after its cancel.
    LateProgress,
    /// The server finished the call; its result was dropped.
    LateResult,
    /// The server that had gone on with the call was ended.
    ServerEnded,
}

/// Rungs of the ladder, lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// Nothing had to be stopped.
    #[default]
    None,
    /// Futures were cancelled, sockets closed.
    Cancel,
    /// Processes got SIGTERM.
    Term,
    /// Processes got SIGKILL.
    Kill,
    /// The hard limit passed with something still held.
    Abandoned,
}

/// What kind of thing a run holds.
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
    /// A pending approval.
    Approval,
    /// A waiting timer, such as retry back-off.
    Timer,
    /// A place among the runs in flight.
    Permit,
    /// An HTTP request of a tool.
    HttpRequest,
    /// Blocking work on a thread.
    Task,
    /// A lifecycle hook.
    Hook,
    /// An answer on its way to a chat network, or a file on its way from there.
    Delivery,
}

/// One thing the run held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    /// Its kind.
    pub kind: ResourceKind,
    /// Number within the run, from 1.
    pub id: u64,
    /// For people: model name, command line, URL.
    pub label: String,
    /// When the run took it.
    pub opened_at: Instant,
    /// When it was given back; absent for a leftover.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Instant>,
    /// How: `finished`, `closed`, `cancelled`, `exited`, `term`, `kill`, `failed`; `lost` where the daemon died first; `unconfirmed` for a call whose server
    /// reads, was told to cancel it, and did not answer it; `undelivered`, `partly`,
    /// `unknown` or `withheld` for an answer that is not shown as a whole; `kept` for what goes on in the background
    /// after its run; `held` for a leftover.
    pub how: String,
    /// Processes only.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = ProcessFactsIfAny)]
    pub process: Option<ProcessFacts>,
}

/// [`ProcessFacts`] as the schema of a [`Resource`] has them: all there for a process, and none for anything else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessFactsIfAny {
    /// Process id of the leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The command as given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Descendants other than the leader that had to be ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swept: Option<u32>,
    /// Exit code of the leader, if it exited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Signal that ended the leader, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// What ended its descendants, or would have; absent when it never ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_by: Option<Containment>,
}

/// What the warden reported about a process tree.
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Signal that ended the leader, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// What ended its descendants, or would have; absent when it never ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<Containment>,
}

/// What ends the descendants of a command, the surest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Containment {
    /// A PID namespace of its own: the kernel kills all of it at once.
    Namespace,
    /// A cgroup of its own: the kernel kills all of it at once.
    Cgroup,
    /// Quell looks for them in `/proc` and kills each one.
    Sweep,
}

impl Containment {
    /// For people.
    #[must_use]
    pub fn words(self) -> &'static str {
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
    /// What it is.
    pub kind: ResourceKind,
    /// Its name, in the words a person needs to end it: `pid 4242 (sudo), cannot be signalled`.
    pub name: String,
}

/// Tokens of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Tokens sent to the model.
    pub input_tokens: u64,
    /// Tokens the model made.
    pub output_tokens: u64,
    /// True when any part is an estimate because the provider sent no usage (row X8).
    pub estimated: bool,
}

/// What became of the turn of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TurnRecord {
    /// True when the turn is in the database. False with a run that left no turn (withdrawn while queued) or whose
    /// recording failed or is still owed.
    pub recorded: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_of_process_facts_has_all_of_them() {
        let held_by = Some(Containment::Namespace);
        let facts =
            ProcessFacts { pid: 7, command: "x".into(), swept: 1, exit_code: Some(0), signal: Some(9), held_by };
        let written = serde_json::to_value(&facts).unwrap();
        let read: ProcessFactsIfAny = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), written);
    }
}
