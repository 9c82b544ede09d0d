//! Translated texts of the chat, from `web/texts.json`. The page uses the same table; the keys of the chat begin with
//! `term.`.

use std::collections::HashMap;
use std::sync::LazyLock;

use quell_client::term::Language;
use serde::Deserialize;

static TRANSLATIONS: LazyLock<HashMap<String, TranslatedText>> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../../web/texts.json")).unwrap_or_default());

#[derive(Deserialize)]
struct TranslatedText {
    en: String,
    ko: String,
    zh: String,
}

/// The table in one language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Texts(pub(crate) Language);

impl Texts {
    /// Text of a key; the key itself if the table does not have it.
    pub(crate) fn get(self, key: &'static str) -> &'static str {
        let Some(row) = TRANSLATIONS.get(key) else { return key };
        match self.0 {
            Language::English => &row.en,
            Language::Korean => &row.ko,
            Language::Chinese => &row.zh,
        }
    }

    /// Text of a key, with `{name}` replaced by the value of `name`.
    pub(crate) fn format(self, key: &'static str, values: &[(&str, &str)]) -> String {
        let mut text = String::new();
        let mut rest = self.get(key);
        while let Some((before, behind)) = rest.split_once('{') {
            text.push_str(before);
            let Some((name, behind)) = behind.split_once('}') else {
                rest = behind;
                break;
            };
            // Placeholders within a value are not replaced.
            text.push_str(values.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value));
            rest = behind;
        }
        text + rest
    }

    /// Text with `{n}` for a number: `one` for exactly one, else `many`.
    pub(crate) fn plural(self, one: &'static str, many: &'static str, number: usize) -> String {
        self.format(if number == 1 { one } else { many }, &[("n", &number.to_string())])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Collects every key used in the sources below this directory.
    fn keys_in(dir: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                keys_in(&path, found);
            } else if !path.ends_with("texts.rs") {
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                let quoted = text.split("\"term.").skip(1).filter_map(|rest| rest.split('"').next());
                found.extend(quoted.map(|rest| format!("term.{rest}")));
            }
        }
    }

    #[test]
    fn the_table_has_what_the_screen_says_and_nothing_else() {
        let mut used = BTreeSet::new();
        keys_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut used);
        let known: BTreeSet<String> = TRANSLATIONS.keys().filter(|key| key.starts_with("term.")).cloned().collect();
        assert!(used.len() > 20, "the sources are elsewhere");
        let (missing, idle): (Vec<_>, Vec<_>) = (used.difference(&known).collect(), known.difference(&used).collect());
        assert!(missing.is_empty() && idle.is_empty(), "missing: {missing:#?}, never said: {idle:#?}");
    }

    #[test]
    fn each_language_has_the_same_places() {
        let places = |text: &str| -> BTreeSet<String> {
            text.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0.to_owned())).collect()
        };
        for (key, row) in TRANSLATIONS.iter().filter(|(key, _)| key.starts_with("term.")) {
            assert!(places(&row.en) == places(&row.ko) && places(&row.en) == places(&row.zh), "{key}");
        }
    }

    #[test]
    fn inserted_values_are_not_expanded_again() {
        let texts = Texts::default();
        assert_eq!(texts.format("no {a} such {b} key", &[("a", "{b}"), ("b", "x")]), "no {b} such x key");
    }
}
