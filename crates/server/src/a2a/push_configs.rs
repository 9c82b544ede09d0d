//! Push notification configs of tasks: the receivers that a client names for what happens to its task.
//!
//! The engine delivers what [`A2aPushTranslator`] says; each request is signed with the key at `/.well-known/jwks.json`.

use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use quell_engine::push::{PushAuthentication, PushError, PushTarget, PushTranslator};
use quell_protocol::api::RunView;
use quell_protocol::approval::ApprovalRow;
use quell_protocol::{ErrorCode, EventKind, RunEvent, RunId, Verdict};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::REST_CONTENT_TYPE;
use super::errors::{A2aError, A2aErrorKind};
use super::operations::A2aRequest;
use super::tasks::{A2aTaskState, TaskParts, describe_task, input_required_update, status_update};
use crate::http::{ProblemResponse, problem_response};
use crate::state::ServerState;

/// Tells a receiver of changes of a task's state, and at the end the whole task with its answer.
#[derive(Debug)]
pub(crate) struct A2aPushTranslator;

impl PushTranslator for A2aPushTranslator {
    fn notification(&self, run: &RunView, event: &RunEvent, waiting: &[ApprovalRow]) -> Option<Value> {
        if matches!(event.kind, EventKind::Ended { .. }) && run.receipt.is_some() {
            return Some(json!({"task": describe_task(run, None, TaskParts { history: false, ..TaskParts::ALL })}));
        }
        let (state, update) = status_update(event)?;
        match waiting.first() {
            // Another call still waits.
            Some(approval) if state == A2aTaskState::Working => Some(input_required_update(run, approval)),
            // A stop has resolved the approval, and the end follows.
            _ if matches!(run.verdict, Some(Verdict::Aborted { .. })) => None,
            _ => Some(update),
        }
    }

    fn media_type(&self) -> &'static str {
        REST_CONTENT_TYPE
    }

    fn token_header(&self) -> &'static str {
        "x-a2a-notification-token"
    }
}

/// The public key of the signatures, for everybody.
pub(super) async fn show_keys(State(server): State<ServerState>) -> Json<Value> {
    let keys: Vec<Value> = server.engine().push_public_key().iter().map(describe_key).collect();
    Json(json!({"keys": keys}))
}

fn describe_key(key: &[u8; 32]) -> Value {
    json!({"kty": "OKP", "crv": "Ed25519", "x": URL_SAFE_NO_PAD.encode(key), "use": "sig", "alg": "EdDSA"})
}

/// A config as clients write it. In REST the path names the task.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PushConfigParams {
    id: Option<String>,
    #[serde(default)]
    task_id: String,
    url: String,
    token: Option<String>,
    authentication: Option<AuthenticationParams>,
}

#[derive(Debug, Clone, Deserialize)]
struct AuthenticationParams {
    scheme: String,
    credentials: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PushConfigIdParams {
    task_id: String,
    id: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PushConfigListParams {
    task_id: String,
}

impl PushConfigParams {
    /// A config without an id gets a new one.
    pub(super) fn into_target(self) -> PushTarget {
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        PushTarget {
            id: given(self.id).unwrap_or_else(|| Uuid::now_v7().simple().to_string()),
            url: self.url,
            token: given(self.token),
            authentication: self.authentication.map(|authentication| PushAuthentication {
                scheme: authentication.scheme,
                credentials: given(authentication.credentials),
            }),
        }
    }
}

/// Refuses what needs push notifications where there are none.
fn require_push(request: &A2aRequest) -> Result<(), A2aError> {
    if request.call.engine().push_public_key().is_some() { Ok(()) } else { Err(PushError::NotAvailable.into()) }
}

pub(super) async fn create(request: &A2aRequest) -> Result<Value, A2aError> {
    require_push(request)?;
    let params: PushConfigParams = request.parse_params()?;
    let task = request.find_task(&params.task_id).await?;
    let stored = store_target(request, &task.run_id, params.into_target()).await?;
    Ok(describe_config(&task.run_id, &stored))
}

/// Stores a target for a task that the caller has found.
pub(super) async fn store_target(
    request: &A2aRequest,
    task: &RunId,
    target: PushTarget,
) -> Result<PushTarget, A2aError> {
    let caller = request.call.require_write()?;
    Ok(request.call.engine().put_push_target(caller, task, target).await?)
}

pub(super) async fn get(request: &A2aRequest) -> Result<Value, A2aError> {
    require_push(request)?;
    let PushConfigIdParams { task_id, id } = request.parse_params()?;
    let task = request.find_task(&task_id).await?;
    let target = request.call.engine().push_target(&request.call.caller, &task.run_id, &id).await?;
    Ok(describe_config(&task.run_id, &target))
}

/// All configs of the caller for a task: there are few.
pub(super) async fn list(request: &A2aRequest) -> Result<Value, A2aError> {
    require_push(request)?;
    let PushConfigListParams { task_id } = request.parse_params()?;
    let task = request.find_task(&task_id).await?;
    let targets = request.call.engine().push_targets(&request.call.caller, &task.run_id).await?;
    let configs: Vec<Value> = targets.iter().map(|target| describe_config(&task.run_id, target)).collect();
    Ok(json!({"configs": configs, "nextPageToken": ""}))
}

/// Deleting what is not there has the same effect.
pub(super) async fn delete(request: &A2aRequest) -> Result<Value, A2aError> {
    require_push(request)?;
    let PushConfigIdParams { task_id, id } = request.parse_params()?;
    let task = request.find_task(&task_id).await?;
    let caller = &request.call.caller;
    match request.call.engine().delete_push_target(caller, &task.run_id, &id).await {
        Ok(()) => Ok(json!({})),
        // A deletion may be repeated. On the task of somebody else the caller has no targets, whatever others have there.
        Err(PushError::TargetNotFound(_)) if task.principal == caller.principal => Ok(json!({})),
        Err(error) => Err(error.into()),
    }
}

/// Without the credentials, which nobody needs to read again.
fn describe_config(task: &RunId, target: &PushTarget) -> Value {
    let mut config = json!({"id": target.id, "taskId": task, "url": target.url});
    if let Some(token) = &target.token {
        config["token"] = json!(token);
    }
    if let Some(authentication) = &target.authentication {
        config["authentication"] = json!({"scheme": authentication.scheme});
    }
    config
}

impl From<PushError> for A2aError {
    fn from(error: PushError) -> Self {
        let text = error.to_string();
        match error {
            PushError::NotAvailable => Self::new(A2aErrorKind::PushNotSupported, text),
            PushError::RunNotFound(run) => Self::task_not_found(run.as_str()),
            // The specification has no other word for it.
            PushError::TargetNotFound(_) => Self::new(A2aErrorKind::TaskNotFound, text),
            PushError::InvalidTarget(_) => Self::invalid("url", text),
            PushError::TooManyTargets => problem_response(ErrorCode::Conflict, text).into(),
            PushError::TooManyDeliveries => problem_response(ErrorCode::TooManyRequests, text).retry_after(1).into(),
            PushError::Overloaded => problem_response(ErrorCode::TooMuchAtOnce, text).retry_after(1).into(),
            PushError::OtherNode(_) => problem_response(ErrorCode::NodeUnreachable, text).into(),
            PushError::Store(error) => ProblemResponse::from(error).into(),
        }
    }
}
