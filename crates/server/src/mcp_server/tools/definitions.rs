//! Names, descriptions and schemas of the tools.

use serde_json::{Value, json};

use crate::mcp_server::versions::ProtocolEra;

const RUN: &str = "The id of the run.";
const REASON: &str = "Why, for the receipt and the audit log.";
const FORCE: &str = "Kill at once, without the grace of a gentle stop.";

/// The definitions for `tools/list`.
pub(in crate::mcp_server) fn list(era: ProtocolEra) -> Vec<Value> {
    let mut run_agent = run_agent();
    if era == ProtocolEra::Session {
        run_agent["execution"] = json!({"taskSupport": "optional"});
    }
    // The first one needs no arguments: programs try it out.
    let mut tools = vec![
        tool("list_agents", "List the agents, with their models and what they do now.", &json!({}), &[]),
        run_agent,
    ];
    tools.extend(reading_tools());
    tools.extend(stopping_tools());
    tools
}

fn run_agent() -> Value {
    tool(
        "run_agent",
        "Send a message to an agent and wait for its answer. Progress comes while it works. Cancel the call to stop the \
         run: everything that it holds ends. The result has the answer, the session to go on in, and the receipt.",
        &json!({
            "message": text("The message for the agent."),
            "agent": text("The id of the agent; without it the session's agent, else the default one."),
            "session": text("The session to go on in; without it a new one."),
            "on_busy": {
                "type": "string",
                "enum": ["queue", "interrupt", "reject"],
                "description": "What to do while a run of the session is active. Default: queue.",
            },
            "timeout_s": count("Time limit of the whole run in seconds."),
        }),
        &["message"],
    )
}

fn reading_tools() -> Vec<Value> {
    vec![
        tool(
            "list_runs",
            "List runs, the newest first, or those that are active now.",
            &json!({
                "state": {"type": "string", "enum": ["active", "all"], "description": "Default: all."},
                "session": text("Only runs of this session."),
                "limit": count("Runs of a page, at most 1000. Default: 100."),
                "cursor": text("`nextCursor` of the page before."),
            }),
            &[],
        ),
        tool(
            "watch_run",
            "Wait until a run ends, or until the timeout, and return its state. Progress comes meanwhile. Cancelling \
             this call does not stop the run.",
            &json!({"run": text(RUN), "timeout_s": count("How long to wait, at most 3600. Default: 60.")}),
            &["run"],
        ),
    ]
}

fn stopping_tools() -> Vec<Value> {
    let force = json!({"type": "boolean", "description": FORCE});
    vec![
        tool(
            "stop_run",
            "Stop a run and wait for its receipt: model request, processes, calls and runs below it.",
            &json!({"run": text(RUN), "force": force, "reason": text(REASON)}),
            &["run"],
        ),
        tool(
            "stop_session",
            "Stop all runs of a session, withdraw its queued messages and end its background processes.",
            &json!({"session": text("The key of the session."), "force": force, "reason": text(REASON)}),
            &["session"],
        ),
        tool(
            "stop_all",
            "Stop everything that the token may stop. With `hold`, new runs are refused until the hold is lifted.",
            &json!({
                "hold": {"type": "boolean", "description": "Also refuse new runs. Needs an admin token."},
                "force": force,
                "reason": text(REASON),
            }),
            &[],
        ),
        tool("hold", "Refuse new runs until the hold is lifted.", &json!({"reason": text(REASON)}), &[]),
        tool("lift_hold", "Accept new runs again.", &json!({}), &[]),
    ]
}

fn tool(name: &str, description: &str, properties: &Value, required: &[&str]) -> Value {
    let is_reading = name.starts_with("list_") || name == "watch_run";
    json!({
        "name": name,
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        },
        "annotations": {
            "readOnlyHint": is_reading,
            "destructiveHint": name.starts_with("stop_"),
            "idempotentHint": name != "run_agent",
            "openWorldHint": name == "run_agent",
        },
    })
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn count(description: &str) -> Value {
    json!({"type": "integer", "minimum": 0, "description": description})
}
