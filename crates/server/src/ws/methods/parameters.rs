//! The methods, with the scope that each needs and the parameters that it supports. Other parameters are rejected, so
//! that no client relies on a parameter that has no effect. The protocol's own schemas are as strict.

use quell_protocol::api::AccessLevel;
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
    let Some(spec) = find_method(method).filter(|spec| spec.name != "connect") else { return Ok(params) };
    match fields.iter().find(|(name, value)| !is_supported(spec, name, value)) {
        None => Ok(params),
        Some((name, _)) => Err(unsupported_parameter(method, name)),
    }
}

fn is_supported(spec: &MethodSpec, name: &str, value: &Value) -> bool {
    // A null in a supported field goes to the method itself: in a stop, a malformed id must differ from an absent one.
    spec.parameters.split_whitespace().any(|known| known == name)
        || value.is_null()
        || is_default_value(spec.name, name, value)
}

pub(super) fn unsupported_parameter(method: &str, name: &str) -> RpcError {
    let message = match (method, name) {
        ("chat.send", "attachments") => "attachments are not supported yet".to_owned(),
        _ => format!("{method} does not support the parameter {name}"),
    };
    RpcError::invalid(message).with_details(json!({"code": "UNSUPPORTED_PARAMETER", "parameter": name}))
}

/// A method, as `hello-ok` announces it.
pub(in crate::ws) struct MethodSpec {
    pub(in crate::ws) name: &'static str,
    /// The scope that each call needs; `None` where none is needed or the method decides.
    scope: Option<AccessLevel>,
    /// Names, separated by spaces.
    parameters: &'static str,
}

const fn read(name: &'static str, parameters: &'static str) -> MethodSpec {
    MethodSpec { name, scope: Some(AccessLevel::Read), parameters }
}

const fn write(name: &'static str, parameters: &'static str) -> MethodSpec {
    MethodSpec { name, scope: Some(AccessLevel::Write), parameters }
}

const fn admin(name: &'static str, parameters: &'static str) -> MethodSpec {
    MethodSpec { name, scope: Some(AccessLevel::Admin), parameters }
}

const fn open(name: &'static str, parameters: &'static str) -> MethodSpec {
    MethodSpec { name, scope: None, parameters }
}

pub(in crate::ws) const METHODS: &[MethodSpec] = &[
    read("agent.wait", "runId timeoutMs"),
    read("agents.list", ""),
    open("approvals.list", ""),
    open("approvals.resolve", "id decision"),
    // `agentId` is accepted and ignored: a key identifies one session whatever its agent is, and an agent's name must
    // never widen a stop. `preserveSideRuns` has no effect, because Quell has no side runs.
    write("chat.abort", "sessionKey runId agentId preserveSideRuns force reason stopReason"),
    read("chat.history", "sessionKey sessionId agentId limit offset cursor"),
    write(
        "chat.send",
        "sessionKey sessionId message idempotencyKey agentId queueMode timeoutMs suppressCommandInterpretation",
    ),
    read("commands.list", "scope includeArgs agentId sessionKey"),
    open("connect", ""),
    // `probe` is ignored: the answer is always current.
    open("health", "probe"),
    read("hold.get", ""),
    admin("hold.set", "held reason"),
    read("models.list", "agentId view"),
    open("node.event", "event payload payloadJSON"),
    open("plugin.approval.list", ""),
    open("plugin.approval.resolve", "id decision"),
    open("question.list", ""),
    read("runs.follow", "runId after"),
    read("runs.get", "runId"),
    read("runs.list", "state sessionKey limit cursor"),
    write("runs.stop", "runId sessionKey force wait reason"),
    open("runs.unfollow", "runId"),
    write("sessions.abort", "key sessionKey runId agentId clearQueued force reason stopReason"),
    write("sessions.delete", "key sessionKey agentId expectedSessionId"),
    read("sessions.describe", "key sessionKey includeDerivedTitles includeLastMessage"),
    read(
        "sessions.list",
        "limit offset cursor activeMinutes sortBy includeGlobal includeUnknown includeDerivedTitles \
         includeLastMessage label search archived agentId",
    ),
    write("sessions.reset", "key sessionKey agentId reason expectedSessionId"),
    // Quell has no sessions of the kinds global and unknown.
    read("sessions.resolve", "key sessionKey sessionId agentId includeGlobal includeUnknown allowMissing"),
    read("sessions.subscribe", ""),
    // Ignored: the answer has no channels that could be left out.
    read("status", "includeChannelSummary"),
    admin("stop.all", "force hold reason"),
];

fn find_method(name: &str) -> Option<&'static MethodSpec> {
    METHODS.iter().find(|method| method.name == name)
}

pub(super) fn unknown_method(name: &str) -> RpcError {
    RpcError::invalid(format!("unknown method: {name}"))
}

/// The scope that each call of a method needs. A method without a row is not served.
pub(super) fn required_scope(method: &str) -> Result<Option<AccessLevel>, RpcError> {
    find_method(method).map(|spec| spec.scope).ok_or_else(|| unknown_method(method))
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
    use super::*;

    #[test]
    fn a_method_without_a_row_is_refused() {
        assert_eq!(required_scope("stop.agent"), Err(unknown_method("stop.agent")));
        assert_eq!(required_scope("stop.all"), Ok(Some(AccessLevel::Admin)));
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
