//! Whether models can be reached with the keys that are there, over the same connection that a run would use.

use std::time::Duration;

use quell_engine::llm::{CatalogueError, ModelError, ProviderConfig, ProviderKind, served_models};

use super::Setup;
use super::finding::Finding;

/// A person waits for this. A server that is slower is worth a word.
const PATIENCE: Duration = Duration::from_secs(4);
/// Names that are offered when a model is not served.
const OFFERED: usize = 5;

/// Each configured provider, and the agents' models on it.
pub(super) fn providers(setup: &Setup<'_>) -> Vec<Finding> {
    let real = setup.loaded.config.providers.iter().filter(|(_, provider)| provider.kind != ProviderKind::Demo);
    let findings: Vec<Finding> = real.flat_map(|(name, provider)| one(setup, name, provider)).collect();
    if !findings.is_empty() {
        return findings;
    }
    vec![Finding::warn(
        "no model provider is configured, so the built-in demo model answers",
        "export OPENAI_API_KEY=..., ANTHROPIC_API_KEY=... or OLLAMA_HOST=127.0.0.1:11434, or add [providers.X]; see docs/configuration.md",
    )]
}

fn one(setup: &Setup<'_>, name: &str, provider: &ProviderConfig) -> Vec<Finding> {
    if provider.api_key.is_none()
        && let Some(variable) = &provider.api_key_env
    {
        return vec![Finding::fail(
            format!("{name}: api_key_env names {variable}, which is not set or empty here"),
            format!("export {variable}=..., or remove api_key_env if the server needs no key"),
        )];
    }
    match setup.runtime.block_on(served_models(name, provider.clone(), PATIENCE)) {
        Ok(models) => served(setup, name, &models),
        Err(error) => vec![refused(name, provider, &error)],
    }
}

/// The server gave its list.
fn served(setup: &Setup<'_>, name: &str, models: &[String]) -> Vec<Finding> {
    let count = if models.len() == 1 { "1 model".to_owned() } else { format!("{} models", models.len()) };
    let mut findings = vec![Finding::ok(format!("{name} answers and lists {count}"))];
    for (id, agent) in &setup.loaded.config.agents {
        let Some((_, model)) = agent.model.split_once('/').filter(|(provider, _)| *provider == name) else { continue };
        if models.is_empty() || models.iter().any(|known| is_model(known, model)) {
            continue;
        }
        let offered: Vec<&str> = models.iter().take(OFFERED).map(String::as_str).collect();
        let more = if models.len() > OFFERED { ", ..." } else { "" };
        findings.push(Finding::warn(
            format!("{name} does not list the model {model} of agent {id}"),
            format!("set model of [agents.{id}] to one that it serves: {}{more}", offered.join(", ")),
        ));
    }
    findings
}

/// Ollama takes a name without its tag for the tag `latest`, Anthropic one without its date for the latest date.
fn is_model(known: &str, wanted: &str) -> bool {
    let is_date = |rest: &str| rest.len() == 8 && rest.bytes().all(|byte| byte.is_ascii_digit());
    let dated = || known.strip_prefix(wanted).and_then(|rest| rest.strip_prefix('-')).is_some_and(is_date);
    known == wanted || known.strip_suffix(":latest") == Some(wanted) || dated()
}

fn refused(name: &str, provider: &ProviderConfig, error: &CatalogueError) -> Finding {
    let says = error.to_string();
    let error = match error {
        CatalogueError::Bad(_) => return Finding::fail(says, format!("correct [providers.{name}]")),
        CatalogueError::Model(error) => error,
    };
    match error {
        ModelError::Rejected { status: Some(401 | 403), .. } => {
            let key = provider.api_key_env.as_deref().unwrap_or("api_key_env");
            Finding::fail(says, format!("check the key in {key}: is it complete, not revoked, and for this server"))
        }
        ModelError::Rejected { status: Some(404), .. } | ModelError::BadStream { .. } => no_list(name, provider),
        ModelError::Unreachable { .. } => {
            Finding::fail(says, format!("start the server, or correct base_url of [providers.{name}]"))
        }
        ModelError::TimedOut { .. } => {
            Finding::fail(says, format!("look whether the server of [providers.{name}] is well and the network is up"))
        }
        _ => Finding::warn(says, format!("try it: quell send --agent AGENT hello, with an agent that uses {name}")),
    }
}

/// Something answers, but not with a list of models: the wrong place as a rule, and else a server without that route.
fn no_list(name: &str, provider: &ProviderConfig) -> Finding {
    let base = provider.base_url.as_deref().unwrap_or_default().trim_end_matches('/');
    let versioned = base.rsplit('/').next().is_some_and(|last| last.starts_with('v') || last == "openai");
    if versioned {
        return Finding::warn(
            format!("{name} answers at {base}, but has no list of models; its models cannot be checked"),
            format!("try it: quell send hello, and correct base_url of [providers.{name}] if that fails"),
        );
    }
    Finding::fail(
        format!("{name} answers at {base}, but not as a model server: base_url lacks its /v1"),
        format!("base_url = \"{base}/v1\" in [providers.{name}]"),
    )
}
