//! Bodies of what the page needs besides the rest of the API: signing in, and which models there are.

use serde::{Deserialize, Serialize};

use crate::api::{Scope, TokenScope};
use crate::ids::{AgentId, Principal};
use crate::session::Secret;

/// Body of `POST /api/sign-in`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignInRequest {
    /// A token of the daemon.
    pub token: Secret,
}

/// Who a caller is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Me {
    /// The name of the token.
    pub principal: Principal,
    /// What it may do, without what is given besides.
    pub scope: Scope,
    /// What the token was made for, all of it.
    #[serde(default)]
    pub scopes: Vec<TokenScope>,
    /// The daemon's version.
    pub version: String,
}

/// A one-time link that signs a browser in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SignInLink {
    /// Its path, to be opened within ten minutes at the daemon's address.
    pub path: String,
}

/// A model that agents work with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ModelRow {
    /// `provider/model`.
    pub model: String,
    /// Agents that have it.
    pub agents: Vec<AgentId>,
}

/// Body of `PATCH /api/sessions/{key}`: what is absent stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionPatch {
    /// `provider/model`, or a model of the session's provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentId>,
}
