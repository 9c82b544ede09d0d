//! `connect`: version, token, scopes, and the answer `hello-ok`.

use quell_engine::access::{Caller, Credential, Origin};
use quell_engine::dispatch::Notice;
use quell_protocol::api::{Grants, Scope};
use quell_protocol::object::optional_object;
use quell_protocol::{Object, Principal, Surface};
use serde::Deserialize;
use serde_json::{Value, json};

use super::frame::Refusal;
use super::{MAX_BUFFERED, MAX_OF_READER, MAX_PAYLOAD, TICK, close, methods};
use crate::door::Door;

/// The scope of those who answer calls that wait for a person.
pub(super) const APPROVALS: &str = "operator.approvals";

/// The protocol versions that are spoken.
const SPOKEN: std::ops::RangeInclusive<u64> = 3..=4;

/// Params of `connect`, as far as Quell looks at them. Device identities are accepted and not verified.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Connect {
    min_protocol: u64,
    max_protocol: u64,
    client: Object<Client>,
    #[serde(default)]
    role: Option<String>,
    #[serde(default)]
    scopes: Option<Vec<String>>,
    #[serde(default)]
    caps: Vec<String>,
    #[serde(default, deserialize_with = "optional_object")]
    auth: Option<Auth>,
}

#[derive(Debug, Deserialize)]
struct Client {
    id: String,
    #[expect(dead_code, reason = "required by the protocol's schema")]
    version: String,
    #[expect(dead_code, reason = "required by the protocol's schema")]
    platform: String,
    mode: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Auth {
    token: Option<String>,
    password: Option<String>,
    device_token: Option<String>,
}

impl Auth {
    fn shown(self) -> Option<String> {
        self.token.or(self.password).or(self.device_token).filter(|token| !token.is_empty())
    }

    fn is_empty(&self) -> bool {
        self.token.is_none() && self.password.is_none() && self.device_token.is_none()
    }
}

/// What a client is after its handshake.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    /// Who it is and what it may do.
    pub(super) caller: Caller,
    /// What it showed, which may stop being good while it is connected.
    pub(super) credential: Credential,
    /// The scopes it asked for and got.
    pub(super) granted: Option<Scope>,
    /// `operator` or `node`.
    pub(super) role: Role,
    /// True when it wants live tool events.
    pub(super) tool_events: bool,
    /// True when it fetches what runs say with `runs.follow` and is not told it besides.
    pub(super) run_events: bool,
}

impl Peer {
    /// The most bytes of a message from it.
    pub(super) fn largest_message(&self) -> usize {
        if self.granted >= Some(Scope::Write) { MAX_PAYLOAD } else { MAX_OF_READER }
    }

    /// Whether an event is for it: who may look sees all; a node sees the runs of sessions that it subscribed to, with no scope.
    pub(super) fn may_see(&self, notice: &Notice) -> bool {
        match notice {
            Notice::Shutdown { .. } => true,
            Notice::Run(_) | Notice::Cancelling { .. } | Notice::Amended { .. } => {
                self.role == Role::Node || self.granted >= Some(Scope::Read)
            }
            Notice::Agent { .. } | Notice::Society { .. } | Notice::Session { .. } | Notice::Hold { .. } => {
                self.granted >= Some(Scope::Read)
            }
        }
    }
}

/// What kind of client it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A person's client: sees every chat.
    Operator,
    /// A device: sees the chats it subscribed to.
    Node,
}

/// A failed handshake: what to answer, and the close code.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) refusal: Refusal,
    pub(super) code: u16,
    pub(super) why: &'static str,
    /// True when a token was shown that is nobody's.
    pub(super) is_bad_token: bool,
}

impl Failed {
    pub(super) fn policy(refusal: Refusal, why: &'static str) -> Self {
        Self { refusal, code: close::POLICY, why, is_bad_token: false }
    }
}

