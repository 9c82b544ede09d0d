//! Build the document from the route table and the derived schemas. Tests compare the table with the router, and the
//! document with the file.

use std::collections::{BTreeMap, BTreeSet};

use quell_protocol::agents::{AgentNode, AgentView, AgentsDeleted, NewAgent};
use quell_protocol::api::{
    AgentAbortAnswer, AgentRow, HistoryMessage, Hold, NewToken, RunView, SendAnswer, SendAttachment, SendRequest,
    SessionRow, SharingRequest, StopAllAnswer, StopAllRequest, StopAnswer, StopRunRequest, StopSessionRequest,
    TicketView, TokenRequest, TokenRotationRequest, TokenRow,
};
use quell_protocol::approval::{ApprovalAnswer, ApprovalRow, ApprovalRule};
use quell_protocol::audit::AuditRow;
use quell_protocol::background::{ProcessRow, ProcessView};
use quell_protocol::channel::{ChannelDelivery, ChannelHealth, ChannelReceived, ChannelRow, ChannelSend, ChannelTest};
use quell_protocol::cluster::{ClusterView, DrainRequest, DrainView, NodeView};
use quell_protocol::mcp::{McpContent, McpList, McpPromptRequest, McpResourceRequest};
use quell_protocol::memory::{NoteRow, NotesForgotten, SenderRow};
use quell_protocol::schedule::{SchedulePatch, ScheduleRequest, ScheduleView};
use quell_protocol::session::{SessionAnswer, SessionRequest, SessionView};
use quell_protocol::undo::{UndoReport, UndoRequest};
use quell_protocol::web_ui::{CallerView, ModelRow, SessionPatch, SignInLink, SignInRequest, SignedIn};
use quell_protocol::{ErrorCode, Problem, RunEvent};
use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use super::anthropic_schemas::anthropic_schemas;
use super::model_apis::model_api_schemas;
use super::routes::{QueryParamSpec, ROUTES, RequestBodySpec, ResponseSpec, RouteAuth, RouteSpec};
use super::{COOKIE_NAME, DOCUMENT_GZ};
use crate::web_files::decompress;

#[derive(OpenApi)]
#[openapi(components(schemas(
    AgentAbortAnswer,
    AgentNode,
    AgentRow,
    AgentView,
    AgentsDeleted,
    ApprovalAnswer,
    ApprovalRow,
    ApprovalRule,
    AuditRow,
    ChannelDelivery,
    ChannelHealth,
    ChannelReceived,
    ChannelRow,
    ChannelSend,
    ChannelTest,
    ClusterView,
    DrainRequest,
    DrainView,
    HistoryMessage,
    Hold,
    CallerView,
    McpContent,
    McpList,
    McpPromptRequest,
    McpResourceRequest,
    ModelRow,
    NewAgent,
    NewToken,
    NodeView,
    NoteRow,
    NotesForgotten,
    Problem,
    ProcessRow,
    ProcessView,
    RunEvent,
    RunView,
    SchedulePatch,
    ScheduleRequest,
    ScheduleView,
    SendAnswer,
    SendAttachment,
    SendRequest,
    SenderRow,
    SessionAnswer,
    SessionPatch,
    SessionRequest,
    SessionRow,
    SessionView,
    SharingRequest,
    SignInLink,
    SignInRequest,
    SignedIn,
    StopAllAnswer,
    StopAllRequest,
    StopAnswer,
    StopRunRequest,
    StopSessionRequest,
    TicketView,
    TokenRequest,
    TokenRotationRequest,
    TokenRow,
    UndoReport,
    UndoRequest,
)))]
struct OpenApiSchemas;

