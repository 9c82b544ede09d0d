//! Whether each MCP server starts and lists its tools: tried, not concluded, in the way in which a run would.

use quell_engine::clock::Clock;
use quell_engine::mcp::{Health, Mcp, McpConfig, McpSettings, probe};
use quell_engine::proc::Wardens;

use super::Setup;
use super::finding::Finding;

/// Each configured server.
pub(super) fn servers(setup: &Setup<'_>) -> Vec<Finding> {
    let configured = &setup.loaded.config.mcp;
    if configured.is_empty() {
        return vec![Finding::ok("no MCP server is configured")];
    }
    setup.runtime.block_on(async {
        let mcp = match mcp(setup) {
            Ok(mcp) => mcp,
            Err(problem) => {
                return vec![Finding::fail(problem, "correct the [mcp] sections; see docs/configuration.md")];
            }
        };
        let mut findings = Vec::new();
        for (name, server) in configured {
            findings.push(one(&mcp, (name, server)).await);
        }
        findings
    })
}

fn mcp(setup: &Setup<'_>) -> Result<Mcp, String> {
    let times = setup.loaded.stop_times();
    let wardens =
        Wardens::new(setup.warden.clone(), times).map_err(|error| format!("a warden cannot be started: {error}"))?;
    let (servers, environment) = (setup.loaded.config.mcp.clone(), setup.environment.to_vec());
    let settings = McpSettings { servers, wardens, environment, times, clock: Clock::start() };
    Mcp::new(settings).map_err(|error| error.to_string())
}

async fn one(mcp: &Mcp, (name, server): (&String, &McpConfig)) -> Finding {
    if server.api_key.is_none()
        && let Some(variable) = &server.api_key_env
    {
        return Finding::fail(
            format!("{name}: api_key_env names {variable}, which is not set or empty here"),
            format!("export {variable}=..., or remove api_key_env if the server needs no key"),
        );
    }
    match probe(mcp, name, &std::env::temp_dir()).await {
        Health::Works(tools) => Finding::ok(format!("{name} starts and lists {tools} tools")),
        Health::Broken { why, said, remedy } => {
            let said = said.lines().last().map(|line| format!("; it printed: {line}")).unwrap_or_default();
            let what = server.command.as_ref().map_or("url", |_| "command and args");
            let next =
                remedy.map_or_else(|| format!("check {what} of [mcp.{name}]"), |next| format!("[mcp.{name}]: {next}"));
            Finding::fail(format!("{name}: {why}{said}"), next)
        }
    }
}
