//! `/openapi.json`: the routes as a table, the bodies as the schemas that the protocol's types derive. A test holds the table
//! against the router.

mod routes;

use axum::Json;
use axum::extract::State;
use quell_protocol::api::{
    AgentAbortAnswer, AgentRow, HistoryMessage, Hold, NewToken, RunView, SendAnswer, SendRequest, SessionRow,
    StopAllAnswer, StopAllRequest, StopAnswer, StopRunRequest, StopSessionRequest, TicketView, TokenRequest, TokenRow,
};
use quell_protocol::approval::{ApprovalAnswer, ApprovalRow};
use quell_protocol::audit::AuditRow;
use quell_protocol::background::{ProcessRow, ProcessView};
use quell_protocol::channel::{ChannelDelivery, ChannelHealth, ChannelReceived, ChannelRow, ChannelSend, ChannelTest};
use quell_protocol::memory::{NoteRow, NotesForgotten, SenderRow};
use quell_protocol::page::{Me, ModelRow, SessionPatch, SignInLink, SignInRequest};
use quell_protocol::session::{SessionAnswer, SessionRequest, SessionView};
use quell_protocol::society::{AgentNode, AgentView, AgentsDeleted, NewAgent};
use quell_protocol::{ErrorCode, Problem, RunEvent};
use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use self::routes::{Access, Answer, Query, ROUTES, Row, Takes};
use crate::door::Door;

#[derive(OpenApi)]
#[openapi(components(schemas(
    AgentAbortAnswer,
    AgentNode,
    AgentRow,
    AgentView,
    AgentsDeleted,
    ApprovalAnswer,
    ApprovalRow,
    AuditRow,
    ChannelDelivery,
    ChannelHealth,
    ChannelReceived,
    ChannelRow,
    ChannelSend,
    ChannelTest,
    HistoryMessage,
    Hold,
    Me,
    ModelRow,
    NewAgent,
    NewToken,
    NoteRow,
    NotesForgotten,
    Problem,
    ProcessRow,
    ProcessView,
    RunEvent,
    RunView,
    SendAnswer,
    SendRequest,
    SenderRow,
    SessionAnswer,
    SessionPatch,
    SessionRequest,
    SessionRow,
    SessionView,
    SignInLink,
    SignInRequest,
    StopAllAnswer,
    StopAllRequest,
    StopAnswer,
    StopRunRequest,
    StopSessionRequest,
    TicketView,
    TokenRequest,
    TokenRow,
)))]
struct Schemas;

pub(super) async fn document(State(door): State<Door>, _visitor: super::Visitor) -> Json<Value> {
    Json(build(door.engine().access().cookie_name()))
}

fn build(cookie: &str) -> Value {
    let mut document = serde_json::to_value(Schemas::openapi()).unwrap_or_default();
    say_unsigned(&mut document);
    let codes: Vec<&str> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
    document["info"] = json!({
        "title": "Quell",
        "version": env!("CARGO_PKG_VERSION"),
        "description": format!("A gateway for LLM agents that you can stop. Every error is application/problem+json with one of \
                                these codes: {}.", codes.join(", ")),
        "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
    });
    document["components"]["securitySchemes"] = json!({
        "token": {"type": "http", "scheme": "bearer"},
        "page": {"type": "apiKey", "in": "cookie", "name": cookie, "description": "the page's cookie, which /api/sign-in sets"},
    });
    let mut paths = Map::new();
    for row in ROUTES {
        let path = paths.entry(row.path).or_insert_with(|| json!({}));
        path[row.method] = operation(row);
    }
    document["paths"] = Value::Object(paths);
    document
}

/// Numbers without a sign are derived with the format of those with one, which has half of their range.
fn say_unsigned(schema: &mut Value) {
    let format = match (schema.get("minimum").and_then(Value::as_u64), schema.get("format").and_then(Value::as_str)) {
        (Some(0), Some("int64")) => Some("uint64"),
        (Some(0), Some("int32")) => Some("uint32"),
        _ => None,
    };
    if let Some(format) = format {
        schema["format"] = json!(format);
    }
    match schema {
        Value::Object(fields) => fields.values_mut().for_each(say_unsigned),
        Value::Array(items) => items.iter_mut().for_each(say_unsigned),
        _ => {}
    }
}

fn operation(row: &Row) -> Value {
    let mut operation = json!({"summary": row.summary, "operationId": operation_id(row), "responses": {}});
    // What the row says itself is the last word.
    for (status, schema, meaning) in shared_answers(row).iter().chain(row.answers) {
        operation["responses"][status.to_string()] = answer(schema, meaning);
    }
    let names = row.path.split(['{', '}']).skip(1).step_by(2);
    let in_path =
        |name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}});
    let in_query = |(name, kind, meaning): &Query| json!({"name": name, "in": "query", "required": false, "description": meaning, "schema": of_kind(kind)});
    let parameters: Vec<Value> = names.map(in_path).chain(row.queries().iter().map(in_query)).collect();
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    match row.takes {
        Some(Takes::Needed(schema)) => {
            operation["requestBody"] = json!({"required": true, "content": content(schema)});
        }
        Some(Takes::Optional(schema)) => {
            operation["requestBody"] = json!({"required": false, "content": content(schema)});
        }
        None => {}
    }
    if row.access() == Access::Token {
        operation["security"] = json!([{"token": []}, {"page": []}]);
    }
    operation
}

