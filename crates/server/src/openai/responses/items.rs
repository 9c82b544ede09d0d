//! Lists of items, in pages.

use std::collections::BTreeSet;

use axum::Json;
use quell_kernel::client_request::openai_responses::IncompleteEnd;
use quell_protocol::ErrorCode;
use quell_store::{ItemOrder, ItemQuery};
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

/// Gives an id to each item of a request, and a status to messages. An id that occurs twice leads to the first item.
pub(super) fn with_ids(items: Vec<Value>, ids: &ResponseIds) -> Vec<Value> {
    let mut known = BTreeSet::new();
    let with_id = |(number, mut item): (usize, Value)| {
        IncompleteEnd::remove(&mut item);
        let given = item["id"].as_str().filter(|id| !id.is_empty()).map(str::to_owned);
        let id = given.filter(|id| !known.contains(id)).unwrap_or_else(|| ids.input(number));
        item["id"] = id.as_str().into();
        known.insert(id);
        if item["type"] != "reasoning" && item["status"].is_null() {
            item["status"] = "completed".into();
        }
        item
    };
    items.into_iter().enumerate().map(with_id).collect()
}

/// Which items of a list the client wants. The newest come first unless it asks otherwise.
#[derive(Debug)]
pub(super) struct PageQuery {
    after: Option<String>,
    order: ItemOrder,
    limit: usize,
    with_encrypted_reasoning: bool,
}

impl PageQuery {
    pub(super) fn parse(query: &QueryPairs) -> Result<Self, ProblemResponse> {
        let order = match query_value(query, "order") {
            None | Some("desc") => ItemOrder::NewestFirst,
            Some("asc") => ItemOrder::OldestFirst,
            Some(_) => return Err(invalid("order", "must be asc or desc")),
        };
        let limit = match query_value(query, "limit").map(str::parse::<usize>) {
            None => PAGE_ITEMS,
            Some(Ok(limit @ 1..=MAX_PAGE_ITEMS)) => limit,
            Some(_) => return Err(invalid("limit", "must be from 1 to 100")),
        };
        let after = query_value(query, "after").map(str::to_owned);
        Ok(Self { after, order, limit, with_encrypted_reasoning: includes_encrypted_reasoning(query) })
    }

    /// What the database is asked for: one item more than the page has.
    pub(super) fn item_query(&self) -> ItemQuery {
        let limit = u32::try_from(self.limit + 1).unwrap_or(u32::MAX);
        ItemQuery { after: self.after.clone(), order: self.order, limit }
    }

    /// A page of all items, which are given from the oldest on.
    pub(super) fn page_of(&self, mut items: Vec<Value>) -> Result<Json<Value>, ProblemResponse> {
        if self.order == ItemOrder::NewestFirst {
            items.reverse();
        }
        if let Some(after) = &self.after {
            let at = items.iter().rposition(|item| item["id"] == *after).ok_or_else(unknown_after)?;
            items.drain(..=at);
        }
        Ok(self.page(items))
    }

    /// A page of the items that come next.
    pub(super) fn page(&self, mut items: Vec<Value>) -> Json<Value> {
        let has_more = items.len() > self.limit;
        items.truncate(self.limit);
        let shown = |item: Value| if self.with_encrypted_reasoning { item } else { without_encrypted_reasoning(item) };
        item_list(items.into_iter().map(shown).collect(), has_more)
    }
}

pub(super) fn unknown_after() -> ProblemResponse {
    invalid("after", "there is no item with this id in the list")
}

/// The list of the API.
pub(super) fn item_list(mut items: Vec<Value>, has_more: bool) -> Json<Value> {
    items.iter_mut().for_each(IncompleteEnd::remove);
    let id_of = |item: Option<&Value>| item.map(|item| item["id"].clone()).unwrap_or_default();
    let (first, last) = (id_of(items.first()), id_of(items.last()));
    Json(json!({"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": has_more}))
}

pub(super) fn invalid(field: &str, message: &str) -> ProblemResponse {
    problem_response(ErrorCode::InvalidRequest, message).field(field)
}

#[cfg(test)]
mod tests {
    use quell_protocol::RunId;

    use super::*;

    #[test]
    fn an_id_that_occurs_twice_is_given_once() {
        let ids = ResponseIds::of_run(&RunId::parse("0193a7a6-0f3c-7a6b-8a53-5f3c1b0d9e11").unwrap());
        let items = ["a", "b", "a", ""].map(|id| json!({"type": "message", "id": id})).to_vec();
        let given: Vec<Value> = with_ids(items, &ids).iter().map(|item| item["id"].clone()).collect();
        assert_eq!(given, [json!("a"), json!("b"), json!(ids.input(2)), json!(ids.input(3))]);
    }

    #[test]
    fn pages_of_repeated_ids_come_to_an_end() {
        let items: Vec<Value> = ["a", "b", "a", "c"].map(|id| json!({"id": id})).to_vec();
        let mut query = vec![("limit".to_owned(), "1".to_owned())];
        for _ in 0..items.len() {
            let Json(page) = PageQuery::parse(&query).unwrap().page_of(items.clone()).unwrap();
            if page["has_more"] == false {
                return;
            }
            query.push(("after".to_owned(), page["last_id"].as_str().unwrap().to_owned()));
        }
        panic!("the list has no end");
    }
}
