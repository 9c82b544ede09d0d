//! Parse one Rust file and count its lines, functions, types and named paths.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::LineCounts;

/// The figures of one file.
pub(crate) struct ParsedFile {
    pub(crate) crate_name: String,
    /// From the root of the workspace.
    pub(crate) path: String,
    /// The crate root that the file belongs to, and its module path below it.
    pub(crate) module: (String, Vec<String>),
    pub(crate) lines: usize,
    /// Lines that are compiled only for tests.
    pub(crate) test_lines: usize,
    /// Lines of each function.
    pub(crate) functions: Vec<usize>,
    pub(crate) functions_with_tuples: usize,
    /// Names of types and traits, with their lines.
    pub(crate) types: Vec<(String, usize)>,
    pub(crate) short_docs: usize,
    /// Absolute module paths in the code, below the same crate root.
    pub(crate) named_paths: Vec<Vec<String>>,
}

impl ParsedFile {
    pub(crate) fn is_test(&self) -> bool {
        self.lines > 0 && self.test_lines == self.lines
    }
}

/// Lists the directories below `parent` that contain a package.
pub(crate) fn folders_in(root: &Path, parent: &str) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join(parent))? {
        let entry = entry?;
        if entry.path().join("Cargo.toml").exists() {
            found.push(format!("{parent}/{}", entry.file_name().to_string_lossy()));
        }
    }
    found.sort();
    Ok(found)
}

/// Reads every Rust file of a crate: product, tests and benches.
pub(crate) fn read_crate(root: &Path, name: &str, folder: &str) -> anyhow::Result<Vec<ParsedFile>> {
    read_texts(root, name, folder)?.into_iter().map(|file| read_file(name, folder, file)).collect()
}

/// Counts as [`read_crate`] does, but parses only files that may contain both kinds of lines, because that takes long.
pub(crate) fn count_lines(root: &Path, name: &str, folder: &str) -> anyhow::Result<LineCounts> {
    let mut counts = LineCounts::default();
    for file in read_texts(root, name, folder)? {
        let lines = file.text.lines().count();
        let test_lines = match file.only_tests {
            true => lines,
            false if file.text.contains("cfg(test)") => read_file(name, folder, file)?.test_lines,
            false => 0,
        };
        counts.tests += test_lines;
        counts.product += lines - test_lines;
    }
    Ok(counts)
}

struct SourceText {
    /// From the root of the workspace.
    path: String,
    text: String,
    only_tests: bool,
}

/// Returns every Rust file of a crate.
fn read_texts(root: &Path, crate_name: &str, folder: &str) -> anyhow::Result<Vec<SourceText>> {
    let mut files = Vec::new();
    for path in rust_files(&root.join(folder))? {
        let text = fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
        let path = path.strip_prefix(root)?.to_string_lossy().into_owned();
        let only_tests = is_only_tests(crate_name, folder, &path);
        files.push(SourceText { path, text, only_tests });
    }
    let test_modules: Vec<String> = files.iter().flat_map(|file| test_modules(&file.path, &file.text)).collect();
    for file in &mut files {
        let is_below = |module: &String| {
            file.path.strip_prefix(module.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        };
        file.only_tests |= test_modules.iter().any(is_below);
    }
    Ok(files)
}

/// The modules in files of their own that this file declares only for tests, as paths without an ending.
fn test_modules(path: &str, text: &str) -> Vec<String> {
    let own = path.trim_end_matches(".rs");
    let (parent, name) = own.rsplit_once('/').unwrap_or(("", own));
    let folder = if ["lib", "main", "mod"].contains(&name) { parent } else { own };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let declared = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]").filter_map(|pair| {
        let (_, module) = pair[1].strip_suffix(';')?.split_once("mod ")?;
        Some(format!("{folder}/{module}"))
    });
    declared.collect()
}

/// The Rust files below a folder in the order of their paths, without those of builds.
pub(crate) fn rust_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

fn read_file(crate_name: &str, folder: &str, file: SourceText) -> anyhow::Result<ParsedFile> {
    let SourceText { path, text, only_tests } = file;
    let parsed = syn::parse_file(&text).with_context(|| format!("{path} cannot be parsed"))?;
    let module = module_of(path.strip_prefix(folder).unwrap_or(&path));
    let mut counter = Counter { inside: module.1.clone(), ..Counter::default() };
    counter.visit_file(&parsed);
    let lines = text.lines().count();
    Ok(ParsedFile {
        crate_name: crate_name.to_owned(),
        path,
        module,
        lines,
        test_lines: if only_tests { lines } else { counter.test_lines },
        functions: counter.functions,
        functions_with_tuples: if only_tests { 0 } else { counter.functions_with_tuples },
        types: counter.types,
        short_docs: short_docs(&text),
        named_paths: counter.named_paths,
    })
}

