//! Why a server cannot be spoken to, in words for people: what happened, and what to do about it. No text of a library and no
//! URL is in them: those may hold keys, and say nothing to a person.

use reqwest::StatusCode;
use rmcp::ServiceError;
use rmcp::service::ClientInitializeError;

use super::config::McpConfig;
use super::site::HttpError;

/// A server that went away too early.
pub(super) const UNREADY: &str = "it ended before it was ready";
const NO_MCP: &str = "its answer is no message of MCP";
/// The most characters of what a server says of itself.
const LONGEST: usize = 200;

/// Why a server cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    /// What happened: a sentence that begins with "it" or "its".
    pub(super) why: String,
    /// What to do next; none where the section of the server is to be looked at as a whole.
    pub(super) remedy: Option<String>,
}

impl From<String> for Trouble {
    fn from(why: String) -> Self {
        Self { why, remedy: None }
    }
}

impl Trouble {
    fn new(why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { why: why.into(), remedy: Some(remedy.into()) }
    }

    /// A handshake that failed.
    pub(super) fn of_handshake(error: &ClientInitializeError, config: &McpConfig) -> Self {
        match error {
            ClientInitializeError::ConnectionClosed(_) | ClientInitializeError::Cancelled => UNREADY.to_owned().into(),
            ClientInitializeError::TransportError { error, .. } => {
                Self::of_transport(&*error.error, config).unwrap_or(UNREADY.to_owned().into())
            }
            ClientInitializeError::JsonRpcError(refusal) => {
                format!("it refused the handshake: {}", said(&refusal.message)).into()
            }
            ClientInitializeError::NoCompatibleProtocolVersion { server_supported, .. } => {
                let versions: Vec<String> = server_supported.iter().map(ToString::to_string).collect();
                Self::new(
                    format!("it speaks versions of MCP that Quell does not: {}", said(&versions.join(", "))),
                    "update the server, or Quell",
                )
            }
            // The others are answers that fit no question of a handshake.
            _ => Self::new(format!("the handshake failed: {NO_MCP}"), "check that what is there is a server of MCP"),
        }
    }

    /// A list of tools that did not come.
    pub(super) fn of_list(error: &ServiceError, config: &McpConfig) -> Self {
        let (why, remedy) = match error {
            ServiceError::McpError(refusal) => (said(&refusal.message), None),
            ServiceError::TransportSend(error) => {
                Self::of_transport(&*error.error, config).map_or((UNREADY.to_owned(), None), |at| (at.why, at.remedy))
            }
            ServiceError::TransportClosed => ("its connection ended".to_owned(), None),
            _ => (NO_MCP.to_owned(), None),
        };
        Self { why: format!("it does not list its tools: {why}"), remedy }
    }

