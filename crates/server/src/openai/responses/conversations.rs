//! Conversations: chains of items that responses continue and extend.

use axum::Json;
use axum::extract::Path;
use quell_kernel::client_request::openai_responses::parse_conversation;
use quell_protocol::{ErrorCode, RunId};
use quell_store::StoredConversation;
use serde_json::{Value, json};
use uuid::Uuid;

use super::history::now;
use super::ids::ResponseIds;
use super::items::{QueryPairs, page, with_ids};
use super::run::conversation_item;
use super::stored::is_id;
use crate::http::{ApiCall, JsonBody, ProblemResponse, QueryParams, problem_response};

pub(super) async fn create(call: ApiCall, JsonBody(body): JsonBody<Value>) -> Result<Json<Value>, ProblemResponse> {
    call.require_write()?;
    let (items, metadata) = parse_conversation(&body)?;
    check_room(&call).await?;
    let Ok(run) = RunId::parse(Uuid::now_v7().to_string()) else { unreachable!("a UUID is a valid run id") };
    let ids = ResponseIds::of_run(&run);
    let conversation = StoredConversation {
        id: ids.conversation(),
        owner: call.caller.principal.clone(),
        created_at: now(),
        metadata: Value::Object(metadata).to_string(),
    };
    let items = with_ids(items, &ids).iter().map(conversation_item).collect();
    call.engine().responses().create_conversation(conversation.clone(), items).await?;
    Ok(Json(conversation_object(&conversation)))
}

pub(super) async fn show(call: ApiCall, Path(id): Path<String>) -> Result<Json<Value>, ProblemResponse> {
    find_own_conversation(&call, &id).await.map(|conversation| Json(conversation_object(&conversation)))
}

pub(super) async fn delete(call: ApiCall, Path(id): Path<String>) -> Result<Json<Value>, ProblemResponse> {
    call.require_write()?;
    let conversation = find_own_conversation(&call, &id).await?;
    call.engine().responses().delete_conversation(conversation.id).await?;
    Ok(Json(json!({"id": id, "object": "conversation.deleted", "deleted": true})))
}

pub(super) async fn list_items(
    call: ApiCall,
    Path(id): Path<String>,
    QueryParams(query): QueryParams<QueryPairs>,
) -> Result<Json<Value>, ProblemResponse> {
    let conversation = find_own_conversation(&call, &id).await?;
    let items = call.engine().responses().conversation_items(conversation.id).await?;
    page(items.iter().filter_map(|item| serde_json::from_str(&item.item).ok()).collect(), &query)
}

/// Refuses to store more for a caller whose conversations take all the room of its token.
pub(super) async fn check_room(call: &ApiCall) -> Result<(), ProblemResponse> {
    if call.engine().make_response_room(&call.caller.principal).await? {
        return Ok(());
    }
    let detail =
        "the conversations of this token take all its room; delete some, or raise responses_mib in [retention]";
    Err(problem_response(ErrorCode::StorageLimit, detail))
}

/// The conversation of this id, if it belongs to the caller.
pub(super) async fn find_own_conversation(call: &ApiCall, id: &str) -> Result<StoredConversation, ProblemResponse> {
    let found = if is_id(id) { call.engine().responses().find_conversation(id.to_owned()).await? } else { None };
    let own = found.filter(|conversation| conversation.owner == call.caller.principal);
    own.ok_or_else(|| problem_response(ErrorCode::NotFound, format!("there is no conversation {id:?}")))
}

fn conversation_object(conversation: &StoredConversation) -> Value {
    let metadata: Value = serde_json::from_str(&conversation.metadata).unwrap_or_default();
    json!({"id": conversation.id, "object": "conversation", "created_at": conversation.created_at,
        "metadata": metadata})
}
