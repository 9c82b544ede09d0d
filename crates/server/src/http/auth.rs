//! Authenticate a request by bearer token, cookie or Unix socket peer, and check the browser's origin.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, header};
use quell_engine::Engine;
use quell_engine::access::{BrowserSecrets, Caller, Credential, CredentialRefusal, ForwardedHeaders, RequestOrigin};
use quell_kernel::api_key::{ApiKey, KeyRefusal};
use quell_protocol::api::{AccessLevel, Grants, RunView};
use quell_protocol::{ErrorCode, Principal, RunId, SessionKey, Surface};

use super::forward::ForwardedCaller;
use super::refusal_audit::CallerSlot;
use super::runs::run_not_found;
use super::sessions::session_not_found;
use super::stop::is_outside_limits;
use super::{ProblemResponse, problem_response};
use crate::access_rules::RequestApi;
use crate::request_limits::retry_after_seconds;
use crate::serve::connection_limits::ConnectionHandle;
use crate::serve::unix_socket::UnixPeer;
use crate::state::ServerState;

/// Header by which Quell's own clients name themselves, so that receipts say where a stop came from.
const SURFACE_HEADER: &str = "x-quell-surface";

/// Header with the secret that the page keeps for its origin. Browsers send the cookie of a host to all of its ports,
/// so the cookie counts only together with this header.
const PAGE_SECRET_HEADER: &str = "x-quell-page";

/// Header of Anthropic's clients for their API key.
const API_KEY_HEADER: &str = "x-api-key";

/// Begins the name of a cookie that travels over TLS only and that no other host can set.
const HOST_COOKIE_PREFIX: &str = "__Host-";

/// A caller that may request a stop: one with a token, or a process of the same user at the Unix socket.
#[derive(Debug, Clone)]
pub(crate) struct StopCaller(pub(crate) ApiCall);

impl FromRequestParts<ServerState> for StopCaller {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, server: &ServerState) -> Result<Self, ProblemResponse> {
        match authenticate(parts, server) {
            Ok(call) => Ok(Self(call)),
            Err(AuthError::Credential(_)) if is_unix_peer(&parts.extensions) => {
                Ok(Self(local_admin_call(parts, server)))
            }
            Err(AuthError::Credential(refusal)) => {
                // It is counted, and never told to wait: no limiter comes before a stop.
                if refusal.is_some() {
                    let _ = count_bad_token(server, &parts.extensions);
                }
                Err(unauthorized(refusal.as_ref()))
            }
            Err(refused @ (AuthError::Origin(_) | AuthError::OtherApi(_))) => Err(refused.into_problem(parts, server)),
        }
    }
}

/// The call of a process of the same user at the Unix socket, which needs no token.
fn local_admin_call(parts: &Parts, server: &ServerState) -> ApiCall {
    mark_connection_authenticated(&parts.extensions);
    let (principal, scope) = server.engine().access().local_admin();
    let (surface, origin) = (request_surface(&parts.headers), request_origin(&parts.extensions, &parts.headers));
    let grants = Grants::for_level(scope);
    let key = ApiKey::default();
    let caller = Caller { principal, scope, grants, key, verified_person: true, surface, origin };
    ApiCall { server: server.clone(), caller, credential: None }
}

/// True for a process of the same user, or of root, that this daemon has not started: no command of an agent.
pub(crate) fn is_unix_peer(extensions: &Extensions) -> bool {
    extensions.get::<UnixPeer>().is_some()
}

/// Exempts the connection from eviction.
fn mark_connection_authenticated(extensions: &Extensions) {
    if let Some(connection) = extensions.get::<ConnectionHandle>() {
        connection.mark_authenticated();
    }
}

/// A request with a valid token, and the server that answers it.
#[derive(Debug, Clone)]
pub(crate) struct ApiCall {
    pub(crate) server: ServerState,
    pub(crate) caller: Caller,
    /// `None` for a stop at the Unix socket without a token. What outlives the authentication ends with it.
    pub(crate) credential: Option<Credential>,
}

