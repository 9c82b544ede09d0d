//! Keys and the places that they were configured for: a changed file never sends a key to another place.
//!
//! Who can write the file would else collect the daemon's keys without ever seeing them. A start takes any file: that is a person's.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};

use crate::config::Config;

/// What tells one key from another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum KeyId {
    /// The variable that holds it.
    Variable(String),
    /// The file that holds it.
    File(PathBuf),
    /// The key itself, hashed.
    Value(u64),
    /// The headers of a provider, whose values may be keys.
    Headers(String),
}

/// A key that goes to a place when the configuration is used.
struct Use {
    /// The section's key that names the place.
    at: String,
    key: KeyId,
    place: String,
}

/// The keys of all configurations since the start, each with the places that it was configured for.
#[derive(Debug)]
pub(super) struct Keys(BTreeMap<KeyId, BTreeSet<String>>);

/// A key would go to another place.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Moved {
    /// The key of the file that names that place.
    pub(super) key: String,
    /// What is wrong, and the way out.
    pub(super) problem: String,
}

impl Keys {
    /// Of the configuration that the daemon is started with.
    pub(super) fn new(started: &Config) -> Self {
        let mut keys = Self(BTreeMap::new());
        keys.learn(started);
        keys
    }

    /// The first key that would go to a place that it was not configured for.
    pub(super) fn check(&self, new: &Config) -> Result<(), Moved> {
        let moves = |it: &Use| self.0.get(&it.key).is_some_and(|places| !places.contains(&it.place));
        let Some(Use { at, .. }) = uses(new).into_iter().find(moves) else { return Ok(()) };
        let problem = "a key that was configured for another address would go there; a changed file alone does not do that: start \
                       the daemon again"
            .to_owned();
        Err(Moved { key: at, problem })
    }

    /// This configuration is in force: keys that are new belong to its places from now on.
    pub(super) fn learn(&mut self, config: &Config) {
        let known: BTreeSet<KeyId> = self.0.keys().cloned().collect();
        for Use { key, place, .. } in uses(config) {
            if !known.contains(&key) {
                self.0.entry(key).or_default().insert(place);
            }
        }
    }
}

fn uses(config: &Config) -> Vec<Use> {
    let mut uses = Vec::new();
    let mut goes = |at: String, keys: Vec<KeyId>, place: String| {
        uses.extend(keys.into_iter().map(|key| Use { at: at.clone(), key, place: place.clone() }));
    };
    for (name, provider) in &config.providers {
        let base = provider.base_url.as_deref().map(|base| base.trim_end_matches('/').to_owned());
        let mut keys = ids(provider.api_key_env.as_ref(), provider.api_key_file.as_deref(), provider.api_key.as_ref());
        if !provider.headers.is_empty() {
            keys.push(KeyId::Headers(name.clone()));
        }
        goes(format!("providers.{name}.base_url"), keys, base.unwrap_or_else(|| format!("{:?}", provider.kind)));
    }
    for (name, channel) in &config.channels {
        let bases = [("api_base", &channel.api_base), ("server", &channel.server), ("reply_url", &channel.reply_url)];
        let named: Vec<String> = bases.iter().filter_map(|(_, base)| base.as_ref()).cloned().collect();
        let key = bases.iter().find(|(_, base)| base.is_some()).map_or("kind", |(key, _)| *key);
        let mut keys = ids(channel.token_env.as_ref(), channel.token_file.as_deref(), channel.token.as_ref());
        keys.extend(ids(channel.app_token_env.as_ref(), None, channel.app_token.as_ref()));
        // Without encryption a token goes to whoever listens on the way.
        let tls = channel.tls.unwrap_or(true);
        goes(format!("channels.{name}.{key}"), keys, format!("{:?} {} {tls}", channel.kind, named.join(" ")));
    }
    uses
}

fn ids(variable: Option<&String>, file: Option<&Path>, value: Option<&SecretString>) -> Vec<KeyId> {
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
    use crate::config::parse;

    const STARTED: &str = "[providers.a]\nkind = \"openai\"\nbase_url = \"http://a/v1\"\napi_key_env = \"A_KEY\"\n\
                           [providers.h]\nkind = \"openai\"\nbase_url = \"http://h/v1\"\nheaders = { K = \"v\" }\n\
                           [providers.free]\nkind = \"openai\"\nbase_url = \"http://free/v1\"\n\
                           [channels.t]\nkind = \"telegram\"\napi_base = \"http://t\"\ntoken_env = \"T_KEY\"\n";

    fn config(text: &str) -> Config {
        parse(Path::new("quell.toml"), text).unwrap()
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
        let keys = Keys::new(&config(STARTED));
        let moved = keys.check(&config(&text)).err();
        assert_eq!(moved.as_ref().map(|moved| moved.key.as_str()), key, "{moved:?}");
    }

    #[test]
    fn a_key_that_came_by_a_reload_stays_where_it_came() {
        let mut keys = Keys::new(&config(STARTED));
        let new = format!("{STARTED}[providers.n]\nkind = \"openai\"\nbase_url = \"http://n\"\napi_key_env = \"N\"\n");
        keys.learn(&config(&new));
        assert!(keys.check(&config(&new)).is_ok());
        assert!(keys.check(&config(&new.replace("http://n", "http://x"))).is_err());
    }
}
