//! Which node of a cluster answers a request.

use axum::http::Method;
use percent_encoding::percent_decode_str;
use quell_channels::flow::channel_duty;
use quell_protocol::api::ComputeStatus;
use quell_protocol::{RunId, SessionKey};
use serde_json::{Value, json};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClusterRoute {
    /// The node that receives it: the database has the answer, or the engine asks the others itself.
    Here,
    /// The node that has the session; this one if nobody has.
    Session(SessionKey),
    /// The node that has the files which this run has changed; else as [`ClusterRoute::ChangeSession`], for its session.
    ChangeRun(RunId),
    /// As [`ClusterRoute::Session`]; a node takes the session over if nobody has it.
    ChangeSession(SessionKey),
    /// As [`ClusterRoute::ChangeSession`]. The text may be a stop.
    Message(SessionKey),
    /// As [`ClusterRoute::ChangeSession`]; the body names the session.
    OpenSession,
    /// All nodes: the answers are merged.
    EveryNode,
    /// The one node that knows what the request is about.
    AnyNode,
    /// The node that has this duty.
    Duty(String),
    /// The node that listens to the channel that the body names.
    SendToChannel,
    /// The nodes that listen to channels: each tells the state of its own ones.
    Channels,
}

impl ClusterRoute {
    pub(crate) fn of(method: &Method, path: &str) -> Self {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let with_key = |text: &str, route: fn(SessionKey) -> Self| {
            let key = percent_decode_str(text).decode_utf8().ok().and_then(|key| SessionKey::parse(key).ok());
            // The handler says what is wrong with it.
            key.map_or(Self::Here, route)
        };
        match (method.as_str(), parts.as_slice()) {
            ("POST", ["api", "sessions", key, "runs"]) => with_key(key, Self::Message),
            ("POST", ["api", "sessions"]) => Self::OpenSession,
            ("GET", ["api", "sessions", key])
            | ("GET", ["api", "sessions", key, "processes"])
            | ("GET" | "DELETE", ["api", "sessions", key, "processes", _]) => with_key(key, Self::Session),
            ("POST", ["api", "runs", id, "undo"]) => {
                let id = percent_decode_str(id).decode_utf8().ok().and_then(|id| RunId::parse(id).ok());
                id.map_or(Self::Here, Self::ChangeRun)
            }
            ("PATCH" | "DELETE", ["api", "sessions", key])
            | ("POST", ["api", "sessions", key, "compact" | "reset"])
            | ("PUT", ["api", "sessions", key, "sharing"]) => with_key(key, Self::ChangeSession),
            ("GET", ["api", "approvals" | "approval-rules" | "processes" | "agents"])
            | ("GET", ["api", "agents", _])
            | ("GET", ["api", "runs"]) => Self::EveryNode,
            ("POST", ["api", "approvals", _]) | ("DELETE", ["api", "approval-rules", _]) => Self::AnyNode,
            ("GET", ["api", "channels"]) => Self::Channels,
            ("POST", ["api", "channels", "send"]) => Self::SendToChannel,
            ("POST", ["api", "channels", name, "test"]) => {
                percent_decode_str(name).decode_utf8().map_or(Self::Here, |name| Self::Duty(channel_duty(&name)))
            }
            _ => Self::Here,
        }
    }
}

/// The session that a path names, unless the request is a stop: no stop depends on who may read.
pub(crate) fn session_of_path(path: &str) -> Option<SessionKey> {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match parts.as_slice() {
        ["api", "sessions", _, "stop"] => None,
        ["api", "sessions", key, ..] => SessionKey::parse(percent_decode_str(key).decode_utf8().ok()?).ok(),
        _ => None,
    }
}

/// The session that the parameters of a method name.
pub(crate) fn session_of_params(params: &Value) -> Option<SessionKey> {
    ["sessionKey", "key"].iter().find_map(|name| SessionKey::parse(params.get(*name)?.as_str()?).ok())
}

/// As [`ClusterRoute::of`], for a method of the WebSocket.
pub(crate) fn route_of_method(method: &str, params: &Value) -> ClusterRoute {
    let key = session_of_params(params);
    match (method, key) {
        ("chat.send", Some(key)) => ClusterRoute::Message(key),
        ("chat.inject" | "sessions.patch" | "sessions.reset" | "sessions.delete" | "sessions.share", Some(key)) => {
            ClusterRoute::ChangeSession(key)
        }
        ("sessions.describe" | "sessions.resolve", Some(key)) => ClusterRoute::Session(key),
        ("approvals.list" | "plugin.approval.list", _) => ClusterRoute::EveryNode,
        ("approvals.resolve" | "plugin.approval.resolve" | "exec.approval.resolve", _) => ClusterRoute::AnyNode,
        _ => ClusterRoute::Here,
    }
}

/// Adds the list of another node to that of this one: an array, or an object with one array.
pub(crate) fn merge_lists(merged: &mut Value, other: Value) {
    match (merged, other) {
        (Value::Array(rows), Value::Array(more)) => rows.extend(more),
        (Value::Object(merged), Value::Object(other)) => {
            for (name, rows) in other {
                if let Some(known) = merged.get_mut(&name) {
                    merge_lists(known, rows);
                }
            }
        }
        _ => {}
    }
}

