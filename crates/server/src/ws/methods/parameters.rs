//! The methods, with the scope that each needs and the parameters that it supports. Other parameters are rejected, so
//! that no client relies on a parameter that has no effect. The protocol's own schemas are as strict.

use serde_json::{Map, Value, json};

use super::super::frame::RpcError;
use super::stop::MISSING_TARGET;
use crate::access_rules::RouteAccess::{self, Admin, Approve, List, Manage, Public, Read, Stop, StopAll, Token, Use};

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
    let message = format!("{method} does not support the parameter {name}");
    RpcError::invalid(message).with_details(json!({"code": "UNSUPPORTED_PARAMETER", "parameter": name}))
}

/// A method, as `hello-ok` announces it.
pub(in crate::ws) struct MethodSpec {
    pub(in crate::ws) name: &'static str,
    access: RouteAccess,
    /// True for a method that serves every connection, or checks the scope itself.
    checks_itself: bool,
    /// Names, separated by spaces.
    parameters: &'static str,
}

const fn method(access: RouteAccess, name: &'static str, parameters: &'static str) -> MethodSpec {
    MethodSpec { name, access, checks_itself: false, parameters }
}

const fn open(access: RouteAccess, name: &'static str, parameters: &'static str) -> MethodSpec {
    MethodSpec { name, access, checks_itself: true, parameters }
}

pub(in crate::ws) const METHODS: &[MethodSpec] = &[
    // `thinking`, `deliver` and the rest that a client may leave out are refused unless they ask for nothing.
    method(Use, "agent", "message idempotencyKey agentId sessionKey sessionId timeout attachments"),
    method(Read, "agent.wait", "runId timeoutMs"),
    method(List, "agents.list", ""),
    open(List, "approvals.list", ""),
    open(Approve, "approvals.resolve", "id decision scope pattern reason fields"),
    // `agentId` is accepted and ignored: a key identifies one session whatever its agent is, and an agent's name must
    // never widen a stop. `preserveSideRuns` has no effect, because Quell has no side runs.
    method(Stop, "chat.abort", "sessionKey runId agentId preserveSideRuns force reason stopReason"),
    method(Read, "chat.history", "sessionKey sessionId agentId limit offset cursor maxBytes inputRunIds"),
    method(Manage, "chat.inject", "sessionKey agentId message label"),
    method(Token, "chat.metadata", "agentId sessionKey"),
    method(
        Use,
        "chat.send",
        "sessionKey sessionId message idempotencyKey agentId queueMode timeoutMs suppressCommandInterpretation \
         attachments",
    ),
    method(Read, "chat.startup", "sessionKey sessionId agentId limit offset cursor maxBytes inputRunIds"),
    method(Token, "commands.list", "scope includeArgs agentId sessionKey"),
    method(Token, "config.get", ""),
    open(Public, "connect", ""),
    open(List, "exec.approval.list", ""),
    open(Approve, "exec.approval.resolve", "id decision scope pattern reason fields"),
    // `probe` is ignored: the answer is always current.
    open(Public, "health", "probe"),
    method(Token, "hold.get", ""),
    method(Admin, "hold.set", "held reason"),
    // The models of an agent are the same in all its sessions.
    method(Token, "models.list", "agentId view sessionKey"),
    open(List, "node.event", "event payload payloadJSON"),
    open(List, "plugin.approval.list", ""),
    open(Approve, "plugin.approval.resolve", "id decision scope pattern reason fields"),
    open(Public, "question.list", ""),
    method(Read, "runs.follow", "runId after"),
    method(Read, "runs.get", "runId"),
    method(List, "runs.list", "state sessionKey limit cursor"),
    method(Stop, "runs.stop", "runId sessionKey force wait reason"),
    open(Public, "runs.unfollow", "runId"),
    method(Stop, "sessions.abort", "key sessionKey runId agentId clearQueued force reason stopReason"),
    method(Manage, "sessions.compact", "key agentId"),
    // `parentSessionKey` and the fields beside it are accepted: a session takes nothing over from another one.
    method(
        Use,
        "sessions.create",
        "key agentId model thinkingLevel message idempotencyKey parentSessionKey succeedsParent emitCommandHooks",
    ),
    method(Manage, "sessions.delete", "key sessionKey agentId expectedSessionId"),
    method(Read, "sessions.describe", "key sessionKey includeDerivedTitles includeLastMessage"),
    method(Read, "sessions.get", "key agentId limit offset cursor"),
    method(
        List,
        "sessions.list",
        "limit offset cursor activeMinutes sortBy includeGlobal includeUnknown includeDerivedTitles \
         includeLastMessage label search archived agentId",
    ),
    // Approvals come to every client that may see them.
    method(List, "sessions.messages.subscribe", "key agentId includeApprovals"),
    method(List, "sessions.messages.unsubscribe", "key agentId includeApprovals"),
    method(Use, "sessions.patch", "key agentId expectedSessionId model thinkingLevel verboseLevel"),
    method(List, "sessions.preview", "keys limit maxChars"),
    method(Manage, "sessions.reset", "key sessionKey agentId reason expectedSessionId"),
    // Quell has no sessions of the kinds global and unknown.
    method(Read, "sessions.resolve", "key sessionKey sessionId agentId includeGlobal includeUnknown allowMissing"),
    method(Manage, "sessions.share", "key sessionKey shared"),
    method(List, "sessions.subscribe", ""),
    method(Read, "sessions.usage", "key"),
    // Ignored: the answer has no channels that could be left out.
    method(Token, "status", "includeChannelSummary"),
    method(StopAll, "stop.all", "force hold reason"),
    method(Token, "system-presence", ""),
];

