//! Token scopes, access levels, and the bodies that create, list and show tokens.

use serde::{Deserialize, Serialize};

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
        /// Do everything.
        Admin "admin",
    }
}

/// Scopes of a token: one word or a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum TokenScopes {
    One(TokenScope),
    Several(Vec<TokenScope>),
}

/// Rights that are granted beside the access level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Grants {
    pub approve: bool,
    /// May use sessions that have a `baseUrl` or an `mcpUrl` of their own.
    pub endpoints: bool,
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
            () if has(TokenScope::Write) => AccessLevel::Write,
            () => AccessLevel::Read,
        };
        let given = Grants { approve: has(TokenScope::Approve), endpoints: has(TokenScope::Endpoints) };
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
    pub const NONE: Self = Self { approve: false, endpoints: false };
    pub const ALL: Self = Self { approve: true, endpoints: true };

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
        let approve = self.approve.then_some(TokenScope::Approve);
        let endpoints = self.endpoints.then_some(TokenScope::Endpoints);
        [Some(level.into()), approve, endpoints].into_iter().flatten().collect()
    }
}

/// A token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
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
}

/// Body of `POST /api/tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenRequest {
    /// The name of the token, which is the principal.
    #[schema(min_length = 1)]
    pub name: String,
    /// One scope, or a list such as `["write", "approve"]`.
    pub scope: TokenScopes,
}

/// A new token. The secret is shown here and never again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
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
}
