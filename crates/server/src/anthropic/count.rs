//! `POST /v1/messages/count_tokens`: an estimate, as the limits of runs use it before the provider counts.

use axum::Json;
use quell_engine::engine::CountTokensError;
use quell_kernel::client_request::{ClientRequest, anthropic};
use quell_protocol::{ErrorCode, Surface};
use serde_json::{Value, json};

use crate::http::{ApiCall, JsonBody, ProblemResponse, problem_response};

pub(super) async fn count(call: ApiCall, JsonBody(body): JsonBody<Value>) -> Result<Json<Value>, ProblemResponse> {
    let call = call.on_surface(Surface::Anthropic);
    call.require_write()?;
    let ClientRequest { model, conversation, answer, .. } = anthropic::parse_to_count(&body)?;
    call.engine().check_client_model(&call.caller, &model)?;
    let tokens = call.engine().count_client_tokens(&model, &conversation, &answer).map_err(|error| match error {
        CountTokensError::UnknownModel(error) => {
            problem_response(ErrorCode::ModelNotFound, error.to_string()).field("model")
        }
        CountTokensError::Model(error) => problem_response(ErrorCode::InvalidRequest, error.to_string()),
    })?;
    Ok(Json(json!({"input_tokens": tokens})))
}