/// Checks a `connect` and makes the peer with its `hello-ok`.
///
/// `browser` is the page's cookie; it counts where no token is shown.
pub(super) fn connect(
    door: &Door,
    browser: Option<&Credential>,
    params: Value,
    connection: &str,
) -> Result<(Peer, Value), Failed> {
    let Object(connect): Object<Connect> = serde_json::from_value(params).map_err(|error| {
        Failed::policy(Refusal::invalid(format!("invalid connect params: {error}")), "invalid connect params")
    })?;
    let protocol = negotiate(&connect)?;
    let auth = connect.auth.unwrap_or_default();
    let is_page = browser.is_some() && auth.is_empty();
    let shown = match browser.filter(|_| is_page) {
        Some(cookie) => Some(*cookie),
        None => auth.shown().as_deref().map(Credential::token),
    };
    let (credential, principal, scope) = authenticate(door, shown)?;
    let granted = grant(connect.scopes.as_deref(), scope);
    let grants = approvals(connect.scopes.as_deref(), door.engine().access().grants(&principal, scope));
    let role = if connect.role.as_deref() == Some("node") { Role::Node } else { Role::Operator };
    let Object(client) = connect.client;
    let is_terminal = client.mode == "ui" && client.id.contains("tui");
    let surface = if is_page {
        Surface::Page
    } else if is_terminal {
        Surface::Tui
    } else {
        Surface::Ws
    };
    let scope = granted.unwrap_or(Scope::Read);
    let caller = Caller { principal, scope, grants, surface, origin: Origin::inside() };
    let has_cap = |name: &str| connect.caps.iter().any(|cap| cap == name);
    let (tool_events, run_events) = (has_cap("tool-events"), has_cap("run-events"));
    let mut scopes = names(granted, connect.scopes.as_deref());
    if caller.may_approve() {
        scopes.push(APPROVALS);
    }
    let peer = Peer { caller, credential, granted, role, tool_events, run_events };
    let mut hello = hello(door, connection, protocol, role, &scopes);
    hello["policy"]["maxPayload"] = json!(peer.largest_message());
    Ok((peer, hello))
}

fn negotiate(connect: &Connect) -> Result<u64, Failed> {
    let newest = connect.max_protocol.min(*SPOKEN.end());
    if connect.min_protocol <= newest && newest >= *SPOKEN.start() {
        return Ok(newest);
    }
    let details = json!({
        "code": "PROTOCOL_MISMATCH",
        "clientMinProtocol": connect.min_protocol,
        "clientMaxProtocol": connect.max_protocol,
        "expectedProtocol": SPOKEN.end(),
        "minimumProbeProtocol": SPOKEN.start(),
    });
    let refusal = Refusal::invalid("protocol mismatch: this gateway speaks 3 and 4").with_details(details);
    Err(Failed { code: close::PROTOCOL, ..Failed::policy(refusal, "protocol mismatch") })
}

fn authenticate(door: &Door, shown: Option<Credential>) -> Result<(Credential, Principal, Scope), Failed> {
    let refuse = |code: &str, next: &str, message: &str| {
        let reason = code.trim_start_matches("AUTH_").to_ascii_lowercase();
        let details =
            json!({"code": code, "authReason": reason, "recommendedNextStep": next, "canRetryWithDeviceToken": false});
        Failed::policy(Refusal::invalid(message).with_details(details), "unauthorized")
    };
    let Some(credential) = shown else {
        let message = "unauthorized: gateway token missing (the daemon wrote one to `token` in its data directory)";
        return Err(refuse("AUTH_TOKEN_MISSING", "update_auth_configuration", message));
    };
    let (principal, scope) = door.engine().access().owner(&credential).ok_or_else(|| {
        let failed = refuse("AUTH_TOKEN_MISMATCH", "update_auth_credentials", "unauthorized: gateway token mismatch");
        Failed { is_bad_token: true, ..failed }
    })?;
    Ok((credential, principal, scope))
}

/// Granted is what was asked and what the token may do (decisions.md). Who does not ask gets what the token may do.
fn grant(asked: Option<&[String]>, token: Scope) -> Option<Scope> {
    let Some(asked) = asked else { return Some(token) };
    let level = |scope: &String| match scope.as_str() {
        "operator.read" => Some(Scope::Read),
        "operator.write" => Some(Scope::Write),
        "operator.admin" => Some(Scope::Admin),
        _ => None,
    };
    asked.iter().filter_map(level).max().map(|asked| asked.min(token))
}

