//! The table of docs/races.md: every test that it names is there and is run, and so is every file.

use std::fs;
use std::path::Path;

use super::source_file::SourceFile;
use super::{TidyFinding, workspace_root};

const TABLE_HEAD: &str = "| what goes wrong | why not here |";

/// Finds names in backticks that lead nowhere, and rows that name nothing.
pub(super) fn check_race_table(source: &SourceFile) -> Vec<TidyFinding> {
    if source.path != "docs/races.md" {
        return Vec::new();
    }
    let mut found = Vec::new();
    let rows = source.lines.iter().enumerate().filter(|(_, line)| line.starts_with("| ") && *line != TABLE_HEAD);
    for (at, row) in rows {
        let names: Vec<&str> = row.split('`').skip(1).step_by(2).filter(|name| is_reference(name)).collect();
        if names.is_empty() {
            found.push(TidyFinding::new(at + 1, "this row names no test and no file of the code"));
        }
        let missing = names.iter().filter(|name| !reference_exists(name));
        found.extend(missing.map(|name| TidyFinding::new(at + 1, format!("there is no such test or file: `{name}`"))));
    }
    found
}

/// The test binaries of the program, and that of this test: their names, and the folders of their files.
const BINARIES: &[(&str, &str)] = &[
    ("stop::", "crates/quell/tests/stop"),
    ("core::", "crates/quell/tests/core"),
    ("surfaces::", "crates/quell/tests/surfaces"),
    ("clients::", "crates/quell/tests/clients"),
    ("cluster::", "crates/quell/tests/cluster"),
    ("page::", "crates/quell/tests/page"),
    ("tidy::", "xtask/tests/tidy"),
];

/// A file below `crates/`, or a test as `stop::a::b`, `quell-engine: a::b`, `quell-process/commands: a::b`,
/// `quell-store: conformance::a::b`. A shortened name is taken for a reference, so that it is reported.
fn is_reference(name: &str) -> bool {
    let mut starts = BINARIES.iter().map(|(binary, _)| *binary).chain(["quell-", "crates/", "…"]);
    starts.any(|start| name.starts_with(start))
}

fn reference_exists(name: &str) -> bool {
    if name.starts_with("crates/") {
        return workspace_root().join(name).is_file();
    }
    let (dir, path) = match name.split_once(": ") {
        None => {
            let found = BINARIES.iter().find_map(|(binary, dir)| Some((*dir, name.strip_prefix(binary)?)));
            let Some((dir, path)) = found else { return false };
            (dir.to_owned(), path)
        }
        Some((place, path)) => match place.trim_start_matches("quell-").split_once('/') {
            Some((of, tests)) => (format!("crates/{of}/tests/{tests}"), path),
            None => (format!("crates/{}/src", place.trim_start_matches("quell-")), path),
        },
    };
    let (modules, test) = path.rsplit_once("::").unwrap_or(("", path));
    if modules.starts_with("conformance::") {
        return is_conformance_case(&workspace_root().join(dir), test);
    }
    let is_root = matches!(modules, "" | "tests");
    let roots = if is_root { &["lib", "main"][..] } else { &[] };
    let files = [modules, modules.strip_suffix("::tests").unwrap_or(modules)];
    let file = |modules: &str| {
        modules.split("::").filter(|module| !module.is_empty()).fold(workspace_root().join(&dir), |at, it| at.join(it))
    };
    files.iter().chain(roots).any(|modules| has_test(&file(modules).with_extension("rs"), test))
}

/// The macro in `conformance.rs` makes a test of each case that it lists; the compiler checks that the case exists.
fn is_conformance_case(dir: &Path, case: &str) -> bool {
    let list = fs::read_to_string(dir.join("conformance.rs")).unwrap_or_default();
    list.lines().any(|line| line.trim().trim_end_matches([',', ';']) == case)
}

fn has_test(file: &Path, test: &str) -> bool {
    let Ok(text) = fs::read_to_string(file) else { return false };
    let source = SourceFile::new(&file.to_string_lossy(), &text);
    let head = format!("fn {test}(");
    let places = source.lines.iter().enumerate().filter(|(_, line)| line.contains(&head));
    places.map(|(at, _)| lines_above_item(&source, at + 1)).any(|above| {
        let is = |mark: &str| above.iter().any(|line| line.trim().starts_with(mark));
        is("#[test]") || is("#[tokio::test") || is("#[rstest]")
    })
}

/// The documentation and the attributes of the item in this line.
fn lines_above_item(source: &SourceFile, line: usize) -> Vec<&String> {
    source.lines[..line - 1].iter().rev().take_while(|line| belongs_to_the_item_below(line)).collect()
}

/// Documentation and attributes, also over several lines: everything up to a blank line or the end of the item before.
fn belongs_to_the_item_below(line: &str) -> bool {
    let line = line.trim();
    line.starts_with("///") || !(line.is_empty() || line.ends_with(['{', '}', ';']))
}
