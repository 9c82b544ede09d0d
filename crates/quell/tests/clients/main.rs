//! Programs of others against Quell, and Quell against theirs, unmodified: official clients, servers and checkers. Part of
//! the full tests: they need Python, Node and npm packages.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests run outside of any scope, and a failing test panics"
)]

mod a2a {
    mod official_clients;
}
mod acp;
mod anthropic_api;
mod api_doc_examples;
mod cutting_relay;
mod dialects {
    pub(crate) mod official_clients;
}
mod mcp;
mod mcp_server;
mod openai_chat {
    mod official_clients;
}
mod openai_responses {
    pub(crate) mod official_clients;
}
mod openapi;
mod openclaw;

use quell_test_support::prelude;
