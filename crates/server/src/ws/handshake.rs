//! Handle `connect`: protocol version, token, scopes, `hello-ok`.

use quell_engine::access::{BrowserSecrets, Caller, Credential, CredentialRefusal, RequestOrigin};
use quell_kernel::api_key::ApiKey;
use quell_protocol::api::{AccessLevel, Grants};
use quell_protocol::json_object::optional_object;
use quell_protocol::{Object, Principal, Surface};
use serde::Deserialize;
use serde_json::{Value, json};

use super::frame::RpcError;
use super::methods::attachments::attachment_policy;
use super::methods::parameters::METHODS;
use super::peer::{APPROVALS_SCOPE, WsPeer, WsRole};
use super::{MAX_BUFFERED, TICK_INTERVAL, close};
use crate::state::ServerState;

const SUPPORTED_PROTOCOLS: std::ops::RangeInclusive<u64> = 3..=4;

/// Parameters of `connect`, as far as Quell uses them. Device identities are accepted and not verified.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConnectParams {
    min_protocol: u64,
    max_protocol: u64,
    client: Object<ConnectClient>,
    #[serde(default)]
    role: Option<String>,
    #[serde(default)]
    scopes: Option<Vec<String>>,
    #[serde(default)]
    caps: Vec<String>,
    #[serde(default, deserialize_with = "optional_object")]
    auth: Option<ConnectAuth>,
}

#[derive(Debug, Deserialize)]
struct ConnectClient {
    id: String,
    #[expect(dead_code, reason = "required by the protocol's schema")]
    version: String,
    #[expect(dead_code, reason = "required by the protocol's schema")]
    platform: String,
    mode: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConnectAuth {
    token: Option<String>,
    password: Option<String>,
    device_token: Option<String>,
    /// The secret of the page's origin, beside its cookie. A browser cannot send headers with a WebSocket.
    page_secret: Option<String>,
}

impl ConnectAuth {
    fn into_token(self) -> Option<String> {
        self.token.or(self.password).or(self.device_token).filter(|token| !token.is_empty())
    }

