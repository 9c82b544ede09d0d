//! The list of models in Anthropic's form. `GET /v1/models` gives it to a client that sends `anthropic-version`.

use quell_protocol::ErrorCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::http::{ProblemResponse, problem_response};

/// `created_at` of every model: a provider's models have no date here, and clients want one.
const CREATED_AT: &str = "2023-11-14T22:13:20Z";
/// Models of a page if the client does not say.
const DEFAULT_LIMIT: usize = 20;
const MAX_LIMIT: usize = 1000;

/// The pages of a list, in Anthropic's way.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ModelPage {
    limit: Option<usize>,
    after_id: Option<String>,
    before_id: Option<String>,
}

/// The page of a list that a client asks for.
pub(crate) fn list_models(names: &[String], page: &ModelPage) -> Result<Value, ProblemResponse> {
    let limit = page.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        let detail = format!("the limit must be from 1 to {MAX_LIMIT}");
        return Err(problem_response(ErrorCode::InvalidRequest, detail).field("limit"));
    }
    let position = |id: &String| names.iter().position(|name| name == id);
    let (from, to) = match (&page.after_id, &page.before_id) {
        (Some(after), _) => {
            let from = position(after).map_or(names.len(), |at| at + 1);
            (from, (from + limit).min(names.len()))
        }
        (None, Some(before)) => {
            let to = position(before).unwrap_or_default();
            (to.saturating_sub(limit), to)
        }
        (None, None) => (0, limit.min(names.len())),
    };
    let shown = names.get(from..to).unwrap_or_default();
    let has_more = if page.after_id.is_none() && page.before_id.is_some() { from > 0 } else { to < names.len() };
    let data: Vec<Value> = shown.iter().map(|name| model_object(name)).collect();
    Ok(json!({"data": data, "has_more": has_more, "first_id": shown.first(), "last_id": shown.last()}))
}

pub(crate) fn model_object(name: &str) -> Value {
    json!({"type": "model", "id": name, "display_name": name, "created_at": CREATED_AT})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(page: ModelPage) -> (Vec<Value>, bool) {
        let names: Vec<String> = (0..5).map(|number| format!("p/{number}")).collect();
        let list = list_models(&names, &page).unwrap();
        let ids = list["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect();
        (ids, list["has_more"] == true)
    }

    #[test]
    fn pages_of_a_list_follow_each_other() {
        let page = |limit, after_id: Option<&str>, before_id: Option<&str>| ModelPage {
            limit,
            after_id: after_id.map(str::to_owned),
            before_id: before_id.map(str::to_owned),
        };
        assert_eq!(ids(page(Some(2), None, None)), (vec![json!("p/0"), json!("p/1")], true));
        assert_eq!(ids(page(Some(2), Some("p/1"), None)), (vec![json!("p/2"), json!("p/3")], true));
        assert_eq!(ids(page(Some(2), Some("p/3"), None)), (vec![json!("p/4")], false));
        assert_eq!(ids(page(Some(2), None, Some("p/3"))), (vec![json!("p/1"), json!("p/2")], true));
        assert_eq!(ids(page(None, None, None)).0.len(), 5);
        assert!(list_models(&[], &page(Some(0), None, None)).is_err());
    }
}