/// What is given besides, where it was asked for: an admin's connection that asked for less does not decide approvals.
fn approvals(asked: Option<&[String]>, token: Grants) -> Grants {
    let wanted = asked.is_none_or(|asked| asked.iter().any(|name| name == APPROVALS || name == "operator.admin"));
    Grants { approve: token.approve && wanted, ..token }
}

fn names(granted: Option<Scope>, asked: Option<&[String]>) -> Vec<&'static str> {
    let all = [("operator.read", Scope::Read), ("operator.write", Scope::Write), ("operator.admin", Scope::Admin)];
    let Some(granted) = granted else { return Vec::new() };
    // A client that asked for admin alone and got less learns what it may do.
    let wanted = |name: &str| asked.is_none_or(|asked| asked.iter().any(|a| a == name || a == "operator.admin"));
    all.into_iter().filter(|(name, scope)| *scope <= granted && wanted(name)).map(|(name, _)| name).collect()
}

fn hello(door: &Door, connection: &str, protocol: u64, role: Role, scopes: &[&str]) -> Value {
    let engine = door.engine();
    let default = engine.agents().into_iter().find(|agent| agent.default).map(|agent| agent.id);
    let default = default.as_ref().map_or("main", |id| id.as_str());
    let uptime = u64::try_from(engine.clock().now().0.as_millis()).unwrap_or(u64::MAX);
    json!({
        "type": "hello-ok",
        "protocol": protocol,
        "server": {"version": env!("CARGO_PKG_VERSION"), "connId": connection},
        "features": {"methods": methods::NAMES, "events": EVENTS},
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
        "auth": {"role": if role == Role::Node { "node" } else { "operator" }, "scopes": scopes},
        "policy": {
            "maxBufferedBytes": MAX_BUFFERED,
            "tickIntervalMs": u64::try_from(TICK.as_millis()).unwrap_or(u64::MAX),
        },
    })
}

/// Events that this gateway sends.
const EVENTS: &[&str] = &[
    "connect.challenge",
    "tick",
    "chat",
    "agent",
    "sessions.changed",
    "shutdown",
    "run",
    "run.event",
    "run.amended",
    "agents.changed",
    "execution:cancel",
    "hold.changed",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(scopes: &[&str]) -> Vec<String> {
        scopes.iter().map(|scope| (*scope).to_owned()).collect()
    }

    #[test]
    fn granted_is_asked_and_token() {
        assert_eq!(grant(None, Scope::Write), Some(Scope::Write));
        assert_eq!(grant(Some(&asked(&["operator.admin"])), Scope::Write), Some(Scope::Write));
        assert_eq!(grant(Some(&asked(&["operator.read"])), Scope::Admin), Some(Scope::Read));
        assert_eq!(grant(Some(&asked(&["operator.pairing"])), Scope::Admin), None);
        assert_eq!(grant(Some(&[]), Scope::Admin), None);
    }

    #[test]
    fn approvals_are_a_scope_of_their_own() {
        let decides = |names: Option<&[String]>, token| approvals(names, token).approve;
        let given = Grants { approve: true, endpoints: false };
        assert!(decides(Some(&asked(&["operator.read", "operator.approvals"])), given));
        assert!(decides(None, Grants::ALL) && decides(Some(&asked(&["operator.admin"])), Grants::ALL));
        assert!(!decides(Some(&asked(&["operator.read"])), Grants::ALL), "it has to be asked for");
        assert!(!decides(Some(&asked(&["operator.approvals"])), Grants::NONE), "the token has to give it");
    }

    #[test]
    fn names_are_what_was_granted() {
        let admin = asked(&["operator.admin"]);
        assert_eq!(names(Some(Scope::Write), Some(&admin)), ["operator.read", "operator.write"]);
        assert_eq!(names(Some(Scope::Admin), None), ["operator.read", "operator.write", "operator.admin"]);
        assert_eq!(names(None, Some(&[])), Vec::<&str>::new());
    }
}
