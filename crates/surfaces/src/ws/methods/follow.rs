//! `runs.follow` and `runs.unfollow`: the events of one run as they are, behind a cursor.

use quell_protocol::RunId;
use quell_protocol::api::Scope;
use serde::Deserialize;
use serde_json::Value;

use super::super::MOST_FOLLOWED;
use super::super::frame::Refusal;
use super::{Call, PENDING, Route, params};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Follow {
    run_id: RunId,
    #[serde(default)]
    after: u64,
}

pub(super) fn follow(call: &Call<'_>, value: Value) -> Route {
    let asked: Follow = match call.peer.needs(Scope::Read).and_then(|()| params(value)) {
        Ok(asked) => asked,
        Err(refusal) => return Route::Done(Err(refusal)),
    };
    if call.followed >= MOST_FOLLOWED || call.pending >= PENDING {
        let problem = format!("this connection follows {MOST_FOLLOWED} runs; unfollow one");
        return Route::Done(Err(Refusal::unavailable(problem)));
    }
    let engine = call.door.engine().clone();
    let Follow { run_id, after } = asked;
    let run = run_id.clone();
    let lookup = Box::pin(async move {
        let unknown = || Refusal::invalid(format!("there is no run {run_id:?}"));
        engine.follow(&run_id, after).await?.ok_or_else(unknown)
    });
    Route::Follow(run, lookup)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Unfollow {
    run_id: RunId,
}

pub(super) fn unfollow(value: Value) -> Route {
    match params(value) {
        Ok(Unfollow { run_id }) => Route::Unfollow(run_id),
        Err(refusal) => Route::Done(Err(refusal)),
    }
}
