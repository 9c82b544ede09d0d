//! Reject parameters that a method does not support, so that no client relies on a parameter that has no effect. The
//! protocol's own schemas are as strict.

use serde_json::{Map, Value, json};

use super::super::frame::RpcError;
use super::stop::MISSING_TARGET;

/// Checks that the parameters are an object that contains only fields that the method supports. A field that is null
/// counts as absent.
pub(super) fn check_parameters(method: &str, params: Value) -> Result<Value, RpcError> {
    // Missing parameters are an empty object. Those of an unknown method are not checked.
    let params = if params.is_null() { json!({}) } else { params };
    let Value::Object(fields) = &params else {
        let message =
            if method == "chat.abort" { MISSING_TARGET } else { "invalid params: they must be a JSON object" };
        return Err(RpcError::invalid(message));
    };
    let Some(supported) = supported_parameters(method) else { return Ok(params) };
    match fields.iter().find(|(name, value)| !is_supported(method, supported, name, value)) {
        None => Ok(params),
        Some((name, _)) => Err(unsupported_parameter(method, name)),
    }
}

fn is_supported(method: &str, supported: &[&str], name: &str, value: &Value) -> bool {
    // A null in a supported field goes to the method itself: in a stop, a malformed id must differ from an absent one.
    supported.contains(&name) || value.is_null() || is_default_value(method, name, value)
}

/// The error that names the unsupported parameter.
pub(super) fn unsupported_parameter(method: &str, name: &str) -> RpcError {
    let message = match (method, name) {
        ("chat.send", "attachments") => "attachments are not supported yet".to_owned(),
        _ => format!("{method} does not support the parameter {name}"),
    };
    RpcError::invalid(message).with_details(json!({"code": "UNSUPPORTED_PARAMETER", "parameter": name}))
}

/// The parameters that a method supports; `None` for an unknown method.
fn supported_parameters(method: &str) -> Option<&'static [&'static str]> {
    Some(match method {
        "agent.wait" => &["runId", "timeoutMs"],
        "approvals.resolve" | "plugin.approval.resolve" => &["id", "decision"],
        // `agentId` is accepted and ignored: a key identifies one session whatever its agent is, and an agent's name
        // must never widen a stop. `preserveSideRuns` has no effect, because Quell has no side runs.
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
        // Ignored: the answer is always current, and it has no channels that could be left out.
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
        // Quell has no sessions of the kinds global and unknown.
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

/// True for a value that asks for the default behaviour.
fn is_default_value(method: &str, name: &str, value: &Value) -> bool {
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
    use super::super::METHOD_NAMES;
    use super::*;

    #[test]
    fn every_method_says_what_it_heeds() {
        let silent: Vec<_> =
            METHOD_NAMES.iter().filter(|name| **name != "connect" && supported_parameters(name).is_none()).collect();
        assert_eq!(silent, Vec::<&&str>::new());
    }

    #[test]
    fn unsupported_parameters_are_refused_by_name() {
        let refused = check_parameters("chat.send", json!({"message": "x", "thinking": "high"})).unwrap_err();
        assert_eq!(refused, unsupported_parameter("chat.send", "thinking"));
        assert!(check_parameters("chat.send", json!({"message": "x", "thinking": null, "attachments": []})).is_ok());
        assert!(check_parameters("chat.send", json!({"deliver": true})).is_err());
        assert!(check_parameters("stop.all", json!([true])).is_err());
        assert_eq!(check_parameters("stop.all", Value::Null).unwrap(), json!({}));
    }
}
