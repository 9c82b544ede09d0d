//! Sign a browser in by token or one-time link, and out again.

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{Extensions, HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use quell_engine::access::{BrowserSignIn, Credential, LinkIssuer};
use quell_protocol::api::{AccessLevel, Grants};
use quell_protocol::web_ui::{CallerView, SignInLink, SignInRequest};
use quell_protocol::{ErrorCode, Principal};
use secrecy::ExposeSecret;

use super::auth::{count_bad_token, login_cookie};
use super::extractors::UnauthenticatedJsonBody;
use super::{ApiCall, ApiResult, ProblemResponse, check_origin, problem_response};
use crate::state::ServerState;

/// Thirty days in seconds, as long as the daemon accepts a cookie.
const COOKIE_MAX_AGE_S: u64 = 30 * 24 * 60 * 60;
/// Page address that tells that a link is not valid.
const SIGN_IN_FAILED_URL: &str = "/#sign-in-failed";

/// Signs in by the one-time link. Only GET uses the link up, so that a preview by HEAD does not.
pub(super) async fn sign_in_by_link(
    State(server): State<ServerState>,
    Path(code): Path<String>,
    method: Method,
    request: Request,
) -> Result<Response, ProblemResponse> {
    let headers = request.headers();
    if method != Method::GET {
        return Ok(Redirect::to("/").into_response());
    }
    Ok(match server.engine().access().sign_in_with_code(&code).await? {
        Some(signed_in) => {
            tracing::info!(principal = %signed_in.principal, "a browser signed in by its link");
            with_cookie(
                Redirect::to("/"),
                &cookie_header(&server, headers, signed_in.cookie.expose_secret(), COOKIE_MAX_AGE_S),
            )
        }
        None => {
            count_bad_token(&server, request.extensions())?;
            Redirect::to(SIGN_IN_FAILED_URL).into_response()
        }
    })
}

pub(super) async fn sign_in_by_token(
    State(server): State<ServerState>,
    extensions: Extensions,
    headers: HeaderMap,
    UnauthenticatedJsonBody(request): UnauthenticatedJsonBody<SignInRequest>,
) -> Result<Response, ProblemResponse> {
    check_origin(&headers, &server)?;
    let Some(signed_in) = server.engine().access().sign_in_with_token(request.token.expose().trim()).await? else {
        count_bad_token(&server, &extensions)?;
        let credential = Credential::token(request.token.expose().trim());
        let detail = match server.engine().access().check_credential(&credential) {
            Err(ended) if ended.principal().is_some() => ended.to_string(),
            _ => {
                "this is no token of this daemon; the first one is in the file `token` of its data directory".to_owned()
            }
        };
        return Err(problem_response(ErrorCode::Unauthorized, detail));
    };
    let BrowserSignIn { principal, scope, cookie } = signed_in;
    tracing::info!(%principal, "a browser signed in with a token");
    let grants = server.engine().access().grants_of(&principal, scope);
    let answers_own_calls = server.engine().approval_settings().by_own_principal;
    Ok(with_cookie(
        Json(CallerView { answers_own_calls, ..caller_view(principal, scope, grants) }),
        &cookie_header(&server, &headers, cookie.expose_secret(), COOKIE_MAX_AGE_S),
    ))
}

pub(super) async fn sign_out(
    State(server): State<ServerState>,
    headers: HeaderMap,
) -> Result<Response, ProblemResponse> {
    check_origin(&headers, &server)?;
    if let Some(value) = login_cookie(&headers, &server) {
        server.engine().access().sign_out(value).await?;
    }
    Ok(with_cookie(StatusCode::NO_CONTENT, &cookie_header(&server, &headers, "", 0)))
}

pub(super) async fn me(ApiCall { caller, server, .. }: ApiCall) -> Json<CallerView> {
    let view = caller_view(caller.principal, caller.scope, caller.grants);
    let answers_own_calls = caller.verified_person || server.engine().approval_settings().by_own_principal;
    Json(CallerView { answers_own_calls, ..view })
}

/// Creates a one-time link, as a path: the client knows by which address it reaches the daemon.
pub(super) async fn create_link(call: ApiCall) -> ApiResult<SignInLink> {
    let caller = call.require_admin()?;
    let issuer = if caller.verified_person { LinkIssuer::Person } else { LinkIssuer::TokenHolder };
    let code = call.engine().access().issue_login_code(issuer)?;
    Ok(Json(SignInLink { path: format!("/sign-in/{}", code.expose_secret()) }))
}

fn caller_view(principal: Principal, scope: AccessLevel, grants: Grants) -> CallerView {
    CallerView {
        principal,
        scope,
        scopes: grants.to_token_scopes(scope),
        answers_own_calls: false,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// The `Set-Cookie` value. Scripts cannot read the cookie, and requests from other sites do not carry it.
fn cookie_header(server: &ServerState, headers: &HeaderMap, value: &str, max_age_s: u64) -> String {
    // Behind a proxy with TLS, the cookie is sent over TLS only.
    let https = headers.get("x-forwarded-proto").is_some_and(|scheme| scheme.as_bytes() == b"https");
    let name = server.engine().access().cookie_name();
    let secure = if https { "; Secure" } else { "" };
    format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={max_age_s}{secure}")
}

fn with_cookie(answer: impl IntoResponse, cookie: &str) -> Response {
    let mut response = answer.into_response();
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}
