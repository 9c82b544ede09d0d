//! Conversations: chains of items that responses continue and extend.

use axum::Json;
use axum::extract::Path;
use quell_kernel::client_request::openai_responses::{
    IncompleteEnd, parse_conversation, parse_conversation_items, parse_conversation_metadata,
};
use quell_protocol::ErrorCode;
use quell_store::{ConversationItem, StoredConversation};
use serde_json::{Value, json};

use super::encoder::without_encrypted_reasoning;
use super::history::now;
use super::ids::ResponseIds;
use super::items::{PageQuery, QueryPairs, item_list, unknown_after, with_ids};
use super::run::conversation_item;
use super::stored::{end_abandoned, is_id};
use crate::http::{ApiCall, JsonBody, ProblemResponse, QueryParams, problem_response};

pub(super) async fn create(call: ApiCall, JsonBody(body): JsonBody<Value>) -> Result<Json<Value>, ProblemResponse> {
    call.require_write()?;
    let (items, metadata) = parse_conversation(&body)?;
    check_room(&call).await?;
    let ids = ResponseIds::fresh();
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
    let query = PageQuery::parse(&query)?;
    let conversation = find_own_conversation(&call, &id).await?;
    end_abandoned(&call, &conversation.id).await?;
    let items = call.engine().responses().item_page(conversation.id, query.item_query()).await?;
    let items = items.ok_or_else(unknown_after)?;
    Ok(query.page(items.iter().map(shown_item).collect()))
}

/// `POST /v1/conversations/{id}`: replaces the metadata.
pub(super) async fn update(
    call: ApiCall,
    Path(id): Path<String>,
    JsonBody(body): JsonBody<Value>,
) -> Result<Json<Value>, ProblemResponse> {
    call.require_write()?;
    let conversation = find_own_conversation(&call, &id).await?;
    let metadata = Value::Object(parse_conversation_metadata(&body)?).to_string();
    call.engine().responses().set_metadata(conversation.id.clone(), metadata.clone()).await?;
    Ok(Json(conversation_object(&StoredConversation { metadata, ..conversation })))
}

pub(super) async fn add_items(
    call: ApiCall,
    Path(id): Path<String>,
    JsonBody(body): JsonBody<Value>,
) -> Result<Json<Value>, ProblemResponse> {
    call.require_write()?;
    let conversation = find_own_conversation(&call, &id).await?;
    let items = with_ids(parse_conversation_items(&body)?, &ResponseIds::added_to(&conversation.id));
    check_room(&call).await?;
    call.engine().responses().add_items(conversation.id, items.iter().map(conversation_item).collect()).await?;
    Ok(item_list(items, false))
}

pub(super) async fn show_item(
    call: ApiCall,
    Path((id, item)): Path<(String, String)>,
) -> Result<Json<Value>, ProblemResponse> {
    let conversation = find_own_conversation(&call, &id).await?;
    let found = call.engine().responses().find_item(conversation.id, item.clone()).await?;
    let found = found.ok_or_else(|| item_not_found(&item))?;
    Ok(Json(without_encrypted_reasoning(shown_item(&found))))
}

/// Answers with the conversation, as the API does.
pub(super) async fn delete_item(
    call: ApiCall,
    Path((id, item)): Path<(String, String)>,
) -> Result<Json<Value>, ProblemResponse> {
    call.require_write()?;
    let conversation = find_own_conversation(&call, &id).await?;
    if !call.engine().responses().delete_item(conversation.id.clone(), item.clone()).await? {
        return Err(item_not_found(&item));
    }
    Ok(Json(conversation_object(&conversation)))
}

fn item_not_found(id: &str) -> ProblemResponse {
    problem_response(ErrorCode::NotFound, format!("the conversation has no item {id:?}"))
}

fn shown_item(item: &ConversationItem) -> Value {
    let mut item: Value = serde_json::from_str(&item.item).unwrap_or_default();
    IncompleteEnd::remove(&mut item);
    item
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
