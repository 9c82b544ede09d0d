//! `runs.follow` and `runs.unfollow`: subscribe to all events of one run from a cursor on.

use std::sync::Arc;

use quell_protocol::RunId;
use serde::Deserialize;
use serde_json::Value;

use super::super::MAX_FOLLOWED_RUNS;
use super::super::followed_runs::FoundRun;
use super::super::frame::RpcError;
use super::{ConnectionLoad, MAX_PENDING_WAITS, MethodOutcome, WsClient, parse_params};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunsFollowParams {
    run_id: RunId,
    #[serde(default)]
    after: u64,
}

pub(super) fn follow(client: Arc<WsClient>, value: Value, load: ConnectionLoad) -> Result<MethodOutcome, RpcError> {
    let RunsFollowParams { run_id, after } = parse_params(value)?;
    if load.followed_runs >= MAX_FOLLOWED_RUNS || load.pending_requests >= MAX_PENDING_WAITS {
        let problem = format!("this connection follows {MAX_FOLLOWED_RUNS} runs; unfollow one");
        return Err(RpcError::unavailable(problem));
    }
    let run = run_id.clone();
    let lookup = Box::pin(async move {
        let unknown = || RpcError::invalid(format!("there is no run {run_id:?}"));
        let found = client.find_readable_run(&run_id).await?.ok_or_else(unknown)?;
        let follow = client.engine().follow_run(&run_id, after).await?.ok_or_else(unknown)?;
        Ok(FoundRun { follow, principal: found.principal, session: found.session_key })
    });
    Ok(MethodOutcome::Follow(run, lookup))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunsUnfollowParams {
    run_id: RunId,
}

pub(super) fn unfollow(value: Value) -> Result<MethodOutcome, RpcError> {
    parse_params(value).map(|RunsUnfollowParams { run_id }| MethodOutcome::Unfollow(run_id))
}