    /// The signed-in browser, if no token is presented.
    fn browser(&self, server: &ServerState, cookie: Option<&str>) -> Option<Credential> {
        if self.token.is_some() || self.password.is_some() || self.device_token.is_some() {
            return None;
        }
        let secrets = BrowserSecrets { cookie: cookie?, page_secret: self.page_secret.as_deref()? };
        let credential = Credential::browser(secrets);
        server.engine().access().resolve_credential(&credential).map(|_| credential)
    }
}

/// A failed handshake: the error response, and the close code.
#[derive(Debug)]
pub(super) struct HandshakeError {
    pub(super) refusal: RpcError,
    pub(super) close_code: u16,
    pub(super) close_reason: &'static str,
    /// Why the presented credential is not accepted, if that is the reason.
    pub(super) refused_credential: Option<Box<CredentialRefusal>>,
}

impl HandshakeError {
    pub(super) fn policy_violation(refusal: RpcError, close_reason: &'static str) -> Self {
        Self { refusal, close_code: close::POLICY, close_reason, refused_credential: None }
    }
}

/// Checks a `connect` and returns the peer with its `hello-ok`.
///
/// `browser_cookie` is the page's cookie, which counts with the secret of the page if no token is presented.
pub(super) fn accept_connect(
    server: &ServerState,
    browser_cookie: Option<&str>,
    params: Value,
    connection: &str,
) -> Result<(WsPeer, Value), HandshakeError> {
    let Object(connect): Object<ConnectParams> = serde_json::from_value(params).map_err(|error| {
        HandshakeError::policy_violation(
            RpcError::invalid(format!("invalid connect params: {error}")),
            "invalid connect params",
        )
    })?;
    let protocol = negotiate_protocol(&connect)?;
    let auth = connect.auth.unwrap_or_default();
    let browser = auth.browser(server, browser_cookie);
    let is_page = browser.is_some();
    let presented = browser.or_else(|| auth.into_token().as_deref().map(Credential::token));
    let (credential, principal, scope) = authenticate(server, presented)?;
    let key = check_key(server, &principal)?;
    let granted = granted_scope(connect.scopes.as_deref(), scope);
    let token_grants = server.engine().access().grants_of(&principal, scope);
    let mut grants = requested_grants(connect.scopes.as_deref(), token_grants);
    if granted != Some(scope) {
        // A client that asked for less than its token has gets no rights over others, either.
        (grants.write_all, grants.stop_all) = (false, false);
    }
    let role = if connect.role.as_deref() == Some("node") { WsRole::Node } else { WsRole::Operator };
    let Object(client) = connect.client;
    let is_terminal = client.mode == "ui" && client.id.contains("tui");
    let surface = if is_page {
        Surface::Page
    } else if is_terminal {
        Surface::Tui
    } else {
        Surface::Ws
    };
    let scope = granted.unwrap_or(AccessLevel::Read);
    let verified_person = server.engine().access().is_verified_person(&credential);
    let origin = RequestOrigin::internal();
    let caller = Caller { principal, scope, grants, key, verified_person, surface, origin };
    let has_cap = |name: &str| connect.caps.iter().any(|cap| cap == name);
    let (tool_events, run_events) = (has_cap("tool-events"), has_cap("run-events"));
    let mut scopes = granted_scope_names(granted, connect.scopes.as_deref());
    if caller.may_approve() {
        scopes.push(APPROVALS_SCOPE);
    }
    let peer = WsPeer { caller, credential, granted, role, tool_events, run_events };
    let mut hello = hello_payload(server, connection, protocol, role, &scopes);
    hello["policy"]["maxPayload"] = json!(peer.largest_message());
    Ok((peer, hello))
}

fn negotiate_protocol(connect: &ConnectParams) -> Result<u64, HandshakeError> {
    let newest = connect.max_protocol.min(*SUPPORTED_PROTOCOLS.end());
    if connect.min_protocol <= newest && newest >= *SUPPORTED_PROTOCOLS.start() {
        return Ok(newest);
    }
    let details = json!({
        "code": "PROTOCOL_MISMATCH",
        "clientMinProtocol": connect.min_protocol,
        "clientMaxProtocol": connect.max_protocol,
        "expectedProtocol": SUPPORTED_PROTOCOLS.end(),
        "minimumProbeProtocol": SUPPORTED_PROTOCOLS.start(),
    });
    let refusal = RpcError::invalid("protocol mismatch: this gateway speaks 3 and 4").with_details(details);
    Err(HandshakeError {
        close_code: close::PROTOCOL,
        ..HandshakeError::policy_violation(refusal, "protocol mismatch")
    })
}

fn authenticate(
    server: &ServerState,
    presented: Option<Credential>,
) -> Result<(Credential, Principal, AccessLevel), HandshakeError> {
    let Some(credential) = presented else {
        let message = "unauthorized: gateway token missing (the daemon wrote one to `token` in its data directory)";
        return Err(unauthorized("AUTH_TOKEN_MISSING", "update_auth_configuration", message));
    };
    let (principal, scope) = server.engine().access().check_credential(&credential).map_err(|refusal| {
        let message = match &refusal {
            CredentialRefusal::Unknown => "unauthorized: gateway token mismatch".to_owned(),
            known => format!("unauthorized: {known}"),
        };
        let failed = unauthorized("AUTH_TOKEN_MISMATCH", "update_auth_credentials", &message);
        HandshakeError { refused_credential: Some(Box::new(refusal)), ..failed }
    })?;
    Ok((credential, principal, scope))
}

/// What the token of a principal may use; an error if this is not among it.
fn check_key(server: &ServerState, principal: &Principal) -> Result<ApiKey, HandshakeError> {
    // A token that was revoked at this moment has none.
    let key = server.engine().access().key_of(principal);
    let checked = key.ok_or(CredentialRefusal::Unknown).and_then(|key| match key.check_own_api() {
        Ok(()) => Ok(key),
        Err(refusal) => Err(CredentialRefusal::OtherApi { principal: principal.clone(), refusal }),
    });
    checked.map_err(|refusal| {
        let failed =
            unauthorized("AUTH_TOKEN_MISMATCH", "update_auth_credentials", &format!("unauthorized: {refusal}"));
        HandshakeError { refused_credential: Some(Box::new(refusal)), ..failed }
    })
}

fn unauthorized(code: &str, next: &str, message: &str) -> HandshakeError {
    let reason = code.trim_start_matches("AUTH_").to_ascii_lowercase();
    let details =
        json!({"code": code, "authReason": reason, "recommendedNextStep": next, "canRetryWithDeviceToken": false});
    HandshakeError::policy_violation(RpcError::invalid(message).with_details(details), "unauthorized")
}

/// The granted level is the lower one of the requested level and the token's. A client that requests no scopes gets the
/// token's level.
fn granted_scope(requested: Option<&[String]>, token: AccessLevel) -> Option<AccessLevel> {
    let Some(requested) = requested else { return Some(token) };
    let level = |scope: &String| match scope.as_str() {
        "operator.read" => Some(AccessLevel::Read),
        "operator.write" => Some(AccessLevel::Write),
        "operator.admin" => Some(AccessLevel::Admin),
        _ => None,
    };
    requested.iter().filter_map(level).max().map(|level| level.min(token))
}

/// The grants that were requested and that the token has. An admin's connection that requested less does not decide
/// approvals.
fn requested_grants(requested: Option<&[String]>, token: Grants) -> Grants {
    let wanted =
        requested.is_none_or(|names| names.iter().any(|name| name == APPROVALS_SCOPE || name == "operator.admin"));
    Grants { approve: token.approve && wanted, ..token }
}

fn granted_scope_names(granted: Option<AccessLevel>, requested: Option<&[String]>) -> Vec<&'static str> {
    let all = [
        ("operator.read", AccessLevel::Read),
        ("operator.write", AccessLevel::Write),
        ("operator.admin", AccessLevel::Admin),
    ];
    let Some(granted) = granted else { return Vec::new() };
    // A client that requested only admin and got less learns its scopes.
    let wanted =
        |name: &str| requested.is_none_or(|names| names.iter().any(|other| other == name || other == "operator.admin"));
    all.into_iter().filter(|(name, scope)| *scope <= granted && wanted(name)).map(|(name, _)| name).collect()
}

