//! Token scopes, access levels, and the bodies that create, list and show tokens.

use serde::{Deserialize, Serialize};

use crate::json_object::object;
use crate::word_enum::word_enum;

/// Access level of a token. Each level includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Scope)]
pub enum AccessLevel {
    /// Read only.
    Read,
    /// Read, send messages and stop one's own runs.
    Write,
    /// Do everything.
    Admin,
}

word_enum! {
    /// One entry in the list of scopes of a token.
    TokenScope {
        /// Read only.
        Read "read",
        /// Read, send messages and stop one's own runs.
        Write "write",
        /// Decide approvals.
        Approve "approve",
        /// Give a session a `baseUrl` or an `mcpUrl` of its own.
        Endpoints "endpoints",
        /// Read the sessions and runs of everybody.
        ReadAll "read:all",
        /// Read, use, share, reset and delete the sessions of everybody. Stopping their runs is `stop:all`.
        WriteAll "write:all",
        /// Stop every run, and everything at once.
        StopAll "stop:all",
        /// Do everything.
        Admin "admin",
    }
}

word_enum! {
    /// A standard API or protocol by which programs reach Quell.
    StandardApi {
        /// Chat Completions, Responses and Models of OpenAI.
        OpenAi "openai",
        /// The Messages API of Anthropic.
        Anthropic "anthropic",
        /// The Agent Client Protocol, by `quell acp`.
        Acp "acp",
        /// The Model Context Protocol.
        Mcp "mcp",
        /// The Agent2Agent protocol.
        A2a "a2a",
    }
}

/// What a token may use, within its scopes. A field that is absent restricts nothing, except that `agents` alone allows
/// no model by its own name, and `models` alone allows no agent.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct TokenRestrictions {
    /// The only APIs that it may use, besides stopping its own runs.
    pub apis: Option<Vec<StandardApi>>,
    /// The only agents that it may run; `*` stands for all.
    pub agents: Option<Vec<String>>,
    /// The only models that it may name, as `provider/model`, `provider/*` or `*`.
    pub models: Option<Vec<String>>,
    /// The most that its runs may cost in a day (UTC), in the currency of the prices.
    #[schema(minimum = 0)]
    pub daily_cost: Option<f64>,
}

impl TokenRestrictions {
    /// True if nothing is restricted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What the runs of a token have used in some time.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenUsageSum {
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Cost of the tokens whose model has a price.
    pub cost: f64,
}

/// What the runs of a token have used, those that are active included.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenUsage {
    /// On the current day, in UTC.
    pub today: TokenUsageSum,
    /// On the current day and the 29 days before.
    pub last30_days: TokenUsageSum,
}

/// Scopes of a token: one word or a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum TokenScopes {
    One(TokenScope),
    Several(Vec<TokenScope>),
}

/// Rights that are granted beside the access level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a right that a token has or has not")]
pub struct Grants {
    pub approve: bool,
    /// May use sessions that have a `baseUrl` or an `mcpUrl` of their own.
    pub endpoints: bool,
    /// May read the sessions and runs of others.
    pub read_all: bool,
    /// May read, use, share, reset and delete the sessions of others.
    pub write_all: bool,
    /// May stop the runs of others.
    pub stop_all: bool,
}

impl TokenScopes {
    #[must_use]
    pub fn as_slice(&self) -> &[TokenScope] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Several(several) => several,
        }
    }

    /// Splits the list into access level and grants. Every token has at least the level `read`.
    #[must_use]
    pub fn level_and_grants(&self) -> (AccessLevel, Grants) {
        let has = |scope| self.as_slice().contains(&scope);
        let level = match () {
            () if has(TokenScope::Admin) => AccessLevel::Admin,
            () if has(TokenScope::Write) || has(TokenScope::WriteAll) => AccessLevel::Write,
            () => AccessLevel::Read,
        };
        let given = Grants {
            approve: has(TokenScope::Approve),
            endpoints: has(TokenScope::Endpoints),
            read_all: has(TokenScope::ReadAll),
            write_all: has(TokenScope::WriteAll),
            stop_all: has(TokenScope::StopAll),
        };
        (level, if level == AccessLevel::Admin { Grants::ALL } else { given })
    }
}

impl From<AccessLevel> for TokenScopes {
    fn from(level: AccessLevel) -> Self {
        Self::One(level.into())
    }
}

