//! Which version of MCP a message is written in, and the checks of the version that has no handshake.
//!
//! Until 2025-11-25 a client begins a session by `initialize`. From 2026-07-28 on each request describes itself in its
//! `_meta`, and HTTP headers repeat a part of that.

use axum::http::{HeaderMap, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::json_rpc::{INVALID_PARAMS, JsonRpcFailure, JsonRpcRequest};

/// The version without sessions.
pub(super) const STATELESS_VERSION: &str = "2026-07-28";
/// Versions with sessions, the newest first.
pub(super) const SESSION_VERSIONS: [&str; 2] = ["2025-11-25", "2025-06-18"];

pub(super) const VERSION_HEADER: &str = "mcp-protocol-version";
const METHOD_HEADER: &str = "mcp-method";
const NAME_HEADER: &str = "mcp-name";

const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";
/// The extension of long calls, in the capabilities of clients and of the server.
pub(super) const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

const HEADER_MISMATCH: i64 = -32020;
const MISSING_CAPABILITY: i64 = -32021;
const UNSUPPORTED_VERSION: i64 = -32022;

/// How the client of a request behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProtocolEra {
    /// With sessions: a lost connection is no cancel.
    Session,
    /// Without: the end of the connection is the cancel.
    Stateless,
}

/// What the client of a stateless request declares with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ClientCapabilities {
    pub(super) tasks: bool,
    pub(super) elicitation: bool,
}

impl ClientCapabilities {
    /// Requires the extension of tasks.
    pub(super) fn require_tasks(self) -> Result<(), JsonRpcFailure> {
        if self.tasks {
            return Ok(());
        }
        let required = json!({"extensions": {TASKS_EXTENSION: {}}});
        Err(JsonRpcFailure::new(MISSING_CAPABILITY, format!("declare the extension {TASKS_EXTENSION} in the request"))
            .with_data(json!({"requiredCapabilities": required}))
            .with_status(StatusCode::BAD_REQUEST))
    }
}

/// Finds out how the client of a request behaves, and checks what a stateless request has to say about itself.
pub(super) fn check_request(
    headers: &HeaderMap,
    request: &JsonRpcRequest,
) -> Result<(ProtocolEra, ClientCapabilities), JsonRpcFailure> {
    let version_header = header_text(headers, VERSION_HEADER);
    let named = request.meta().and_then(|meta| meta.get(VERSION_KEY)).and_then(Value::as_str);
    let has_session_version = version_header.as_deref().is_none_or(|version| SESSION_VERSIONS.contains(&version));
    if named.is_none()
        && (has_session_version
            || request.method == "initialize" && version_header.as_deref() != Some(STATELESS_VERSION))
    {
        return Ok((ProtocolEra::Session, ClientCapabilities::default()));
    }
    let capabilities = check_meta(request)?;
    let named = named.unwrap_or_default();
    check_header(VERSION_HEADER, version_header.as_deref(), named)?;
    if named != STATELESS_VERSION {
        // Those that a request without a session can name, as `server/discover` lists them.
        return Err(unsupported_version(named, &[STATELESS_VERSION]));
    }
    check_header(METHOD_HEADER, header_text(headers, METHOD_HEADER).as_deref(), &request.method)?;
    if let Some(name) = routed_name(request) {
        let in_header = header_text(headers, NAME_HEADER).map(|value| decode_header_value(&value));
        check_header(NAME_HEADER, in_header.transpose()?.as_deref(), name)?;
    }
    Ok((ProtocolEra::Stateless, capabilities))
}

/// Checks the header of a message that is no request. Without it, the session says which version it is.
pub(super) fn check_version_header(headers: &HeaderMap) -> Result<(), JsonRpcFailure> {
    match header_text(headers, VERSION_HEADER) {
        Some(version) if version != STATELESS_VERSION && !SESSION_VERSIONS.contains(&version.as_str()) => {
            let supported = [[STATELESS_VERSION].as_slice(), &SESSION_VERSIONS].concat();
            Err(unsupported_version(&version, &supported))
        }
        _ => Ok(()),
    }
}

fn unsupported_version(requested: &str, supported: &[&str]) -> JsonRpcFailure {
    JsonRpcFailure::new(UNSUPPORTED_VERSION, format!("the version {requested:?} of MCP is not supported"))
        .with_data(json!({"supported": supported, "requested": requested}))
        .with_status(StatusCode::BAD_REQUEST)
}

/// The version of a new session: the one that the client wants, else the newest.
pub(super) fn negotiate(requested: &str) -> &'static str {
    SESSION_VERSIONS.iter().find(|version| **version == requested).unwrap_or(&SESSION_VERSIONS[0])
}

fn check_meta(request: &JsonRpcRequest) -> Result<ClientCapabilities, JsonRpcFailure> {
    let missing = |key: &str| {
        JsonRpcFailure::new(INVALID_PARAMS, format!("`_meta` of the params needs {key:?}"))
            .with_status(StatusCode::BAD_REQUEST)
    };
    let meta = request.meta().ok_or_else(|| missing(VERSION_KEY))?;
    meta.get(VERSION_KEY).and_then(Value::as_str).ok_or_else(|| missing(VERSION_KEY))?;
    let capabilities =
        meta.get(CAPABILITIES_KEY).and_then(Value::as_object).ok_or_else(|| missing(CAPABILITIES_KEY))?;
    let extensions = capabilities.get("extensions").and_then(Value::as_object);
    let has = |map: Option<&Map<String, Value>>, key: &str| map.is_some_and(|map| map.contains_key(key));
    Ok(ClientCapabilities {
        tasks: has(extensions, TASKS_EXTENSION),
        elicitation: capabilities.contains_key("elicitation"),
    })
}

