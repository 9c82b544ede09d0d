//! `/openapi.json`: the routes as a table, the bodies as the schemas that the protocol's types derive. A test holds the table
//! against the router.

use axum::Json;
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

/// One route.
struct Row {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    /// Schema of the request body, if it takes one.
    takes: Option<&'static str>,
    /// Status, schema (`[X]` is a page of X, `text` is text), meaning.
    answers: &'static [(u16, &'static str, &'static str)],
}

/// The route that shows no token: its callers sign.
const SIGNED: &str = "/api/channels/{name}/messages";

const fn get(path: &'static str, summary: &'static str, answers: &'static [(u16, &'static str, &'static str)]) -> Row {
    Row { method: "get", path, summary, takes: None, answers }
}

const fn post(
    path: &'static str,
    summary: &'static str,
    takes: &'static str,
    answers: &'static [(u16, &'static str, &'static str)],
) -> Row {
    Row { method: "post", path, summary, takes: Some(takes), answers }
}

const fn delete(
    path: &'static str,
    summary: &'static str,
    answers: &'static [(u16, &'static str, &'static str)],
) -> Row {
    Row { method: "delete", path, summary, takes: None, answers }
}

const ROUTES: &[Row] = &[
    get("/healthz", "The process is up", &[(200, "", "up")]),
    get("/readyz", "The daemon takes requests", &[(200, "", "ready"), (503, "Problem", "closing")]),
    get("/metrics", "Prometheus metrics", &[(200, "text", "metrics")]),
    get("/openapi.json", "This document", &[(200, "", "the document")]),
    get("/api/agents", "All agents", &[(200, "[AgentRow]", "agents")]),
    post(
        "/api/agents",
        "Make an agent at run time",
        "NewAgent",
        &[
            (201, "AgentRow", "made, durable"),
            (400, "Problem", "it cannot be built"),
            (409, "Problem", "the id is taken"),
            (503, "Problem", "closing, or the database cannot be written"),
        ],
    ),
    get("/api/agents/tree", "All agents as the trees that they form", &[(200, "[AgentNode]", "the roots")]),
    delete(
        "/api/agents/{id}",
        "Delete an agent that was made at run time, with all below it; ?force stops their runs first",
        &[
            (200, "AgentsDeleted", "gone"),
            (404, "Problem", "unknown"),
            (409, "Problem", "it is configured, or has runs that are not over"),
        ],
    ),
    get(
        "/api/agents/{id}",
        "One agent, with what it has spent today",
        &[(200, "AgentView", "the agent"), (404, "Problem", "unknown")],
    ),
    post(
        "/api/agent/{id}/abort",
        "Abort the agent's model calls; with ?scope=run all its runs, with ?scope=tree those of all agents below it, too",
        "StopRunRequest",
        &[(200, "AgentAbortAnswer", "what was aborted"), (400, "Problem", "no id"), (404, "Problem", "unknown")],
    ),
    get("/api/models", "The models that agents work with", &[(200, "[ModelRow]", "models")]),
    get("/api/me", "Who the caller is", &[(200, "Me", "the token's name and scope"), (401, "Problem", "nobody")]),
    post(
        "/api/sign-in",
        "Sign a browser in with a token",
        "SignInRequest",
        &[(200, "Me", "signed in, with the page's cookie"), (401, "Problem", "no token of this daemon")],
    ),
    Row {
        method: "post",
        path: "/api/sign-in-link",
        summary: "Make a one-time link that signs a browser in",
        takes: None,
        answers: &[(200, "SignInLink", "its path"), (403, "Problem", "only admins may")],
    },
    Row {
        method: "post",
        path: "/api/sign-out",
        summary: "Sign a browser out",
        takes: None,
        answers: &[(204, "", "the cookie is worth nothing any more")],
    },
    get(
        "/sign-in/{code}",
        "The one-time link: signs a browser in and leads to the page",
        &[(303, "", "to `/`, or to `/#sign-in-failed`")],
    ),
    get("/assets/{*path}", "A file of the page", &[(200, "text", "the file"), (404, "Problem", "unknown")]),
    get("/api/sessions", "Sessions, the last used first", &[(200, "[SessionRow]", "sessions")]),
    post(
        "/api/sessions",
        "Get or create the session of a user's chat with a provider",
        "SessionRequest",
        &[
            (201, "SessionAnswer", "made"),
            (200, "SessionAnswer", "it was there, and is configured so from now on"),
            (403, "Problem", "a hook refused it"),
            (422, "Problem", "it cannot be made as it is configured"),
        ],
    ),
    get(
        "/api/sessions/{key}",
        "One session with the configuration in force; keys are masked",
        &[(200, "SessionView", "the session"), (404, "Problem", "unknown")],
    ),
    Row {
        method: "patch",
        path: "/api/sessions/{key}",
        summary: "Give a session another model or agent from its next run on; makes it when there is none",
        takes: Some("SessionPatch"),
        answers: &[(200, "SessionView", "the session"), (422, "Problem", "the model or agent cannot be used")],
    },
    delete("/api/sessions/{key}", "Stop and delete a session", &[(204, "", "deleted"), (404, "Problem", "unknown")]),
    get(
        "/api/sessions/{key}/history",
        "A session's messages, for people",
        &[(200, "[HistoryMessage]", "messages"), (404, "Problem", "unknown")],
    ),
    get(
        "/api/sessions/{key}/export",
        "A session as lines of JSON, for POST /api/import",
        &[(200, "lines", "the session's head, runs and past"), (404, "Problem", "unknown")],
    ),
    post(
        "/api/import",
        "Take in a session that was exported, whole or not at all",
        "lines",
        &[
            (201, "SessionRow", "the session"),
            (400, "Problem", "a line is not right; the detail names it"),
            (409, "Problem", "the session or one of its runs exists, or another import is under way"),
            (413, "Problem", "larger than import_bytes in [limits]"),
        ],
    ),
    post(
        "/api/sessions/{key}/reset",
        "Stop a session and empty its history; old turns stay under a boundary",
        "",
        &[(200, "SessionRow", "the session"), (404, "Problem", "unknown")],
    ),
    get(
        "/api/sessions/{key}/memory",
        "A session's notes, the newest first; ?query= finds those that are about it, the most relevant first",
        &[(200, "[NoteRow]", "notes"), (404, "Problem", "unknown")],
    ),
    delete(
        "/api/sessions/{key}/memory/{note}",
        "Forget a note of a session",
        &[(204, "", "deleted"), (404, "Problem", "unknown")],
    ),
    get(
        "/api/agents/{id}/memory",
        "What an agent knows in all its sessions; ?query= as for a session",
        &[(200, "[NoteRow]", "notes"), (404, "Problem", "unknown")],
    ),
    delete(
        "/api/agents/{id}/memory/{note}",
        "Forget a note of an agent",
        &[(204, "", "deleted"), (404, "Problem", "unknown")],
    ),
    get(
        "/api/senders",
        "Of whom in chat networks something is remembered, the newest note first",
        &[(200, "[SenderRow]", "senders")],
    ),
    get(
        "/api/senders/{sender}/memory",
        "The notes of who writes in a chat network, as CHANNEL:SENDER; ?query= as for a session",
        &[(200, "[NoteRow]", "notes"), (404, "Problem", "nothing is remembered of them")],
    ),
    delete(
        "/api/senders/{sender}/memory",
        "Forget all notes of a sender",
        &[(200, "NotesForgotten", "how many"), (404, "Problem", "nothing is remembered of them")],
    ),
    delete(
        "/api/senders/{sender}/memory/{note}",
        "Forget a note of a sender",
        &[(204, "", "deleted"), (404, "Problem", "unknown")],
    ),
    post(
        "/api/sessions/{key}/runs",
        "Send a message",
        "SendRequest",
        &[
            (202, "SendAnswer", "accepted"),
            (200, "SendAnswer", "a repeat: its state now; or, for a stop text, a StopAnswer"),
            (409, "Problem", "the idempotency key was used for another message, or the session is busy"),
            (429, "Problem", "too many wait, or the agent has spent what it may in a day"),
            (503, "Problem", "held, closing, or the database cannot be written"),
        ],
    ),
    post(
        "/api/sessions/{key}/stop",
        "Stop all runs of a session and withdraw its queue",
        "StopSessionRequest",
        &[(200, "StopAnswer", "what was stopped")],
    ),
    get("/api/processes", "The background commands of all sessions", &[(200, "[ProcessRow]", "processes")]),
    get("/api/sessions/{key}/processes", "A session's background commands", &[(200, "[ProcessRow]", "processes")]),
    get(
        "/api/sessions/{key}/processes/{id}",
        "A background command with what it printed; ?after= reads on",
        &[(200, "ProcessView", "the process"), (404, "Problem", "unknown")],
    ),
    delete(
        "/api/sessions/{key}/processes/{id}",
        "End a background command and wait until it is dead; ?force=1 kills at once",
        &[(200, "ProcessRow", "ended"), (403, "Problem", "not yours"), (404, "Problem", "unknown")],
    ),
    get("/api/runs", "Runs, newest first; ?state=active for those that are not over", &[(200, "[RunView]", "runs")]),
    get("/api/runs/{id}", "One run with its receipt", &[(200, "RunView", "the run"), (404, "Problem", "unknown")]),
    get(
        "/api/runs/{id}/events",
        "A run's events as server-sent events; resume by Last-Event-ID or ?after=",
        &[(200, "events", "each frame's data is a RunEvent"), (404, "Problem", "unknown")],
    ),
    post(
        "/api/runs/{id}/stop",
        "Stop a run; ?wait=1 answers with the receipt",
        "StopRunRequest",
        &[
            (202, "TicketView", "stopping"),
            (200, "TicketView", "over, with the receipt"),
            (403, "Problem", "not yours"),
            (404, "Problem", "unknown"),
        ],
    ),
    get("/api/approvals", "Calls that wait for a person", &[(200, "[ApprovalRow]", "approvals")]),
    post(
        "/api/approvals/{id}",
        "Allow or deny a call that waits",
        "ApprovalAnswer",
        &[
            (200, "ApprovalRow", "answered"),
            (403, "Problem", "not yours"),
            (404, "Problem", "unknown"),
            (409, "Problem", "it was settled before"),
        ],
    ),
    post("/api/stop", "Stop everything", "StopAllRequest", &[(200, "StopAllAnswer", "what was stopped")]),
    get("/api/hold", "Whether new runs are held", &[(200, "Hold", "the hold")]),
    Row {
        method: "put",
        path: "/api/hold",
        summary: "Hold new runs",
        takes: Some(""),
        answers: &[(200, "Hold", "the hold")],
    },
    delete("/api/hold", "Lift the hold", &[(200, "Hold", "the hold")]),
    get("/api/channels", "The chat networks and how they fare", &[(200, "[ChannelRow]", "channels")]),
    post(
        "/api/channels/send",
        "Say something in a chat in the name of a channel",
        "ChannelSend",
        &[
            (200, "ChannelDelivery", "what became of it; look at `delivery`"),
            (400, "Problem", "it is not said where, or nothing is said"),
            (404, "Problem", "there is no such channel"),
            (409, "Problem", "the channel's configuration cannot be used"),
        ],
    ),
    Row {
        method: "post",
        path: "/api/channels/{name}/test",
        summary: "Ask a network who the account of a channel is",
        takes: None,
        answers: &[(200, "ChannelTest", "what it says; look at `ok`"), (404, "Problem", "unknown")],
    },
    post(
        "/api/channels/{name}/messages",
        "Post a message to a channel of signed HTTP; authenticated by its signature alone",
        "",
        &[
            (202, "ChannelReceived", "it is kept, and a stop has acted"),
            (400, "Problem", "it is no message"),
            (401, "Problem", "it is not signed, wrongly, or not now"),
            (404, "Problem", "there is no such channel of signed HTTP"),
            (413, "Problem", "the body is too large"),
            (503, "Problem", "it is not kept yet, or the daemon is closing: post it again"),
        ],
    ),
    get("/api/backup", "A copy of the whole database, as it is at one moment", &[(200, "database", "a SQLite file")]),
    get(
        "/api/audit",
        "Who did what, when and from where: the oldest first after ?after=",
        &[(200, "[AuditRow]", "entries")],
    ),
    get("/api/tokens", "All tokens, without their secrets", &[(200, "[TokenRow]", "tokens")]),
    post(
        "/api/tokens",
        "Make a token; its secret is shown once",
        "TokenRequest",
        &[(201, "NewToken", "the token"), (409, "Problem", "the name is taken")],
    ),
    delete("/api/tokens/{name}", "Revoke a token", &[(204, "", "revoked"), (404, "Problem", "unknown")]),
];

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

