//! Which crate may know which (the drawing in ARCHITECTURE.md), read from the manifests.

use super::TidyFinding;
use super::source_file::SourceFile;

/// A crate of the house, and the crates it may know.
const ALLOWED_DEPENDENCIES: &[(&str, &[&str])] = &[
    ("quell-protocol", &[]),
    ("quell-kernel", &["quell-protocol"]),
    ("quell-scope", &["quell-kernel", "quell-protocol"]),
    ("quell-net", &[]),
    ("quell-process", &["quell-scope", "quell-kernel", "quell-protocol"]),
    ("quell-store", &["quell-kernel", "quell-protocol"]),
    ("quell-llm", &["quell-net", "quell-scope", "quell-kernel", "quell-protocol"]),
    ("quell-mcp", &["quell-process", "quell-net", "quell-scope", "quell-kernel", "quell-protocol"]),
    ("quell-tools", &["quell-process", "quell-net", "quell-scope", "quell-kernel", "quell-protocol"]),
    ("quell-engine", ENGINE),
    ("quell-channels", CHANNELS),
    ("quell-server", SERVER),
    ("quell-client", &["quell-net", "quell-protocol"]),
    ("quell-tui", &["quell-client", "quell-protocol"]),
    ("quell", BINARY),
    ("quell-testkit", &[]),
    ("xtask", &[]),
];

const ENGINE: &[&str] = &[
    "quell-tools",
    "quell-mcp",
    "quell-llm",
    "quell-store",
    "quell-process",
    "quell-net",
    "quell-scope",
    "quell-kernel",
    "quell-protocol",
];

/// The transports see no processes, models or MCP servers.
const CHANNELS: &[&str] =
    &["quell-engine", "quell-tools", "quell-store", "quell-scope", "quell-kernel", "quell-protocol"];

const SERVER: &[&str] =
    &["quell-channels", "quell-engine", "quell-tools", "quell-store", "quell-scope", "quell-kernel", "quell-protocol"];

const BINARY: &[&str] = &[
    "quell-channels",
    "quell-server",
    "quell-tui",
    "quell-client",
    "quell-engine",
    "quell-tools",
    "quell-mcp",
    "quell-llm",
    "quell-store",
    "quell-process",
    "quell-scope",
    "quell-kernel",
    "quell-protocol",
];

/// What tests may use on top.
const TEST_ONLY_CRATES: &[&str] = &["quell-testkit", "quell-scope", "quell-process", "quell-llm"];

/// All that the pure floors may use of others: nothing with a clock, IO, async, randomness or logging in its face.
const PURE_DEPENDENCIES: &[(&str, &[&str])] = &[
    ("quell-protocol", &["serde", "serde_json", "thiserror", "utoipa"]),
    ("quell-kernel", &["anstyle-parse", "base64", "serde", "serde-saphyr", "serde_json", "sha2", "thiserror"]),
];

/// A manifest taken apart: the name, and each dependency with its section.
struct CrateManifest {
    name: String,
    dependencies: Vec<(String, String)>,
}

fn parse_manifest(source: &SourceFile) -> CrateManifest {
    let table: toml::Table = source.text().parse().expect("cargo has read this manifest, too");
    let name = table["package"]["name"].as_str().expect("a package has a name").to_owned();
    let mut dependencies = dependencies_by_section(&table);
    let targets = table.get("target").and_then(toml::Value::as_table);
    for target in targets.into_iter().flat_map(toml::Table::values).filter_map(toml::Value::as_table) {
        dependencies.extend(dependencies_by_section(target));
    }
    CrateManifest { name, dependencies }
}

fn dependencies_by_section(table: &toml::Table) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for section in ["dependencies", "build-dependencies", "dev-dependencies"] {
        let Some(dependencies) = table.get(section).and_then(toml::Value::as_table) else { continue };
        for (key, value) in dependencies {
            let renamed = value.get("package").and_then(toml::Value::as_str);
            found.push((section.to_owned(), renamed.unwrap_or(key).to_owned()));
        }
    }
    found
}

fn allowed_for<'a>(table: &'a [(&str, &[&str])], name: &str) -> Option<&'a [&'a str]> {
    table.iter().find(|(known, _)| *known == name).map(|(_, row)| *row)
}

pub(super) fn check_crate_dependencies(source: &SourceFile) -> Vec<TidyFinding> {
    let CrateManifest { name, dependencies } = parse_manifest(source);
    let Some(allowed) = allowed_for(ALLOWED_DEPENDENCIES, &name) else {
        return vec![TidyFinding::new(
            1,
            format!("the crate `{name}` is not in the drawing: add it there and to ARROWS"),
        )];
    };
    let house = |dependency: &str| allowed_for(ALLOWED_DEPENDENCIES, dependency).is_some();
    let mut found = Vec::new();
    for (section, dependency) in dependencies.iter().filter(|(_, dependency)| house(dependency)) {
        let for_tests = section == "dev-dependencies" && TEST_ONLY_CRATES.contains(&dependency.as_str());
        if !for_tests && !allowed.contains(&dependency.as_str()) {
            let remedy = format!("`{name}` may not know `{dependency}`: arrows point down, hand a value or a trait up");
            found.push(TidyFinding::new(line_of(source, dependency), remedy));
        }
    }
    found
}

pub(super) fn check_pure_crates(source: &SourceFile) -> Vec<TidyFinding> {
    let CrateManifest { name, dependencies } = parse_manifest(source);
    let Some(pure) = allowed_for(PURE_DEPENDENCIES, &name) else { return Vec::new() };
    let mut found = Vec::new();
    for (section, dependency) in &dependencies {
        let own = allowed_for(ALLOWED_DEPENDENCIES, dependency).is_some();
        if section != "dev-dependencies" && !own && !pure.contains(&dependency.as_str()) {
            let remedy = format!(
                "`{name}` is a pure floor and does without `{dependency}`; if that is pure, too, add it to PURE"
            );
            found.push(TidyFinding::new(line_of(source, dependency), remedy));
        }
    }
    found
}

fn line_of(source: &SourceFile, dependency: &str) -> usize {
    source.lines.iter().position(|line| line.contains(dependency) && !line.starts_with("name")).map_or(1, |at| at + 1)
}