fn build_document() -> Value {
    let mut document = serde_json::to_value(OpenApiSchemas::openapi()).unwrap_or_default();
    mark_unsigned_formats(&mut document);
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
        "page": {"type": "apiKey", "in": "cookie", "name": COOKIE_NAME, "description": "the page's cookie, which /api/sign-in sets; only together with pageSecret"},
        "pageSecret": {"type": "apiKey", "in": "header", "name": "X-Quell-Page", "description": "the secret that the answer of /api/sign-in gives the page"},
    });
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        schemas.extend(model_api_schemas());
        schemas.extend(anthropic_schemas());
    }
    let mut paths = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method] = operation_object(route);
    }
    document["paths"] = Value::Object(paths);
    document
}

/// Corrects the format of unsigned numbers: the derive gives them the format of signed ones, which have half the range.
fn mark_unsigned_formats(schema: &mut Value) {
    let format = match (schema.get("minimum").and_then(Value::as_u64), schema.get("format").and_then(Value::as_str)) {
        (Some(0), Some("int64")) => Some("uint64"),
        (Some(0), Some("int32")) => Some("uint32"),
        _ => None,
    };
    if let Some(format) = format {
        schema["format"] = json!(format);
    }
    match schema {
        Value::Object(fields) => fields.values_mut().for_each(mark_unsigned_formats),
        Value::Array(items) => items.iter_mut().for_each(mark_unsigned_formats),
        _ => {}
    }
}

fn operation_object(route: &RouteSpec) -> Value {
    let mut operation = json!({
        "summary": route.summary,
        "operationId": operation_id(route),
        "x-quell-access": route.access.as_str(),
        "responses": {},
    });
    // A response of the route replaces the shared one with the same status.
    for (status, schema, meaning) in shared_responses(route).iter().chain(route.responses).filter_map(parse_response) {
        let schema = if schema == "Problem" { error_schema(route.path) } else { schema };
        operation["responses"][status] = response_object(schema, meaning);
    }
    let names = route.path.split(['{', '}']).skip(1).step_by(2);
    let in_path =
        |name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}});
    let in_query = |(name, kind, meaning): &QueryParamSpec| json!({"name": name, "in": "query", "required": false, "description": meaning, "schema": query_schema(kind)});
    let parameters: Vec<Value> = names.map(in_path).chain(route.query_params().iter().map(in_query)).collect();
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    match route.request_body {
        Some(RequestBodySpec::Required(schema)) => {
            operation["requestBody"] = json!({"required": true, "content": content_object(schema)});
        }
        Some(RequestBodySpec::Optional(schema)) => {
            operation["requestBody"] = json!({"required": false, "content": content_object(schema)});
        }
        None => {}
    }
    if route.auth() == RouteAuth::Token {
        operation["security"] = json!([{"token": []}, {"page": []}]);
    }
    operation
}

/// The schema of an error on this path: the APIs of model providers have their own.
fn error_schema(path: &str) -> &'static str {
    if path.starts_with("/v1/messages") {
        "AnthropicError"
    } else if path.starts_with("/v1/") {
        "OpenAiError"
    } else {
        "Problem"
    }
}

/// Status, schema and meaning. An error has a problem body, but for the one that comes before any route.
fn parse_response(spec: &&'static str) -> Option<(&'static str, &'static str, &'static str)> {
    let (status, rest) = spec.split_once(' ')?;
    match status.parse::<u16>().ok()? {
        431 => Some((status, "none", rest)),
        400.. => Some((status, "Problem", rest)),
        _ => rest.split_once(' ').map(|(schema, meaning)| (status, schema, meaning)),
    }
}

