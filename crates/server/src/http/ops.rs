//! Health, readiness and Prometheus metrics.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge};
use quell_engine::Engine;
use quell_protocol::ErrorCode;
use serde_json::{Value, json};

use super::{ApiCall, ApiResult, ProblemResponse, problem_response};
use crate::metrics_registry::STOP_SECONDS;
use crate::state::ServerState;

/// Counters with their help texts.
const COUNTERS: &[(&str, &str)] = &[
    ("quell_runs_ended_total", "Runs that are over, by their verdict"),
    ("quell_runs_with_leftovers_total", "Runs whose receipt names something that could not be given back"),
    (
        "quell_tokens_total",
        "Tokens of runs that are over, by provider and direction; estimates where a provider tells none",
    ),
    ("quell_cost_micros_total", "What these tokens cost, in millionths of the currency of the agents' prices"),
    ("quell_session_cleanup_failures_total", "Sessions whose clean-up failed"),
    ("quell_cluster_peer_letters_total", "Letters to and from other nodes of the cluster, by their direction"),
    ("quell_channel_messages_total", "Messages that came by a chat network"),
    ("quell_channel_answers_total", "Answers that a chat network has shown"),
    ("quell_channel_undelivered_total", "Answers that a chat network has not shown, or not whole"),
];

/// Gauges with their help texts.
const GAUGES: &[(&str, &str)] = &[
    ("quell_runs", "Runs that are not over, by their state"),
    ("quell_processes", "Commands and servers of runs that are alive; one with its descendants counts as one"),
    ("quell_background_processes", "Commands in the background that live"),
    ("quell_model_requests", "Requests to models under way"),
    ("quell_sessions_live", "Sessions in memory"),
    ("quell_sessions_awaited", "Callers that wait for a session"),
    ("quell_sessions_unclean", "Clean-up steps of sessions that failed and are tried again"),
    ("quell_streams", "Event streams and WebSockets that are open"),
    ("quell_held", "1 while new runs are refused"),
    ("quell_config_stale", "1 while the configuration file is wrong or wants a restart"),
    ("quell_cluster_nodes", "Nodes of the cluster as this one knows them, by their state"),
    ("quell_cluster_lease_remaining_seconds", "How long the lease of this node lasts without another renewal"),
    ("quell_cluster_owned_sessions", "Sessions that belong to this node"),
    ("quell_cluster_renewal_seconds", "How long the last renewal of the lease took"),
    ("quell_cluster_clock_skew_seconds", "By how much the clock of the database is ahead of this node's"),
    ("quell_channel_connected", "1 while a chat network is connected"),
];

/// Describes all metrics to the installed recorder. Counters that may never rise start at 0, so that they are visible.
pub fn describe_metrics() {
    for (name, help) in COUNTERS {
        describe_counter!(*name, *help);
    }
    for (name, help) in GAUGES {
        describe_gauge!(*name, *help);
    }
    for verdict in ["completed", "failed", "aborted"] {
        counter!("quell_runs_ended_total", "verdict" => verdict).absolute(0);
    }
    counter!("quell_runs_with_leftovers_total").absolute(0);
    counter!("quell_session_cleanup_failures_total").absolute(0);
    describe_histogram!(STOP_SECONDS, Unit::Seconds, "From the request of a stop to the proof of its end");
    describe_histogram!("quell_session_sweep_seconds", Unit::Seconds, "How long a sweep of idle sessions took");
}

pub(super) async fn healthz() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

pub(super) async fn readyz(State(server): State<ServerState>) -> ApiResult<Value> {
    if !server.engine().is_open() {
        return Err(problem_response(ErrorCode::ShuttingDown, "the daemon is closing"));
    }
    match server.engine().check_writable().await {
        Ok(()) => Ok(Json(json!({"status": "ready"}))),
        Err(problem) => {
            Err(problem_response(ErrorCode::StoreUnavailable, format!("no run can be taken: {problem}")).retry_after(1))
        }
    }
}

pub(super) async fn metrics(call: ApiCall) -> Result<Response, ProblemResponse> {
    let Some(registry) = call.server.metrics() else {
        return Err(problem_response(ErrorCode::NotFound, "this daemon was started without metrics"));
    };
    let engine = call.engine();
    let active = engine.active_runs();
    let in_state = |state: &str| active.iter().filter(|run| run.state == state).count();
    for state in ["queued", "running", "ending"] {
        gauge!("quell_runs", "state" => state).set(as_f64(in_state(state)));
    }
    gauge!("quell_processes").set(f64::from(active.iter().map(|run| run.processes).sum::<u32>()));
    gauge!("quell_background_processes").set(as_f64(engine.count_live_processes()));
    gauge!("quell_model_requests").set(as_f64(engine.count_model_requests()));
    gauge!("quell_sessions_live").set(as_f64(engine.count_live_sessions()));
    gauge!("quell_sessions_awaited").set(as_f64(engine.count_session_waiters()));
    gauge!("quell_sessions_unclean").set(as_f64(engine.count_pending_cleanups()));
    gauge!("quell_streams").set(as_f64(call.server.stream_count()));
    gauge!("quell_held").set(if engine.is_held() { 1.0 } else { 0.0 });
    set_cluster_gauges(engine);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], registry.render()).into_response())
}

/// Sets nothing without a cluster.
fn set_cluster_gauges(engine: &Engine) {
    let Some(cluster) = engine.cluster() else { return };
    for (state, count) in engine.count_nodes() {
        gauge!("quell_cluster_nodes", "state" => state.as_str()).set(as_f64(count));
    }
    gauge!("quell_cluster_lease_remaining_seconds").set(cluster.lease_remaining().as_secs_f64());
    gauge!("quell_cluster_owned_sessions").set(as_f64(cluster.owned_sessions().len()));
    if let Some(facts) = cluster.last_renewal() {
        gauge!("quell_cluster_renewal_seconds").set(facts.round_trip.as_secs_f64());
        let skew_ms = facts.clock_skew_ms.clamp(i32::MIN.into(), i32::MAX.into());
        gauge!("quell_cluster_clock_skew_seconds").set(f64::from(i32::try_from(skew_ms).unwrap_or_default()) / 1e3);
    }
}

fn as_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
