//! The files that a browser fetches when it loads the page for the first time, from the sources in `web/`.
//!
//! Sizes are those of the files. The server compresses them with gzip for every browser, to about a third.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;

const INDEX_FILE: &str = "index.html";

/// The server keeps the texts of one language from this file, and drops those of the terminal.
const TEXTS_FILE: &str = "texts.json";

/// URLs of the page's files begin with this, followed by the path below `web/`.
const ASSETS: &str = "/assets/";

/// Returns the bytes of each fetched file, by its path below `web/`. `read` returns the text of a file by that path.
///
/// # Errors
/// A reference to a file that cannot be read.
pub(super) fn first_load(read: impl Fn(&str) -> anyhow::Result<String>) -> anyhow::Result<BTreeMap<String, usize>> {
    let mut sizes = BTreeMap::new();
    let mut found = vec![INDEX_FILE.to_owned()];
    let mut seen: BTreeSet<String> = found.iter().cloned().collect();
    while let Some(path) = found.pop() {
        let text = read(&path)?;
        for reference in references(&path, &text) {
            let target = resolve(&path, &reference).with_context(|| format!("{path} refers to {reference:?}"))?;
            if seen.insert(target.clone()) {
                found.push(target);
            }
        }
        sizes.insert(path, text.len());
    }
    sizes.insert(TEXTS_FILE.to_owned(), texts_size(&read(TEXTS_FILE)?)?);
    Ok(sizes)
}

/// What a browser fetches because of this file, as it is written there.
fn references(path: &str, text: &str) -> Vec<String> {
    match path.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => html_references(text),
        "js" => static_imports(text),
        "css" => style_references(text),
        _ => Vec::new(),
    }
}

/// Targets of `link` and `script` elements, and of images.
fn html_references(text: &str) -> Vec<String> {
    let tags = text.split('<').filter_map(|rest| rest.split_once('>')).map(|(tag, _)| tag);
    let targets = tags.filter_map(|tag| match tag.split_whitespace().next()? {
        "link" => attribute(tag, "href"),
        "script" | "img" => attribute(tag, "src"),
        _ => None,
    });
    targets.map(str::to_owned).collect()
}

fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

/// Modules that are named by statements at the beginning of a line. A call of `import(...)` loads its module later.
fn static_imports(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let starts = text.match_indices(['i', 'e']).map(|(at, _)| at);
    for start in starts.filter(|at| *at == 0 || text.as_bytes().get(at - 1) == Some(&b'\n')) {
        let rest = &text[start..];
        let is_statement = ["import ", "import{", "export *", "export {"].iter().any(|begin| rest.starts_with(begin));
        let statement = rest.split(';').next().unwrap_or_default();
        if let Some((names, module)) = statement.trim_end_matches('"').rsplit_once('"').filter(|_| is_statement)
            && ["from", "import"].iter().any(|word| names.trim_end().ends_with(word))
        {
            found.push(module.to_owned());
        }
    }
    found
}

/// Targets of `@import` and `url()`. Fragments and data are not fetched.
fn style_references(text: &str) -> Vec<String> {
    let urls = text.split("url(").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let imports = text.split("@import ").skip(1).filter_map(|rest| rest.split_once(';')).map(|(target, _)| target);
    let imports = imports.filter(|target| !target.starts_with("url("));
    let targets = urls.chain(imports).map(|target| target.trim_matches(['"', '\'', ' ']));
    targets.filter(|target| !target.starts_with('#') && !target.starts_with("data:")).map(str::to_owned).collect()
}

/// The path below `web/` of a reference in the file `from`. `None` for another site.
fn resolve(from: &str, reference: &str) -> Option<String> {
    if let Some(path) = reference.strip_prefix(ASSETS) {
        return Some(path.to_owned());
    }
    if reference.starts_with('/') || reference.contains("://") {
        return None;
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in reference.split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Bytes of the English texts, as `crates/server/src/web_assets.rs` sends them.
fn texts_size(table: &str) -> anyhow::Result<usize> {
    let table: BTreeMap<String, BTreeMap<String, String>> =
        serde_json::from_str(table).with_context(|| format!("{TEXTS_FILE} is no table of texts"))?;
    let page_texts = table.into_iter().filter(|(key, _)| !key.starts_with("term."));
    let english: BTreeMap<String, BTreeMap<String, String>> =
        page_texts.map(|(key, mut row)| (key, row.remove_entry("en").into_iter().collect())).collect();
    Ok(serde_json::to_vec(&english)?.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: &[(&str, &str)] = &[
        (
            "index.html",
            "<link rel=\"icon\" href=\"/assets/icon.svg\"> <a href=\"/assets/other.html\">\n\
             <link rel=\"stylesheet\" href=\"/assets/style/base.css\">\n\
             <script type=\"module\" src=\"/assets/js/main.js\"></script>",
        ),
        ("icon.svg", "<svg/>"),
        ("style/base.css", "@import \"more.css\";\n.a { fill: url(\"#hatch\"); mask: url(../icon.svg); }"),
        ("style/more.css", ""),
        (
            "js/main.js",
            "// import \"./comment.js\";\nimport {\n  a,\n} from \"./a.js\";\nimport \"./effect.js\";\n\
             export { c } from \"./a.js\";\n\
             export const b = async () => (await import(\"./later.js\")).run();\nexport { b };\n",
        ),
        ("js/a.js", "export * from \"./parts/c.js\";\n"),
        ("js/effect.js", ""),
        ("js/parts/c.js", "import { a } from \"../a.js\";\n"),
        ("texts.json", r#"{"a": {"en": "x", "ko": "yyyy"}, "term.b": {"en": "not in the page", "ko": ""}}"#),
    ];

    fn read(path: &str) -> anyhow::Result<String> {
        let file = FILES.iter().find(|(known, _)| *known == path).with_context(|| format!("no file {path}"))?;
        Ok(file.1.to_owned())
    }

    #[test]
    fn static_references_are_followed_and_dynamic_ones_are_not() {
        let sizes = first_load(read).unwrap();
        let expected: BTreeSet<&str> = FILES.iter().map(|(path, _)| *path).collect();
        assert_eq!(sizes.keys().map(String::as_str).collect::<BTreeSet<_>>(), expected);
        assert_eq!(sizes["icon.svg"], 6);
    }

    #[test]
    fn texts_count_in_one_language_without_those_of_the_terminal() {
        assert_eq!(first_load(read).unwrap()["texts.json"], r#"{"a":{"en":"x"}}"#.len());
    }

    #[test]
    fn a_reference_to_a_missing_file_is_an_error() {
        let without_effect = |path: &str| match path {
            "js/effect.js" => anyhow::bail!("no file {path}"),
            _ => read(path),
        };
        assert_eq!(first_load(without_effect).unwrap_err().to_string(), "no file js/effect.js");
    }

    #[test]
    fn another_site_is_an_error() {
        let elsewhere = |path: &str| match path {
            "js/effect.js" => Ok("import \"https://example.com/a.js\";".to_owned()),
            _ => read(path),
        };
        assert!(first_load(elsewhere).unwrap_err().to_string().contains("https://example.com/a.js"));
    }
}
