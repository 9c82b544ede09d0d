//! Check the keys that name an environment variable: people put the secret itself there by mistake.

use super::Config;
use super::validation::ConfigProblem;

/// Longer names do not occur; keys are that long.
const MAX_NAME_CHARS: usize = 60;

/// How keys of well-known services begin, which could be names of variables otherwise.
const KEY_PREFIXES: [&str; 9] = ["ghp_", "gho_", "ghs_", "github_pat_", "gsk_", "hf_", "glpat", "AKIA", "AIza"];

/// The keys that hold something else than the name of a variable. The texts do not repeat it.
pub(super) fn find_problems(config: &Config) -> impl Iterator<Item = ConfigProblem> {
    let named = variables(config).into_iter().filter_map(|(key, name)| Some((key, name.as_deref()?)));
    named.filter(|(_, name)| !is_name(name)).map(|(key, name)| {
        let text = if name.is_empty() {
            "is empty; write the name of the environment variable that holds the secret".to_owned()
        } else {
            "this looks like the secret itself, or is no name of a variable. Put the secret into an environment variable, \
             for example MY_KEY, and write its name here; a secret that was in the file should be replaced"
                .to_owned()
        };
        ConfigProblem { key, text }
    })
}

/// Every key whose value names a variable.
fn variables(config: &Config) -> Vec<(String, &Option<String>)> {
    let mut found = vec![
        ("store.password_env".to_owned(), &config.store.password_env),
        ("hooks.secret_env".to_owned(), &config.hooks.secret_env),
    ];
    found.extend(
        config.cluster.iter().map(|cluster| ("cluster.nats_password_env".to_owned(), &cluster.nats_password_env)),
    );
    for (name, provider) in &config.providers {
        found.push((format!("providers.{name}.api_key_env"), &provider.api_key_env));
    }
    for (name, server) in &config.mcp {
        found.push((format!("mcp.{name}.api_key_env"), &server.api_key_env));
        found.push((format!("mcp.{name}.oauth_client_secret_env"), &server.oauth_client_secret_env));
    }
    for (name, channel) in &config.channels {
        found.push((format!("channels.{name}.token_env"), &channel.token_env));
        found.push((format!("channels.{name}.app_token_env"), &channel.app_token_env));
    }
    found
}

/// As a shell accepts it (POSIX, "Name"), and no key by its look.
fn is_name(text: &str) -> bool {
    let is_word = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    is_word && begins && text.len() <= MAX_NAME_CHARS && !KEY_PREFIXES.iter().any(|prefix| text.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("OPENAI_API_KEY", true)]
    #[case("_key2", true)]
    #[case("sk-proj-abc", false)]
    #[case("ghp_0123456789abcdef", false)]
    #[case("xoxb-1-2", false)]
    #[case("AKIAIOSFODNN7EXAMPLE", false)]
    #[case("2KEY", false)]
    #[case("KEY OF MINE", false)]
    #[case("", false)]
    #[case("a0123456789012345678901234567890123456789012345678901234567890", false)]
    fn a_key_is_told_from_the_name_of_a_variable(#[case] text: &str, #[case] name: bool) {
        assert_eq!(is_name(text), name);
    }

    /// A new key of this kind has to be added to the list.
    #[test]
    fn every_key_of_the_schema_is_looked_at() {
        let schema = serde_json::to_string(&schemars::schema_for!(Config)).unwrap();
        let words: std::collections::BTreeSet<&str> =
            schema.split('"').filter(|word| word.ends_with("_env") && !word.contains(' ')).collect();
        let mut config: Config = toml::from_str(
            "[cluster]\n[providers.a]\nkind = \"openai\"\n[mcp.a]\ncommand = \"a\"\n[channels.a]\nkind = \"telegram\"\n",
        )
        .unwrap();
        config.agents.clear();
        let known: Vec<String> = variables(&config).into_iter().map(|(key, _)| key).collect();
        let unknown: Vec<_> =
            words.iter().filter(|word| !known.iter().any(|key| key.ends_with(&format!(".{word}")))).collect();
        assert_eq!(unknown, Vec::<&&str>::new());
    }
}
