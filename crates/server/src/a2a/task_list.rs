//! `ListTasks`: the tasks of an agent, the newest first, in pages that are bounded in every respect.
//!
//! The store lists runs in the order of their acceptance, whatever agent they have. So a page may have fewer tasks than
//! asked for, and still another one after it, as the protocol allows.

use std::collections::BTreeMap;

use jiff::Timestamp;
use quell_protocol::api::RunView;
use quell_protocol::approval::ApprovalRow;
use quell_protocol::{RunId, SessionKey};
use quell_store::RunListFilter;
use serde::Deserialize;
use serde_json::{Value, json};

use super::errors::A2aError;
use super::operations::A2aRequest;
use super::tasks::{A2aTaskState, TaskParts, describe_task, pending_approvals};
use crate::http::ProblemResponse;

const DEFAULT_PAGE_SIZE: usize = 50;
const MAX_PAGE_SIZE: usize = 100;
/// Runs that are read for a page at the same time.
const CHUNK_RUNS: usize = 25;
/// Runs that are read for a page, at most: those of other agents do not count as tasks.
const MAX_READ_RUNS: usize = 1000;
/// A page ends when its tasks have this many bytes of texts.
const PAGE_BYTES: usize = 1024 * 1024;

const STATES: [&str; 9] = [
    "TASK_STATE_UNSPECIFIED",
    "TASK_STATE_SUBMITTED",
    "TASK_STATE_WORKING",
    "TASK_STATE_INPUT_REQUIRED",
    "TASK_STATE_AUTH_REQUIRED",
    "TASK_STATE_COMPLETED",
    "TASK_STATE_FAILED",
    "TASK_STATE_CANCELED",
    "TASK_STATE_REJECTED",
];

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListTasksParams {
    context_id: Option<String>,
    status: Option<String>,
    page_size: Option<i64>,
    page_token: Option<String>,
    history_length: Option<u32>,
    status_timestamp_after: Option<String>,
    include_artifacts: Option<bool>,
}

/// The tasks that a client wants, checked.
struct TaskQuery {
    context: Option<SessionKey>,
    status: Option<String>,
    changed_after: Option<Timestamp>,
    page_size: usize,
    page: PageToken,
    parts: TaskParts,
}

/// Where a page begins: the cursor of the store, and the number of tasks on the pages before it.
#[derive(Debug, Default, PartialEq, Eq)]
struct PageToken {
    listed: usize,
    cursor: Option<String>,
}

impl PageToken {
    fn parse(token: &str) -> Result<Self, A2aError> {
        let parsed = token.split_once('.').and_then(|(listed, cursor)| Some((listed.parse().ok()?, cursor)));
        let (listed, cursor) = parsed.ok_or_else(|| {
            A2aError::invalid("pageToken", format!("`pageToken` is {token:?}; give the `nextPageToken` of a page"))
        })?;
        Ok(Self { listed, cursor: Some(cursor.to_owned()) })
    }
}

impl ListTasksParams {
    fn check(self) -> Result<TaskQuery, A2aError> {
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let page_size = match self.page_size.map(usize::try_from) {
            None => DEFAULT_PAGE_SIZE,
            Some(Ok(size @ 1..=MAX_PAGE_SIZE)) => size,
            Some(_) => {
                return Err(A2aError::invalid("pageSize", format!("`pageSize` may be 1 to {MAX_PAGE_SIZE}")));
            }
        };
        let status = given(self.status);
        if let Some(unknown) = status.as_deref().filter(|status| !STATES.contains(status)) {
            let text = format!("`status` is {unknown:?}; it may be one of {}", STATES.join(", "));
            return Err(A2aError::invalid("status", text));
        }
        let context = given(self.context_id).map(SessionKey::parse).transpose();
        let context = context.map_err(|error| A2aError::invalid("contextId", format!("the {error}")))?;
        let changed_after = given(self.status_timestamp_after).map(|time| time.parse()).transpose();
        let changed_after = changed_after.map_err(|_| {
            A2aError::invalid(
                "statusTimestampAfter",
                "`statusTimestampAfter` must be a time such as 2026-01-31T12:00:00Z",
            )
        })?;
        Ok(TaskQuery {
            context,
            status: status.filter(|status| status != STATES[0]),
            changed_after,
            page_size,
            page: given(self.page_token).map_or_else(|| Ok(PageToken::default()), |token| PageToken::parse(&token))?,
            parts: TaskParts {
                // Texts may be long, so that they are told only on request.
                history: self.history_length.is_some_and(|length| length > 0),
                artifacts: self.include_artifacts == Some(true),
                receipt: false,
            },
        })
    }
}

