//! `GET /v1/models`: what a client may name as `model`. A client of Anthropic's API gets it in Anthropic's form.

use axum::Json;
use axum::extract::Path;
use axum::http::HeaderMap;
use quell_protocol::ErrorCode;
use serde_json::{Value, json};

use crate::anthropic::{self, ModelPage};
use crate::http::{ApiCall, ProblemResponse, QueryParams, problem_response};

/// `created` of every model: a provider's models have no date here, and clients want a number.
const CREATED: u64 = 1_700_000_000;

pub(super) async fn list(
    call: ApiCall,
    headers: HeaderMap,
    QueryParams(page): QueryParams<ModelPage>,
) -> Result<Json<Value>, ProblemResponse> {
    if anthropic::is_anthropic_client(&headers) {
        return anthropic::list_models(&call.engine().client_models(&call.caller), &page).map(Json);
    }
    let models: Vec<Value> = call.engine().client_models(&call.caller).iter().map(|name| model_object(name)).collect();
    Ok(Json(json!({"object": "list", "data": models})))
}

pub(super) async fn show(
    call: ApiCall,
    headers: HeaderMap,
    Path(name): Path<String>,
) -> Result<Json<Value>, ProblemResponse> {
    if !call.engine().is_client_model(&call.caller, &name) {
        let detail = format!("there is no model {name:?}; GET /v1/models lists them");
        return Err(problem_response(ErrorCode::ModelNotFound, detail).field("model"));
    }
    if anthropic::is_anthropic_client(&headers) {
        return Ok(Json(anthropic::model_object(&name)));
    }
    Ok(Json(model_object(&name)))
}

fn model_object(name: &str) -> Value {
    let owner = name.split_once('/').map_or("", |(owner, _)| owner);
    json!({"id": name, "object": "model", "created": CREATED, "owned_by": owner})
}
