//! Check that each model provider answers and serves the configured models, over the same connection that a run would
//! use.

use std::time::Duration;

use quell_llm::{ModelError, ModelListError, ProviderConfig, ProviderKind, fetch_model_list};
use quell_protocol::AgentId;

use super::ConfiguredInput;
use super::finding::DoctorFinding;
use crate::runtime::block_on;

/// A person waits for this; a slower server deserves a warning.
const LIST_TIMEOUT: Duration = Duration::from_secs(4);
/// Number of model names to suggest when a model is not served.
const MAX_SUGGESTED_MODELS: usize = 5;

/// Checks each configured provider, and the agents' models on it.
pub(super) fn providers(input: &ConfiguredInput<'_>) -> Vec<DoctorFinding> {
    let real = input.loaded.config.providers.iter().filter(|(_, provider)| provider.kind != ProviderKind::DEMO);
    let findings: Vec<DoctorFinding> =
        real.flat_map(|(name, provider)| check_provider(input, name, provider)).collect();
    if !findings.is_empty() {
        return findings;
    }
    let keys = ProviderKind::all().filter_map(ProviderKind::environment).map(|known| known.key_variable);
    let keys: Vec<String> = keys.map(|variable| format!("{variable}=...")).collect();
    vec![DoctorFinding::warn(
        "no model provider is configured, so the built-in demo model answers",
        format!(
            "export {} or OLLAMA_HOST=127.0.0.1:11434, or add [providers.X]; see docs/configuration.md",
            keys.join(", ")
        ),
    )]
}

fn check_provider(input: &ConfiguredInput<'_>, name: &str, provider: &ProviderConfig) -> Vec<DoctorFinding> {
    if provider.api_key.is_none()
        && let Some(variable) = &provider.api_key_env
    {
        return vec![DoctorFinding::missing_key(name, variable)];
    }
    match block_on(&input.base.runtime, fetch_model_list(name, provider.clone(), LIST_TIMEOUT)) {
        Ok(models) => check_agent_models(input, name, &models),
        Err(error) => vec![provider_error_finding(name, provider, &error)],
    }
}

/// Checks the agents' models against the provider's list.
fn check_agent_models(input: &ConfiguredInput<'_>, name: &str, models: &[String]) -> Vec<DoctorFinding> {
    let count = if models.len() == 1 { "1 model".to_owned() } else { format!("{} models", models.len()) };
    let mut findings = vec![DoctorFinding::ok(format!("{name} answers and lists {count}"))];
    for (id, agent) in &input.loaded.config.agents {
        let of_provider = |model| str::split_once(model, '/').filter(|(provider, _)| *provider == name);
        for (_, model) in agent.model.names().filter_map(of_provider) {
            if !models.is_empty() && !models.iter().any(|known| is_same_model(known, model)) {
                findings.push(unlisted_model_finding(name, models, id, model));
            }
        }
    }
    findings
}

fn unlisted_model_finding(name: &str, models: &[String], id: &AgentId, model: &str) -> DoctorFinding {
    let offered: Vec<&str> = models.iter().take(MAX_SUGGESTED_MODELS).map(String::as_str).collect();
    let more = if models.len() > MAX_SUGGESTED_MODELS { ", ..." } else { "" };
    DoctorFinding::warn(
        format!("{name} does not list the model {model} of agent {id}"),
        format!("set model of [agents.{id}] to one that it serves: {}{more}", offered.join(", ")),
    )
}

/// For Ollama a name without a tag means the tag `latest`; for Anthropic a name without a date means the latest date.
fn is_same_model(known: &str, wanted: &str) -> bool {
    let is_date = |rest: &str| rest.len() == 8 && rest.bytes().all(|byte| byte.is_ascii_digit());
    let dated = || known.strip_prefix(wanted).and_then(|rest| rest.strip_prefix('-')).is_some_and(is_date);
    known == wanted || known.strip_suffix(":latest") == Some(wanted) || dated()
}

fn provider_error_finding(name: &str, provider: &ProviderConfig, error: &ModelListError) -> DoctorFinding {
    let says = error.to_string();
    let error = match error {
        ModelListError::Config(_) => return DoctorFinding::fail(says, format!("correct [providers.{name}]")),
        ModelListError::Call(error) => error,
    };
    match error {
        ModelError::Rejected { status: Some(401 | 403), .. } => {
            let key = provider.api_key_env.as_deref().unwrap_or("api_key_env");
            DoctorFinding::fail(
                says,
                format!("check the key in {key}: is it complete, not revoked, and for this server"),
            )
        }
        ModelError::Rejected { status: Some(404), .. } | ModelError::BadStream { .. } => {
            no_model_list_finding(name, provider)
        }
        ModelError::Unreachable { .. } => {
            DoctorFinding::fail(says, format!("start the server, or correct base_url of [providers.{name}]"))
        }
        ModelError::TimedOut { .. } => DoctorFinding::fail(
            says,
            format!("look whether the server of [providers.{name}] is well and the network is up"),
        ),
        _ => {
            DoctorFinding::warn(says, format!("try it: quell send --agent AGENT hello, with an agent that uses {name}"))
        }
    }
}

/// Something answers, but without a list of models: usually the wrong URL, else a server without that route.
fn no_model_list_finding(name: &str, provider: &ProviderConfig) -> DoctorFinding {
    let base = provider.base_url.as_deref().unwrap_or_default().trim_end_matches('/');
    let versioned = base.rsplit('/').next().is_some_and(|last| last.starts_with('v') || last == "openai");
    if versioned {
        return DoctorFinding::warn(
            format!("{name} answers at {base}, but has no list of models; its models cannot be checked"),
            format!("try it: quell send hello, and correct base_url of [providers.{name}] if that fails"),
        );
    }
    DoctorFinding::fail(
        format!("{name} answers at {base}, but not as a model server: base_url lacks its /v1"),
        format!("base_url = \"{base}/v1\" in [providers.{name}]"),
    )
}
