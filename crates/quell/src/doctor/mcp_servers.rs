//! Start each MCP server and list its tools, in the same way as a run.

use std::path::Path;

use quell_engine::agent::{AgentFactory, mcp_directories};
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
        let warnings = input.loaded.writable_server_warnings(input.data_dir);
        let remedy = "it was not started for this check; keep its program elsewhere, and give it the workdir as {workdir} in args";
        let mut findings: Vec<_> = warnings.into_iter().map(|warning| DoctorFinding::warn(warning, remedy)).collect();
        // A server is told of a workdir as in a run.
        let first = input.loaded.config.agents.iter().next();
        let workdir = first.map(|(id, agent)| AgentFactory::workdir_of(&input.work_dir, id, agent));
        let workdir = workdir.unwrap_or_else(|| input.work_dir.clone());
        // Those warned of would run, without a sandbox, what an agent may have put there.
        let is_started = |name: &str| input.loaded.writable_start_of(name, input.data_dir).is_none();
        for (name, server) in configured.iter().filter(|(name, _)| is_started(name)) {
            findings.push(check_server(&mcp, name, server, &workdir).await);
        }
        findings
    })
}

fn build_mcp(input: &ConfiguredInput<'_>) -> Result<Mcp, String> {
    let times = input.loaded.stop_times();
    let wardens = Wardens::new(input.base.warden.clone(), times)
        .map_err(|error| format!("a warden cannot be started: {error}"))?;
    let (servers, environment) = (input.loaded.config.mcp.clone(), input.base.environment.clone());
    Mcp::new(McpSettings {
        servers,
        wardens,
        environment,
        data_dir: input.data_dir.to_owned(),
        directories: mcp_directories(&input.work_dir),
        times,
        clock: Clock::start(),
    })
    .map_err(|error| error.to_string())
}

async fn check_server(mcp: &Mcp, name: &str, server: &McpConfig, workdir: &Path) -> DoctorFinding {
    if server.api_key.is_none()
        && let Some(variable) = &server.api_key_env
    {
        return DoctorFinding::missing_key(name, variable);
    }
    match probe(mcp, name, workdir).await {
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
