//! What a parsed configuration may still have wrong.

use quell_engine::tools::Toolbox;

use super::Config;

/// A problem with one key.
pub(super) struct Problem {
    pub(super) key: String,
    pub(super) text: String,
}

/// All problems, in the order of the file's sections.
pub(super) fn problems(config: &Config) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut wrong = |key: &str, text: String| found.push(Problem { key: key.to_owned(), text });
    let stop = &config.stop;
    if !config.store.url.starts_with("sqlite:") || config.store.url.len() == "sqlite:".len() {
        wrong("store.url", format!("{:?} is not supported; write sqlite:FILE", config.store.url));
    }
    if stop.grace_ms <= stop.term_ms.saturating_add(500) {
        let text =
            format!("{} is too short; it must be more than term_ms + 500 = {}", stop.grace_ms, stop.term_ms + 500);
        wrong("stop.grace_ms", text);
    }
    if stop.hard_ms == 0 {
        wrong("stop.hard_ms", "0 would give up at once; the default is 5000".to_owned());
    }
    let limits = &config.limits;
    for (key, value) in [
        ("limits.in_flight_runs", limits.in_flight_runs),
        ("limits.max_steps", usize::try_from(limits.max_steps).unwrap_or(usize::MAX)),
        ("limits.request_body_bytes", limits.request_body_bytes),
        ("limits.tool_output_bytes", limits.tool_output_bytes),
        ("limits.run_timeout_s", usize::try_from(limits.run_timeout_s).unwrap_or(usize::MAX)),
        ("server.max_connections", config.server.max_connections),
    ] {
        if value == 0 {
            wrong(key, "0 would let nothing through; leave the key out for the default".to_owned());
        }
    }
    for (id, agent) in &config.agents {
        let provider = agent.model.split_once('/').map(|(provider, _)| provider);
        let key = format!("agents.{id}.model");
        match provider {
            None => wrong(&key, format!("{:?} must be PROVIDER/MODEL", agent.model)),
            Some(provider) if provider != "demo" && !config.providers.contains_key(provider) => {
                wrong(&key, format!("there is no [providers.{provider}] for {:?}", agent.model));
            }
            Some(_) => {}
        }
        if let Err(unknown) = Toolbox::check(&agent.tools) {
            wrong(&format!("agents.{id}.tools"), unknown.to_string());
        }
        if let Some(parent) = agent.parent.as_ref().filter(|parent| !config.agents.contains_key(*parent)) {
            wrong(&format!("agents.{id}.parent"), format!("there is no [agents.{parent}]"));
        }
    }
    found
}
