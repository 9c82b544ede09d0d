//! What a request continues: the items of earlier responses, or of a conversation.

use std::collections::VecDeque;

use quell_kernel::client_request::openai_responses::{IncompleteEnd, ResponsesRequest};
use quell_protocol::ErrorCode;
use quell_scope::clock::Clock;
use quell_store::{StoredResponse, StoredResponseState};
use serde_json::Value;

use super::conversations::find_own_conversation;
use super::ids::ResponseIds;
use super::stored::{end_abandoned, find_own_response};
use crate::http::{ApiCall, ProblemResponse, problem_response};

/// Responses that are read for one request, at most.
const MAX_CHAIN: usize = 1000;

/// Bytes of stored items that one request continues, at most. No model reads as much.
const MAX_HISTORY_BYTES: u64 = 64 << 20;

/// Loads the history of a request, and replaces its references by the items.
pub(super) async fn load_history(
    call: &ApiCall,
    request: &mut ResponsesRequest,
) -> Result<Vec<Value>, ProblemResponse> {
    request.partial = call.engine().client_partial_policy(&request.model);
    let history = match (&request.conversation, &request.previous) {
        (Some(id), _) => load_conversation(call, id).await?,
        (None, Some(id)) => load_chain(call, id.clone()).await?,
        (None, None) => Vec::new(),
    };
    for (at, id) in request.item_references() {
        if let Some(item) = find_item(call, &history, &id).await?
            && let Some(place) = request.input.get_mut(at)
        {
            *place = item;
        }
    }
    Ok(history)
}

/// The items of a conversation, the oldest first.
pub(super) async fn load_conversation(call: &ApiCall, id: &str) -> Result<Vec<Value>, ProblemResponse> {
    let conversation = find_own_conversation(call, id).await.map_err(|problem| problem.field("conversation"))?;
    end_abandoned(call, &conversation.id).await?;
    let responses = call.engine().responses();
    if responses.conversation_bytes(conversation.id.clone()).await? > MAX_HISTORY_BYTES {
        return Err(too_long("the conversation").field("conversation"));
    }
    let items = responses.conversation_items(conversation.id).await?;
    Ok(items.iter().filter_map(|item| serde_json::from_str(&item.item).ok()).collect())
}

/// The items of a response and of all that it continues, the oldest first.
async fn load_chain(call: &ApiCall, last: String) -> Result<Vec<Value>, ProblemResponse> {
    let mut chain = VecDeque::new();
    let mut next = Some(last);
    let mut bytes = 0;
    while let Some(id) = next {
        if chain.len() == MAX_CHAIN {
            let detail = format!("the chain has more than {MAX_CHAIN} responses; begin a new one");
            return Err(problem_response(ErrorCode::InvalidRequest, detail).field("previous_response_id"));
        }
        let response = find_own_response(call, &id).await?.ok_or_else(|| previous_not_found(&id))?;
        if response.state == StoredResponseState::Open {
            let detail = format!("the response {id:?} is still in progress; wait for its end, or cancel it");
            return Err(problem_response(ErrorCode::InvalidRequest, detail).field("previous_response_id"));
        }
        bytes += (response.input.len() + response.response.len()) as u64;
        if bytes > MAX_HISTORY_BYTES {
            return Err(too_long("the chain of responses").field("previous_response_id"));
        }
        chain.push_front(items_of(&response));
        next = response.previous;
    }
    Ok(chain.into_iter().flatten().collect())
}

pub(super) fn items_of(response: &StoredResponse) -> Vec<Value> {
    let input = serde_json::from_str(&response.input).unwrap_or_default();
    continued_items(input, &serde_json::from_str(&response.response).unwrap_or_default())
}

fn too_long(what: &str) -> ProblemResponse {
    let detail = format!("{what} has more than {} MiB; begin a new one", MAX_HISTORY_BYTES >> 20);
    problem_response(ErrorCode::ContextOverflow, detail)
}

/// The items of a request and its response, with which the next one begins. A call whose response did not complete was
/// never made. The last item says how a response ended that did not complete.
pub(super) fn continued_items(input: Vec<Value>, object: &Value) -> Vec<Value> {
    let is_complete = object["status"] == "completed";
    let output = object["output"].as_array().into_iter().flatten();
    let output = output.filter(|item| is_complete || item["type"] == "message").cloned();
    let mut items: Vec<Value> = input.into_iter().chain(output).collect();
    if let (Some(end), Some(last)) = (IncompleteEnd::of(object), items.last_mut()) {
        end.mark(last);
    }
    items
}

async fn find_item(call: &ApiCall, history: &[Value], id: &str) -> Result<Option<Value>, ProblemResponse> {
    if let Some(item) = history.iter().find(|item| item["id"] == id) {
        return Ok(Some(item.clone()));
    }
    if let Some(response) = ResponseIds::response_of_item(id)
        && let Some(response) = find_own_response(call, &response).await?
    {
        return Ok(items_of(&response).into_iter().find(|item| item["id"] == id));
    }
    let Some(conversation) = ResponseIds::conversation_of_item(id) else { return Ok(None) };
    let responses = call.engine().responses();
    let found = responses.find_conversation(conversation).await?;
    let Some(own) = found.filter(|conversation| conversation.owner == call.caller.principal) else { return Ok(None) };
    let item = responses.find_item(own.id, id.to_owned()).await?;
    Ok(item.and_then(|item| serde_json::from_str(&item.item).ok()))
}

fn previous_not_found(id: &str) -> ProblemResponse {
    let detail = format!("there is no response {id:?}; responses are kept for 30 days, unless `store` was false");
    problem_response(ErrorCode::NotFound, detail).field("previous_response_id")
}

/// Seconds since 1970.
pub(super) fn now() -> i64 {
    Clock::wall_seconds()
}