fn find_method(name: &str) -> Option<&'static MethodSpec> {
    METHODS.iter().find(|method| method.name == name)
}

pub(super) fn unknown_method(name: &str) -> RpcError {
    RpcError::invalid(format!("unknown method: {name}"))
}

/// The rule for the callers of a method; `None` for a method that checks them itself. A method without a row is not
/// served.
pub(super) fn required_access(method: &str) -> Result<Option<RouteAccess>, RpcError> {
    let spec = find_method(method).ok_or_else(|| unknown_method(method))?;
    Ok((!spec.checks_itself).then_some(spec.access))
}

/// True for a value that asks for the default behaviour.
fn is_default_value(method: &str, name: &str, value: &Value) -> bool {
    let is = |wanted: bool| *value == Value::Bool(wanted);
    let is_empty = || value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty);
    match (method, name) {
        ("chat.send", "mentions" | "toolBindings") => is_empty(),
        ("chat.send" | "agent", "deliver" | "fastMode" | "bestEffortDeliver") => is(false),
        ("models.list", "refresh" | "preparedOnly" | "includeProviderCapabilities") => is(false),
        ("sessions.list", "requireLastInteraction" | "ownerFirst" | "involvingMe" | "includePeople") => is(false),
        // Every session has an agent that is configured, or was.
        ("sessions.list", "configuredAgentsOnly") => value.is_boolean(),
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
        assert_eq!(required_access("stop.agent"), Err(unknown_method("stop.agent")));
        assert_eq!(required_access("stop.all"), Ok(Some(StopAll)));
    }

    #[test]
    fn the_page_names_every_method_and_parameter() {
        let page = include_str!("../../../../../docs/websocket.md");
        for method in METHODS {
            for word in method.parameters.split_whitespace().chain([method.name]) {
                assert!(page.contains(word), "docs/websocket.md does not name {word} of {}", method.name);
            }
        }
    }

    #[test]
    fn unsupported_parameters_are_refused_by_name() {
        let refused = check_parameters("chat.send", json!({"message": "x", "thinking": "high"})).unwrap_err();
        assert_eq!(refused, unsupported_parameter("chat.send", "thinking"));
        assert!(check_parameters("chat.send", json!({"message": "x", "thinking": null, "mentions": []})).is_ok());
        assert!(check_parameters("chat.send", json!({"deliver": true})).is_err());
        assert!(check_parameters("stop.all", json!([true])).is_err());
        assert_eq!(check_parameters("stop.all", Value::Null).unwrap(), json!({}));
    }
}
