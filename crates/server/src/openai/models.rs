//! `GET /v1/models`: what a client may name as `model`.

use axum::Json;
use axum::extract::Path;
use quell_protocol::ErrorCode;
use serde_json::{Value, json};

use crate::http::{ApiCall, ProblemResponse, problem_response};

/// `created` of every model: a provider's models have no date here, and clients want a number.
const CREATED: u64 = 1_700_000_000;

pub(super) async fn list(call: ApiCall) -> Json<Value> {
    let models: Vec<Value> = call.engine().client_models().iter().map(|name| model_object(name)).collect();
    Json(json!({"object": "list", "data": models}))
}

pub(super) async fn show(call: ApiCall, Path(name): Path<String>) -> Result<Json<Value>, ProblemResponse> {
    if !call.engine().is_client_model(&name) {
        let detail = format!("there is no model {name:?}; GET /v1/models lists them");
        return Err(problem_response(ErrorCode::ModelNotFound, detail).field("model"));
    }
    Ok(Json(model_object(&name)))
}

fn model_object(name: &str) -> Value {
    let owner = name.split_once('/').map_or("", |(owner, _)| owner);
    json!({"id": name, "object": "model", "created": CREATED, "owned_by": owner})
}
