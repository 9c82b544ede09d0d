//! How a browser gets its cookie: by the one-time link, or by a token; and how it gives it back.

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{Extensions, HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use quell_engine::access::SignedIn;
use quell_protocol::api::{Grants, Scope};
use quell_protocol::page::{Me, SignInLink, SignInRequest};
use quell_protocol::{ErrorCode, Principal};
use secrecy::ExposeSecret;

use super::auth::{cookie, refuse_many};
use super::body::Unproven;
use super::{Refused, Visitor, check_origin, refuse};
use crate::door::Door;

/// Thirty days, as long as the daemon takes a cookie.
const LIFE_S: u64 = 30 * 24 * 60 * 60;
/// Where the page says that a link was of no use.
const FAILED: &str = "/#sign-in-failed";

/// The one-time link: only a GET uses it up, so that who looks ahead with HEAD does not spend it.
pub(super) async fn by_link(
    State(door): State<Door>,
    Path(code): Path<String>,
    method: Method,
    request: Request,
) -> Result<Response, Refused> {
    let headers = request.headers();
    if method != Method::GET {
        return Ok(Redirect::to("/").into_response());
    }
    Ok(match door.engine().access().sign_in_by_link(&code).await? {
        Some(signed_in) => {
            tracing::info!(principal = %signed_in.principal, "a browser signed in by its link");
            with_cookie(Redirect::to("/"), &set(&door, headers, signed_in.cookie.expose_secret(), LIFE_S))
        }
        None => {
            refuse_many(&door, request.extensions())?;
            Redirect::to(FAILED).into_response()
        }
    })
}

pub(super) async fn by_token(
    State(door): State<Door>,
    extensions: Extensions,
    headers: HeaderMap,
    Unproven(request): Unproven<SignInRequest>,
) -> Result<Response, Refused> {
    check_origin(&headers, &door)?;
    let Some(signed_in) = door.engine().access().sign_in(request.token.expose().trim()).await? else {
        refuse_many(&door, &extensions)?;
        return Err(refuse(
            ErrorCode::Unauthorized,
            "this is no token of this daemon; the first one is in the file `token` of its data directory",
        ));
    };
    let SignedIn { principal, scope, cookie } = signed_in;
    tracing::info!(%principal, "a browser signed in with a token");
    let grants = door.engine().access().grants(&principal, scope);
    Ok(with_cookie(Json(me_of(principal, scope, grants)), &set(&door, &headers, cookie.expose_secret(), LIFE_S)))
}

pub(super) async fn out(State(door): State<Door>, headers: HeaderMap) -> Result<Response, Refused> {
    check_origin(&headers, &door)?;
    if let Some(value) = cookie(&headers, &door) {
        door.engine().access().sign_out(value).await?;
    }
    Ok(with_cookie(StatusCode::NO_CONTENT, &set(&door, &headers, "", 0)))
}

pub(super) async fn me(Visitor(caller): Visitor) -> Json<Me> {
    Json(me_of(caller.principal, caller.scope, caller.grants))
}

/// A new one-time link, as a path: the visitor knows by which address it reaches the daemon.
pub(super) async fn link(State(door): State<Door>, visitor: Visitor) -> Result<Json<SignInLink>, Refused> {
    visitor.admin()?;
    let code = door.engine().access().issue_link()?;
    Ok(Json(SignInLink { path: format!("/sign-in/{}", code.expose_secret()) }))
}

fn me_of(principal: Principal, scope: Scope, grants: Grants) -> Me {
    Me { principal, scope, scopes: grants.with(scope), version: env!("CARGO_PKG_VERSION").to_owned() }
}

/// The cookie as a header. Scripts do not see it, and no other site's page sends it along.
fn set(door: &Door, headers: &HeaderMap, value: &str, life_s: u64) -> String {
    // A proxy with TLS says so; the cookie then never travels without it.
    let https = headers.get("x-forwarded-proto").is_some_and(|scheme| scheme.as_bytes() == b"https");
    let name = door.engine().access().cookie_name();
    let secure = if https { "; Secure" } else { "" };
    format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={life_s}{secure}")
}

fn with_cookie(answer: impl IntoResponse, cookie: &str) -> Response {
    let mut response = answer.into_response();
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}
