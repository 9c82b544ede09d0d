//! Test support that is made of Quell's own crates and shared by the integration tests of the program: an engine, a
//! server and a daemon under test, and clients of their surfaces.
//!
//! What checks Quell from outside is in the testkit, which shares no code with it.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests run outside of any scope, and a failing test panics"
)]

pub mod a2a_client;
pub mod acp_client;
pub mod audit_entries;
pub mod channel_origin;
pub mod crash_copies;
pub mod doc_examples;
pub mod hook_receiver;
pub mod mcp_server_client;
pub mod mcp_servers;
pub mod npm_packages;
pub mod prelude;
pub mod seeing_agents;
pub mod send_process;
pub mod test_daemon;
pub mod test_engine;
pub mod test_server;
pub mod test_store;
pub mod ws_client;
