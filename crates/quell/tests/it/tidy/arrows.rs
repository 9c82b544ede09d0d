//! Which crate may know which (the drawing in ARCHITECTURE.md), read from the manifests.

use super::Finding;
use super::source::Source;

/// A crate of the house, and the crates it may know.
const ARROWS: &[(&str, &[&str])] = &[
    ("quell-protocol", &[]),
    ("quell-kernel", &["quell-protocol"]),
    ("quell-engine", &["quell-kernel", "quell-protocol"]),
    ("quell-surfaces", &["quell-engine", "quell-kernel", "quell-protocol"]),
    ("quell-client", &["quell-protocol"]),
    ("quell", &["quell-surfaces", "quell-client", "quell-engine", "quell-kernel", "quell-protocol"]),
    ("quell-testkit", &["quell-engine", "quell-kernel", "quell-protocol"]),
    ("xtask", &[]),
];

/// What tests may use on top.
const FOR_TESTS: &[&str] = &["quell-testkit"];

/// All that the pure floors may use of others: nothing with a clock, IO, async, randomness or logging in its face.
const PURE: &[(&str, &[&str])] = &[
    ("quell-protocol", &["serde", "serde_json", "thiserror", "utoipa"]),
    ("quell-kernel", &["anstyle-parse", "serde", "serde-saphyr", "serde_json", "sha2", "thiserror"]),
];

/// A manifest taken apart: the name, and each dependency with its section.
struct Manifest {
    name: String,
    dependencies: Vec<(String, String)>,
}

fn manifest(source: &Source) -> Manifest {
    let table: toml::Table = source.text().parse().expect("cargo has read this manifest, too");
    let name = table["package"]["name"].as_str().expect("a package has a name").to_owned();
    let mut dependencies = sections(&table);
    let targets = table.get("target").and_then(toml::Value::as_table);
    for target in targets.into_iter().flat_map(toml::Table::values).filter_map(toml::Value::as_table) {
        dependencies.extend(sections(target));
    }
    Manifest { name, dependencies }
}

fn sections(table: &toml::Table) -> Vec<(String, String)> {
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

fn row<'a>(table: &'a [(&str, &[&str])], name: &str) -> Option<&'a [&'a str]> {
    table.iter().find(|(known, _)| *known == name).map(|(_, row)| *row)
}

pub(super) fn crates(source: &Source) -> Vec<Finding> {
    let Manifest { name, dependencies } = manifest(source);
    let Some(allowed) = row(ARROWS, &name) else {
        return vec![Finding::new(1, format!("the crate `{name}` is not in the drawing: add it there and to ARROWS"))];
    };
    let house = |dependency: &str| row(ARROWS, dependency).is_some();
    let mut found = Vec::new();
    for (section, dependency) in dependencies.iter().filter(|(_, dependency)| house(dependency)) {
        let for_tests = section == "dev-dependencies" && FOR_TESTS.contains(&dependency.as_str());
        if !for_tests && !allowed.contains(&dependency.as_str()) {
            let remedy = format!("`{name}` may not know `{dependency}`: arrows point down, hand a value or a trait up");
            found.push(Finding::new(line_of(source, dependency), remedy));
        }
    }
    found
}

pub(super) fn pure_floors(source: &Source) -> Vec<Finding> {
    let Manifest { name, dependencies } = manifest(source);
    let Some(pure) = row(PURE, &name) else { return Vec::new() };
    let mut found = Vec::new();
    for (section, dependency) in &dependencies {
        let own = row(ARROWS, dependency).is_some();
        if section != "dev-dependencies" && !own && !pure.contains(&dependency.as_str()) {
            let remedy = format!(
                "`{name}` is a pure floor and does without `{dependency}`; if that is pure, too, add it to PURE"
            );
            found.push(Finding::new(line_of(source, dependency), remedy));
        }
    }
    found
}

fn line_of(source: &Source, dependency: &str) -> usize {
    source.lines.iter().position(|line| line.contains(dependency) && !line.starts_with("name")).map_or(1, |at| at + 1)
}
