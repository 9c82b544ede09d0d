//! Text for what a stop is still waiting for: `model closed, 2 processes left`.

use std::collections::BTreeMap;

use quell_protocol::{Resource, ResourceKind};

use crate::state::ChatStop;
use crate::texts::Texts;

/// Text keys for the count of each kind of resource.
const RESOURCE_COUNT_KEYS: [(ResourceKind, &str, &str); 8] = [
    (ResourceKind::Process, "term.left.process.one", "term.left.process.many"),
    (ResourceKind::McpCall, "term.left.mcp.one", "term.left.mcp.many"),
    (ResourceKind::Run, "term.left.run.one", "term.left.run.many"),
    (ResourceKind::HttpRequest, "term.left.http.one", "term.left.http.many"),
    (ResourceKind::Task, "term.left.task.one", "term.left.task.many"),
    (ResourceKind::Hook, "term.left.hook.one", "term.left.hook.many"),
    (ResourceKind::Delivery, "term.left.delivery.one", "term.left.delivery.many"),
    (ResourceKind::Approval, "term.left.approval.one", "term.left.approval.many"),
];

/// Progress of a stop as text; empty while nothing is known.
pub(crate) fn stop_progress_text(stop: &ChatStop, texts: Texts) -> String {
    let resources = || stop.stopping_runs.values().flat_map(|holding| &holding.resources);
    let is_held = |resource: &&Resource| resource.released_at.is_none();
    let mut parts = Vec::new();
    let models: Vec<&Resource> = resources().filter(|resource| resource.kind == ResourceKind::ModelRequest).collect();
    if models.iter().any(is_held) {
        parts.push(texts.get("term.left.model_open").to_owned());
    } else if models.iter().any(|model| was_released_by_stop(model)) {
        parts.push(texts.get("term.left.model_closed").to_owned());
    }
    for (kind, one, many) in RESOURCE_COUNT_KEYS {
        let held = resources().filter(|resource| resource.kind == kind).filter(is_held).count();
        if held > 0 {
            parts.push(texts.plural(one, many, held));
        }
    }
    let delivered: BTreeMap<bool, ()> = stop.stopping_runs.values().map(|holding| (holding.delivered, ())).collect();
    if parts.is_empty() && delivered.contains_key(&true) {
        parts.push(texts.get("term.left.nothing").to_owned());
    }
    parts.join(", ")
}

/// True for a resource that was released after the stop was requested.
fn was_released_by_stop(resource: &Resource) -> bool {
    resource.released_at.as_ref().and_then(|released| released.ms).is_some_and(|ms| ms >= 0.0)
}