impl ApiCall {
    /// True while the credential of the request is accepted.
    pub(crate) fn has_valid_credential(&self) -> bool {
        let is_valid = |credential: &Credential| self.engine().access().resolve_credential(credential).is_some();
        self.credential.as_ref().is_some_and(is_valid)
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.server.engine()
    }

    /// The same call on the surface of an API for programs. Behind that is no person, also at the Unix socket.
    pub(crate) fn on_surface(mut self, surface: Surface) -> Self {
        self.caller.surface = surface;
        self.caller.verified_person = false;
        self
    }

    /// Counts the request against the limit of its principal.
    pub(crate) fn count_request(&self) -> Result<(), ProblemResponse> {
        self.server.count_request(&self.caller.principal).map_err(|wait| {
            let seconds = retry_after_seconds(wait);
            let detail = format!(
                "{} sent more requests than requests_per_minute in [server] allows; wait {seconds} s. Stops are not limited",
                self.caller.principal
            );
            problem_response(ErrorCode::TooManyRequests, detail).retry_after(seconds)
        })
    }

    /// Requires the scope to send and stop.
    pub(crate) fn require_write(&self) -> Result<&Caller, ProblemResponse> {
        self.require(self.caller.may_write(), "scope write; `quell token create` makes one")
    }

    /// Requires the right to stop one's own runs or all.
    pub(crate) fn require_stop(&self) -> Result<&Caller, ProblemResponse> {
        self.require(self.caller.may_stop(), "scope write or stop:all; `quell token create` makes one")
    }

    /// Requires the right to stop everything.
    pub(crate) fn require_stop_all(&self) -> Result<&Caller, ProblemResponse> {
        self.require(self.caller.may_stop_all(), "scope stop:all or admin; the first one is in the data directory")
    }

    /// Requires the right to read what belongs to nobody in particular, such as the notes of an agent.
    pub(crate) fn require_read_all(&self) -> Result<&Caller, ProblemResponse> {
        self.require(self.caller.viewer().reads_all(), "scope read:all; `quell token create` makes one")
    }

    /// The principal to whose sessions and runs a list is limited; `None` for a caller that sees all.
    pub(crate) fn visible_to(&self) -> Option<Principal> {
        let viewer = self.caller.viewer();
        (!viewer.reads_all()).then_some(viewer.principal)
    }

    /// Requires the right to read a session. A private one of somebody else is answered as an unknown one.
    pub(crate) fn require_readable(&self, key: &SessionKey) -> Result<(), ProblemResponse> {
        if self.engine().may_read_session(&self.caller, key) { Ok(()) } else { Err(session_not_found(key)) }
    }

    /// Finds a run that the caller may read.
    pub(crate) async fn find_readable_run(&self, id: &RunId) -> Result<RunView, ProblemResponse> {
        let found = self.engine().find_run(id).await?;
        let readable = found.filter(|run| self.engine().may_read_run_view(&self.caller, run));
        readable.ok_or_else(|| run_not_found(id))
    }

    /// Requires the right to decide approvals, or the scope to write: writers may deny their own calls.
    pub(crate) fn require_approver(&self) -> Result<&Caller, ProblemResponse> {
        let allowed = self.caller.may_write() || self.caller.may_approve();
        self.require(allowed, "scope approve; `quell token create` makes one")
    }

    pub(crate) fn require_admin(&self) -> Result<&Caller, ProblemResponse> {
        self.require(self.caller.is_admin(), "scope admin; the first one is in the data directory")
    }

    fn require(&self, allowed: bool, token: &str) -> Result<&Caller, ProblemResponse> {
        let refused = || problem_response(ErrorCode::Forbidden, format!("this needs a token with {token}"));
        allowed.then_some(&self.caller).ok_or_else(refused)
    }
}

