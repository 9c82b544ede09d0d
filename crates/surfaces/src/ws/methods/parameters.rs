//! Which parameters each method heeds. The protocol's schemas are strict, and so is this door: a parameter that does nothing here
//! is refused by its name, so that nobody takes it for heeded.

use serde_json::{Map, Value, json};

use super::super::frame::Refusal;
use super::stop::MISSING;

/// Checks the parameters of a request: an object, with nothing in it that the method does not heed. Null is as good as absent.
pub(super) fn check(method: &str, params: Value) -> Result<Value, Refusal> {
    // None at all are an empty object; what those of an unknown method are nobody asks.
    let params = if params.is_null() { json!({}) } else { params };
    let Value::Object(fields) = &params else {
        let words = if method == "chat.abort" { MISSING } else { "invalid params: they must be a JSON object" };
        return Err(Refusal::invalid(words));
    };
    let Some(heeded) = heeded(method) else { return Ok(params) };
    match fields.iter().find(|(name, value)| !is_heeded(method, heeded, name, value)) {
        None => Ok(params),
        Some((name, _)) => Err(unsupported(method, name)),
    }
}

fn is_heeded(method: &str, heeded: &[&str], name: &str, value: &Value) -> bool {
    // A stop with a malformed id is told from one without (row A9), so that null there is for the method itself.
    heeded.contains(&name) || value.is_null() || means_nothing(method, name, value)
}

/// Refuses a parameter by its name.
pub(super) fn unsupported(method: &str, name: &str) -> Refusal {
    let message = match (method, name) {
        ("chat.send", "attachments") => "attachments are not supported yet".to_owned(),
        _ => format!("{method} does not support the parameter {name}"),
    };
    Refusal::invalid(message).with_details(json!({"code": "UNSUPPORTED_PARAMETER", "parameter": name}))
}

/// The parameters that a method heeds; none for an unknown method.
fn heeded(method: &str) -> Option<&'static [&'static str]> {
    Some(match method {
        "agent.wait" => &["runId", "timeoutMs"],
        "approvals.resolve" | "plugin.approval.resolve" => &["id", "decision"],
        // A session's key names it whatever its agent is, and a stop of it never takes more for an agent's name: `agentId` is
        // taken and not needed. There are no side runs that a stop could spare.
        "chat.abort" => &["sessionKey", "runId", "agentId", "preserveSideRuns", "force", "reason", "stopReason"],
        "chat.history" => &["sessionKey", "sessionId", "agentId", "limit", "offset", "cursor"],
        "chat.send" => &[
            "sessionKey",
            "sessionId",
            "message",
            "idempotencyKey",
            "agentId",
            "queueMode",
            "timeoutMs",
            "suppressCommandInterpretation",
        ],
        "commands.list" => &["scope", "includeArgs", "agentId", "sessionKey"],
        // Both are always answered as of now, and there are no channels in them that could be left out.
        "health" => &["probe"],
        "status" => &["includeChannelSummary"],
        "hold.set" => &["held", "reason"],
        "models.list" => &["agentId", "view"],
        "node.event" => &["event", "payload", "payloadJSON"],
        "runs.follow" => &["runId", "after"],
        "runs.get" | "runs.unfollow" => &["runId"],
        "runs.list" => &["state", "sessionKey", "limit", "cursor"],
        "runs.stop" => &["runId", "sessionKey", "force", "wait", "reason"],
        "sessions.abort" => &["key", "sessionKey", "runId", "agentId", "clearQueued", "force", "reason", "stopReason"],
        "sessions.delete" => &["key", "sessionKey", "agentId", "expectedSessionId"],
        "sessions.describe" => &["key", "sessionKey", "includeDerivedTitles", "includeLastMessage"],
        "sessions.list" => &[
            "limit",
            "offset",
            "cursor",
            "activeMinutes",
            "sortBy",
            "includeGlobal",
            "includeUnknown",
            "includeDerivedTitles",
            "includeLastMessage",
            "label",
            "search",
            "archived",
            "agentId",
        ],
        "sessions.reset" => &["key", "sessionKey", "agentId", "reason", "expectedSessionId"],
        // There are no sessions of the kinds global and unknown.
        "sessions.resolve" => {
            &["key", "sessionKey", "sessionId", "agentId", "includeGlobal", "includeUnknown", "allowMissing"]
        }
        "stop.all" => &["force", "hold", "reason"],
        "agents.list"
        | "approvals.list"
        | "hold.get"
        | "plugin.approval.list"
        | "question.list"
        | "sessions.subscribe" => &[],
        _ => return None,
    })
}

/// A value that asks for what is so anyway.
fn means_nothing(method: &str, name: &str, value: &Value) -> bool {
    let is = |wanted: bool| *value == Value::Bool(wanted);
    let is_empty = || value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty);
    match (method, name) {
        ("chat.send", "attachments" | "mentions" | "toolBindings") => is_empty(),
        ("chat.send", "deliver" | "fastMode") => is(false),
        ("models.list", "refresh" | "preparedOnly" | "includeProviderCapabilities") => is(false),
        (
            "sessions.list",
            "requireLastInteraction" | "configuredAgentsOnly" | "ownerFirst" | "involvingMe" | "includePeople",
        ) => is(false),
        ("sessions.delete", "deleteTranscript" | "emitLifecycleHooks") => is(true),
        ("sessions.delete", "archivedOnly") => is(false),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::NAMES;
    use super::*;

    #[test]
    fn every_method_says_what_it_heeds() {
        let silent: Vec<_> = NAMES.iter().filter(|name| **name != "connect" && heeded(name).is_none()).collect();
        assert_eq!(silent, Vec::<&&str>::new());
    }

    #[test]
    fn what_is_not_heeded_is_refused_by_name() {
        let refused = check("chat.send", json!({"message": "x", "thinking": "high"})).unwrap_err();
        assert_eq!(refused, unsupported("chat.send", "thinking"));
        assert!(check("chat.send", json!({"message": "x", "thinking": null, "attachments": []})).is_ok());
        assert!(check("chat.send", json!({"deliver": true})).is_err());
        assert!(check("stop.all", json!([true])).is_err());
        assert_eq!(check("stop.all", Value::Null).unwrap(), json!({}));
    }
}
