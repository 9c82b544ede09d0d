//! Start each MCP server and list its tools, in the same way as a run.

use quell_mcp::{Mcp, McpConfig, McpServerHealth, McpSettings, probe};
use quell_process::Wardens;
use quell_scope::clock::Clock;

use super::ConfiguredInput;
use super::finding::DoctorFinding;
use crate::runtime::block_on;

pub(super) fn servers(input: &ConfiguredInput<'_>) -> Vec<DoctorFinding> {
    let configured = &input.loaded.config.mcp;
    if configured.is_empty() {
        return vec![DoctorFinding::ok("no MCP server is configured")];
    }
    block_on(&input.base.runtime, async {
        let mcp = match build_mcp(input) {
            Ok(mcp) => mcp,
            Err(problem) => {
                return vec![DoctorFinding::fail(problem, "correct the [mcp] sections; see docs/configuration.md")];
            }
        };
        let mut findings = Vec::new();
        for (name, server) in configured {
            findings.push(check_server(&mcp, name, server).await);
        }
        findings
    })
}

fn build_mcp(input: &ConfiguredInput<'_>) -> Result<Mcp, String> {
    let times = input.loaded.stop_times();
    let wardens = Wardens::new(input.base.warden.clone(), times)
        .map_err(|error| format!("a warden cannot be started: {error}"))?;
    let (servers, environment) = (input.loaded.config.mcp.clone(), input.base.environment.clone());
    let data_dir = input.data_dir.to_owned();
    let settings = McpSettings { servers, wardens, environment, data_dir, times, clock: Clock::start() };
    Mcp::new(settings).map_err(|error| error.to_string())
}

async fn check_server(mcp: &Mcp, name: &str, server: &McpConfig) -> DoctorFinding {
    if server.api_key.is_none()
        && let Some(variable) = &server.api_key_env
    {
        return DoctorFinding::missing_key(name, variable);
    }
    match probe(mcp, name, &std::env::temp_dir()).await {
        McpServerHealth::Works(tools) => DoctorFinding::ok(format!("{name} starts and lists {tools} tools")),
        McpServerHealth::Broken { why, stderr_tail, remedy } => {
            let printed = stderr_tail.lines().last().map(|line| format!("; it printed: {line}")).unwrap_or_default();
            let what = server.command.as_ref().map_or("url", |_| "command and args");
            let next =
                remedy.map_or_else(|| format!("check {what} of [mcp.{name}]"), |next| format!("[mcp.{name}]: {next}"));
            DoctorFinding::fail(format!("{name}: {why}{printed}"), next)
        }
    }
}
