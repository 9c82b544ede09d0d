//! What is still being released while something is stopped: `model closed, 2 processes left`.

use std::collections::BTreeMap;

use quell_protocol::{Resource, ResourceKind};

use super::super::state::Stop;
use super::super::texts::Texts;

/// How a kind of thing is counted.
const LEFT: [(ResourceKind, &str, &str); 8] = [
    (ResourceKind::Process, "term.left.process.one", "term.left.process.many"),
    (ResourceKind::McpCall, "term.left.mcp.one", "term.left.mcp.many"),
    (ResourceKind::Run, "term.left.run.one", "term.left.run.many"),
    (ResourceKind::HttpRequest, "term.left.http.one", "term.left.http.many"),
    (ResourceKind::Task, "term.left.task.one", "term.left.task.many"),
    (ResourceKind::Hook, "term.left.hook.one", "term.left.hook.many"),
    (ResourceKind::Delivery, "term.left.delivery.one", "term.left.delivery.many"),
    (ResourceKind::Approval, "term.left.approval.one", "term.left.approval.many"),
];

/// What is known of a stop, in words; empty while nothing is known yet.
pub(crate) fn words(stop: &Stop, texts: Texts) -> String {
    let resources = || stop.runs.values().flat_map(|holding| &holding.resources);
    let is_held = |resource: &&Resource| resource.released_at.is_none();
    let mut parts = Vec::new();
    let models: Vec<&Resource> = resources().filter(|resource| resource.kind == ResourceKind::ModelRequest).collect();
    if models.iter().any(is_held) {
        parts.push(texts.say("term.left.model_open").to_owned());
    } else if models.iter().any(|model| was_stopped(model)) {
        parts.push(texts.say("term.left.model_closed").to_owned());
    }
    for (kind, one, many) in LEFT {
        let held = resources().filter(|resource| resource.kind == kind).filter(is_held).count();
        if held > 0 {
            parts.push(texts.count(one, many, held));
        }
    }
    let told: BTreeMap<bool, ()> = stop.runs.values().map(|holding| (holding.delivered, ())).collect();
    if parts.is_empty() && told.contains_key(&true) {
        parts.push(texts.say("term.left.nothing").to_owned());
    }
    parts.join(", ")
}

/// True for what was given back after the stop was asked for.
fn was_stopped(resource: &Resource) -> bool {
    resource.released_at.as_ref().and_then(|released| released.ms).is_some_and(|ms| ms >= 0.0)
}