impl FromRequestParts<ServerState> for ApiCall {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, server: &ServerState) -> Result<Self, ProblemResponse> {
        let call = authenticate(parts, server).map_err(|refused| refused.into_problem(parts, server))?;
        // The node that has forwarded a request has counted it.
        let is_counted = parts.extensions.get::<ForwardedCaller>().is_some();
        if !is_counted && !is_outside_limits(&parts.method, parts.uri.path()) {
            call.count_request()?;
        }
        Ok(call)
    }
}

/// Why a request has no caller.
enum AuthError {
    /// A browser sent it from a foreign web origin.
    Origin(ProblemResponse),
    /// `None`: it came without a credential.
    Credential(Option<CredentialRefusal>),
    /// The token is valid, but not for this API.
    OtherApi(KeyRefusal),
}

impl AuthError {
    fn into_problem(self, parts: &Parts, server: &ServerState) -> ProblemResponse {
        let refusal = match self {
            Self::Origin(refused) => return refused,
            Self::OtherApi(refusal) => return problem_response(ErrorCode::Forbidden, refusal.to_string()),
            Self::Credential(refusal) => refusal,
        };
        if refusal.is_some()
            && let Err(too_many) = count_bad_token(server, &parts.extensions)
        {
            return too_many;
        }
        unauthorized(refusal.as_ref())
    }
}

fn unauthorized(refusal: Option<&CredentialRefusal>) -> ProblemResponse {
    let detail = match refusal {
        None | Some(CredentialRefusal::Unknown) => {
            "send `Authorization: Bearer TOKEN`; the daemon wrote an admin token to \
                                                    `token` in its data directory"
                .to_owned()
        }
        Some(known) => known.to_string(),
    };
    problem_response(ErrorCode::Unauthorized, detail)
}

/// Finds the caller of a request.
fn authenticate(parts: &Parts, server: &ServerState) -> Result<ApiCall, AuthError> {
    if let Some(ForwardedCaller { caller, credential }) = parts.extensions.get() {
        return Ok(ApiCall { server: server.clone(), caller: caller.clone(), credential: *credential });
    }
    check_origin(&parts.headers, server).map_err(AuthError::Origin)?;
    let path = parts.uri.path();
    let token = request_token(&parts.headers, path);
    let is_page = token.is_none();
    let of_browser = || browser_secrets(&parts.headers, server).map(Credential::browser);
    let credential = token.map(Credential::token).or_else(of_browser).ok_or(AuthError::Credential(None))?;
    let access = server.engine().access();
    let surface = if is_page { Surface::Page } else { request_surface(&parts.headers) };
    let origin = request_origin(&parts.extensions, &parts.headers);
    let slot = parts.extensions.get::<CallerSlot>();
    let checked = access.check_credential(&credential);
    if let (Err(refusal), Some(slot)) = (&checked, slot)
        && let Some(caller) = Caller::refused(refusal, surface, origin.clone())
    {
        slot.set(caller);
    }
    let (principal, scope) = checked.map_err(|refusal| AuthError::Credential(Some(refusal)))?;
    mark_connection_authenticated(&parts.extensions);
    debug_assert!(scope >= AccessLevel::Read, "every token may read");
    let grants = access.grants_of(&principal, scope);
    // A token that was revoked at this moment has none.
    let key = access.key_of(&principal).ok_or(AuthError::Credential(Some(CredentialRefusal::Unknown)))?;
    let verified_person = access.is_verified_person(&credential) || is_unix_peer(&parts.extensions);
    let caller = Caller { principal, scope, grants, key, verified_person, surface, origin };
    server.engine().audit_token_use(&caller);
    if let Some(slot) = slot {
        slot.set(caller.clone());
    }
    RequestApi::of(&parts.method, path).check(&caller.key).map_err(AuthError::OtherApi)?;
    Ok(ApiCall { server: server.clone(), caller, credential: Some(credential) })
}

