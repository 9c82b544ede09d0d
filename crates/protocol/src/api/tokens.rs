//! Tokens: what they may do, and the bodies that make, list and show them.

use serde::{Deserialize, Serialize};

/// What a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Look.
    Read,
    /// Send, stop own runs.
    Write,
    /// Everything.
    Admin,
}

/// One of the things that a token can be made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenScope {
    /// Look.
    Read,
    /// Send, stop own runs.
    Write,
    /// Decide approvals.
    Approve,
    /// Sessions with a `baseUrl` or an `mcpUrl` of their own.
    Endpoints,
    /// Everything.
    Admin,
}

/// What a token was made for: one thing, or a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum TokenScopes {
    /// One.
    One(TokenScope),
    /// Several.
    Several(Vec<TokenScope>),
}

/// What somebody may do besides what the scope says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Grants {
    /// Decide approvals.
    pub approve: bool,
    /// Sessions with a `baseUrl` or an `mcpUrl` of their own.
    pub endpoints: bool,
}

impl TokenScopes {
    /// All of them.
    #[must_use]
    pub fn list(&self) -> &[TokenScope] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Several(several) => several,
        }
    }

    /// The same as a scope and what is given besides. Everybody may look.
    #[must_use]
    pub fn rights(&self) -> (Scope, Grants) {
        let has = |scope| self.list().contains(&scope);
        let scope = match () {
            () if has(TokenScope::Admin) => Scope::Admin,
            () if has(TokenScope::Write) => Scope::Write,
            () => Scope::Read,
        };
        let given = Grants { approve: has(TokenScope::Approve), endpoints: has(TokenScope::Endpoints) };
        (scope, if scope == Scope::Admin { Grants::ALL } else { given })
    }
}

impl From<Scope> for TokenScopes {
    fn from(scope: Scope) -> Self {
        Self::One(scope.into())
    }
}

impl From<Scope> for TokenScope {
    fn from(scope: Scope) -> Self {
        match scope {
            Scope::Read => Self::Read,
            Scope::Write => Self::Write,
            Scope::Admin => Self::Admin,
        }
    }
}

impl TokenScope {
    /// In a word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Approve => "approve",
            Self::Endpoints => "endpoints",
            Self::Admin => "admin",
        }
    }
}

impl Grants {
    /// Nothing.
    pub const NONE: Self = Self { approve: false, endpoints: false };
    /// All there is.
    pub const ALL: Self = Self { approve: true, endpoints: true };

    /// What a scope brings by itself.
    #[must_use]
    pub fn of(scope: Scope) -> Self {
        if scope == Scope::Admin { Self::ALL } else { Self::NONE }
    }

    /// A scope with these grants as a token's list. An admin's is one word.
    #[must_use]
    pub fn with(self, scope: Scope) -> Vec<TokenScope> {
        if scope == Scope::Admin {
            return vec![TokenScope::Admin];
        }
        let approve = self.approve.then_some(TokenScope::Approve);
        let endpoints = self.endpoints.then_some(TokenScope::Endpoints);
        [Some(scope.into()), approve, endpoints].into_iter().flatten().collect()
    }
}

/// A token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenRow {
    /// Its name, which is the principal.
    pub name: String,
    /// What it may do, without what is given besides.
    pub scope: Scope,
    /// What it was made for, all of it.
    #[serde(default)]
    pub scopes: Vec<TokenScope>,
    /// RFC 3339.
    pub created_at: String,
}

/// Body of `POST /api/tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenRequest {
    /// The token's name, which is its principal.
    #[schema(min_length = 1)]
    pub name: String,
    /// What it may do: one word, or a list such as `["write", "approve"]`.
    pub scope: TokenScopes,
}

/// A new token. The secret is shown here and never again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewToken {
    /// Its name.
    pub name: String,
    /// What it may do, without what is given besides.
    pub scope: Scope,
    /// What it was made for, all of it.
    #[serde(default)]
    pub scopes: Vec<TokenScope>,
    /// The secret.
    pub token: String,
}