/// The value of the params that the header `Mcp-Name` repeats.
fn routed_name(request: &JsonRpcRequest) -> Option<&str> {
    let key = match request.method.as_str() {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return None,
    };
    request.params.get(key)?.as_str()
}

fn check_header(name: &str, in_header: Option<&str>, in_body: &str) -> Result<(), JsonRpcFailure> {
    let text = match in_header {
        Some(value) if value == in_body => return Ok(()),
        Some(value) => format!("the header {name} is {value:?}, and the body says {in_body:?}"),
        None => format!("the header {name} is missing; it has to be {in_body:?}"),
    };
    Err(JsonRpcFailure::new(HEADER_MISMATCH, text).with_status(StatusCode::BAD_REQUEST))
}

fn header_text(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(String::from_utf8_lossy(headers.get(name)?.as_bytes()).trim().to_owned())
}

/// Decodes a value that a header cannot hold as it is: `=?base64?…?=`.
fn decode_header_value(value: &str) -> Result<String, JsonRpcFailure> {
    let Some(encoded) = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Ok(value.to_owned());
    };
    let decoded = STANDARD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    decoded.ok_or_else(|| {
        JsonRpcFailure::new(HEADER_MISMATCH, format!("the header {NAME_HEADER} holds invalid Base64"))
            .with_status(StatusCode::BAD_REQUEST)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::json_rpc::JsonRpcId;

    fn request(method: &str, params: Value) -> JsonRpcRequest {
        let Value::Object(params) = params else { panic!("{params}") };
        JsonRpcRequest { id: JsonRpcId::Number(1), method: method.into(), params }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn meta(version: &str) -> Value {
        json!({VERSION_KEY: version, CAPABILITIES_KEY: {"extensions": {TASKS_EXTENSION: {}}}})
    }

    #[test]
    fn a_request_without_metadata_belongs_to_a_session() {
        for version in [&[][..], &[(VERSION_HEADER, "2025-06-18")]] {
            let found = check_request(&headers(version), &request("tools/list", json!({})));
            assert_eq!(found, Ok((ProtocolEra::Session, ClientCapabilities::default())));
        }
    }

    #[test]
    fn a_stateless_request_declares_its_capabilities() {
        let sent =
            [(VERSION_HEADER, STATELESS_VERSION), (METHOD_HEADER, "tools/call"), (NAME_HEADER, "=?base64?w7w=?=")];
        let call = request("tools/call", json!({"name": "ü", "_meta": meta(STATELESS_VERSION)}));
        let tasks = ClientCapabilities { tasks: true, elicitation: false };
        assert_eq!(check_request(&headers(&sent), &call), Ok((ProtocolEra::Stateless, tasks)));
    }

    #[rstest]
    #[case::no_metadata(json!({}), &[(VERSION_HEADER, STATELESS_VERSION)], INVALID_PARAMS)]
    #[case::no_capabilities(json!({"_meta": {VERSION_KEY: STATELESS_VERSION}}), &[(VERSION_HEADER, STATELESS_VERSION)], INVALID_PARAMS)]
    #[case::unknown_version(json!({"_meta": meta("v9")}), &[(VERSION_HEADER, "v9")], UNSUPPORTED_VERSION)]
    #[case::no_version_header(json!({"_meta": meta(STATELESS_VERSION)}), &[], HEADER_MISMATCH)]
    #[case::other_version(json!({"_meta": meta("v9")}), &[(VERSION_HEADER, STATELESS_VERSION)], HEADER_MISMATCH)]
    #[case::no_method_header(json!({"_meta": meta(STATELESS_VERSION)}), &[(VERSION_HEADER, STATELESS_VERSION)], HEADER_MISMATCH)]
    #[case::other_method(json!({"_meta": meta(STATELESS_VERSION)}), &[(VERSION_HEADER, STATELESS_VERSION), (METHOD_HEADER, "Tools/list")], HEADER_MISMATCH)]
    fn a_stateless_request_that_contradicts_itself_is_refused(
        #[case] params: Value,
        #[case] sent: &[(&'static str, &str)],
        #[case] code: i64,
    ) {
        let failure = check_request(&headers(sent), &request("tools/list", params)).unwrap_err();
        assert_eq!((failure.code, failure.status), (code, StatusCode::BAD_REQUEST));
    }

    #[test]
    fn an_unknown_version_is_refused_with_those_that_are_known() {
        let with = |version| check_version_header(&headers(&[(VERSION_HEADER, version)]));
        assert!(check_version_header(&HeaderMap::new()).is_ok() && with("2025-06-18").is_ok());
        assert!(with(STATELESS_VERSION).is_ok());
        // It asks of every server that it takes several messages in one body.
        let failure = with("2025-03-26").unwrap_err();
        assert_eq!((failure.code, failure.status), (UNSUPPORTED_VERSION, StatusCode::BAD_REQUEST));
        let supported = json!(["2026-07-28", "2025-11-25", "2025-06-18"]);
        assert_eq!(failure.data, Some(Box::new(json!({"supported": supported, "requested": "2025-03-26"}))));
    }

    #[test]
    fn a_session_gets_a_version_that_both_sides_know() {
        for (requested, negotiated) in
            [("2025-06-18", "2025-06-18"), ("2025-03-26", "2025-11-25"), ("1999-01-01", "2025-11-25")]
        {
            assert_eq!(negotiate(requested), negotiated);
        }
    }
}
