//! Describe for users why a server cannot be used, and what to do; never with library text or URLs.
//!
//! Those may contain keys, and do not help a person.

use quell_net::root_cause;
use reqwest::StatusCode;
use rmcp::ServiceError;
use rmcp::service::ClientInitializeError;
use rmcp::transport::auth::AuthError;

use super::config::McpConfig;
use super::http_connection::HttpError;
use super::server_transport::ServerTransportError;

/// For a server that ended too early.
pub(super) const ENDED_BEFORE_READY: &str = "it ended before it was ready";
const NOT_AN_MCP_MESSAGE: &str = "its answer is no message of MCP";
/// The maximum number of characters that are quoted from a server.
const MAX_QUOTED_CHARS: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConnectProblem {
    /// A clause that begins with "it" or "its".
    pub(super) description: String,
    /// What to do next; none if the whole section of the server should be checked.
    pub(super) remedy: Option<String>,
}

impl From<String> for ConnectProblem {
    fn from(why: String) -> Self {
        Self { description: why, remedy: None }
    }
}

impl ConnectProblem {
    pub(super) fn new(why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { description: why.into(), remedy: Some(remedy.into()) }
    }

    /// For a server at which a person has to sign in.
    pub(super) fn sign_in_needed(why: &str) -> Self {
        Self::new(why, "run `quell mcp login` with the name of the server, on the machine of the daemon")
    }

    /// A failed sign-in, refresh or search for the authorization server.
    pub(super) fn from_auth_error(error: &AuthError) -> Self {
        match error {
            AuthError::AuthorizationRequired | AuthError::TokenRefreshRejected(_) | AuthError::TokenExpired => {
                Self::sign_in_needed("its sign-in is no longer valid")
            }
            AuthError::TokenRefreshFailed(_) => Self::new(
                "its token could not be refreshed",
                "try again later: its authorization server may not be reachable",
            ),
            AuthError::TokenExchangeFailed(_) | AuthError::AuthorizationServerMismatch { .. } => {
                Self::sign_in_needed("its authorization server did not accept the sign-in")
            }
            AuthError::CredentialStoreError(why) => Self::new(
                format!("its tokens cannot be read or stored: {}", one_line(why)),
                "correct the file, or sign in again",
            ),
            AuthError::RegistrationFailed(_) => Self::new(
                "its authorization server registers no programs by itself",
                "register a client there and name it in `oauth_client_id`, or name the environment variable of a token in `api_key_env`",
            ),
            AuthError::PkceUnsupported => Self::new(
                "its authorization server does not support PKCE with S256, which the protocol requires",
                "get a token from the server's provider and name its environment variable in `api_key_env`",
            ),
            AuthError::HttpError(error) => Self::new(
                format!("its authorization server cannot be reached: {}", root_cause(error)),
                "try again later",
            ),
            _ => Self::new(
                "it publishes no usable data about its sign-in by OAuth",
                "check `url`, or set `oauth = false`; an authorization server with a private address takes `oauth_private_addresses = true`",
            ),
        }
    }

    pub(super) fn from_initialize_error(error: &ClientInitializeError, config: &McpConfig) -> Self {
        match error {
            ClientInitializeError::ConnectionClosed(_) | ClientInitializeError::Cancelled => {
                ENDED_BEFORE_READY.to_owned().into()
            }
            ClientInitializeError::TransportError { error, .. } => {
                Self::from_transport_error(&*error.error, config).unwrap_or(ENDED_BEFORE_READY.to_owned().into())
            }
            ClientInitializeError::JsonRpcError(refusal) => {
                format!("it refused the handshake: {}", one_line(&refusal.message)).into()
            }
            ClientInitializeError::NoCompatibleProtocolVersion { server_supported, .. } => {
                let versions: Vec<String> = server_supported.iter().map(ToString::to_string).collect();
                Self::new(
                    format!("it speaks versions of MCP that Quell does not: {}", one_line(&versions.join(", "))),
                    "update the server, or Quell",
                )
            }
            // All others are responses that do not fit a handshake.
            _ => Self::new(
                format!("the handshake failed: {NOT_AN_MCP_MESSAGE}"),
                "check that what is there is a server of MCP",
            ),
        }
    }

    /// A failed request for the list of tools.
    pub(super) fn from_list_error(error: &ServiceError, config: &McpConfig) -> Self {
        let (why, remedy) = match error {
            ServiceError::McpError(refusal) => (one_line(&refusal.message), None),
            ServiceError::TransportSend(error) => Self::from_transport_error(&*error.error, config)
                .map_or((ENDED_BEFORE_READY.to_owned(), None), |problem| (problem.description, problem.remedy)),
            ServiceError::TransportClosed => ("its connection ended".to_owned(), None),
            _ => (NOT_AN_MCP_MESSAGE.to_owned(), None),
        };
        Self { description: format!("it does not list its tools: {why}"), remedy }
    }

