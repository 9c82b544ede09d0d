//! Read environment variables: directories, secrets, default providers. No other module reads them.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use quell_engine::agent::{AgentConfig, expand_home};
use quell_llm::{ProviderConfig, ProviderKind};
use quell_protocol::AgentId;
use secrecy::SecretString;

use super::cluster::ClusterSection;
use super::{Config, secret_command};

/// `$QUELL_HOME`, else `quell` in the XDG data directory.
pub(crate) fn data_dir() -> anyhow::Result<PathBuf> {
    if let Some(home) = env_path("QUELL_HOME") {
        return Ok(home);
    }
    xdg_dir("XDG_DATA_HOME", ".local/share")
        .map(|base| base.join("quell"))
        .context("there is no home directory for the data; set QUELL_HOME to a directory")
}

/// `$QUELL_WORK`, else a directory beside the data directory. It holds the default workdirs of agents.
pub(crate) fn work_dir(data_dir: &Path) -> PathBuf {
    env_path("QUELL_WORK").unwrap_or_else(|| {
        let whole = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
        let name = whole.file_name().unwrap_or("quell".as_ref()).to_string_lossy().into_owned();
        whole.with_file_name(format!("{name}-work"))
    })
}

/// `$QUELL_CONFIG`, else `quell/quell.toml` in the XDG config directory if it exists. A `quell.toml` in the current
/// directory is not read: an agent may have written it.
pub(super) fn config_file() -> Option<PathBuf> {
    let shared = || default_config_dir().map(|directory| directory.join("quell.toml"));
    env_path("QUELL_CONFIG").or_else(|| shared().filter(|shared| shared.is_file()))
}

/// The directory of the default configuration file; neither need exist.
pub(crate) fn default_config_dir() -> Option<PathBuf> {
    xdg_dir("XDG_CONFIG_HOME", ".config").map(|base| base.join("quell"))
}

/// The home directory of the user.
pub(super) fn home_dir() -> Option<PathBuf> {
    env_path("HOME")
}

/// Replaces a leading `~/` by the home directory, in all keys that hold a path.
pub(super) fn expand_paths(config: &mut Config) {
    let home = home_dir();
    let agents = config.agents.values_mut().map(|agent| &mut agent.workdir);
    let providers = config.providers.values_mut().map(|provider| &mut provider.api_key_file);
    let channels = config.channels.values_mut().map(|channel| &mut channel.token_file);
    let servers = config.mcp.values_mut().map(|server| &mut server.oauth_client_secret_file);
    let cluster = config.cluster.iter_mut().flat_map(|cluster| {
        [
            &mut cluster.secret_file,
            &mut cluster.nats_password_file,
            &mut cluster.nats_credentials_file,
            &mut cluster.nats_tls_ca_file,
        ]
    });
    let store = &mut config.store;
    let others = [
        &mut config.server.token_file,
        &mut config.hooks.secret_file,
        &mut store.password_file,
        &mut store.tls_ca_file,
    ];
    for path in agents.chain(providers).chain(channels).chain(servers).chain(others).chain(cluster).flatten() {
        *path = expand_home(path, home.as_deref());
    }
}

/// Reads the keys. Adds a provider or an agent from the environment if none is configured.
pub(super) fn apply_environment(config: &mut Config) -> anyhow::Result<()> {
    let model_from_env = if config.providers.is_empty() { add_provider_from_environment(config) } else { None };
    for (name, provider) in &mut config.providers {
        if let Some(variable) = &provider.api_key_env {
            let key = env_text(variable);
            provider.api_key = key.map(Into::into);
        } else if let Some(file) = &provider.api_key_file {
            provider.api_key = read_secret(file, "api_key_file", &format!("providers.{name}"))?;
        }
    }
    for (name, server) in &mut config.mcp {
        server.api_key = server.api_key_env.as_deref().and_then(env_text).map(Into::into);
        server.oauth_client_secret = match (&server.oauth_client_secret_env, &server.oauth_client_secret_file) {
            (Some(variable), _) => env_text(variable).map(Into::into),
            (None, Some(file)) => read_secret(file, "oauth_client_secret_file", &format!("mcp.{name}"))?,
            (None, None) => None,
        };
    }
    let hooks = &mut config.hooks;
    if let Some(variable) = &hooks.secret_env {
        hooks.secret = env_text(variable).map(Into::into);
    } else if let Some(file) = &hooks.secret_file {
        hooks.secret = read_secret(file, "secret_file", "hooks")?;
    }
    let store = &mut config.store;
    if let Some(variable) = &store.password_env {
        store.password = env_text(variable).map(Into::into);
    } else if let Some(file) = &store.password_file {
        store.password = read_secret(file, "password_file", "store")?;
    }
    if let Some(cluster) = &mut config.cluster {
        read_cluster_secrets(cluster)?;
    }
    for (name, channel) in &mut config.channels {
        channel.token = match (&channel.token_env, &channel.token_file) {
            (Some(variable), _) => env_text(variable).map(Into::into),
            (None, Some(file)) => read_secret(file, "token_file", &format!("channels.{name}"))?,
            (None, None) => None,
        };
        channel.app_token = channel.app_token_env.as_deref().and_then(env_text).map(Into::into);
    }
    if config.agents.is_empty() {
        let Ok(main) = AgentId::parse("main") else { bail!("the agent id main is refused") };
        // A provider section does not say which of its models to use; the doctor lists them.
        let first =
            || config.providers.keys().next().map(|name| format!("{name}/{}", model_from_environment("default")));
        let model = model_from_env.or_else(first).unwrap_or_else(|| "demo/demo".to_owned());
        let agent = AgentConfig { model: model.into(), ..AgentConfig::default() };
        config.agents.insert(main, agent);
    }
    Ok(())
}

