//! Sign a browser in by token or one-time link, and out again.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{Extensions, HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use quell_engine::access::{BrowserSignIn, Credential, LinkIssuer};
use quell_protocol::api::{AccessLevel, Grants};
use quell_protocol::session::Secret;
use quell_protocol::web_ui::{CallerView, SignInLink, SignInRequest, SignedIn};
use quell_protocol::{ErrorCode, Principal};
use secrecy::ExposeSecret;

use super::auth::{browser_secrets, count_bad_token, host_cookie_name, is_over_tls};
use super::extractors::UnauthenticatedJsonBody;
use super::{ApiCall, ApiResult, ProblemResponse, check_origin, problem_response};
use crate::state::ServerState;

/// Thirty days in seconds, as long as the daemon accepts a cookie.
const COOKIE_MAX_AGE_S: u64 = 30 * 24 * 60 * 60;
const NO_TOKEN: &str = "this is no token of this daemon; the first one is in the file `token` of its data directory";
const NO_CODE: &str = "this link was used before, or is older than ten minutes; `quell page` prints another";

/// Page address that tells that a link is not valid.
const SIGN_IN_FAILED_URL: &str = "/#sign-in-failed";

/// Leads the one-time link to the page, which signs in with its code. The answer to that request gives the page the
/// secret of its origin, which a redirect could not do. So a preview of the link does not use it up.
pub(super) async fn open_link(Path(code): Path<String>) -> Redirect {
    // The code goes into a header.
    let is_code = !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_code { Redirect::to(&format!("/#sign-in={code}")) } else { Redirect::to(SIGN_IN_FAILED_URL) }
}

pub(super) async fn sign_in(
    State(server): State<ServerState>,
    extensions: Extensions,
    headers: HeaderMap,
    UnauthenticatedJsonBody(request): UnauthenticatedJsonBody<SignInRequest>,
) -> Result<Response, ProblemResponse> {
    check_origin(&headers, &server)?;
    let access = server.engine().access();
    if let Some(token) = &request.token {
        check_page_token(&server, token.expose().trim())?;
    }
    let (signed_in, refusal) = match (&request.token, &request.code) {
        (Some(token), None) => (access.sign_in_with_token(token.expose().trim()).await?, NO_TOKEN),
        (None, Some(code)) => (server.engine().sign_in_with_code(code.expose()).await?, NO_CODE),
        (Some(_), Some(_)) | (None, None) => {
            return Err(problem_response(ErrorCode::InvalidRequest, "send either `token` or `code`"));
        }
    };
    let Some(signed_in) = signed_in else {
        count_bad_token(&server, &extensions)?;
        let token = request.token.as_ref().map(|token| Credential::token(token.expose().trim()));
        let ended = token.and_then(|token| access.check_credential(&token).err());
        let ended = ended.filter(|ended| ended.principal().is_some());
        let detail = ended.map_or_else(|| refusal.to_owned(), |ended| ended.to_string());
        return Err(problem_response(ErrorCode::Unauthorized, detail));
    };
    let verified_person = access.is_verified_person(&Credential::browser(signed_in.secrets()));
    let BrowserSignIn { principal, scope, cookie, page_secret } = signed_in;
    let by_link = request.code.is_some();
    tracing::info!(%principal, by_link, "a browser signed in");
    let grants = access.grants_of(&principal, scope);
    let answers_own_calls = verified_person || server.engine().approval_settings().by_own_principal;
    let caller = CallerView { answers_own_calls, ..caller_view(principal, scope, grants) };
    Ok(with_cookie(
        Json(SignedIn { caller, page_secret: Secret::new(page_secret.expose_secret().to_owned()) }),
        &cookie_header(&server, &headers, cookie.expose_secret()),
    ))
}

/// Refuses a token that may not use what the page is made of.
fn check_page_token(server: &ServerState, token: &str) -> Result<(), ProblemResponse> {
    let access = server.engine().access();
    let key = access.authenticate(token).and_then(|(principal, _)| access.key_of(&principal));
    let checked = key.map_or(Ok(()), |key| key.check_own_api());
    checked.map_err(|refusal| problem_response(ErrorCode::Forbidden, refusal.to_string()))
}

pub(super) async fn sign_out(
    State(server): State<ServerState>,
    headers: HeaderMap,
) -> Result<Response, ProblemResponse> {
    check_origin(&headers, &server)?;
    if let Some(secrets) = browser_secrets(&headers, &server) {
        server.engine().access().sign_out(secrets).await?;
    }
    // The browser may have signed in under each name. It ignores what it may not set without TLS.
    let name = server.engine().access().cookie_name();
    let answer = with_cookie(StatusCode::NO_CONTENT, &format_cookie(name, "", 0, false));
    Ok(with_cookie(answer, &format_cookie(&host_cookie_name(name), "", 0, true)))
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

/// The `Set-Cookie` value of a sign-in. Behind a proxy with TLS, the cookie is sent over TLS only.
fn cookie_header(server: &ServerState, headers: &HeaderMap, value: &str) -> String {
    let name = server.engine().access().cookie_name();
    if is_over_tls(headers) {
        format_cookie(&host_cookie_name(name), value, COOKIE_MAX_AGE_S, true)
    } else {
        format_cookie(name, value, COOKIE_MAX_AGE_S, false)
    }
}

/// Scripts cannot read the cookie, and requests from other sites do not carry it.
fn format_cookie(name: &str, value: &str, max_age_s: u64, is_secure: bool) -> String {
    let secure = if is_secure { "; Secure" } else { "" };
    format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={max_age_s}{secure}")
}

fn with_cookie(answer: impl IntoResponse, cookie: &str) -> Response {
    let mut response = answer.into_response();
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}
