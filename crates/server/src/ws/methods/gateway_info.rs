//! What gateway clients ask about the gateway itself: `config.get`, `system-presence`, `exec.approval.list`.

use serde_json::{Value, json};

use super::super::payloads;
use super::WsClient;

/// `config.get`: the agents and their models. No secret is part of it, and nothing of it can be changed here.
pub(super) fn config(client: &WsClient) -> Value {
    let agents = client.engine().list_agents();
    let default = agents.iter().find(|agent| agent.default);
    let rows: Vec<Value> =
        agents.iter().map(|agent| json!({"id": agent.id, "model": payloads::primary_model(&agent.model)})).collect();
    let config = json!({
        "agents": {
            "defaults": {"model": default.map(|agent| payloads::primary_model(&agent.model))},
            "list": rows,
        },
        "gateway": {"mode": "local", "auth": {"mode": "token"}},
        "session": {"scope": "per-sender", "mainKey": "main"},
    });
    json!({"exists": true, "valid": true, "raw": null, "issues": [], "config": config, "runtimeConfig": config})
}

/// `system-presence`: the daemon itself. It does not tell clients of each other.
pub(super) fn presence(client: &WsClient) -> Value {
    let now = payloads::now_ms(client.engine().clock());
    json!([{
        "host": "quell", "mode": "gateway", "reason": "self", "version": env!("CARGO_PKG_VERSION"), "ts": now,
        "text": format!("Gateway: quell {}", env!("CARGO_PKG_VERSION")),
    }])
}
