//! Lists of items, in pages.

use axum::Json;
use quell_kernel::client_request::openai_responses::IncompleteEnd;
use quell_protocol::ErrorCode;
use serde_json::{Value, json};

use super::encoder::without_encrypted_reasoning;
use super::ids::ResponseIds;
use crate::http::{ProblemResponse, problem_response};

/// Items of a page, if the client names no number, and at most.
const PAGE_ITEMS: usize = 20;
const MAX_PAGE_ITEMS: usize = 100;

/// The parameters of a query, which may repeat.
pub(super) type QueryPairs = Vec<(String, String)>;

/// The last value of a parameter.
pub(super) fn query_value<'a>(query: &'a QueryPairs, name: &str) -> Option<&'a str> {
    query.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

/// True if the query asks for the reasoning to send back.
pub(super) fn includes_encrypted_reasoning(query: &QueryPairs) -> bool {
    let is_include = |name: &str| matches!(name, "include" | "include[]" | "include[0]");
    query.iter().any(|(name, value)| is_include(name) && value == "reasoning.encrypted_content")
}

/// Gives an id to each item of a request, and a status to messages.
pub(super) fn with_ids(items: Vec<Value>, ids: &ResponseIds) -> Vec<Value> {
    let with_id = |(number, mut item): (usize, Value)| {
        IncompleteEnd::remove(&mut item);
        if item["id"].as_str().is_none_or(str::is_empty) {
            item["id"] = ids.input(number).into();
        }
        if item["type"] != "reasoning" && item["status"].is_null() {
            item["status"] = "completed".into();
        }
        item
    };
    items.into_iter().enumerate().map(with_id).collect()
}

/// A page of items, which are given from the oldest on. The newest come first unless the client asks otherwise.
pub(super) fn page(mut items: Vec<Value>, query: &QueryPairs) -> Result<Json<Value>, ProblemResponse> {
    match query_value(query, "order") {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(_) => return Err(invalid("order", "must be asc or desc")),
    }
    if let Some(after) = query_value(query, "after") {
        let at = items.iter().position(|item| item["id"] == after);
        let at = at.ok_or_else(|| invalid("after", "there is no item with this id in the list"))?;
        items.drain(..=at);
    }
    let limit = match query_value(query, "limit").map(str::parse::<usize>) {
        None => PAGE_ITEMS,
        Some(Ok(limit @ 1..=MAX_PAGE_ITEMS)) => limit,
        Some(_) => return Err(invalid("limit", "must be from 1 to 100")),
    };
    let has_more = items.len() > limit;
    items.truncate(limit);
    if !includes_encrypted_reasoning(query) {
        items = items.into_iter().map(without_encrypted_reasoning).collect();
    }
    items.iter_mut().for_each(IncompleteEnd::remove);
    let id_of = |item: Option<&Value>| item.map(|item| item["id"].clone()).unwrap_or_default();
    let (first, last) = (id_of(items.first()), id_of(items.last()));
    Ok(Json(json!({"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": has_more})))
}

pub(super) fn invalid(field: &str, message: &str) -> ProblemResponse {
    problem_response(ErrorCode::InvalidRequest, message).field(field)
}
