//! Describe for users why a server cannot be used, and what to do; never with library text or URLs.
//!
//! Those may contain keys, and do not help a person.

use quell_net::root_cause;
use reqwest::StatusCode;
use rmcp::ServiceError;
use rmcp::service::ClientInitializeError;

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
    fn new(why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { description: why.into(), remedy: Some(remedy.into()) }
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
    if challenge.to_ascii_lowercase().contains("resource_metadata") && !has_key(config) {
        return ConnectProblem::new(
            "it asks for a sign-in by OAuth, which Quell does not support yet (HTTP 401)",
            "get a token from the server's provider and name its environment variable in `api_key_env`, or set `headers`",
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
fn parse_status(text: &str) -> Option<u16> {
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
    fn a_server_that_wants_oauth_says_so_and_how_to_give_a_token() {
        let problem =
            transport_problem(HttpError::AuthRequired(AuthRequiredError::new(OAUTH.to_owned())), &McpConfig::default());
        assert!(problem.description.contains("OAuth, which Quell does not support yet"), "{problem:?}");
        assert!(problem.remedy.as_ref().is_some_and(|remedy| remedy.contains("api_key_env")), "{problem:?}");
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