fn shared_responses(route: &RouteSpec) -> Vec<ResponseSpec> {
    let mut answers = vec!["431 the head of the request is too large, or has too many fields"];
    if route.auth() == RouteAuth::Probe {
        answers.push("503 the daemon has no descriptors left but for stops");
    } else {
        answers.push("421 the Host is none of the daemon's; add it to allowed_hosts in [server]");
    }
    if route.auth() == RouteAuth::Token {
        answers.push("401 a valid token is needed");
        answers.push("403 the token's scope does not allow it, or the web origin may not ask");
    }
    if route.auth() == RouteAuth::Token || route.path.contains("sign-in") {
        answers.push(
            "429 too many requests of this token, or with a bad token from this address; Retry-After says how long",
        );
    }
    if route.path.starts_with("/api/sign-") {
        answers.push("403 the web origin may not ask");
    }
    let is_api = route.path.starts_with("/api/");
    if route.auth() != RouteAuth::Probe {
        answers.push(match is_api || route.path.contains('{') {
            true => "503 the database cannot be used, the daemon is closing, or it receives or holds all that it can",
            false => "503 the daemon has no descriptors left but for stops",
        });
    }
    if route.request_body.is_some() || route.path.contains('{') || !route.query_params().is_empty() {
        answers.push("400 the request is not valid; the detail says what");
    }
    if route.request_body.is_some() {
        answers.push("408 the body did not come in time");
        answers.push("413 larger than request_body_bytes in [limits]");
        answers.push("415 the body is not JSON, or not said to be");
    }
    answers
}

fn operation_id(route: &RouteSpec) -> String {
    let words = route.path.split(['/', '{', '}', '.', '-']).filter(|word| !word.is_empty());
    words.fold(route.method.to_owned(), |name, word| format!("{name}_{word}"))
}

fn query_schema(kind: &str) -> Value {
    match kind {
        "count" => json!({"type": "integer", "minimum": 0}),
        "flag" | "text" => json!({"type": "string"}),
        words => json!({"type": "string", "enum": words.split('|').collect::<Vec<_>>()}),
    }
}

fn response_object(schema: &str, meaning: &str) -> Value {
    match schema {
        "none" => json!({"description": meaning}),
        schema => json!({"description": meaning, "content": content_object(schema)}),
    }
}

