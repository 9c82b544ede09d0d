//! Operations: health, readiness, metrics.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use metrics::gauge;
use quell_protocol::ErrorCode;
use serde_json::{Value, json};

use super::{Refused, Visitor, refuse};
use crate::door::Door;

pub(super) async fn healthz() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

pub(super) async fn readyz(State(door): State<Door>) -> Result<Json<Value>, Refused> {
    if !door.engine().is_open() {
        return Err(refuse(ErrorCode::ShuttingDown, "the daemon is closing"));
    }
    match door.engine().writable().await {
        Ok(()) => Ok(Json(json!({"status": "ready"}))),
        Err(problem) => {
            Err(refuse(ErrorCode::StoreUnavailable, format!("no run can be taken: {problem}")).retry_after(1))
        }
    }
}

pub(super) async fn metrics(State(door): State<Door>, _visitor: Visitor) -> Result<Response, Refused> {
    let Some(handle) = door.metrics() else {
        return Err(refuse(ErrorCode::NotFound, "this daemon was started without metrics"));
    };
    let engine = door.engine();
    let active = engine.active_runs();
    let in_state = |state: &str| active.iter().filter(|run| run.state == state).count();
    for state in ["queued", "running", "ending"] {
        gauge!("quell_runs", "state" => state).set(as_f64(in_state(state)));
    }
    gauge!("quell_processes").set(f64::from(active.iter().map(|run| run.processes).sum::<u32>()));
    gauge!("quell_background_processes").set(as_f64(engine.living_processes()));
    gauge!("quell_model_requests").set(as_f64(engine.model_requests()));
    gauge!("quell_sessions_live").set(as_f64(engine.live_sessions()));
    gauge!("quell_sessions_awaited").set(as_f64(engine.awaiting_sessions()));
    gauge!("quell_sessions_unclean").set(as_f64(engine.unclean_sessions()));
    gauge!("quell_streams").set(as_f64(door.stream_count()));
    gauge!("quell_held").set(if engine.is_held() { 1.0 } else { 0.0 });
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], handle.render()).into_response())
}

fn as_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
