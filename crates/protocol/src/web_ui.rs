//! Bodies used by the web page: sign-in, models, session changes.

use serde::{Deserialize, Serialize};

use crate::api::{AccessLevel, TokenScope};
use crate::ids::{AgentId, Principal};
use crate::session::{Secret, ThinkingLevel};

/// Body of `POST /api/sign-in`: either a token, or the code of a one-time link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignInRequest {
    #[serde(default)]
    pub token: Option<Secret>,
    /// The code of a link, from the fragment that the link leads to: `/#sign-in=CODE`.
    #[serde(default)]
    pub code: Option<Secret>,
}

/// A browser that was signed in. Its cookie is in a header of the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SignedIn {
    #[serde(flatten)]
    pub caller: CallerView,
    /// The secret that the page keeps in the storage of its origin, and sends in the header `X-Quell-Page` beside the
    /// cookie. The cookie is worth nothing without it.
    pub page_secret: Secret,
}

/// The caller of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Me)]
pub struct CallerView {
    /// The name of the token.
    pub principal: Principal,
    /// The access level of the token, without its grants.
    pub scope: AccessLevel,
    /// All scopes that the token was created with.
    #[serde(default)]
    pub scopes: Vec<TokenScope>,
    /// Whether this caller may allow the calls of its own runs, if it may allow calls at all.
    #[serde(default, rename = "answersOwnCalls")]
    pub answers_own_calls: bool,
    pub version: String,
}

/// A one-time link that signs a browser in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SignInLink {
    /// The path of the link at the daemon's address. It is valid for ten minutes.
    pub path: String,
}

/// A model that agents use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ModelRow {
    /// `provider/model`.
    pub model: String,
    /// The agents that use the model.
    pub agents: Vec<AgentId>,
}

/// Body of `PATCH /api/sessions/{key}`. A field that is absent stays as it is.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionPatch {
    /// `provider/model`, or a model of the session's provider.
    pub model: Option<String>,
    pub agent: Option<AgentId>,
    /// How much the model thinks.
    pub thinking: Option<ThinkingLevel>,
    /// The workdir in place of the agent's: an existing directory, absolute. See `POST /api/sessions`.
    pub workdir: Option<String>,
}
