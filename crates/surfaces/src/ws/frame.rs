//! Frames and errors of the gateway protocol.

use quell_kernel::json::holds_more_values;
use quell_protocol::Object;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::door::MOST_VALUES;

/// A request frame. Unknown envelope fields are refused, as the protocol's schema says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Request {
    #[serde(rename = "type")]
    kind: RequestKind,
    /// Chosen by the client; comes back in the answer.
    pub(super) id: String,
    /// What to do.
    pub(super) method: String,
    /// With what.
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
enum RequestKind {
    Req,
}

impl Request {
    /// Reads a frame.
    pub(super) fn parse(text: &str) -> Result<Self, Refusal> {
        if holds_more_values(text.as_bytes(), MOST_VALUES) {
            return Err(Refusal::invalid(format!("invalid request frame: it holds more than {MOST_VALUES} values")));
        }
        serde_json::from_str::<Object<Self>>(text)
            .map(|Object(request)| request)
            .map_err(|error| Refusal::invalid(format!("invalid request frame: {error}")))
            .inspect(|request| debug_assert!(matches!(request.kind, RequestKind::Req), "the only kind there is"))
    }

    /// The id of a frame that is no valid request, so that even its refusal can be matched.
    pub(super) fn id_of(text: &str) -> String {
        if holds_more_values(text.as_bytes(), MOST_VALUES) {
            return String::new();
        }
        let frame: Option<Value> = serde_json::from_str(text).ok();
        frame.as_ref().and_then(|frame| frame.get("id")?.as_str()).unwrap_or_default().to_owned()
    }
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Refusal {
    code: &'static str,
    message: String,
    details: Option<Box<Value>>,
    retry_after_ms: Option<u64>,
}

impl Refusal {
    /// The request is wrong.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self { code: "INVALID_REQUEST", message: message.into(), details: None, retry_after_ms: None }
    }

    /// The connection may not do that.
    pub(super) fn missing_scope(scope: &str) -> Self {
        let details = json!({"code": "MISSING_SCOPE", "missingScope": scope, "requiredScopes": [scope]});
        Self {
            code: "FORBIDDEN",
            message: format!("missing scope: {scope}"),
            details: Some(Box::new(details)),
            retry_after_ms: None,
        }
    }

    /// It is somebody else's.
    pub(super) fn not_yours(message: impl Into<String>) -> Self {
        Self {
            code: "FORBIDDEN",
            message: message.into(),
            details: Some(Box::new(json!({"code": "NOT_OWNER"}))),
            retry_after_ms: None,
        }
    }

    /// It cannot be done now.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self { code: "UNAVAILABLE", message: message.into(), details: None, retry_after_ms: Some(500) }
    }

    /// The same with details for programs.
    pub(super) fn with_details(self, details: Value) -> Self {
        Self { details: Some(Box::new(details)), ..self }
    }

    /// The details for programs.
    pub(super) fn details(&self) -> Value {
        self.details.as_deref().cloned().unwrap_or_default()
    }

    fn to_json(&self) -> Value {
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

/// The text of an answer.
pub(super) fn answer(id: &str, result: &Result<Value, Refusal>) -> String {
    match result {
        Ok(payload) => json!({"type": "res", "id": id, "ok": true, "payload": payload}),
        Err(refusal) => json!({"type": "res", "id": id, "ok": false, "error": refusal.to_json()}),
    }
    .to_string()
}

/// The text of an event. Without a number it is a targeted one.
pub(super) fn event(name: &str, payload: &impl Serialize, seq: Option<u64>) -> String {
    // Plain data with text for keys: it cannot fail.
    serde_json::to_string(&Event { kind: "event", event: name, payload, seq }).unwrap_or_default()
}

#[derive(Serialize)]
struct Event<'a, P> {
    #[serde(rename = "type")]
    kind: &'static str,
    event: &'a str,
    payload: &'a P,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
}