/// Counts a bad token, and answers 429 if there were too many from that network. Called only after the token was found
/// to be bad, so that a valid token is never refused for other callers of the same network.
pub(super) fn count_bad_token(server: &ServerState, extensions: &Extensions) -> Result<(), ProblemResponse> {
    match server.auth_failures().record(peer_ip(extensions)) {
        None => Ok(()),
        Some(seconds) => {
            let detail = format!("too many requests with a bad token came from this address; wait {seconds} s");
            Err(problem_response(ErrorCode::TooManyAttempts, detail).retry_after(seconds))
        }
    }
}

/// The peer address of a request, if the server recorded it.
pub(crate) fn peer_ip(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip())
}

/// The token of a request: in `Authorization`, or on the routes of OpenAI and Anthropic in `x-api-key`. Browsers send
/// neither by themselves.
fn request_token<'h>(headers: &'h HeaderMap, path: &str) -> Option<&'h str> {
    let api_key = || {
        let value = headers.get(API_KEY_HEADER).filter(|_| path.starts_with("/v1/"))?;
        value.to_str().ok().map(str::trim)
    };
    bearer_token(headers).or_else(api_key)
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Refuses a browser request with a foreign origin.
pub(crate) fn check_origin(headers: &HeaderMap, server: &ServerState) -> Result<(), ProblemResponse> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    if origin.to_str().is_ok_and(|origin| server.is_origin_allowed(origin, host)) {
        return Ok(());
    }
    Err(problem_response(
        ErrorCode::BadOrigin,
        format!("requests from the web origin {origin:?} are not allowed; add it to allowed_origins in [server]"),
    ))
}

/// Where a request came from; internal if the server did not record the peer.
pub(crate) fn request_origin(extensions: &Extensions, headers: &HeaderMap) -> RequestOrigin {
    if let Some(peer) = extensions.get::<UnixPeer>() {
        return RequestOrigin::unix_socket(peer.pid);
    }
    let Some(ConnectInfo(peer)) = extensions.get::<ConnectInfo<SocketAddr>>() else { return RequestOrigin::internal() };
    // A proxy adds a header line of its own or extends the last one.
    let last = |name: &str| headers.get_all(name).iter().next_back().and_then(|value| value.to_str().ok());
    RequestOrigin::from_peer(
        *peer,
        ForwardedHeaders { x_forwarded_for: last("x-forwarded-for"), forwarded: last("forwarded") },
    )
}

/// The cookie under either name: a proxy may set `X-Forwarded-Proto` for some of its paths only.
pub(crate) fn login_cookie<'h>(headers: &'h HeaderMap, server: &ServerState) -> Option<&'h str> {
    let name = server.engine().access().cookie_name();
    find_cookie(headers, &host_cookie_name(name)).or_else(|| find_cookie(headers, name))
}

fn find_cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let all = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(found, _)| *found == name).map(|(_, value)| value)
}

/// True behind a proxy with TLS. Some proxies name the scheme of the WebSocket.
pub(crate) fn is_over_tls(headers: &HeaderMap) -> bool {
    headers.get("x-forwarded-proto").is_some_and(|scheme| matches!(scheme.as_bytes(), b"https" | b"wss"))
}

/// The name of the cookie that is set over TLS.
pub(super) fn host_cookie_name(name: &str) -> String {
    format!("{HOST_COOKIE_PREFIX}{name}")
}

/// Both secrets of a signed-in browser; `None` if one is missing.
pub(super) fn browser_secrets<'h>(headers: &'h HeaderMap, server: &ServerState) -> Option<BrowserSecrets<'h>> {
    let page_secret = headers.get(PAGE_SECRET_HEADER)?.to_str().ok()?;
    Some(BrowserSecrets { cookie: login_cookie(headers, server)?, page_secret })
}

fn request_surface(headers: &HeaderMap) -> Surface {
    match headers.get(SURFACE_HEADER).map(axum::http::HeaderValue::as_bytes) {
        Some(b"cli") => Surface::Cli,
        Some(b"tui") => Surface::Tui,
        Some(b"acp") => Surface::Acp,
        _ => Surface::Http,
    }
}
