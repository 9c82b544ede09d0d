//! Which crates a crate may depend on: the table in ARCHITECTURE.md.

use super::TidyFinding;
use super::source_file::SourceFile;

/// A crate, and those of the workspace that it may depend on; `quell-` is left out.
const ALLOWED: &[(&str, &str)] = &[
    ("protocol", ""),
    ("bus", "protocol"),
    ("kernel", "protocol"),
    ("scope", "kernel protocol"),
    ("net", "scope kernel protocol"),
    ("process", "scope kernel protocol"),
    ("llm", "net scope kernel protocol"),
    ("store", "kernel protocol"),
    ("mcp", "process net scope kernel protocol"),
    ("tools", "process net scope kernel protocol"),
    ("engine", "tools mcp llm store bus process net scope kernel protocol"),
    ("channels", "engine tools store net scope kernel protocol"),
    ("server", "channels engine tools store scope kernel protocol"),
    ("client", "net protocol"),
    ("tui", "client protocol"),
    ("acp", "client protocol"),
    ("quell", "channels server tui acp client engine tools mcp llm store bus process scope kernel protocol"),
    ("testkit", ""),
    ("test-support", "server engine tools mcp llm store bus process scope kernel protocol testkit"),
];

/// What the pure crates may use besides: nothing with a clock, IO, async, randomness or logging.
const PURE: &[(&str, &str)] = &[
    ("protocol", "serde serde_json serde_with thiserror utoipa"),
    ("kernel", "anstyle-parse base64 jiff schemars serde serde-saphyr serde_json sha2 thiserror url"),
];

fn allowed_for(table: &'static [(&str, &str)], name: &str) -> Option<Vec<&'static str>> {
    let row = table.iter().find(|(known, _)| *known == name)?;
    Some(row.1.split(' ').collect())
}

/// Checks the dependencies of the product; tests may use more.
pub(super) fn check_crate_dependencies(source: &SourceFile) -> Vec<TidyFinding> {
    let path = source.path.strip_prefix("crates/").and_then(|path| path.strip_suffix("/Cargo.toml"));
    let Some(name) = path.filter(|name| !name.contains('/')) else { return Vec::new() };
    let Some(allowed) = allowed_for(ALLOWED, name) else {
        return vec![TidyFinding::new(1, "add the crate to the table in ARCHITECTURE.md and to ALLOWED")];
    };
    let pure = allowed_for(PURE, name);
    let is_allowed = |dependency: &str| match dependency.strip_prefix("quell-") {
        Some(own) => allowed.contains(&own),
        None => pure.as_ref().is_none_or(|pure| pure.contains(&dependency)),
    };
    let mut is_product = false;
    let mut found = Vec::new();
    for (at, line) in source.lines.iter().enumerate() {
        let dependency = match line.strip_prefix('[') {
            Some(section) => {
                let (_, table) = section.split_once("dependencies").unwrap_or_default();
                is_product = table == "]" && !section.contains("dev-dependencies");
                // `[dependencies.NAME]`
                table.strip_prefix('.').and_then(|table| table.strip_suffix(']'))
            }
            None => line.split_once(['.', '=', ' ']).map(|(name, _)| name).filter(|_| is_product),
        };
        if let Some(dependency) = dependency.filter(|dependency| !is_allowed(dependency)) {
            found.push(TidyFinding::new(at + 1, format!("{name} may not depend on {dependency}: see ARCHITECTURE.md")));
        }
    }
    found
}