/// Replaces the row of a channel by that of the node that listens to it.
pub(crate) fn replace_channel_row(merged: &mut Value, other: &Value, channel: &str) {
    let is_wanted = |row: &&Value| row["name"] == channel;
    let Some(row) = other["items"].as_array().and_then(|rows| rows.iter().find(is_wanted)) else { return };
    let Some(rows) = merged.get_mut("items").and_then(Value::as_array_mut) else { return };
    match rows.iter_mut().find(|row| row["name"] == channel) {
        Some(known) => *known = row.clone(),
        None => rows.push(row.clone()),
    }
}

/// Adds the answer of another node to a list, or to the row of something that several nodes have a part of.
pub(crate) fn merge_answers(merged: &mut Value, other: Value) {
    if let (Some(rows), Some(Value::Array(more))) =
        (merged.get_mut("items").and_then(Value::as_array_mut), other.get("items"))
    {
        for row in more {
            match rows.iter_mut().find(|known| identity(known).is_some() && identity(known) == identity(row)) {
                Some(known) => merge_rows(known, row),
                None => rows.push(row.clone()),
            }
        }
    } else {
        merge_rows(merged, &other);
    }
}

fn identity(row: &Value) -> Option<&Value> {
    row.get("runId").or_else(|| row.get("id"))
}

/// Of two rows of an agent, the busier status and the runs of both; of two rows of a run, the one that is further.
fn merge_rows(known: &mut Value, other: &Value) {
    if let Some(status) = status_of(other) {
        let busier = status_of(known).map_or(status, |known| known.busier(status));
        known["computeStatus"] = json!(busier);
    }
    if let (Some(runs), Some(Value::Array(more))) =
        (known.get_mut("activeRuns").and_then(Value::as_array_mut), other.get("activeRuns"))
    {
        let new: Vec<Value> = more.iter().filter(|run| !runs.contains(run)).cloned().collect();
        runs.extend(new);
    }
    if other.get("runId").is_some() && other["seq"].as_u64() > known["seq"].as_u64() {
        *known = other.clone();
    }
    if let (Some(children), Some(Value::Array(more))) =
        (known.get_mut("children").and_then(Value::as_array_mut), other.get("children"))
    {
        for child in more {
            if let Some(known) = children.iter_mut().find(|known| identity(known) == identity(child)) {
                merge_rows(known, child);
            }
        }
    }
}

fn status_of(row: &Value) -> Option<ComputeStatus> {
    serde_json::from_value(row.get("computeStatus")?.clone()).ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Method::POST, "/api/sessions/a%2Fb/runs", ClusterRoute::Message(SessionKey::parse("a/b").unwrap()))]
    #[case(Method::GET, "/api/sessions/s", ClusterRoute::Session(SessionKey::parse("s").unwrap()))]
    #[case(Method::DELETE, "/api/sessions/s", ClusterRoute::ChangeSession(SessionKey::parse("s").unwrap()))]
    #[case(Method::POST, "/api/sessions/s/stop", ClusterRoute::Here)]
    #[case(Method::POST, "/api/runs/r/stop", ClusterRoute::Here)]
    #[case(Method::POST, "/api/runs/r/undo", ClusterRoute::ChangeRun(RunId::parse("r").unwrap()))]
    #[case(Method::GET, "/api/sessions/s/history", ClusterRoute::Here)]
    #[case(Method::GET, "/api/approvals", ClusterRoute::EveryNode)]
    #[case(Method::POST, "/api/approvals/a", ClusterRoute::AnyNode)]
    #[case(Method::GET, "/api/channels", ClusterRoute::Channels)]
    #[case(Method::POST, "/api/channels/send", ClusterRoute::SendToChannel)]
    #[case(Method::POST, "/api/channels/a%20b/test", ClusterRoute::Duty("channel/a b".to_owned()))]
    #[case(Method::POST, "/api/channels/x/messages", ClusterRoute::Here)]
    #[case(Method::GET, "/healthz", ClusterRoute::Here)]
    fn each_request_is_answered_where_its_answer_is(
        #[case] method: Method,
        #[case] path: &str,
        #[case] route: ClusterRoute,
    ) {
        assert_eq!(ClusterRoute::of(&method, path), route);
    }

    #[test]
    fn methods_follow_the_session_that_they_name() {
        let key = SessionKey::parse("s").unwrap();
        assert_eq!(route_of_method("chat.send", &json!({"sessionKey": "s"})), ClusterRoute::Message(key.clone()));
        assert_eq!(route_of_method("sessions.reset", &json!({"key": "s"})), ClusterRoute::ChangeSession(key));
        assert_eq!(
            route_of_method("chat.abort", &json!({"sessionKey": "s"})),
            ClusterRoute::Here,
            "a stop asks itself"
        );
        let mut merged = json!({"approvals": [1]});
        merge_lists(&mut merged, json!({"approvals": [2], "more": 3}));
        assert_eq!(merged, json!({"approvals": [1, 2]}));
    }

    #[test]
    fn the_busier_node_of_an_agent_tells_its_status() {
        let mut merged = json!({"items": [{"id": "main", "computeStatus": "stopping", "activeRuns": ["a"]}]});
        let other = json!({"items": [
            {"id": "main", "computeStatus": "waiting_llm", "activeRuns": ["b"]},
            {"id": "other", "computeStatus": "idle", "activeRuns": []},
        ]});
        merge_answers(&mut merged, other);
        assert_eq!(merged["items"][0], json!({"id": "main", "computeStatus": "waiting_llm", "activeRuns": ["a", "b"]}));
        assert_eq!(merged["items"].as_array().unwrap().len(), 2);
    }
}
