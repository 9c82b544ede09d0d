//! Refuse a reload that would send a known API key to another address.
//!
//! Otherwise a process that can write the file could collect the daemon's keys without ever reading them. A start
//! accepts any file, because a person starts the daemon.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};

use crate::config::Config;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum KeyId {
    /// The environment variable with the key.
    Variable(String),
    /// The file with the key.
    File(PathBuf),
    /// A hash of the key itself.
    Value(u64),
    /// The headers of this provider; their values may be keys.
    Headers(String),
}

/// A key and the address that it is sent to.
struct KeyUse {
    /// The configuration key that sets the address.
    config_key: String,
    key: KeyId,
    destination: String,
}

/// The keys of all configurations since the start, each with the addresses that it was configured for.
#[derive(Debug)]
pub(super) struct KeyDestinations(BTreeMap<KeyId, BTreeSet<String>>);

/// A key would be sent to another address.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KeyMoved {
    /// The configuration key that sets the new address.
    pub(super) config_key: String,
    /// The problem and the remedy, for people.
    pub(super) problem: String,
}

impl KeyDestinations {
    /// For the configuration that the daemon was started with.
    pub(super) fn new(started: &Config) -> Self {
        let mut keys = Self(BTreeMap::new());
        keys.record(started);
        keys
    }

    /// Returns an error for the first key that would be sent to an address that it was not configured for.
    pub(super) fn check_unmoved(&self, new: &Config) -> Result<(), KeyMoved> {
        let is_moved = |used: &KeyUse| self.0.get(&used.key).is_some_and(|known| !known.contains(&used.destination));
        let Some(KeyUse { config_key, .. }) = key_uses(new).into_iter().find(is_moved) else { return Ok(()) };
        let problem = "a key that was configured for another address would go there; a changed file alone does not do that: start \
                       the daemon again"
            .to_owned();
        Err(KeyMoved { config_key, problem })
    }

    /// Records the keys of a configuration that is in force now: new keys belong to its addresses.
    pub(super) fn record(&mut self, config: &Config) {
        let known: BTreeSet<KeyId> = self.0.keys().cloned().collect();
        for KeyUse { key, destination: place, .. } in key_uses(config) {
            if !known.contains(&key) {
                self.0.entry(key).or_default().insert(place);
            }
        }
    }
}

fn key_uses(config: &Config) -> Vec<KeyUse> {
    let mut uses = Vec::new();
    let mut add_uses = |at: String, keys: Vec<KeyId>, place: String| {
        uses.extend(keys.into_iter().map(|key| KeyUse { config_key: at.clone(), key, destination: place.clone() }));
    };
    for (name, provider) in &config.providers {
        let base = provider.base_url.as_deref().map(|base| base.trim_end_matches('/').to_owned());
        let mut keys =
            key_ids(provider.api_key_env.as_ref(), provider.api_key_file.as_deref(), provider.api_key.as_ref());
        if !provider.headers.is_empty() {
            keys.push(KeyId::Headers(name.clone()));
        }
        add_uses(format!("providers.{name}.base_url"), keys, base.unwrap_or_else(|| format!("{:?}", provider.kind)));
    }
    for (name, channel) in &config.channels {
        let bases = [("api_base", &channel.api_base), ("server", &channel.server), ("reply_url", &channel.reply_url)];
        let named: Vec<String> = bases.iter().filter_map(|(_, base)| base.as_ref()).cloned().collect();
        let key = bases.iter().find(|(_, base)| base.is_some()).map_or("kind", |(key, _)| *key);
        let mut keys = key_ids(channel.token_env.as_ref(), channel.token_file.as_deref(), channel.token.as_ref());
        keys.extend(key_ids(channel.app_token_env.as_ref(), None, channel.app_token.as_ref()));
        // Without TLS a token can be read on the way, so that counts as another address.
        let tls = channel.tls.unwrap_or(true);
        add_uses(format!("channels.{name}.{key}"), keys, format!("{:?} {} {tls}", channel.kind, named.join(" ")));
    }
    uses
}

fn key_ids(variable: Option<&String>, file: Option<&Path>, value: Option<&SecretString>) -> Vec<KeyId> {
    let variable = variable.map(|name| KeyId::Variable(name.clone()));
    let file = file.map(|path| KeyId::File(path.canonicalize().unwrap_or_else(|_| path.to_owned())));
    let value = value.map(|value| {
        let mut hasher = DefaultHasher::new();
        value.expose_secret().hash(&mut hasher);
        KeyId::Value(hasher.finish())
    });
    [variable, file, value].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::config::parse_config;

    const STARTED: &str = "[providers.a]\nkind = \"openai\"\nbase_url = \"http://a/v1\"\napi_key_env = \"A_KEY\"\n\
                           [providers.h]\nkind = \"openai\"\nbase_url = \"http://h/v1\"\nheaders = { K = \"v\" }\n\
                           [providers.free]\nkind = \"openai\"\nbase_url = \"http://free/v1\"\n\
                           [channels.t]\nkind = \"telegram\"\napi_base = \"http://t\"\ntoken_env = \"T_KEY\"\n";

    fn config(text: &str) -> Config {
        parse_config(Path::new("quell.toml"), text).unwrap()
    }

    #[rstest]
    #[case::nothing(STARTED.to_owned(), None)]
    #[case::a_keyless_provider(STARTED.replace("http://free", "http://x"), None)]
    #[case::a_slash(STARTED.replace("http://a/v1", "http://a/v1/"), None)]
    #[case::a_new_key(format!("{STARTED}[providers.n]\nkind = \"openai\"\nbase_url = \"http://n\"\napi_key_env = \"N\"\n"), None)]
    #[case::another_address(STARTED.replace("http://a", "http://x"), Some("providers.a.base_url"))]
    #[case::the_address_of_the_kind(STARTED.replace("base_url = \"http://a/v1\"\n", ""), Some("providers.a.base_url"))]
    #[case::headers(STARTED.replace("http://h", "http://x"), Some("providers.h.base_url"))]
    #[case::under_another_name(STARTED.replace("providers.a]", "providers.x]").replace("http://a", "http://x"), Some("providers.x.base_url"))]
    #[case::of_a_channel(STARTED.replace("http://t", "http://x"), Some("channels.t.api_base"))]
    #[case::the_token_of_a_channel(
        format!("{STARTED}[providers.n]\nkind = \"openai\"\nbase_url = \"http://n\"\napi_key_env = \"T_KEY\"\n"),
        Some("providers.n.base_url")
    )]
    fn a_key_goes_nowhere_else_by_a_changed_file(#[case] text: String, #[case] key: Option<&str>) {
        let keys = KeyDestinations::new(&config(STARTED));
        let moved = keys.check_unmoved(&config(&text)).err();
        assert_eq!(moved.as_ref().map(|moved| moved.config_key.as_str()), key, "{moved:?}");
    }

    #[test]
    fn a_key_that_came_by_a_reload_stays_where_it_came() {
        let mut keys = KeyDestinations::new(&config(STARTED));
        let new = format!("{STARTED}[providers.n]\nkind = \"openai\"\nbase_url = \"http://n\"\napi_key_env = \"N\"\n");
        keys.record(&config(&new));
        assert!(keys.check_unmoved(&config(&new)).is_ok());
        assert!(keys.check_unmoved(&config(&new.replace("http://n", "http://x"))).is_err());
    }
}