pub(super) async fn document(_visitor: super::Visitor) -> Json<Value> {
    Json(build())
}

fn build() -> Value {
    let mut document = serde_json::to_value(Schemas::openapi()).unwrap_or_default();
    let codes: Vec<&str> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
    document["info"] = json!({
        "title": "Quell",
        "version": env!("CARGO_PKG_VERSION"),
        "description": format!("A gateway for LLM agents that you can stop. Every error is application/problem+json with one of \
                                these codes: {}.", codes.join(", ")),
        "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
    });
    document["components"]["securitySchemes"] = json!({"token": {"type": "http", "scheme": "bearer"}});
    let mut paths = Map::new();
    for row in ROUTES {
        let path = paths.entry(row.path).or_insert_with(|| json!({}));
        path[row.method] = operation(row);
    }
    document["paths"] = Value::Object(paths);
    document
}

fn operation(row: &Row) -> Value {
    let mut operation = json!({"summary": row.summary, "responses": {}});
    for (status, schema, meaning) in row.answers {
        operation["responses"][status.to_string()] = answer(schema, meaning);
    }
    let names = row.path.split(['{', '}']).skip(1).step_by(2);
    let parameters: Vec<Value> =
        names.map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}})).collect();
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    if let Some(schema) = row.takes {
        // Sending, making a token and answering need a body; every other may be absent or empty.
        let required = matches!(schema, "SendRequest" | "TokenRequest" | "ApprovalAnswer" | "ChannelSend" | "lines")
            || row.path == SIGNED;
        operation["requestBody"] = json!({"required": required, "content": content(schema)});
    }
    if !matches!(row.path, "/healthz" | "/readyz" | SIGNED) {
        operation["security"] = json!([{"token": []}]);
        operation["responses"]["401"] = answer("Problem", "a valid token is needed");
    }
    operation
}