impl TaskQuery {
    fn is_wanted(&self, request: &A2aRequest, run: &RunView, approval: Option<&ApprovalRow>) -> bool {
        // A run below another one is a part of its task, and a message that another run took in is none.
        let is_task = run.agent == request.agent && run.parent.is_none() && run.state != "steered";
        let state = A2aTaskState::of(run, approval).as_str();
        is_task
            && self.status.as_deref().is_none_or(|status| status == state)
            && self.changed_after.is_none_or(|after| {
                changed_at(run, approval).parse::<Timestamp>().is_ok_and(|changed| changed >= after)
            })
    }
}

fn changed_at<'a>(run: &'a RunView, approval: Option<&'a ApprovalRow>) -> &'a str {
    let asked = approval.filter(|_| run.verdict.is_none()).map(|approval| &approval.requested_at);
    [run.ended_at.as_ref(), asked, run.started_at.as_ref()].into_iter().flatten().next().unwrap_or(&run.accepted_at)
}

/// The tasks that the caller may read. `totalSize` counts those up to the end of this page, and one more if there may be
/// more: to know the number, all runs would have to be read.
pub(super) async fn list(request: &A2aRequest) -> Result<Value, A2aError> {
    let query = request.parse_params::<ListTasksParams>()?.check()?;
    let approvals = pending_approvals(&request.call);
    let (mut tasks, mut bytes, mut read) = (Vec::new(), 0, 0);
    let mut cursor = query.page.cursor.clone();
    loop {
        let limit = CHUNK_RUNS.min(query.page_size - tasks.len());
        let filter = RunListFilter {
            session: query.context.clone(),
            principal: None,
            visible_to: request.call.visible_to(),
            limit,
            cursor,
        };
        let page = request.call.engine().list_runs(filter).await.map_err(ProblemResponse::from)?;
        read += limit;
        for run in &page.items {
            let approval = approvals.get(&run.run_id);
            if query.is_wanted(request, run, approval) {
                bytes += shown_bytes(run, query.parts);
                tasks.push(listed_task(run, &approvals, query.parts));
            }
        }
        cursor = page.next_cursor;
        if cursor.is_none() || tasks.len() == query.page_size || bytes >= PAGE_BYTES || read >= MAX_READ_RUNS {
            break;
        }
    }
    // Within a page the task that has changed last is the first.
    tasks.sort_by(|(one, _), (other, _)| other.cmp(one));
    let listed = query.page.listed + tasks.len();
    let tasks: Vec<Value> = tasks.into_iter().map(|(_, task)| task).collect();
    let total = listed + usize::from(cursor.is_some());
    let next = cursor.map(|cursor| format!("{listed}.{cursor}")).unwrap_or_default();
    Ok(json!({"tasks": tasks, "nextPageToken": next, "pageSize": query.page_size, "totalSize": total}))
}

/// A task, and when it changed.
fn listed_task(run: &RunView, approvals: &BTreeMap<RunId, ApprovalRow>, parts: TaskParts) -> (String, Value) {
    let approval = approvals.get(&run.run_id);
    (changed_at(run, approval).to_owned(), describe_task(run, approval, parts))
}

fn shown_bytes(run: &RunView, parts: TaskParts) -> usize {
    let text = if parts.history { run.text.len() } else { 0 };
    let output = run.output.as_ref().filter(|_| parts.artifacts).map_or(0, String::len);
    text + output
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn check(params: Value) -> Result<TaskQuery, A2aError> {
        serde_json::from_value::<ListTasksParams>(params).unwrap().check()
    }

    #[rstest]
    #[case(json!({"pageSize": 0}), "pageSize")]
    #[case(json!({"pageSize": 101}), "pageSize")]
    #[case(json!({"pageSize": -1}), "pageSize")]
    #[case(json!({"pageToken": "x"}), "pageToken")]
    #[case(json!({"status": "TASK_STATE_RUNNING"}), "status")]
    #[case(json!({"statusTimestampAfter": "yesterday"}), "statusTimestampAfter")]
    #[case(json!({"contextId": "a\nb"}), "contextId")]
    fn a_bad_parameter_is_named(#[case] params: Value, #[case] name: &str) {
        let refused = check(params).err().unwrap();
        assert!(matches!(&refused, A2aError::Protocol { field, .. } if *field == Some(name)), "{refused:?}");
    }

    #[test]
    fn empty_parameters_are_absent_ones() {
        let query = check(json!({"contextId": "", "status": "", "pageToken": "", "pageSize": 100})).unwrap();
        assert_eq!((query.context, query.status, query.page), (None, None, PageToken::default()));
        assert_eq!(check(json!({"status": "TASK_STATE_UNSPECIFIED"})).unwrap().status, None);
    }

    #[test]
    fn a_page_token_has_a_count_and_a_cursor() {
        let expected = PageToken { listed: 50, cursor: Some("a.b".to_owned()) };
        assert_eq!(PageToken::parse("50.a.b").unwrap(), expected);
    }
}
