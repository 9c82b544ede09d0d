//! Parse request frames; serialize response and event frames; the error type.

use std::borrow::Cow;
use std::time::Duration;

use quell_kernel::json_size::exceeds_value_count;
use quell_protocol::Object;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::state::MAX_JSON_VALUES;

/// A request frame. Unknown envelope fields are refused, as the protocol's schema demands.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RequestFrame {
    #[serde(rename = "type")]
    kind: RequestFrameKind,
    /// Chosen by the client and returned in the response.
    pub(super) id: String,
    pub(super) method: String,
    #[serde(default)]
    pub(super) params: Value,
    #[serde(default)]
    #[expect(dead_code, reason = "part of the envelope; Quell starts its own traces")]
    traceparent: Option<String>,
    #[serde(default)]
    #[expect(dead_code, reason = "part of the envelope; Quell has no profiles")]
    expected_profile_id: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RequestFrameKind {
    Req,
}

impl RequestFrame {
    pub(super) fn parse(text: &str) -> Result<Self, RpcError> {
        if exceeds_value_count(text.as_bytes(), MAX_JSON_VALUES) {
            return Err(RpcError::invalid(format!(
                "invalid request frame: it holds more than {MAX_JSON_VALUES} values"
            )));
        }
        serde_json::from_str::<Object<Self>>(text)
            .map(|Object(request)| request)
            .map_err(|error| RpcError::invalid(format!("invalid request frame: {error}")))
            .inspect(|request| debug_assert!(matches!(request.kind, RequestFrameKind::Req), "the only kind there is"))
    }

    /// Reads the id of an invalid request frame, so that the client can match the error; empty if there is none.
    pub(super) fn parse_id(text: &str) -> String {
        if exceeds_value_count(text.as_bytes(), MAX_JSON_VALUES) {
            return String::new();
        }
        let frame: Option<Value> = serde_json::from_str(text).ok();
        frame.as_ref().and_then(|frame| frame.get("id")?.as_str()).unwrap_or_default().to_owned()
    }
}

/// Code in the details of an answer if another node of the cluster was asked and has not answered.
const NODE_UNREACHABLE: &str = "NODE_UNREACHABLE";

/// Code in the details of an answer to an approval that does not exist.
pub(super) const APPROVAL_NOT_FOUND: &str = "APPROVAL_NOT_FOUND";

/// Code in the details of an answer to an approval that the caller may not decide.
pub(super) const APPROVAL_NOT_YOURS: &str = "APPROVAL_NOT_YOURS";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct RpcError {
    code: Cow<'static, str>,
    message: String,
    details: Option<Box<Value>>,
    retry_after_ms: Option<u64>,
}

impl RpcError {
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self { code: "INVALID_REQUEST".into(), message: message.into(), details: None, retry_after_ms: None }
    }

    pub(super) fn missing_scope(scope: &str) -> Self {
        let details = json!({"code": "MISSING_SCOPE", "missingScope": scope, "requiredScopes": [scope]});
        Self {
            code: "FORBIDDEN".into(),
            message: format!("missing scope: {scope}"),
            details: Some(Box::new(details)),
            retry_after_ms: None,
        }
    }

    /// The object belongs to another principal.
    pub(super) fn not_owner(message: impl Into<String>) -> Self {
        Self {
            code: "FORBIDDEN".into(),
            message: message.into(),
            details: Some(Box::new(json!({"code": "NOT_OWNER"}))),
            retry_after_ms: None,
        }
    }

    /// The request may be retried after 500 ms.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self { code: "UNAVAILABLE".into(), message: message.into(), details: None, retry_after_ms: Some(500) }
    }

    /// Another node of the cluster has not answered.
    pub(super) fn silent_node(message: impl Into<String>) -> Self {
        Self::unavailable(message).with_details(json!({"code": NODE_UNREACHABLE}))
    }

    pub(super) fn is_from_silent_node(&self) -> bool {
        self.details.as_ref().is_some_and(|details| details["code"] == NODE_UNREACHABLE)
    }

    /// The principal made too many requests.
    pub(super) fn rate_limited(wait: Duration) -> Self {
        Self {
            code: "UNAVAILABLE".into(),
            message: "too many requests of this token: requests_per_minute in [server]; stops are not limited"
                .to_owned(),
            details: Some(Box::new(json!({"code": "TOO_MANY_REQUESTS"}))),
            retry_after_ms: Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1)),
        }
    }

    /// Nobody knows the approval.
    pub(super) fn unknown_approval() -> Self {
        Self::invalid("the approval is not known").with_details(json!({"code": APPROVAL_NOT_FOUND}))
    }

    /// The method is about something that this node does not know.
    pub(super) fn is_about_unknown(&self) -> bool {
        self.details.as_ref().is_some_and(|details| details["code"] == APPROVAL_NOT_FOUND)
    }

    pub(super) fn with_details(self, details: Value) -> Self {
        Self { details: Some(Box::new(details)), ..self }
    }

    pub(super) fn details(&self) -> Value {
        self.details.as_deref().cloned().unwrap_or_default()
    }

    /// The text, if the caller may not do what it asked for.
    pub(super) fn forbidden_reason(&self) -> Option<&str> {
        let is_foreign_approval = || self.details.as_ref().is_some_and(|details| details["code"] == APPROVAL_NOT_YOURS);
        (self.code == "FORBIDDEN" || is_foreign_approval()).then_some(&self.message)
    }

    pub(super) fn to_json(&self) -> Value {
        let mut error = json!({"code": self.code, "message": self.message});
        if let Some(details) = &self.details {
            error["details"] = (**details).clone();
        }
        if let Some(ms) = self.retry_after_ms {
            error["retryable"] = json!(true);
            error["retryAfterMs"] = json!(ms);
        }
        error
    }
}

pub(super) fn response_text(id: &str, result: &Result<Value, RpcError>) -> String {
    match result {
        Ok(payload) => json!({"type": "res", "id": id, "ok": true, "payload": payload}),
        Err(refusal) => json!({"type": "res", "id": id, "ok": false, "error": refusal.to_json()}),
    }
    .to_string()
}

/// Serializes an event. `seq` is `None` for an event before the connection is set up.
pub(super) fn event_text(name: &str, payload: &impl Serialize, seq: Option<u64>) -> String {
    // Cannot fail: plain data with string keys.
    serde_json::to_string(&EventFrame { kind: "event", event: name, payload, seq }).unwrap_or_default()
}

#[derive(Serialize)]
struct EventFrame<'a, P> {
    #[serde(rename = "type")]
    kind: &'static str,
    event: &'a str,
    payload: &'a P,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
}
