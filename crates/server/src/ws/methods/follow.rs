//! `runs.follow` and `runs.unfollow`: subscribe to all events of one run from a cursor on.

use quell_protocol::RunId;
use quell_protocol::api::AccessLevel;
use serde::Deserialize;
use serde_json::Value;

use super::super::MAX_FOLLOWED_RUNS;
use super::super::frame::RpcError;
use super::{MAX_PENDING_WAITS, MethodOutcome, RpcCall, parse_params};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunsFollowParams {
    run_id: RunId,
    #[serde(default)]
    after: u64,
}

pub(super) fn follow(call: &RpcCall<'_>, value: Value) -> MethodOutcome {
    let params: RunsFollowParams = match call.peer.require_scope(AccessLevel::Read).and_then(|()| parse_params(value)) {
        Ok(params) => params,
        Err(refusal) => return MethodOutcome::Answered(Err(refusal)),
    };
    if call.followed_count >= MAX_FOLLOWED_RUNS || call.pending_count >= MAX_PENDING_WAITS {
        let problem = format!("this connection follows {MAX_FOLLOWED_RUNS} runs; unfollow one");
        return MethodOutcome::Answered(Err(RpcError::unavailable(problem)));
    }
    let engine = call.server.engine().clone();
    let RunsFollowParams { run_id, after } = params;
    let run = run_id.clone();
    let lookup = Box::pin(async move {
        let unknown = || RpcError::invalid(format!("there is no run {run_id:?}"));
        engine.follow_run(&run_id, after).await?.ok_or_else(unknown)
    });
    MethodOutcome::Follow(run, lookup)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunsUnfollowParams {
    run_id: RunId,
}

pub(super) fn unfollow(value: Value) -> MethodOutcome {
    match parse_params(value) {
        Ok(RunsUnfollowParams { run_id }) => MethodOutcome::Unfollow(run_id),
        Err(refusal) => MethodOutcome::Answered(Err(refusal)),
    }
}
