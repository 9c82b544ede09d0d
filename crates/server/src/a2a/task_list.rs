//! `ListTasks`: the tasks of an agent, the newest first, in pages that are bounded in every respect.
//!
//! The store lists runs in the order of their acceptance, whatever agent they have. So a page may have fewer tasks than
//! asked for, and still another one after it, as the protocol allows.

use std::collections::BTreeMap;

use jiff::Timestamp;
use quell_protocol::api::RunView;
use quell_protocol::approval::ApprovalRow;
use quell_protocol::{RunId, SessionKey};
use quell_store::{RunListFilter, StorePage};
use serde::Deserialize;
use serde_json::{Value, json};

use super::errors::A2aError;
use super::operations::A2aRequest;
use super::tasks::{A2aTaskState, TaskParts, describe_task, pending_approvals};
use crate::http::ProblemResponse;

const DEFAULT_PAGE_SIZE: usize = 50;
const MAX_PAGE_SIZE: usize = 100;
/// Runs that are read for a page at the same time, at most. The first time only as many as it may have tasks: usually
/// all are.
const CHUNK_RUNS: usize = 50;
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
    let read_chunk = |limit, cursor| {
        let (session, visible_to) = (query.context.clone(), request.call.visible_to());
        let filter = RunListFilter { session, principal: None, visible_to, limit, cursor };
        request.call.engine().list_runs_with_cursors(filter)
    };
    let wanted_bytes = |run: &RunView| {
        let is_wanted = query.is_wanted(request, run, approvals.get(&run.run_id));
        is_wanted.then(|| shown_bytes(run, query.parts))
    };
    let read = read_page(query.page_size, query.page.cursor.clone(), read_chunk, wanted_bytes).await;
    let (runs, cursor) = read.map_err(ProblemResponse::from)?;
    let mut tasks: Vec<_> = runs.iter().map(|run| listed_task(run, &approvals, query.parts)).collect();
    // Within a page the task that has changed last is the first.
    tasks.sort_by(|(one, _), (other, _)| other.cmp(one));
    let listed = query.page.listed + tasks.len();
    let tasks: Vec<Value> = tasks.into_iter().map(|(_, task)| task).collect();
    let total = listed + usize::from(cursor.is_some());
    let next = cursor.map(|cursor| format!("{listed}.{cursor}")).unwrap_or_default();
    Ok(json!({"tasks": tasks, "nextPageToken": next, "pageSize": query.page_size, "totalSize": total}))
}

/// Reads until the page is full, or too long, or enough was read for it. `wanted_bytes` is `None` for what does not
/// belong into the list. Returns the page and the cursor of the next one.
async fn read_page<T, E, R: Future<Output = Result<StorePage<(T, String)>, E>>>(
    page_size: usize,
    mut cursor: Option<String>,
    read_chunk: impl Fn(usize, Option<String>) -> R,
    wanted_bytes: impl Fn(&T) -> Option<usize>,
) -> Result<StorePage<T>, E> {
    let (mut page, mut bytes, mut read) = (Vec::new(), 0, 0);
    let mut limit = page_size.min(CHUNK_RUNS);
    loop {
        let (chunk, next) = read_chunk(limit, cursor).await?;
        let last = chunk.len().saturating_sub(1);
        for (number, (item, behind)) in chunk.into_iter().enumerate() {
            let Some(item_bytes) = wanted_bytes(&item) else { continue };
            bytes += item_bytes;
            page.push(item);
            if page.len() == page_size || bytes >= PAGE_BYTES {
                return Ok((page, if number == last { next } else { Some(behind) }));
            }
        }
        read += limit;
        if next.is_none() || read >= MAX_READ_RUNS {
            return Ok((page, next));
        }
        (cursor, limit) = (next, CHUNK_RUNS);
    }
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
    use std::cell::Cell;
    use std::future::ready;

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

    /// Reads all pages of the numbers below `count`, those that `is_wanted`, and returns the pages with the number of
    /// reads of each.
    async fn read_all(count: usize, page_size: usize, is_wanted: impl Fn(usize) -> bool) -> Vec<(Vec<usize>, usize)> {
        let reads = Cell::new(0);
        let read_chunk = |limit: usize, cursor: Option<String>| {
            reads.set(reads.get() + 1);
            let first = cursor.map_or(0, |cursor| cursor.parse::<usize>().unwrap() + 1);
            let end = count.min(first + limit);
            let rows = (first..end).map(|number| (number, number.to_string())).collect();
            let next = (end < count).then(|| (end - 1).to_string());
            ready(Ok::<StorePage<(usize, String)>, ()>((rows, next)))
        };
        let (mut pages, mut cursor) = (Vec::new(), None);
        loop {
            let page = read_page(page_size, cursor, read_chunk, |number| is_wanted(*number).then_some(1)).await;
            let (items, next) = page.unwrap();
            pages.push((items, reads.take()));
            match next {
                Some(next) => cursor = Some(next),
                None => return pages,
            }
        }
    }

    #[tokio::test]
    async fn a_short_page_of_few_matches_costs_few_reads() {
        let pages = read_all(2000, 1, |number| number % 400 == 399).await;
        let found: Vec<usize> = pages.iter().flat_map(|(items, _)| items.clone()).collect();
        assert_eq!(found, [399, 799, 1199, 1599, 1999]);
        assert!(pages.iter().all(|(items, reads)| items.len() <= 1 && *reads <= 10), "{pages:?}");
        let none = read_all(3000, 1, |_| false).await;
        assert!(
            none.iter().all(|(items, reads)| items.is_empty() && *reads <= 1 + MAX_READ_RUNS / CHUNK_RUNS),
            "{none:?}"
        );
    }

    #[tokio::test]
    async fn full_pages_are_read_at_once_and_nothing_is_left_out() {
        let pages = read_all(120, 50, |_| true).await;
        assert_eq!(
            pages.iter().map(|(items, reads)| (items.len(), *reads)).collect::<Vec<_>>(),
            [(50, 1), (50, 1), (20, 1)]
        );
        for page_size in [1, 3, 49, 50, 100] {
            let found = read_all(307, page_size, |number| number % 3 != 0).await;
            let found: Vec<usize> = found.into_iter().flat_map(|(items, _)| items).collect();
            assert_eq!(found, (0..307).filter(|number| number % 3 != 0).collect::<Vec<_>>(), "{page_size}");
        }
    }

    #[test]
    fn a_page_token_has_a_count_and_a_cursor() {
        let expected = PageToken { listed: 50, cursor: Some("a.b".to_owned()) };
        assert_eq!(PageToken::parse("50.a.b").unwrap(), expected);
    }
}