fn read_cluster_secrets(cluster: &mut ClusterSection) -> anyhow::Result<()> {
    if let Some(file) = &cluster.secret_file {
        cluster.secret = read_secret(file, "secret_file", "cluster")?;
    } else if !cluster.secret_command.is_empty() {
        cluster.secret = Some(secret_command::read_secret(&cluster.secret_command)?);
    }
    if let Some(variable) = &cluster.nats_password_env {
        cluster.nats_password = env_text(variable).map(Into::into);
    } else if let Some(file) = &cluster.nats_password_file {
        cluster.nats_password = read_secret(file, "nats_password_file", "cluster")?;
    }
    if let Some(file) = &cluster.nats_credentials_file {
        cluster.nats_credentials = read_secret(file, "nats_credentials_file", "cluster")?;
    }
    Ok(())
}

/// Reads the secret in a file with one line; `None` if the file is empty.
fn read_secret(file: &Path, key: &str, section: &str) -> anyhow::Result<Option<SecretString>> {
    let secret = std::fs::read_to_string(file)
        .with_context(|| format!("{key} of [{section}], {}, cannot be read", file.display()))?;
    Ok(Some(secret.trim().to_owned()).filter(|secret| !secret.is_empty()).map(Into::into))
}

/// Adds the provider that the environment names. Returns the model to use with it.
fn add_provider_from_environment(config: &mut Config) -> Option<String> {
    for kind in ProviderKind::all() {
        let Some(known) = kind.environment() else { continue };
        let (key, base_url) = (env_text(known.key_variable), env_text(known.base_url_variable));
        if key.is_some() || base_url.is_some() {
            let provider = ProviderConfig {
                base_url: base_url.map(|base| with_suffix(base, known.base_url_suffix)),
                api_key_env: key.map(|_| known.key_variable.to_owned()),
                ..ProviderConfig::new(kind)
            };
            config.providers.insert(known.provider.to_owned(), provider);
            return Some(format!("{}/{}", known.provider, model_from_environment(known.default_model)));
        }
    }
    if let Some(host) = env_text("OLLAMA_HOST") {
        let base = if host.contains("://") { host } else { format!("http://{host}") };
        let provider = ProviderConfig {
            base_url: Some(format!("{}/v1", base.trim_end_matches('/'))),
            ..ProviderConfig::new(ProviderKind::OPENAI)
        };
        config.providers.insert("ollama".to_owned(), provider);
        return Some(format!("ollama/{}", model_from_environment("llama3.2")));
    }
    None
}

/// Accepts a base URL with and without its suffix.
fn with_suffix(base: String, suffix: Option<&str>) -> String {
    let Some(suffix) = suffix else { return base };
    let base = base.trim_end_matches('/');
    if base.ends_with(suffix) { base.to_owned() } else { format!("{base}{suffix}") }
}

/// `$QUELL_MODEL`, else a default.
fn model_from_environment(default: &str) -> String {
    env_text("QUELL_MODEL").unwrap_or_else(|| default.to_owned())
}

/// `$PGPASSWORD`, which PostgreSQL's own programs read, too.
pub(crate) fn postgres_password() -> Option<String> {
    env_text("PGPASSWORD")
}

fn env_text(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "only the binary reads the environment")]
    let value = env::var(name).ok();
    value.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

fn env_path(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn xdg_dir(name: &str, below_home: &str) -> Option<PathBuf> {
    // The XDG base directory specification says to ignore relative paths.
    let given = env_path(name).filter(|given| given.is_absolute());
    given.or_else(|| env_path("HOME").map(|home| home.join(below_home)))
}