    /// A failed HTTP request; none for a failure of pipes.
    pub(super) fn from_transport_error(error: &(dyn std::error::Error + 'static), config: &McpConfig) -> Option<Self> {
        let ServerTransportError::Http(error) = error.downcast_ref()? else { return None };
        Some(match error {
            HttpError::AuthRequired(challenge) => unauthorized_problem(&challenge.www_authenticate_header, config),
            HttpError::Auth(error) => Self::from_auth_error(error),
            HttpError::InsufficientScope(refusal) => {
                let scope = refusal.required_scope.as_ref().map(|scope| format!(": {}", one_line(scope)));
                let why =
                    format!("the token has not the rights that it asks for (HTTP 403){}", scope.unwrap_or_default());
                Self::new(why, "give it a token that has them, in `api_key_env` or `headers`")
            }
            HttpError::HttpStatus(status) => status_problem(status.status, config),
            HttpError::UnexpectedServerResponse(text) => match parse_status(text) {
                Some(status) => status_problem(status, config),
                None => Self::new(NOT_AN_MCP_MESSAGE, "check `url`: what answers there is no server of MCP"),
            },
            HttpError::Client(error) => match error.status() {
                Some(status) => status_problem(status.as_u16(), config),
                None => Self::new(
                    format!("it cannot be reached: {}", root_cause(error)),
                    "start the server, or check `url`",
                ),
            },
            HttpError::ResponseBodyTooLarge { max_size } => {
                format!("its answer exceeded the maximum size of {} MiB", max_size / (1024 * 1024)).into()
            }
            HttpError::UnexpectedContentType(_)
            | HttpError::MissingSessionIdInResponse
            | HttpError::ServerDoesNotSupportSse
            | HttpError::Deserialize(_) => {
                Self::new(NOT_AN_MCP_MESSAGE, "check `url`: what answers there is no server of MCP")
            }
            HttpError::SessionExpired | HttpError::SessionRecoveryTimeout | HttpError::ReinitializationFailed(_) => {
                "it closed the session (HTTP 404)".to_owned().into()
            }
            // All others are interrupted streams and requests.
            _ => "it ended its answer too early".to_owned().into(),
        })
    }
}

/// A refusal for lack of a key. A server that names an authorization server wants OAuth.
fn unauthorized_problem(challenge: &str, config: &McpConfig) -> ConnectProblem {
    if config.oauth {
        return ConnectProblem::sign_in_needed("it does not accept the sign-in any more (HTTP 401)");
    }
    if challenge.to_ascii_lowercase().contains("resource_metadata") && !has_key(config) {
        return ConnectProblem::new(
            "it asks for a sign-in by OAuth (HTTP 401)",
            "set `oauth = true` and run `quell mcp login` with its name, or name the environment variable of a token in `api_key_env`",
        );
    }
    status_problem(StatusCode::UNAUTHORIZED.as_u16(), config)
}

fn status_problem(status: u16, config: &McpConfig) -> ConnectProblem {
    let why = format!("it answers with HTTP {status}");
    match status {
        401 | 403 if has_key(config) => ConnectProblem::new(
            format!("it does not take the key (HTTP {status})"),
            "check the key in `api_key_env` or `headers`",
        ),
        401 | 403 => {
            let remedy = "name the environment variable of a key in `api_key_env`, or set `headers`";
            ConnectProblem::new(format!("it asks for a key (HTTP {status})"), remedy)
        }
        404 | 405 | 410 => ConnectProblem::new(why, "check `url`: nothing there speaks MCP"),
        429 => ConnectProblem::new(why, "it limits requests: try again later"),
        500.. => ConnectProblem::new(why, "look at the server's own log"),
        _ => ConnectProblem::new(why, "check `url` and `headers`"),
    }
}

fn has_key(config: &McpConfig) -> bool {
    config.api_key.is_some() || config.headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"))
}

/// The library writes `HTTP 401 Unauthorized: ` before the body of a failure for which it has no error of its own.
pub(super) fn parse_status(text: &str) -> Option<u16> {
    text.strip_prefix("HTTP ")?.get(..3)?.parse().ok()
}

fn one_line(text: &str) -> String {
    quell_protocol::display_text::one_line(text, MAX_QUOTED_CHARS)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use rmcp::transport::streamable_http_client::AuthRequiredError;
    use rstest::rstest;

    use super::*;

    const OAUTH: &str = "Bearer resource_metadata=\"https://host/.well-known/oauth-protected-resource\"";

    fn transport_problem(error: HttpError, config: &McpConfig) -> ConnectProblem {
        ConnectProblem::from_transport_error(&ServerTransportError::Http(error), config).unwrap()
    }

    #[test]
    fn a_server_that_wants_oauth_says_so_and_how_to_sign_in() {
        let problem =
            transport_problem(HttpError::AuthRequired(AuthRequiredError::new(OAUTH.to_owned())), &McpConfig::default());
        assert!(problem.description.contains("asks for a sign-in by OAuth"), "{problem:?}");
        assert!(problem.remedy.as_ref().is_some_and(|remedy| remedy.contains("quell mcp login")), "{problem:?}");
        let keyed = McpConfig { api_key: Some("hush".to_owned().into()), ..McpConfig::default() };
        let problem = transport_problem(HttpError::AuthRequired(AuthRequiredError::new(OAUTH.to_owned())), &keyed);
        assert_eq!(problem.description, "it does not take the key (HTTP 401)");
    }

    #[rstest]
    #[case::html(Cow::from("could not parse JSON response as ServerJsonRpcMessage: x: <html>"), NOT_AN_MCP_MESSAGE)]
    #[case::not_found(Cow::from("HTTP 404 Not Found: <html>"), "it answers with HTTP 404")]
    #[case::no_key(Cow::from("HTTP 401 Unauthorized: {}"), "it asks for a key (HTTP 401)")]
    fn no_text_of_the_library_is_shown(#[case] text: Cow<'static, str>, #[case] why: &str) {
        let problem = transport_problem(HttpError::UnexpectedServerResponse(text), &McpConfig::default());
        assert_eq!(problem.description, why);
        assert!(problem.remedy.is_some());
    }

    #[test]
    fn an_answer_that_fits_no_handshake_is_not_printed_as_the_library_prints_it() {
        let error = ClientInitializeError::ExpectedInitResult(None);
        let problem = ConnectProblem::from_initialize_error(&error, &McpConfig::default());
        assert_eq!(problem.description, format!("the handshake failed: {NOT_AN_MCP_MESSAGE}"));
    }
}
