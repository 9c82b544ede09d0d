//! Commands that sessions run in the background.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use quell_engine::tools::background::BackgroundProcess;
use quell_kernel::Push;
use quell_protocol::api::List;
use quell_protocol::background::{ProcessRow, ProcessView};
use quell_protocol::{ErrorCode, SessionKey};
use serde::Deserialize;

use super::body::Asked;
use super::{Refused, Visitor, refuse};
use crate::door::Door;

/// Bytes of output in one answer.
const MOST_OUTPUT: usize = 1 << 20;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct OutputQuery {
    after: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct EndQuery {
    force: Option<String>,
}

pub(super) async fn all(State(door): State<Door>, _visitor: Visitor) -> Json<List<ProcessRow>> {
    let processes = door.engine().all_processes();
    Json(List { items: processes.iter().map(|process| process.row()).collect(), next_cursor: None })
}

pub(super) async fn list(
    State(door): State<Door>,
    _visitor: Visitor,
    Path(key): Path<String>,
) -> Result<Json<List<ProcessRow>>, Refused> {
    let processes = door.engine().processes(&SessionKey::parse(key)?);
    Ok(Json(List { items: processes.iter().map(|process| process.row()).collect(), next_cursor: None }))
}

pub(super) async fn show(
    State(door): State<Door>,
    _visitor: Visitor,
    Path((key, id)): Path<(String, String)>,
    Asked(query): Asked<OutputQuery>,
) -> Result<Json<ProcessView>, Refused> {
    let process = find(&door, key, &id)?;
    let excerpt = process.output(query.after, MOST_OUTPUT);
    let (output, missing, next) = (excerpt.text, excerpt.missing, excerpt.next);
    Ok(Json(ProcessView { process: process.row(), output, missing, next }))
}

/// Ends it and answers when its last process is dead. Told before the handler waits for anything, so that a caller who leaves
/// takes nothing back.
pub(super) async fn end(
    State(door): State<Door>,
    visitor: Visitor,
    Path((key, id)): Path<(String, String)>,
    Asked(query): Asked<EndQuery>,
) -> Result<Json<ProcessRow>, Refused> {
    let caller = visitor.writer()?;
    let process = find(&door, key, &id)?;
    let force = query.force.is_some_and(|text| !matches!(text.as_str(), "0" | "false" | "no"));
    let push = if force { Push::Forced } else { Push::Gentle };
    if !door.engine().end_process(caller, &process, push) {
        let detail = format!("the process {id:?} is not yours; whoever sent its message or an admin can end it");
        return Err(refuse(ErrorCode::Forbidden, detail));
    }
    process.ended().await;
    Ok(Json(process.row()))
}

fn find(door: &Door, key: String, id: &str) -> Result<Arc<BackgroundProcess>, Refused> {
    let key = SessionKey::parse(key)?;
    let missing = || refuse(ErrorCode::NotFound, format!("the session {key:?} has no background process {id:?}"));
    door.engine().process(&key, id).ok_or_else(missing)
}