/// What many routes answer for the same reasons.
fn shared_answers(row: &Row) -> Vec<Answer> {
    let mut answers = vec![(431, "none", "the head of the request is too large, or has too many fields")];
    if row.access() == Access::Probe {
        answers.push((503, "Problem", "the daemon has no descriptors left but for stops"));
    } else {
        answers.push((421, "Problem", "the Host is none of the daemon's; add it to allowed_hosts in [server]"));
    }
    if row.access() == Access::Token {
        answers.push((401, "Problem", "a valid token is needed"));
        answers.push((403, "Problem", "the token's scope does not allow it, or the web origin may not ask"));
    }
    if row.access() == Access::Token || row.path.contains("sign-in") {
        answers.push((
            429,
            "Problem",
            "too many requests with a bad token came from this address; Retry-After says how long",
        ));
    }
    if row.path.starts_with("/api/sign-") {
        answers.push((403, "Problem", "the web origin may not ask"));
    }
    let is_api = row.path.starts_with("/api/");
    let unusable = match is_api || row.path.contains('{') {
        true => "the database cannot be used, the daemon is closing, or it receives or holds all that it can",
        false => "the daemon has no descriptors left but for stops",
    };
    if row.access() != Access::Probe {
        answers.push((503, "Problem", unusable));
    }
    if row.takes.is_some() || row.path.contains('{') || !row.queries().is_empty() {
        answers.push((400, "Problem", "the request is not valid; the detail says what"));
    }
    if row.takes.is_some() {
        answers.push((408, "Problem", "the body did not come in time"));
        answers.push((413, "Problem", "larger than request_body_bytes in [limits]"));
        answers.push((415, "Problem", "the body is not JSON, or not said to be"));
    }
    answers
}

fn operation_id(row: &Row) -> String {
    let words = row.path.split(['/', '{', '}', '.', '-']).filter(|word| !word.is_empty());
    words.fold(row.method.to_owned(), |name, word| format!("{name}_{word}"))
}

fn of_kind(kind: &str) -> Value {
    match kind {
        "count" => json!({"type": "integer", "minimum": 0}),
        "flag" | "text" => json!({"type": "string"}),
        words => json!({"type": "string", "enum": words.split('|').collect::<Vec<_>>()}),
    }
}

fn answer(schema: &str, meaning: &str) -> Value {
    match schema {
        "none" => json!({"description": meaning}),
        schema => json!({"description": meaning, "content": content(schema)}),
    }
}

fn content(schema: &str) -> Value {
    let of = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let text = |meaning: &str| json!({"schema": {"type": "string", "description": meaning}});
    match schema {
        "" => json!({"application/json": {"schema": {"type": "object"}}}),
        "HOLD" => object(&json!({"held": {"type": ["boolean", "null"]}, "reason": {"type": ["string", "null"]}})),
        "REASON" => object(&json!({"reason": {"type": ["string", "null"]}})),
        "text" => json!({"text/plain": {"schema": {"type": "string"}}}),
        "file" => json!({"*/*": {"schema": {}}}),
        "database" => json!({"application/vnd.sqlite3": {"schema": {"type": "string", "format": "binary"}}}),
        "lines" => json!({"application/x-ndjson": text("one JSON object a line")}),
        // 3.1 has no word for the schema of one frame; 3.2 calls it itemSchema.
        "events" => json!({"text/event-stream": {
            "schema": {"type": "string", "description": "server-sent events: id is the event's seq, event its type, data a RunEvent"},
            "x-itemSchema": of("RunEvent"),
        }}),
        "Problem" => json!({"application/problem+json": {"schema": of("Problem")}}),
        list if list.starts_with('[') => {
            let rows = json!({"type": "array", "items": of(list.trim_matches(['[', ']']))});
            let page = json!({"type": "object", "required": ["items"], "properties": {"items": rows, "nextCursor": {"type": "string"}}});
            json!({"application/json": {"schema": page}})
        }
        names if names.contains('|') => {
            let each: Vec<Value> = names.split('|').map(of).collect();
            json!({"application/json": {"schema": {"anyOf": each}}})
        }
        name => json!({"application/json": {"schema": of(name)}}),
    }
}

fn object(properties: &Value) -> Value {
    let schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    json!({"application/json": {"schema": schema}})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{ROUTES, build};

    /// The routes as the router's source spells them; WebSocket upgrades are no part of OpenAPI.
    fn mounted() -> BTreeSet<String> {
        let source = include_str!("../http.rs");
        let mut routes = BTreeSet::new();
        for line in source.lines().filter_map(|line| line.trim().strip_prefix(".route(\"")) {
            let Some((path, handlers)) = line.split_once('"') else { continue };
            if matches!(path, "/" | "/ws" | "/api/agent//abort") {
                continue;
            }
            for method in ["get", "post", "put", "patch", "delete"] {
                if handlers.contains(&format!("{method}(")) {
                    routes.insert(format!("{method} {}", path.replace('*', "")));
                }
            }
        }
        routes
    }

    #[test]
    fn the_table_names_exactly_the_mounted_routes() {
        let table: BTreeSet<String> = ROUTES.iter().map(|row| format!("{} {}", row.method, row.path)).collect();
        assert_eq!(table, mounted());
        assert_eq!(table.len(), ROUTES.len(), "a route stands twice in the table");
    }

    #[test]
    fn every_reference_has_its_schema() {
        let document = build("quell");
        let text = document.to_string();
        for reference in text.split("#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(document["components"]["schemas"].get(name).is_some(), "no schema {name}");
        }
        assert!(text.contains("RunEvent"));
    }
}
