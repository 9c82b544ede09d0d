//! The surfaces of the daemon, each with a small client of its own: HTTP, WebSocket, the APIs of others, chats.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests run outside of any scope, and a failing test panics"
)]

mod a2a;
mod agent_restrictions;
mod anthropic;
mod anthropic_api;
mod channels;
mod chat_terminal;
mod http;
mod mcp;
mod mcp_server;
mod openai_chat;
mod openai_responses;
mod ws;

use quell_test_support::{prelude, test_daemon, test_engine, test_server};