fn answer(schema: &str, meaning: &str) -> Value {
    match schema {
        "" if meaning == "deleted" || meaning == "revoked" => json!({"description": meaning}),
        schema => json!({"description": meaning, "content": content(schema)}),
    }
}

fn content(schema: &str) -> Value {
    let of = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    match schema {
        "" => json!({"application/json": {"schema": {"type": "object"}}}),
        "text" => json!({"text/plain": {"schema": {"type": "string"}}}),
        "database" => json!({"application/vnd.sqlite3": {"schema": {"type": "string", "format": "binary"}}}),
        "lines" => json!({"application/x-ndjson": {"itemSchema": {"type": "object"}}}),
        "events" => json!({"text/event-stream": {"itemSchema": of("RunEvent")}}),
        "Problem" => json!({"application/problem+json": {"schema": of("Problem")}}),
        list if list.starts_with('[') => {
            let rows = json!({"type": "array", "items": of(list.trim_matches(['[', ']']))});
            let page = json!({"type": "object", "required": ["items"], "properties": {"items": rows, "nextCursor": {"type": "string"}}});
            json!({"application/json": {"schema": page}})
        }
        name => json!({"application/json": {"schema": of(name)}}),
    }
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
                    routes.insert(format!("{method} {path}"));
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
        let document = build();
        let text = document.to_string();
        for reference in text.split("#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(document["components"]["schemas"].get(name).is_some(), "no schema {name}");
        }
        assert!(text.contains("RunEvent"));
    }
}