impl From<AccessLevel> for TokenScope {
    fn from(level: AccessLevel) -> Self {
        match level {
            AccessLevel::Read => Self::Read,
            AccessLevel::Write => Self::Write,
            AccessLevel::Admin => Self::Admin,
        }
    }
}

impl Grants {
    pub const NONE: Self =
        Self { approve: false, endpoints: false, read_all: false, write_all: false, stop_all: false };
    pub const ALL: Self = Self { approve: true, endpoints: true, read_all: true, write_all: true, stop_all: true };

    /// The grants that an access level includes: all for `admin`, none for the others.
    #[must_use]
    pub fn for_level(level: AccessLevel) -> Self {
        if level == AccessLevel::Admin { Self::ALL } else { Self::NONE }
    }

    /// The list of scopes for this level and these grants. For `admin` it is that one word.
    #[must_use]
    pub fn to_token_scopes(self, level: AccessLevel) -> Vec<TokenScope> {
        if level == AccessLevel::Admin {
            return vec![TokenScope::Admin];
        }
        let grants = [
            (self.approve, TokenScope::Approve),
            (self.endpoints, TokenScope::Endpoints),
            (self.read_all, TokenScope::ReadAll),
            (self.write_all, TokenScope::WriteAll),
            (self.stop_all, TokenScope::StopAll),
        ];
        let given = grants.into_iter().filter(|(has, _)| *has).map(|(_, scope)| scope);
        std::iter::once(level.into()).chain(given).collect()
    }
}

/// A token, without its secret.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenRow {
    /// The name of the token, which is the principal.
    pub name: String,
    /// The access level, without the grants.
    pub scope: AccessLevel,
    /// All scopes that the token was created with.
    #[serde(default)]
    pub scopes: Vec<TokenScope>,
    /// Time of creation, RFC 3339.
    pub created_at: String,
    /// When its secret expires, RFC 3339; absent if never. It stays in the list until it is revoked.
    #[serde(default)]
    pub expires_at: Option<String>,
    /// When its secret was last replaced, RFC 3339.
    #[serde(default)]
    pub rotated_at: Option<String>,
    /// Until when the secret from before the last rotation is valid, RFC 3339.
    #[serde(default)]
    pub previous_until: Option<String>,
    /// What it may use; absent if it is not restricted.
    #[serde(default, skip_serializing_if = "TokenRestrictions::is_empty")]
    pub restrictions: TokenRestrictions,
    /// What its runs have used. Only in the list.
    #[serde(default)]
    pub usage: Option<TokenUsage>,
}

/// Body of `POST /api/tokens`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenRequest {
    /// The name of the token, which is the principal.
    #[schema(min_length = 1)]
    pub name: String,
    /// One scope, or a list such as `["write", "approve"]`.
    pub scope: TokenScopes,
    /// Seconds from now after which the token is refused, at most ten years. Absent or null: it never expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315_360_000)]
    pub expires_in_s: Option<u32>,
    /// What the token may use; without it, whatever its scopes allow. A token with the scope `admin` takes none.
    #[serde(default, deserialize_with = "object", skip_serializing_if = "TokenRestrictions::is_empty")]
    pub restrictions: TokenRestrictions,
}

/// Body of `POST /api/tokens/{name}/rotate`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct TokenRotationRequest {
    /// Seconds for which the old secret stays valid; without it, the old secret ends at once.
    #[schema(minimum = 0, maximum = 315_360_000)]
    pub overlap_s: Option<u32>,
    /// Seconds from now after which the new secret is refused. Without it, it expires when the old one would have.
    #[schema(minimum = 1, maximum = 315_360_000)]
    pub expires_in_s: Option<u32>,
}

/// A new token, or a token with a new secret. The secret is shown here and never again.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewToken {
    pub name: String,
    /// The access level, without the grants.
    pub scope: AccessLevel,
    /// All scopes that the token was created with.
    #[serde(default)]
    pub scopes: Vec<TokenScope>,
    /// The secret.
    pub token: String,
    /// When it expires, RFC 3339; absent if never.
    #[serde(default)]
    pub expires_at: Option<String>,
    /// What it may use; absent if it is not restricted.
    #[serde(default, skip_serializing_if = "TokenRestrictions::is_empty")]
    pub restrictions: TokenRestrictions,
}