fn hello_payload(server: &ServerState, connection: &str, protocol: u64, role: WsRole, scopes: &[&str]) -> Value {
    let engine = server.engine();
    let default = engine.list_agents().into_iter().find(|agent| agent.default).map(|agent| agent.id);
    let default = default.as_ref().map_or("main", |id| id.as_str());
    let uptime = u64::try_from(engine.clock().now().0.as_millis()).unwrap_or(u64::MAX);
    let methods: Vec<&str> = METHODS.iter().map(|method| method.name).collect();
    json!({
        "type": "hello-ok",
        "protocol": protocol,
        "server": {"version": env!("CARGO_PKG_VERSION"), "connId": connection},
        "features": {"methods": methods, "events": EVENT_NAMES.split(' ').collect::<Vec<_>>()},
        "snapshot": {
            "presence": [],
            "health": {},
            "stateVersion": {"presence": 0, "health": 0},
            "uptimeMs": uptime,
            "sessionDefaults": {
                "defaultAgentId": default,
                "mainKey": "main",
                "mainSessionKey": format!("agent:{default}:main"),
                "scope": "per-sender",
            },
        },
        "auth": {"role": if role == WsRole::Node { "node" } else { "operator" }, "scopes": scopes},
        "policy": {
            "maxBufferedBytes": MAX_BUFFERED,
            "attachments": attachment_policy(),
            "tickIntervalMs": u64::try_from(TICK_INTERVAL.as_millis()).unwrap_or(u64::MAX),
        },
    })
}

const EVENT_NAMES: &str = "\
    connect.challenge tick chat agent sessions.changed shutdown run run.event run.amended run.unfollowed \
    agents.changed execution:cancel hold.changed session.message plugin.approval.requested plugin.approval.resolved \
    plugin.approval.removed";

#[cfg(test)]
mod tests {
    use super::*;

    fn owned_scopes(scopes: &[&str]) -> Vec<String> {
        scopes.iter().map(|scope| (*scope).to_owned()).collect()
    }

    #[test]
    fn granted_is_asked_and_token() {
        assert_eq!(granted_scope(None, AccessLevel::Write), Some(AccessLevel::Write));
        assert_eq!(
            granted_scope(Some(&owned_scopes(&["operator.admin"])), AccessLevel::Write),
            Some(AccessLevel::Write)
        );
        assert_eq!(granted_scope(Some(&owned_scopes(&["operator.read"])), AccessLevel::Admin), Some(AccessLevel::Read));
        assert_eq!(granted_scope(Some(&owned_scopes(&["operator.pairing"])), AccessLevel::Admin), None);
        assert_eq!(granted_scope(Some(&[]), AccessLevel::Admin), None);
    }

    #[test]
    fn approvals_are_a_scope_of_their_own() {
        let decides = |names: Option<&[String]>, token| requested_grants(names, token).approve;
        let given = Grants { approve: true, ..Grants::NONE };
        assert!(decides(Some(&owned_scopes(&["operator.read", "operator.approvals"])), given));
        assert!(decides(None, Grants::ALL) && decides(Some(&owned_scopes(&["operator.admin"])), Grants::ALL));
        assert!(!decides(Some(&owned_scopes(&["operator.read"])), Grants::ALL), "it has to be asked for");
        assert!(!decides(Some(&owned_scopes(&["operator.approvals"])), Grants::NONE), "the token has to give it");
    }

    #[test]
    fn names_are_what_was_granted() {
        let admin = owned_scopes(&["operator.admin"]);
        assert_eq!(granted_scope_names(Some(AccessLevel::Write), Some(&admin)), ["operator.read", "operator.write"]);
        assert_eq!(
            granted_scope_names(Some(AccessLevel::Admin), None),
            ["operator.read", "operator.write", "operator.admin"]
        );
        assert_eq!(granted_scope_names(None, Some(&[])), Vec::<&str>::new());
    }
}
