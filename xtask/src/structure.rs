//! `cargo xtask structure`: figures about the size and shape of the code.
//!
//! It parses every Rust file of the workspace. It does not see names inside of macro calls.
#![expect(clippy::print_stdout, reason = "the figures are the output of this command")]

mod imports;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context;

use self::source::ParsedFile;
pub(crate) use self::source::rust_files;

/// Prints the figures. With `--names`, also prints each type name that is used twice, with its places.
pub(crate) fn print(root: &Path, args: &[String]) -> anyhow::Result<()> {
    let manifests = manifests(root)?;
    let mut files = Vec::new();
    for (name, folder) in &manifests {
        files.extend(source::read_crate(root, name, folder)?);
    }
    print_crates(&manifests, &files);
    print_sizes(&files);
    print_types(&files, args.iter().any(|arg| arg == "--names"));
    print_circles(&files);
    let short_docs: usize = files.iter().map(|file| file.short_docs).sum();
    println!("\none-line docs of four words or fewer: {short_docs}");
    let tuples: usize = files.iter().map(|file| file.functions_with_tuples).sum();
    println!("functions outside of tests with a tuple as an argument: {tuples}");
    print_dependencies(root, &manifests)
}

/// Lines of Rust in the workspace.
#[derive(Default)]
pub(crate) struct LineCounts {
    /// Lines of the crates that are not compiled only for tests.
    pub(crate) product: usize,
    /// All other lines: tests, benches, test support and xtask.
    pub(crate) tests: usize,
}

pub(crate) fn count_lines(root: &Path) -> anyhow::Result<LineCounts> {
    let mut counts = LineCounts::default();
    for (name, folder) in manifests(root)? {
        let crate_counts = source::count_lines(root, &name, &folder)?;
        let product = if name == "xtask" { 0 } else { crate_counts.product };
        counts.product += product;
        counts.tests += crate_counts.tests + crate_counts.product - product;
    }
    Ok(counts)
}

/// Returns the crates by name, with their directories below the root.
pub(crate) fn manifests(root: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let workspace = read_manifest(&root.join("Cargo.toml"))?;
    let members = workspace["workspace"]["members"].as_array().context("the workspace has no members")?;
    let mut found = BTreeMap::new();
    for member in members.iter().filter_map(toml::Value::as_str) {
        let folders = match member.strip_suffix("/*") {
            Some(parent) => source::folders_in(root, parent)?,
            None => vec![member.to_owned()],
        };
        for folder in folders {
            let manifest = read_manifest(&root.join(&folder).join("Cargo.toml"))?;
            let name = manifest["package"]["name"].as_str().context("a package has no name")?;
            found.insert(name.to_owned(), folder);
        }
    }
    Ok(found)
}

fn read_manifest(path: &Path) -> anyhow::Result<toml::Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    Ok(toml::Value::Table(text.parse()?))
}

fn print_crates(manifests: &BTreeMap<String, String>, files: &[ParsedFile]) {
    println!("{:<18} {:>6} {:>8} {:>8}", "crate", "files", "lines", "tests");
    let mut sums = (0, 0, 0);
    for name in manifests.keys() {
        let own: Vec<&ParsedFile> = files.iter().filter(|file| file.crate_name == *name).collect();
        let tests: usize = own.iter().map(|file| file.test_lines).sum();
        let lines = own.iter().map(|file| file.lines).sum::<usize>() - tests;
        println!("{name:<18} {:>6} {lines:>8} {tests:>8}", own.len());
        sums = (sums.0 + own.len(), sums.1 + lines, sums.2 + tests);
    }
    println!("{:<18} {:>6} {:>8} {:>8}", "all", sums.0, sums.1, sums.2);
}

fn print_sizes(files: &[ParsedFile]) {
    println!("\n{:<22} {:>6} {:>6} {:>6} {:>6}", "lines per", "p50", "p95", "p99", "max");
    let row = |what: &str, mut sizes: Vec<usize>| {
        sizes.sort_unstable();
        let at = |share: f64| sizes.get(((sizes.len().max(1) - 1) as f64 * share) as usize).copied().unwrap_or(0);
        println!("{what:<22} {:>6} {:>6} {:>6} {:>6}", at(0.5), at(0.95), at(0.99), at(1.0));
    };
    let product = || files.iter().filter(|file| !file.is_test());
    let tests = || files.iter().filter(|file| file.is_test());
    row("file", product().map(|file| file.lines).collect());
    row("file of tests", tests().map(|file| file.lines).collect());
    row("function", product().flat_map(|file| file.functions.iter().copied()).collect());
    row("function of tests", tests().flat_map(|file| file.functions.iter().copied()).collect());
}

fn print_types(files: &[ParsedFile], with_names: bool) {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for file in files {
        for (name, line) in &file.types {
            places.entry(name).or_default().push(format!("{}:{line}", file.path));
        }
    }
    let mut reused: Vec<(&&str, &Vec<String>)> = places.iter().filter(|(_, places)| places.len() > 1).collect();
    reused.sort_by_key(|(_, places)| std::cmp::Reverse(places.len()));
    let share = 100.0 * reused.len() as f64 / places.len().max(1) as f64;
    println!("\ntype names: {}, of two or more types: {} ({share:.1} %)", places.len(), reused.len());
    if with_names {
        for (name, places) in reused {
            println!("  {name} x{}: {}", places.len(), places.join(" "));
        }
    } else {
        let top: Vec<String> =
            reused.iter().take(10).map(|(name, places)| format!("{name} x{}", places.len())).collect();
        println!("  {}", top.join(", "));
    }
}

fn print_circles(files: &[ParsedFile]) {
    let circles = imports::circles(files);
    println!("\ncircles between files (a module and its own children do not count): {}", circles.len());
    for circle in circles {
        println!("  {}", circle.into_iter().collect::<Vec<_>>().join(" "));
    }
}

/// Prints which workspace crates each crate needs; those that only its tests need are in brackets.
fn print_dependencies(root: &Path, manifests: &BTreeMap<String, String>) -> anyhow::Result<()> {
    println!("\ncrates and what they need");
    for (name, folder) in manifests {
        let manifest = read_manifest(&root.join(folder).join("Cargo.toml"))?;
        let of = |section: &str| -> BTreeSet<&str> {
            let table = manifest.get(section).and_then(toml::Value::as_table);
            let names = table.into_iter().flat_map(|table| table.keys().map(String::as_str));
            names.filter(|name| manifests.contains_key(*name)).collect()
        };
        let needs = of("dependencies");
        let tests: Vec<String> = of("dev-dependencies").difference(&needs).map(|name| format!("({name})")).collect();
        let needs: Vec<String> = needs.into_iter().map(str::to_owned).chain(tests).collect();
        println!("  {name} -> {}", needs.join(" "));
    }
    Ok(())
}