fn content_object(schema: &str) -> Value {
    let of = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let text = |meaning: &str| json!({"schema": {"type": "string", "description": meaning}});
    match schema {
        "object" => json!({"application/json": {"schema": {"type": "object"}}}),
        "HOLD" => {
            json_object_content(&json!({"held": {"type": ["boolean", "null"]}, "reason": {"type": ["string", "null"]}}))
        }
        "EMPTY" => json_object_content(&json!({})),
        "REASON" => json_object_content(&json!({"reason": {"type": ["string", "null"]}})),
        "text" => json!({"text/plain": {"schema": {"type": "string"}}}),
        "file" => json!({"*/*": {"schema": {}}}),
        "database" => json!({"application/vnd.sqlite3": {"schema": {"type": "string", "format": "binary"}}}),
        "AUDIT" => {
            let (mut page, lines) = (content_object("[AuditRow]"), content_object("lines"));
            page["application/x-ndjson"] = lines["application/x-ndjson"].clone();
            page
        }
        "lines" => json!({"application/x-ndjson": text("one JSON object a line")}),
        // OpenAPI 3.1 has no keyword for the schema of one frame; 3.2 calls it itemSchema.
        "events" => json!({"text/event-stream": {
            "schema": {"type": "string", "description": "server-sent events: id is the event's seq, event its type, data a RunEvent"},
            "x-itemSchema": of("RunEvent"),
        }}),
        "SENT" => {
            let (mut answer, events) = (content_object("SendAnswer|StopAnswer"), content_object("events"));
            answer["text/event-stream"] = events["text/event-stream"].clone();
            // Some programs compare each frame with a type that stands here.
            answer["text/event-stream"]["schema"] = json!({"description": "as of GET /api/runs/{id}/events"});
            answer
        }
        "Problem" => json!({"application/problem+json": {"schema": of("Problem")}}),
        // Whole, or as a stream of events if the request asks for one.
        "ChatCompletion" => json!({
            "application/json": {"schema": of("ChatCompletion")},
            "text/event-stream": text("server-sent events: data is a chunk of the answer, and [DONE] at its end"),
        }),
        "ResponseObject" => json!({
            "application/json": {"schema": of("ResponseObject")},
            "text/event-stream": text("server-sent events with a type and a sequence_number"),
        }),
        "AnthropicMessage" => json!({
            "application/json": {"schema": of("AnthropicMessage")},
            "text/event-stream": text("server-sent events from message_start to message_stop, or to error"),
        }),
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

fn json_object_content(properties: &Value) -> Value {
    let schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    json!({"application/json": {"schema": schema}})
}

/// The text up to the parenthesis that closes the call.
fn arguments(text: &str) -> &str {
    let mut open = 1;
    let is_end = |letter: char| {
        open += i32::from(letter == '(') - i32::from(letter == ')');
        open == 0
    };
    text.find(is_end).map_or(text, |end| &text[..end])
}

/// Reads the routes from the router's source. WebSocket upgrades are not part of OpenAPI.
fn mounted_routes() -> BTreeSet<String> {
    let sources = [
        include_str!("../../http.rs"),
        include_str!("../../router.rs"),
        include_str!("../../openai.rs"),
        include_str!("../../openai/responses.rs"),
        include_str!("../../anthropic.rs"),
    ];
    let mut routes = BTreeSet::new();
    for call in sources.iter().flat_map(|source| source.split(".route(").skip(1)) {
        let Some((path, handlers)) = call.trim_start().strip_prefix('"').and_then(|call| call.split_once('"')) else {
            continue;
        };
        let handlers = arguments(handlers);
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
    assert_eq!(table, mounted_routes());
    assert_eq!(table.len(), ROUTES.len(), "a route stands twice in the table");
}

#[test]
fn every_response_can_be_read() {
    let all: Vec<_> = ROUTES.iter().flat_map(|row| row.responses).collect();
    assert_eq!(all.iter().find(|spec| parse_response(spec).is_none()), None);
}

#[test]
fn every_reference_has_its_schema() {
    let document = build_document();
    let text = document.to_string();
    for reference in text.split("#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(document["components"]["schemas"].get(name).is_some(), "no schema {name}");
    }
    assert!(text.contains("RunEvent"));
}

/// The text of the file: each path and each schema in a line of its own, so that a change is seen as one. The order of
/// fields is that of the alphabet, whatever other crates ask of serde_json.
fn file_text(document: &Value) -> String {
    let document = &sorted(document);
    let lines = |fields: &Value| {
        let fields = fields.as_object().unwrap().iter();
        let lines: Vec<String> = fields.map(|(name, value)| format!("{}:{value}", json!(name))).collect();
        format!("{{\n{}\n}}", lines.join(",\n"))
    };
    let (schemas, sign_in) = (&document["components"]["schemas"], &document["components"]["securitySchemes"]);
    format!(
        "{{\"openapi\":{},\n\"info\":{},\n\"paths\":{},\n\"components\":{{\"securitySchemes\":{sign_in},\n\"schemas\":{}}}}}\n",
        document["openapi"],
        document["info"],
        lines(&document["paths"]),
        lines(schemas)
    )
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<&String, Value> = fields.iter().map(|(name, value)| (name, sorted(value))).collect();
            fields.into_iter().map(|(name, value)| (name.clone(), value)).collect()
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        other => other.clone(),
    }
}

/// A document that has changed is written below `target`, to be copied.
#[test]
fn the_file_has_the_document() {
    let document = build_document();
    let text = file_text(&document);
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), document);
    assert_eq!(text.matches(COOKIE_NAME).count(), 1, "each daemon puts the name of its cookie there");
    let file = include_str!("../../../../../docs/openapi.json");
    assert!(decompress(DOCUMENT_GZ) == file.as_bytes(), "the program contains the file");
    if text != file {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/openapi.json"), text).unwrap();
        panic!("docs/openapi.json is not current: look at what has changed, and cp target/openapi.json docs/");
    }
}