fn is_only_tests(crate_name: &str, folder: &str, path: &str) -> bool {
    ["testkit", "test-support"].iter().any(|support| crate_name.ends_with(support))
        || !path[folder.len()..].starts_with("/src/")
        || path.split('/').any(|part| part == "tests" || part == "tests.rs")
}

/// `/src/a/b.rs` is `a::b` below `src`; `/tests/core/a.rs` is `a` below `tests/core`.
fn module_of(path: &str) -> (String, Vec<String>) {
    let mut parts: Vec<&str> = path.trim_matches('/').trim_end_matches(".rs").split('/').collect();
    let root_parts = if parts.first() == Some(&"src") { 1 } else { 2.min(parts.len()) };
    let root = parts.drain(..root_parts).collect::<Vec<_>>().join("/");
    if parts.last().is_some_and(|last| ["lib", "main", "mod"].contains(last)) {
        parts.pop();
    }
    (root, parts.into_iter().map(str::to_owned).collect())
}

fn short_docs(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let is_doc =
        |index: Option<usize>| index.and_then(|index| lines.get(index)).is_some_and(|line| line.starts_with("///"));
    let short = |(index, line): &(usize, &&str)| {
        let words = line.strip_prefix("///").map_or(0, |doc| doc.split_whitespace().count());
        (1..=4).contains(&words) && !is_doc(index.checked_sub(1)) && !is_doc(Some(index + 1))
    };
    lines.iter().enumerate().filter(short).count()
}

#[derive(Default)]
struct Counter {
    /// The module path of the code that is being visited.
    inside: Vec<String>,
    in_tests: bool,
    test_lines: usize,
    functions: Vec<usize>,
    functions_with_tuples: usize,
    types: Vec<(String, usize)>,
    named_paths: Vec<Vec<String>>,
}

impl Counter {
    fn function(&mut self, span: proc_macro2::Span, signature: &syn::Signature) {
        self.functions.push(span.end().line - span.start().line + 1);
        let is_tuple = |input: &syn::FnArg| matches!(input, syn::FnArg::Typed(typed) if matches!(&*typed.ty, syn::Type::Tuple(tuple) if tuple.elems.len() > 1));
        if !self.in_tests && signature.inputs.iter().any(is_tuple) {
            self.functions_with_tuples += 1;
        }
    }

    /// Makes `crate::`, `self::` and `super::` paths absolute. Ignores all others: they name other crates or imported
    /// names.
    fn name(&mut self, segments: &[String]) {
        let mut base = match segments.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("self" | "super") => self.inside.clone(),
            _ => return,
        };
        for segment in segments.iter() {
            match segment.as_str() {
                "crate" | "self" => {}
                "super" => {
                    base.pop();
                }
                other => base.push(other.to_owned()),
            }
        }
        self.named_paths.push(base);
    }

    fn use_tree(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.use_tree(&with(&path.ident), &path.tree),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.use_tree(before, tree)),
            syn::UseTree::Name(name) => self.name(&with(&name.ident)),
            syn::UseTree::Rename(rename) => self.name(&with(&rename.ident)),
            syn::UseTree::Glob(_) => self.name(before),
        }
    }
}

impl Visit<'_> for Counter {
    fn visit_item_mod(&mut self, item: &syn::ItemMod) {
        if item.content.is_none() {
            return;
        }
        let is_test = item.attrs.iter().any(|attribute| {
            attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Ident>().is_ok_and(|what| what == "test")
        });
        let was = self.in_tests;
        self.in_tests |= is_test;
        if is_test && !was {
            self.test_lines += item.span().end().line - item.span().start().line + 1;
        }
        self.inside.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.inside.pop();
        self.in_tests = was;
    }

    fn visit_item_fn(&mut self, item: &syn::ItemFn) {
        self.function(item.span(), &item.sig);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &syn::ImplItemFn) {
        self.function(item.span(), &item.sig);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_item(&mut self, item: &syn::Item) {
        let type_name = match item {
            syn::Item::Struct(item) => Some(&item.ident),
            syn::Item::Enum(item) => Some(&item.ident),
            syn::Item::Trait(item) => Some(&item.ident),
            syn::Item::Type(item) => Some(&item.ident),
            _ => None,
        };
        self.types.extend(type_name.map(|name| (name.to_string(), name.span().start().line)));
        visit::visit_item(self, item);
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        self.use_tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.name(&segments);
        visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_are_declared_for_tests_are_found_beside_their_file() {
        let text = "mod product;\n#[cfg(test)]\nmod own;\n    #[cfg(test)]\n    pub(crate) mod fixture;\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(test_modules("crates/a/src/b.rs", text), ["crates/a/src/b/own", "crates/a/src/b/fixture"]);
        assert_eq!(test_modules("crates/a/src/lib.rs", text), ["crates/a/src/own", "crates/a/src/fixture"]);
    }
}
