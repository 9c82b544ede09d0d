//! JSON-RPC 2.0: messages of clients, and the answers to them.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use quell_kernel::json_size::exceeds_value_count;
use quell_protocol::{ErrorCode, Problem};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::http::ProblemResponse;
use crate::state::MAX_JSON_VALUES;

pub(crate) const PARSE_ERROR: i64 = -32700;
pub(crate) const INVALID_REQUEST: i64 = -32600;
pub(crate) const METHOD_NOT_FOUND: i64 = -32601;
pub(crate) const INVALID_PARAMS: i64 = -32602;

/// Longest id that is accepted, in bytes. Ids are kept with the calls of a session.
const MAX_ID_BYTES: usize = 256;

/// The id of a request: a text or an integer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum JsonRpcId {
    Number(i64),
    Text(String),
}

impl JsonRpcId {
    pub(crate) fn parse(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => (text.len() <= MAX_ID_BYTES).then(|| Self::Text(text.clone())),
            Value::Number(number) => number.as_i64().map(Self::Number),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Number(number) => json!(number),
            Self::Text(text) => json!(text),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JsonRpcRequest {
    pub(crate) id: JsonRpcId,
    pub(crate) method: String,
    pub(crate) params: Map<String, Value>,
}

impl JsonRpcRequest {
    pub(crate) fn parse_params<T: DeserializeOwned>(&self) -> Result<T, JsonRpcFailure> {
        serde_json::from_value(Value::Object(self.params.clone()))
            .map_err(|error| JsonRpcFailure::new(INVALID_PARAMS, format!("the params of {}: {error}", self.method)))
    }

    /// The `_meta` of the params.
    pub(crate) fn meta(&self) -> Option<&Map<String, Value>> {
        self.params.get("_meta")?.as_object()
    }
}

/// A message of a client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum JsonRpcMessage {
    Request(JsonRpcRequest),
    Notification {
        method: String,
        params: Map<String, Value>,
    },
    /// An answer to a request of ours.
    Response,
}

/// An error in the form of JSON-RPC, and the status of the HTTP response that carries it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JsonRpcFailure {
    pub(crate) code: i64,
    pub(crate) message: String,
    pub(crate) data: Option<Box<Value>>,
    pub(crate) status: StatusCode,
}

impl JsonRpcFailure {
    pub(crate) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None, status: StatusCode::OK }
    }

    pub(crate) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    pub(crate) fn with_data(self, data: Value) -> Self {
        Self { data: Some(Box::new(data)), ..self }
    }

    /// Errors of the API keep their stable word in `data`. Their code is the HTTP status, which is outside of the range
    /// that JSON-RPC reserves.
    pub(crate) fn of_problem(problem: &Problem) -> Self {
        let code = match problem.code.as_str() {
            code if code == ErrorCode::InvalidRequest.as_str() => INVALID_PARAMS,
            _ => i64::from(problem.status),
        };
        let message = problem.detail.clone().unwrap_or_else(|| problem.title.clone());
        Self::new(code, message).with_data(json!(problem))
    }

    /// The whole message. A request whose id could not be read is answered without one.
    pub(crate) fn to_json(&self, id: Option<&JsonRpcId>) -> Value {
        let mut error = json!({"code": self.code, "message": self.message});
        if let Some(data) = &self.data {
            error["data"] = Value::clone(data);
        }
        match id {
            Some(id) => json!({"jsonrpc": "2.0", "id": id.to_json(), "error": error}),
            None => json!({"jsonrpc": "2.0", "error": error}),
        }
    }

    pub(crate) fn into_http(self, id: Option<&JsonRpcId>) -> Response {
        (self.status, Json(self.to_json(id))).into_response()
    }
}

impl From<ProblemResponse> for JsonRpcFailure {
    fn from(response: ProblemResponse) -> Self {
        Self::of_problem(response.problem())
    }
}

pub(crate) fn result_message(id: &JsonRpcId, result: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id.to_json(), "result": result})
}

pub(crate) fn notification_message(method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "method": method, "params": params})
}

