//! The rule of each HTTP route and each WebSocket method: which callers it serves. A row of their tables cannot be
//! written without one.

/// Who may call a route or a method. The OpenAPI document publishes it as `x-quell-access`, and the tests check every
/// route by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
