//! What comes from the environment: places, keys, and a working start without any file. The only reader of it in Quell.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use quell_engine::agent::{AgentConfig, expand_home};
use quell_engine::llm::{ProviderConfig, ProviderKind};
use quell_protocol::AgentId;
use secrecy::SecretString;

use super::Config;

/// `$QUELL_HOME`, else `quell` in the XDG data directory.
pub(crate) fn data_dir() -> anyhow::Result<PathBuf> {
    if let Some(home) = path("QUELL_HOME") {
        return Ok(home);
    }
    xdg("XDG_DATA_HOME", ".local/share")
        .map(|base| base.join("quell"))
        .context("there is no home directory for the data; set QUELL_HOME to a directory")
}

/// `$QUELL_WORK`, else beside the data directory: there agents work that name no workdir.
pub(crate) fn work_dir(data_dir: &Path) -> PathBuf {
    path("QUELL_WORK").unwrap_or_else(|| {
        let whole = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
        let name = whole.file_name().unwrap_or("quell".as_ref()).to_string_lossy().into_owned();
        whole.with_file_name(format!("{name}-work"))
    })
}

/// `$QUELL_CONFIG`, else `quell/quell.toml` in the XDG config directory if that is there. A `quell.toml` where the daemon happens to
/// be started is not read by itself: an agent may have written it.
pub(super) fn config_file() -> Option<PathBuf> {
    path("QUELL_CONFIG").or_else(|| shared_file().filter(|shared| shared.is_file()))
}

/// The file that is read when none is named. It need not exist.
pub(super) fn shared_file() -> Option<PathBuf> {
    xdg("XDG_CONFIG_HOME", ".config").map(|base| base.join("quell/quell.toml"))
}

/// Puts the home directory in the place of a leading `~/` in every key that holds a path.
pub(super) fn expand_paths(config: &mut Config) {
    let home = path("HOME");
    let agents = config.agents.values_mut().map(|agent| &mut agent.workdir);
    let providers = config.providers.values_mut().map(|provider| &mut provider.api_key_file);
    let channels = config.channels.values_mut().map(|channel| &mut channel.token_file);
    let others = [&mut config.server.token_file, &mut config.hooks.secret_file];
    for path in agents.chain(providers).chain(channels).chain(others).flatten() {
        *path = expand_home(path, home.as_deref());
    }
}

/// Fills in keys, and, where no provider or no agent is configured, what the environment offers.
pub(super) fn fill(config: &mut Config) -> anyhow::Result<()> {
    let offered = if config.providers.is_empty() { offer(config) } else { None };
    for (name, provider) in &mut config.providers {
        if let Some(variable) = &provider.api_key_env {
            let key = text(variable);
            provider.api_key = key.map(Into::into);
        } else if let Some(file) = &provider.api_key_file {
            provider.api_key = secret_of(file, "api_key_file", &format!("providers.{name}"))?;
        }
    }
    for server in config.mcp.values_mut() {
        server.api_key = server.api_key_env.as_deref().and_then(text).map(Into::into);
    }
    let hooks = &mut config.hooks;
    if let Some(variable) = &hooks.secret_env {
        hooks.secret = text(variable).map(Into::into);
    } else if let Some(file) = &hooks.secret_file {
        hooks.secret = secret_of(file, "secret_file", "hooks")?;
    }
    for (name, channel) in &mut config.channels {
        channel.token = match (&channel.token_env, &channel.token_file) {
            (Some(variable), _) => text(variable).map(Into::into),
            (None, Some(file)) => secret_of(file, "token_file", &format!("channels.{name}"))?,
            (None, None) => None,
        };
        channel.app_token = channel.app_token_env.as_deref().and_then(text).map(Into::into);
    }
    if config.agents.is_empty() {
        let Ok(main) = AgentId::parse("main") else { bail!("the agent id main is refused") };
        // A provider alone does not say which of its models is meant; the doctor says so when it lists them.
        let first = || config.providers.keys().next().map(|name| format!("{name}/{}", model_or("default")));
        let model = offered.or_else(first).unwrap_or_else(|| "demo/demo".to_owned());
        let agent = AgentConfig { model, ..AgentConfig::default() };
        config.agents.insert(main, agent);
    }
    Ok(())
}

/// The secret on the one line of a file; none in an empty one.
fn secret_of(file: &Path, key: &str, section: &str) -> anyhow::Result<Option<SecretString>> {
    let secret = std::fs::read_to_string(file)
        .with_context(|| format!("{key} of [{section}], {}, cannot be read", file.display()))?;
    Ok(Some(secret.trim().to_owned()).filter(|secret| !secret.is_empty()).map(Into::into))
}

/// Adds the provider that the environment offers; answers the model to use with it.
fn offer(config: &mut Config) -> Option<String> {
    if text("OPENAI_API_KEY").is_some() || text("OPENAI_BASE_URL").is_some() {
        let provider = ProviderConfig {
            base_url: text("OPENAI_BASE_URL"),
            api_key_env: text("OPENAI_API_KEY").map(|_| "OPENAI_API_KEY".to_owned()),
            ..ProviderConfig::new(ProviderKind::Openai)
        };
        config.providers.insert("openai".to_owned(), provider);
        return Some(format!("openai/{}", model_or("gpt-5-mini")));
    }
    if text("ANTHROPIC_API_KEY").is_some() || text("ANTHROPIC_BASE_URL").is_some() {
        let provider = ProviderConfig {
            base_url: text("ANTHROPIC_BASE_URL").map(with_version),
            api_key_env: text("ANTHROPIC_API_KEY").map(|_| "ANTHROPIC_API_KEY".to_owned()),
            ..ProviderConfig::new(ProviderKind::Anthropic)
        };
        config.providers.insert("anthropic".to_owned(), provider);
        return Some(format!("anthropic/{}", model_or("claude-sonnet-4-5")));
    }
    if let Some(host) = text("OLLAMA_HOST") {
        let base = if host.contains("://") { host } else { format!("http://{host}") };
        let provider = ProviderConfig {
            base_url: Some(format!("{}/v1", base.trim_end_matches('/'))),
            ..ProviderConfig::new(ProviderKind::Openai)
        };
        config.providers.insert("ollama".to_owned(), provider);
        return Some(format!("ollama/{}", model_or("llama3.2")));
    }
    None
}

/// Anthropic's own programs read `$ANTHROPIC_BASE_URL` without the `/v1`, which they add; both forms are taken.
fn with_version(base: String) -> String {
    let base = base.trim_end_matches('/');
    if base.ends_with("/v1") { base.to_owned() } else { format!("{base}/v1") }
}

/// `$QUELL_MODEL`, else a default.
fn model_or(default: &str) -> String {
    text("QUELL_MODEL").unwrap_or_else(|| default.to_owned())
}

fn text(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "the roof reads the environment")]
    let value = env::var(name).ok();
    value.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

fn path(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn xdg(name: &str, below_home: &str) -> Option<PathBuf> {
    // The XDG base directory specification: relative paths are to be ignored.
    let given = path(name).filter(|given| given.is_absolute());
    given.or_else(|| path("HOME").map(|home| home.join(below_home)))
}
