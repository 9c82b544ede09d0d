//! MCP servers of others: the official ones, and one written with FastMCP.

mod browse;
mod official_server;
mod questions;
mod real_servers;

use std::time::Instant;

use quell_mcp::McpConfig;
use quell_protocol::SandboxMode;
use quell_test_support::mcp_servers::{call_row, last_result};

use crate::prelude::*;