/// Parses one message. With the error comes the id of the message, if it has one.
pub(crate) fn parse_message(bytes: &[u8]) -> Result<JsonRpcMessage, (Option<JsonRpcId>, JsonRpcFailure)> {
    let bad_request = |code, text: String| JsonRpcFailure::new(code, text).with_status(StatusCode::BAD_REQUEST);
    if exceeds_value_count(bytes, MAX_JSON_VALUES) {
        let text = format!("the body holds more than {MAX_JSON_VALUES} values");
        return Err((None, bad_request(INVALID_REQUEST, text)));
    }
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| (None, bad_request(PARSE_ERROR, format!("the body is not JSON: {error}"))))?;
    let Value::Object(mut message) = value else {
        let text = "send one JSON-RPC message, which is an object; batches are not supported".to_owned();
        return Err((None, bad_request(INVALID_REQUEST, text)));
    };
    let id = message.get("id").and_then(JsonRpcId::parse);
    let invalid = |text: &str| (id.clone(), bad_request(INVALID_REQUEST, text.to_owned()));
    if message.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(invalid("`jsonrpc` must be \"2.0\""));
    }
    let Some(method) = message.get("method") else {
        let is_response = message.contains_key("result") || message.contains_key("error");
        return if is_response { Ok(JsonRpcMessage::Response) } else { Err(invalid("`method` is missing")) };
    };
    let Some(method) = method.as_str().map(str::to_owned) else { return Err(invalid("`method` must be a text")) };
    let params = match message.remove("params") {
        None => Map::new(),
        Some(Value::Object(params)) => params,
        Some(_) => return Err(invalid("`params` must be an object")),
    };
    match (message.contains_key("id"), id) {
        (false, _) => Ok(JsonRpcMessage::Notification { method, params }),
        (true, Some(id)) => Ok(JsonRpcMessage::Request(JsonRpcRequest { id, method, params })),
        (true, None) => {
            let text = format!("`id` must be an integer, or a text of at most {MAX_ID_BYTES} bytes");
            Err((None, bad_request(INVALID_REQUEST, text)))
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn requests_notifications_and_responses_differ_by_their_members() {
        let parse = |text: &str| parse_message(text.as_bytes()).unwrap();
        let request = parse(r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#);
        let expected = JsonRpcRequest { id: JsonRpcId::Number(7), method: "ping".into(), params: Map::new() };
        assert_eq!(request, JsonRpcMessage::Request(expected));
        let notification = parse(r#"{"jsonrpc":"2.0","method":"n","params":{}}"#);
        assert_eq!(notification, JsonRpcMessage::Notification { method: "n".into(), params: Map::new() });
        assert_eq!(parse(r#"{"jsonrpc":"2.0","id":7,"result":{}}"#), JsonRpcMessage::Response);
    }

    #[test]
    fn an_id_is_an_integer_or_a_short_text() {
        let text = |length: usize| JsonRpcId::parse(&json!("x".repeat(length))).is_some();
        assert!(text(256) && !text(257));
    }

    #[rstest]
    #[case("{", PARSE_ERROR, None)]
    #[case("[]", INVALID_REQUEST, None)]
    #[case(r#"{"id":"a","method":"m"}"#, INVALID_REQUEST, Some(JsonRpcId::Text("a".into())))]
    #[case(r#"{"jsonrpc":"2.0","id":1}"#, INVALID_REQUEST, Some(JsonRpcId::Number(1)))]
    #[case(r#"{"jsonrpc":"2.0","id":1,"method":2}"#, INVALID_REQUEST, Some(JsonRpcId::Number(1)))]
    #[case(r#"{"jsonrpc":"2.0","id":1,"method":"m","params":[]}"#, INVALID_REQUEST, Some(JsonRpcId::Number(1)))]
    #[case(r#"{"jsonrpc":"2.0","id":null,"method":"m"}"#, INVALID_REQUEST, None)]
    #[case(r#"{"jsonrpc":"2.0","id":1.5,"method":"m"}"#, INVALID_REQUEST, None)]
    fn a_bad_message_is_refused_with_its_id(#[case] text: &str, #[case] code: i64, #[case] id: Option<JsonRpcId>) {
        let (found, failure) = parse_message(text.as_bytes()).unwrap_err();
        assert_eq!((found, failure.code, failure.status), (id, code, StatusCode::BAD_REQUEST));
    }
}
