//! Bodies of schedules: runs that start at a time.

use serde::{Deserialize, Serialize};

use crate::{AgentId, Principal, RunId, SessionKey};

/// What happens to firings that could not happen in time: the daemon was not running, new runs were held, the session
/// was full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MissedPolicy {
    /// They are counted, and the next one is awaited. The default of recurring schedules.
    Skip,
    /// One firing makes up for all of them. The default of a schedule with one time.
    Once,
}

/// Where the answer of a firing is sent, besides its session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleDelivery {
    /// The name of the channel.
    pub channel: String,
    /// The place in its network, as in `quell channels send`.
    pub to: String,
}

/// Body of `POST /api/schedules`. Exactly one of `cron`, `every` and `at` is given.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ScheduleRequest {
    /// A cron expression, such as `0 9 * * mon-fri`: minute, hour, day, month, weekday.
    pub cron: Option<String>,
    /// A distance, such as `90s`, `15m`, `2h` or `1d`, from now.
    pub every: Option<String>,
    /// One time, in RFC 3339 format; without an offset it is a time in `timezone`.
    pub at: Option<String>,
    /// The IANA name of a time zone, such as `Europe/Berlin`. Default: `[schedules] timezone`.
    pub timezone: Option<String>,
    /// The session of the runs. Default: one of its own, `schedule:ID`.
    pub session_key: Option<SessionKey>,
    /// The message that each firing sends.
    pub text: String,
    /// The agent that answers. Default: as for other messages of the session.
    pub agent: Option<AgentId>,
    pub delivery: Option<ScheduleDelivery>,
    pub missed: Option<MissedPolicy>,
}

/// Body of `PATCH /api/schedules/{id}`. What is absent stays.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct SchedulePatch {
    /// True pauses the schedule, false resumes it. What it misses while it is paused is not made up for.
    pub paused: Option<bool>,
    pub text: Option<String>,
    pub missed: Option<MissedPolicy>,
}

/// Why a schedule does not fire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SchedulePause {
    /// In words for people.
    pub reason: String,
    pub by: Principal,
}

/// A schedule.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleView {
    pub id: String,
    pub cron: Option<String>,
    pub every: Option<String>,
    pub at: Option<String>,
    pub timezone: String,
    pub session_key: SessionKey,
    pub text: String,
    pub agent: Option<AgentId>,
    pub delivery: Option<ScheduleDelivery>,
    pub missed: MissedPolicy,
    /// Absent while it fires.
    pub paused: Option<SchedulePause>,
    pub created_by: Principal,
    /// RFC 3339.
    pub created_at: String,
    /// The run that made it, if a run did.
    pub created_by_run: Option<RunId>,
    /// The session of that run.
    pub created_by_session: Option<SessionKey>,
    /// The next firing, RFC 3339 in UTC. Absent when it is paused or over.
    pub next_at: Option<String>,
    /// The last firing that became a run: the time that it was due.
    pub last_at: Option<String>,
    pub last_run: Option<RunId>,
    /// Why the last firing did not become a run. Absent if it did.
    pub problem: Option<String>,
    /// Firings that became runs.
    pub fired: u64,
    /// Firings that did not happen: the daemon was not running, new runs were held or refused.
    pub missed_count: u64,
    /// Firings that were skipped because the run of the one before had not ended.
    pub skipped_count: u64,
}
