//! The rule of each HTTP route and each WebSocket method: which callers it serves. A row of their tables cannot be
//! written without one. And the API that a path belongs to, for tokens that are restricted to some.

use axum::http::Method;
use quell_kernel::api_key::{ApiKey, KeyRefusal};
use quell_protocol::api::StandardApi;

use crate::http::is_stop_route;

/// Who may call a route or a method. The OpenAPI document publishes it as `x-quell-access`, and the tests check every
/// route by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "some rules are of HTTP routes alone, whose table is for tests"))]
pub(crate) enum RouteAccess {
    /// Everybody, without a token.
    Public,
    /// Every token: what the route shows or does belongs to nobody in particular.
    Token,
    /// Every token. What the token may not read is left out.
    List,
    /// Readers of the session or run. To others it does not exist.
    Read,
    /// Tokens with `read:all`: what the route shows comes from the sessions of everybody.
    ReadAll,
    /// Tokens with `write`, for something new.
    Create,
    /// Tokens with `write`, in a session of their own or a shared one.
    Use,
    /// Tokens with `write`, in a session of their own; with `write:all` in any.
    Manage,
    /// Tokens with `write`, in a session of their own; admins in any.
    Configure,
    /// Tokens with `write` for their own runs, with `stop:all` for any. Never depends on what the token may read.
    Stop,
    /// Tokens with `stop:all`.
    StopAll,
    /// Tokens with `approve`; with `write` only to deny the calls of their own runs.
    Approve,
    Admin,
}

#[cfg(test)]
impl RouteAccess {
    /// The word in the document.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Token => "token",
            Self::List => "list",
            Self::Read => "read",
            Self::ReadAll => "read_all",
            Self::Create => "create",
            Self::Use => "use",
            Self::Manage => "manage",
            Self::Configure => "configure",
            Self::Stop => "stop",
            Self::StopAll => "stop_all",
            Self::Approve => "approve",
            Self::Admin => "admin",
        }
    }
}

/// The API that a request belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestApi {
    /// One of these standard APIs: a token for one of them may use it.
    Standard(&'static [StandardApi]),
    /// The HTTP API of Quell itself.
    Own,
    /// What every token may use, to stop its own runs and to see that they have ended.
    StopsOwnRuns,
}

impl RequestApi {
    /// The API of a path. What is not known here belongs to Quell itself, so a token for another API may not use it.
    pub(crate) fn of(method: &Method, path: &str) -> Self {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        match parts.as_slice() {
            ["v1", "models", ..] => Self::Standard(&[StandardApi::OpenAi, StandardApi::Anthropic]),
            ["v1", "messages", ..] => Self::Standard(&[StandardApi::Anthropic]),
            ["v1", ..] => Self::Standard(&[StandardApi::OpenAi]),
            ["mcp", ..] => Self::Standard(&[StandardApi::Mcp]),
            ["a2a", ..] | [".well-known", "agent-card.json"] => Self::Standard(&[StandardApi::A2a]),
            ["api", "runs"] | ["api", "runs", _] | ["api", "me"] if *method == Method::GET => Self::StopsOwnRuns,
            _ if is_stop_route(method, path) => Self::StopsOwnRuns,
            _ => Self::Own,
        }
    }

    /// Checks that a token may use this API.
    pub(crate) fn check(self, key: &ApiKey) -> Result<(), KeyRefusal> {
        match self {
            Self::StopsOwnRuns => Ok(()),
            Self::Own => key.check_own_api(),
            Self::Standard(apis) if apis.iter().any(|api| key.may_use_api(*api)) => Ok(()),
            Self::Standard(apis) => apis.iter().try_for_each(|api| key.check_api(*api)),
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_protocol::api::TokenRestrictions;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("POST", "/v1/chat/completions", &[StandardApi::OpenAi])]
    #[case("POST", "/v1/responses", &[StandardApi::OpenAi])]
    #[case("GET", "/v1/models", &[StandardApi::OpenAi, StandardApi::Anthropic])]
    #[case("GET", "/v1/models/agent/main", &[StandardApi::OpenAi, StandardApi::Anthropic])]
    #[case("POST", "/v1/messages/count_tokens", &[StandardApi::Anthropic])]
    #[case("POST", "/mcp", &[StandardApi::Mcp])]
    #[case("POST", "/a2a/main/message:send", &[StandardApi::A2a])]
    #[case("GET", "/.well-known/agent-card.json", &[StandardApi::A2a])]
    #[case("POST", "/api/sessions/s/runs", &[StandardApi::Acp])]
    #[case("GET", "/api/runs/x/events", &[StandardApi::Acp])]
    #[case("GET", "/metrics", &[StandardApi::Acp])]
    #[case("GET", "/v2/anything", &[StandardApi::Acp])]
    #[case("POST", "/api/runs/x/stop", &StandardApi::ALL)]
    #[case("POST", "/api/stop", &StandardApi::ALL)]
    #[case("GET", "/api/runs/x", &StandardApi::ALL)]
    #[case("GET", "/api/me", &StandardApi::ALL)]
    fn a_path_serves_the_tokens_for_its_api(
        #[case] method: &str,
        #[case] path: &str,
        #[case] expected: &[StandardApi],
    ) {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let serves = |api: &StandardApi| {
            let restrictions = TokenRestrictions { apis: Some(vec![*api]), ..TokenRestrictions::default() };
            RequestApi::of(&method, path).check(&ApiKey::new(restrictions)).is_ok()
        };
        let served: Vec<StandardApi> = StandardApi::ALL.into_iter().filter(serves).collect();
        assert_eq!(served, expected, "{path}");
        assert_eq!(RequestApi::of(&method, path).check(&ApiKey::default()), Ok(()), "{path}");
    }
}