    /// What an HTTP request came to; none for a failure of pipes.
    pub(super) fn of_transport(error: &(dyn std::error::Error + 'static), config: &McpConfig) -> Option<Self> {
        Some(match error.downcast_ref::<HttpError>()? {
            HttpError::AuthRequired(challenge) => unauthorized(&challenge.www_authenticate_header, config),
            HttpError::InsufficientScope(refusal) => {
                let scope = refusal.required_scope.as_ref().map(|scope| format!(": {}", said(scope)));
                let why =
                    format!("the token has not the rights that it asks for (HTTP 403){}", scope.unwrap_or_default());
                Self::new(why, "give it a token that has them, in `api_key_env` or `headers`")
            }
            HttpError::HttpStatus(status) => of_status(status.status, config),
            HttpError::UnexpectedServerResponse(text) => match status_in(text) {
                Some(status) => of_status(status, config),
                None => Self::new(NO_MCP, "check `url`: what answers there is no server of MCP"),
            },
            HttpError::Client(error) => match error.status() {
                Some(status) => of_status(status.as_u16(), config),
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
            | HttpError::Deserialize(_) => Self::new(NO_MCP, "check `url`: what answers there is no server of MCP"),
            HttpError::SessionExpired | HttpError::SessionRecoveryTimeout | HttpError::ReinitializationFailed(_) => {
                "it closed the session (HTTP 404)".to_owned().into()
            }
            // The rest are streams and requests that were cut.
            _ => "it ended its answer too early".to_owned().into(),
        })
    }
}

/// A refusal for want of a key. A server that names a place where keys are given out wants OAuth.
fn unauthorized(challenge: &str, config: &McpConfig) -> Trouble {
    if challenge.to_ascii_lowercase().contains("resource_metadata") && !has_key(config) {
        return Trouble::new(
            "it asks for a sign-in by OAuth, which Quell does not support yet (HTTP 401)",
            "get a token from the server's provider and name its environment variable in `api_key_env`, or set `headers`",
        );
    }
    of_status(StatusCode::UNAUTHORIZED.as_u16(), config)
}

fn of_status(status: u16, config: &McpConfig) -> Trouble {
    let why = format!("it answers with HTTP {status}");
    match status {
        401 | 403 if has_key(config) => Trouble::new(
            format!("it does not take the key (HTTP {status})"),
            "check the key in `api_key_env` or `headers`",
        ),
        401 | 403 => {
            let remedy = "name the environment variable of a key in `api_key_env`, or set `headers`";
            Trouble::new(format!("it asks for a key (HTTP {status})"), remedy)
        }
        404 | 405 | 410 => Trouble::new(why, "check `url`: nothing there speaks MCP"),
        429 => Trouble::new(why, "it limits requests: try again later"),
        500.. => Trouble::new(why, "look at the server's own log"),
        _ => Trouble::new(why, "check `url` and `headers`"),
    }
}

fn has_key(config: &McpConfig) -> bool {
    config.api_key.is_some() || config.headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"))
}

/// The library says `HTTP 401 Unauthorized: ` before the body of a failure for which it has no error of its own.
fn status_in(text: &str) -> Option<u16> {
    text.strip_prefix("HTTP ")?.get(..3)?.parse().ok()
}

fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.last().map(ToString::to_string).unwrap_or_default()
}

fn said(text: &str) -> String {
    quell_protocol::words::one_line(text, LONGEST)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use rmcp::transport::streamable_http_client::AuthRequiredError;
    use rstest::rstest;

    use super::*;

    const OAUTH: &str = "Bearer resource_metadata=\"https://host/.well-known/oauth-protected-resource\"";

    fn trouble(error: &HttpError, config: &McpConfig) -> Trouble {
        Trouble::of_transport(error, config).unwrap()
    }

    #[test]
    fn a_server_that_wants_oauth_says_so_and_how_to_give_a_token() {
        let told = trouble(&HttpError::AuthRequired(AuthRequiredError::new(OAUTH.to_owned())), &McpConfig::default());
        assert!(told.why.contains("OAuth, which Quell does not support yet"), "{told:?}");
        assert!(told.remedy.as_ref().is_some_and(|remedy| remedy.contains("api_key_env")), "{told:?}");
        let keyed = McpConfig { api_key: Some("hush".to_owned().into()), ..McpConfig::default() };
        let told = trouble(&HttpError::AuthRequired(AuthRequiredError::new(OAUTH.to_owned())), &keyed);
        assert_eq!(told.why, "it does not take the key (HTTP 401)");
    }

    #[rstest]
    #[case::html(Cow::from("could not parse JSON response as ServerJsonRpcMessage: x: <html>"), NO_MCP)]
    #[case::not_found(Cow::from("HTTP 404 Not Found: <html>"), "it answers with HTTP 404")]
    #[case::no_key(Cow::from("HTTP 401 Unauthorized: {}"), "it asks for a key (HTTP 401)")]
    fn no_text_of_the_library_is_shown(#[case] text: Cow<'static, str>, #[case] why: &str) {
        let told = trouble(&HttpError::UnexpectedServerResponse(text), &McpConfig::default());
        assert_eq!(told.why, why);
        assert!(told.remedy.is_some());
    }

    #[test]
    fn an_answer_that_fits_no_handshake_is_not_printed_as_the_library_prints_it() {
        let error = ClientInitializeError::ExpectedInitResult(None);
        let told = Trouble::of_handshake(&error, &McpConfig::default());
        assert_eq!(told.why, format!("the handshake failed: {NO_MCP}"));
    }
}
