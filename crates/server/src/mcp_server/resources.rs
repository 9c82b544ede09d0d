//! Resources of the MCP server: receipts of runs and histories of sessions.

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use quell_protocol::{RunId, SessionKey};
use quell_store::{RunListFilter, SessionListFilter};
use serde::Deserialize;
use serde_json::{Value, json};

use super::methods::McpRequest;
use super::versions::ProtocolEra;
use crate::http::{ApiCall, ProblemResponse, parse_run_id};
use crate::json_rpc::{INVALID_PARAMS, JsonRpcFailure};

const PAGE_SIZE: usize = 100;
/// Turns of a history, the newest ones.
const HISTORY_TURNS: usize = 100;
/// The code of an unknown resource in the versions with sessions.
const RESOURCE_NOT_FOUND: i64 = -32002;

/// A resource, as its URI names it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum McpResource {
    Receipt(RunId),
    History(SessionKey),
}

impl McpResource {
    fn parse(uri: &str) -> Option<Self> {
        let (kind, rest) = uri.strip_prefix("quell://")?.split_once('/')?;
        let (name, part) = rest.split_once('/')?;
        let name = percent_decode_str(name).decode_utf8().ok()?;
        match (kind, part) {
            ("runs", "receipt") => parse_run_id(&name).ok().map(Self::Receipt),
            ("sessions", "history") => SessionKey::parse(name).ok().map(Self::History),
            _ => None,
        }
    }

    fn uri(&self) -> String {
        match self {
            Self::Receipt(run) => format!("quell://runs/{}/receipt", encode(run.as_str())),
            Self::History(key) => format!("quell://sessions/{}/history", encode(key.as_str())),
        }
    }
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[derive(Debug, Default, Deserialize)]
struct ResourceListParams {
    cursor: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ResourceReadParams {
    uri: String,
}

/// Histories of the sessions that the caller may read, then receipts of the runs.
pub(super) async fn list(request: &McpRequest) -> Result<Value, JsonRpcFailure> {
    let params: ResourceListParams = request.request.parse_params()?;
    let call = &request.call;
    let (resources, next) = match params.cursor.as_deref().map(|cursor| cursor.split_once(':')) {
        None => list_histories(call, None).await?,
        Some(Some(("sessions", cursor))) => list_histories(call, Some(cursor.to_owned())).await?,
        Some(Some(("runs", cursor))) => list_receipts(call, Some(cursor).filter(|cursor| !cursor.is_empty())).await?,
        Some(_) => return Err(JsonRpcFailure::new(INVALID_PARAMS, "the cursor is not one of this list")),
    };
    Ok(match next {
        Some(cursor) => json!({"resources": resources, "nextCursor": cursor}),
        None => json!({"resources": resources}),
    })
}

type ResourcePage = (Vec<Value>, Option<String>);

async fn list_histories(call: &ApiCall, cursor: Option<String>) -> Result<ResourcePage, ProblemResponse> {
    let filter = SessionListFilter { search: None, limit: PAGE_SIZE, cursor, visible_to: call.visible_to() };
    let page = call.engine().list_sessions(filter).await?;
    let describe = |key: &SessionKey| {
        let uri = McpResource::History(key.clone()).uri();
        json!({"uri": uri, "name": format!("history of {key}"), "mimeType": "application/json"})
    };
    let resources = page.items.iter().map(|session| describe(&session.key)).collect();
    let next = page.next_cursor.map_or_else(|| "runs:".to_owned(), |cursor| format!("sessions:{cursor}"));
    Ok((resources, Some(next)))
}

async fn list_receipts(call: &ApiCall, cursor: Option<&str>) -> Result<ResourcePage, ProblemResponse> {
    let cursor = cursor.map(str::to_owned);
    let visible_to = call.visible_to();
    let filter = RunListFilter { session: None, principal: None, visible_to, limit: PAGE_SIZE, cursor };
    let page = call.engine().list_runs(filter).await?;
    let ended = page.items.iter().filter(|run| run.receipt.is_some());
    let describe = |run: &RunId| {
        let uri = McpResource::Receipt(run.clone()).uri();
        json!({"uri": uri, "name": format!("receipt of {run}"), "mimeType": "application/json"})
    };
    let resources = ended.map(|run| describe(&run.run_id)).collect();
    Ok((resources, page.next_cursor.map(|cursor| format!("runs:{cursor}"))))
}

pub(super) fn templates() -> Value {
    let template = |uri: &str, name: &str, description: &str| json!({"uriTemplate": uri, "name": name, "description": description, "mimeType": "application/json"});
    json!({"resourceTemplates": [
        template("quell://runs/{id}/receipt", "receipt", "What a run held, and how each of it ended."),
        template("quell://sessions/{key}/history", "history", "The newest messages of a session."),
    ]})
}

pub(super) async fn read(request: &McpRequest) -> Result<Value, JsonRpcFailure> {
    let ResourceReadParams { uri } = request.request.parse_params()?;
    let content = match McpResource::parse(&uri) {
        Some(McpResource::Receipt(run)) => read_receipt(&request.call, &run).await?,
        Some(McpResource::History(key)) => read_history(&request.call, &key).await?,
        None => None,
    };
    let text = content.ok_or_else(|| {
        let code = match request.era {
            ProtocolEra::Session => RESOURCE_NOT_FOUND,
            ProtocolEra::Stateless => INVALID_PARAMS,
        };
        let text = "there is no such resource; a receipt exists when its run has ended";
        JsonRpcFailure::new(code, text).with_data(json!({"uri": uri}))
    })?;
    Ok(json!({"contents": [{"uri": uri, "mimeType": "application/json", "text": text.to_string()}]}))
}

async fn read_receipt(call: &ApiCall, run: &RunId) -> Result<Option<Value>, ProblemResponse> {
    let found = call.engine().find_run(run).await?;
    let readable = found.filter(|run| call.engine().may_read_run_view(&call.caller, run));
    Ok(readable.and_then(|run| run.receipt).map(|receipt| json!(receipt)))
}

async fn read_history(call: &ApiCall, key: &SessionKey) -> Result<Option<Value>, ProblemResponse> {
    call.engine().refresh_owner(key).await?;
    if call.require_readable(key).is_err() || call.engine().find_session(key).await?.is_none() {
        return Ok(None);
    }
    let page = call.engine().history_page(key, HISTORY_TURNS, None).await?;
    Ok(Some(json!({"items": page.messages, "isComplete": page.before.is_none()})))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_uri_names_a_resource_and_back() {
        let history = McpResource::History(SessionKey::parse("a/b ü").unwrap());
        assert_eq!(McpResource::parse(&history.uri()), Some(history));
        let receipt = McpResource::parse("quell://runs/r1/receipt").unwrap();
        assert_eq!(receipt.uri(), "quell://runs/r1/receipt");
    }

    #[rstest]
    #[case("quell://runs/r1")]
    #[case("quell://runs/r1/history")]
    #[case("quell://other/r1/receipt")]
    #[case("file:///etc/passwd")]
    #[case("")]
    fn other_uris_name_nothing(#[case] uri: &str) {
        assert_eq!(McpResource::parse(uri), None);
    }
}
