//! Find changed sections that take effect only after a restart.

use serde_json::Value;

use crate::config::Config;

/// Sections that a reload applies. The others are read only at the start.
const LIVE_SECTIONS: [&str; 5] = ["providers", "agents", "messages", "routing", "channels"];

/// Lists the sections that differ from those of the start and are read only then.
pub(super) fn sections_needing_restart(started: &Config, new: &Config) -> Vec<String> {
    let (Ok(Value::Object(before)), Ok(Value::Object(now))) =
        (serde_json::to_value(started), serde_json::to_value(new))
    else {
        return Vec::new();
    };
    let is_changed = |section: &&String| {
        !LIVE_SECTIONS.contains(&section.as_str())
            && (before.get(*section) != now.get(*section) || hidden_values_changed(section, started, new))
    };
    now.keys().filter(is_changed).cloned().collect()
}

/// Compares what is not serialized, because it may contain keys: headers and variables of MCP servers, the password of
/// the database.
fn hidden_values_changed(section: &str, started: &Config, new: &Config) -> bool {
    let hidden = |config: &Config| {
        let servers = config.mcp.iter();
        servers.map(|(name, server)| (name.clone(), server.env.clone(), server.headers.clone())).collect::<Vec<_>>()
    };
    match section {
        "mcp" => hidden(started) != hidden(new),
        "store" => started.store.location() != new.store.location(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rstest::rstest;

    use super::*;
    use crate::config::parse_config;

    const STARTED: &str = "[limits]\nmax_steps = 5\n[mcp.x]\nurl = \"http://h/\"\nheaders = { K = \"old-one\" }\n";

    #[rstest]
    #[case::the_same(STARTED.to_owned(), &[])]
    #[case::a_default_that_is_written_out(format!("{STARTED}[stop]\nterm_ms = 500\n"), &[])]
    #[case::another_limit(STARTED.replace('5', "6"), &["limits"])]
    #[case::a_hidden_value(STARTED.replace("old-one", "new-one"), &["mcp"])]
    #[case::several(format!("[server]\nlisten = \"127.0.0.1:1\"\n[store]\nurl = \"sqlite:x\"\n{STARTED}"), &["server", "store"])]
    #[case::another_database(format!("[store]\nurl = \"postgres://quell@db/quell\"\n{STARTED}"), &["store"])]
    #[case::what_is_live(
        format!(
            "{STARTED}[messages]\nmessage_timeout_s = 1\n[channels.x]\nkind = \"irc\"\n[providers.p]\nkind = \"openai\"\n\
             [agents.a]\nmodel = \"p/m\"\n[[routing.model_routes]]\nhint = \"h\"\nprovider = \"p\"\nmodel = \"m\"\n"
        ),
        &[]
    )]
    fn sections_that_need_a_restart_are_named(#[case] text: String, #[case] sections: &[&str]) {
        let config = |text: &str| parse_config(Path::new("quell.toml"), text).unwrap();
        assert_eq!(sections_needing_restart(&config(STARTED), &config(&text)), sections);
    }
}
