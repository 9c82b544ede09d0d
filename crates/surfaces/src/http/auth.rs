//! Who comes in: bearer token or the page's cookie, with the origin of browsers checked.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, header};
use quell_engine::access::{Caller, Credential, Forwarded, Origin};
use quell_protocol::api::{Grants, Scope};
use quell_protocol::{ErrorCode, Surface};

use super::{Refused, refuse};
use crate::door::Door;
use crate::serve::{Connection, LocalPeer};

/// The header with which a first-party client names itself, so that receipts say where a stop came from.
const SURFACE_HEADER: &str = "x-quell-surface";

/// A caller that may ask for a stop: one with a token, or a process of the same user at the Unix socket.
#[derive(Debug, Clone)]
pub(crate) struct Stopper(pub(crate) Visitor);

impl FromRequestParts<Door> for Stopper {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Self, Refused> {
        let refused = match Visitor::from_request_parts(parts, door).await {
            Ok(visitor) => return Ok(Self(visitor)),
            Err(refused) => refused,
        };
        // A browser that was sent here is refused for its origin, not for want of a token.
        if parts.extensions.get::<LocalPeer>().is_none() || !refused.is(ErrorCode::Unauthorized) {
            return Err(refused);
        }
        was_authenticated(&parts.extensions);
        let (principal, scope) = door.engine().access().local_admin();
        let (surface, origin) = (surface(&parts.headers), origin_of(&parts.extensions, &parts.headers));
        let grants = Grants::of(scope);
        Ok(Self(Visitor(Caller { principal, scope, grants, surface, origin })))
    }
}

/// From now on the connection is not one of those that give way.
fn was_authenticated(extensions: &Extensions) {
    if let Some(connection) = extensions.get::<Connection>() {
        connection.authenticated();
    }
}

/// A caller that showed a valid token.
#[derive(Debug, Clone)]
pub(crate) struct Visitor(pub(crate) Caller);

impl Visitor {
    /// Passes callers that may send and stop.
    pub(crate) fn writer(&self) -> Result<&Caller, Refused> {
        if self.0.may_write() {
            return Ok(&self.0);
        }
        Err(refuse(ErrorCode::Forbidden, "this needs a token with scope write; `quell token create` makes one"))
    }

    /// Passes callers that may answer for calls: those who decide approvals, and those who may write, who may deny their own.
    pub(crate) fn answerer(&self) -> Result<&Caller, Refused> {
        if self.0.may_write() || self.0.may_approve() {
            return Ok(&self.0);
        }
        Err(refuse(ErrorCode::Forbidden, "this needs a token with scope approve; `quell token create` makes one"))
    }

    /// Passes administrators.
    pub(crate) fn admin(&self) -> Result<&Caller, Refused> {
        if self.0.is_admin() {
            return Ok(&self.0);
        }
        Err(refuse(ErrorCode::Forbidden, "this needs a token with scope admin; the first one is in the data directory"))
    }
}

impl FromRequestParts<Door> for Visitor {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Self, Refused> {
        check_origin(&parts.headers, door)?;
        let shown = credential(&parts.headers, door);
        let owner = shown.and_then(|shown| door.engine().access().owner(&shown));
        let Some((principal, scope)) = owner else {
            if shown.is_some() {
                refuse_many(door, &parts.extensions)?;
            }
            return Err(refuse(
                ErrorCode::Unauthorized,
                "send `Authorization: Bearer TOKEN`; the daemon wrote an admin token to `token` in its data directory",
            ));
        };
        was_authenticated(&parts.extensions);
        debug_assert!(scope >= Scope::Read, "every token may look");
        let is_page = bearer(&parts.headers).is_none();
        let surface = if is_page { Surface::Page } else { surface(&parts.headers) };
        let origin = origin_of(&parts.extensions, &parts.headers);
        let grants = door.engine().access().grants(&principal, scope);
        Ok(Self(Caller { principal, scope, grants, surface, origin }))
    }
}

/// Counts a bad token, and refuses shortly when there were too many from that address. Asked after the token was found to be
/// bad, so that nobody is kept out by what others on the same address do.
pub(super) fn refuse_many(door: &Door, extensions: &Extensions) -> Result<(), Refused> {
    match door.attempts().failed(peer_of(extensions)) {
        None => Ok(()),
        Some(seconds) => {
            let detail = format!("too many requests with a bad token came from this address; wait {seconds} s");
            Err(refuse(ErrorCode::TooManyAttempts, detail).retry_after(seconds))
        }
    }
}

/// The address that a request came from, if the server tells.
pub(crate) fn peer_of(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip())
}

/// The bearer token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Refuses a browser that comes from a foreign origin.
pub(crate) fn check_origin(headers: &HeaderMap, door: &Door) -> Result<(), Refused> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    if origin.to_str().is_ok_and(|origin| door.origin_allowed(origin, host)) {
        return Ok(());
    }
    Err(refuse(
        ErrorCode::BadOrigin,
        format!("requests from the web origin {origin:?} are not allowed; add it to allowed_origins in [server]"),
    ))
}

/// Where a request came from. A server that does not tell its handlers who is connected leaves that open.
pub(crate) fn origin_of(extensions: &Extensions, headers: &HeaderMap) -> Origin {
    if let Some(peer) = extensions.get::<LocalPeer>() {
        return Origin::local(peer.pid);
    }
    let Some(ConnectInfo(peer)) = extensions.get::<ConnectInfo<SocketAddr>>() else { return Origin::inside() };
    // A proxy adds a line of its own or lengthens the last one.
    let last = |name: &str| headers.get_all(name).iter().next_back().and_then(|value| value.to_str().ok());
    Origin::of(*peer, Forwarded { x_forwarded_for: last("x-forwarded-for"), forwarded: last("forwarded") })
}

/// The value of the page's cookie.
pub(crate) fn cookie<'h>(headers: &'h HeaderMap, door: &Door) -> Option<&'h str> {
    let wanted = door.engine().access().cookie_name();
    let all = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == wanted).map(|(_, value)| value)
}

/// What a request showed, for what stays open long after it.
pub(super) fn credential(headers: &HeaderMap, door: &Door) -> Option<Credential> {
    let of_cookie = || cookie(headers, door).map(Credential::cookie);
    bearer(headers).map(Credential::token).or_else(of_cookie)
}

fn surface(headers: &HeaderMap) -> Surface {
    match headers.get(SURFACE_HEADER).map(axum::http::HeaderValue::as_bytes) {
        Some(b"cli") => Surface::Cli,
        Some(b"tui") => Surface::Tui,
        _ => Surface::Http,
    }
}
