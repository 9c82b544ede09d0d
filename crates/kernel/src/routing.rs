//! Routes a message to a model by keywords: keywords give a hint, and a hint has a route to a model.
//!
//! A message without a hint keeps the model of its conversation. This module knows no providers and no agents.

#[cfg(test)]
mod tests;
mod word_boundaries;

use word_boundaries::{are_in_same_word, fold_case};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeywordRule {
    /// One of them in a message is enough.
    pub words: Vec<String>,
    /// Hint for a message with one of the words.
    pub hint: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRoute {
    pub hint: String,
    /// Name of the provider in the configuration.
    pub provider: String,
    /// Name of the model at the provider.
    pub model: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelRouter {
    keywords: Vec<FoldedKeywordRule>,
    routes: Vec<ModelRoute>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FoldedKeywordRule {
    words: Vec<String>,
    hint: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct RoutingProblem {
    /// Entry and key, such as `keywords.0.hint`.
    pub place: String,
    /// What is wrong, and how to fix it.
    pub problem: String,
}

impl ModelRouter {
    /// Earlier rules and routes win.
    pub fn new(keywords: Vec<KeywordRule>, routes: Vec<ModelRoute>) -> Self {
        let folded = |KeywordRule { words, hint }: KeywordRule| FoldedKeywordRule {
            // Drop blank words: they would match every message.
            words: words.iter().map(|word| fold_case(word.trim())).filter(|word| !word.is_empty()).collect(),
            hint,
        };
        Self { keywords: keywords.into_iter().map(folded).collect(), routes }
    }

    /// The hint of the first rule with a word of this text. Case does not matter. Words match as whole words in scripts
    /// that put spaces between words, and anywhere in Chinese, Japanese and Korean text.
    pub fn hint_for(&self, text: &str) -> Option<&str> {
        if self.keywords.is_empty() {
            return None;
        }
        let text = fold_case(text);
        let entry =
            self.keywords.iter().find(|entry| entry.words.iter().any(|word| contains_whole_word(&text, word)))?;
        Some(&entry.hint)
    }

    /// The model for a text, as `provider/model`; `None` if the text gives no hint or the hint has no route.
    pub fn model_for(&self, text: &str) -> Option<String> {
        let hint = self.hint_for(text)?;
        let route = self.routes.iter().find(|route| route.hint == hint)?;
        Some(format!("{}/{}", route.provider, route.model))
    }

    /// Entries that can never work: keyword rules first, then routes, each in their order.
    #[must_use]
    pub fn problems(&self) -> Vec<RoutingProblem> {
        let of_keywords = self.keywords.iter().enumerate().filter_map(|(n, entry)| {
            let problem_at =
                |key: &str, problem: String| Some(RoutingProblem { place: format!("keywords.{n}.{key}"), problem });
            if entry.words.is_empty() {
                return problem_at("words", "names no word, so it can never match; give at least one".to_owned());
            }
            if !self.routes.iter().any(|route| route.hint == entry.hint) {
                let hint = &entry.hint;
                return problem_at(
                    "hint",
                    format!("{hint:?} has no route; add [[routing.model_routes]] with hint = {hint:?}"),
                );
            }
            None
        });
        let of_routes = self.routes.iter().enumerate().filter_map(|(n, route)| {
            let (key, problem) = self.route_problem(n, route)?;
            Some(RoutingProblem { place: format!("model_routes.{n}.{key}"), problem })
        });
        of_keywords.chain(of_routes).collect()
    }

    fn route_problem(&self, n: usize, route: &ModelRoute) -> Option<(&'static str, String)> {
        let is_blank = |text: &str| text.trim().is_empty();
        let named = [("hint", &route.hint), ("provider", &route.provider), ("model", &route.model)];
        if let Some((key, _)) = named.into_iter().find(|(_, text)| is_blank(text)) {
            return Some((key, "is blank".to_owned()));
        }
        let is_taken = self.routes.iter().take(n).any(|before| before.hint == route.hint);
        is_taken.then(|| ("hint", format!("{:?} has a route above, so this one is never taken", route.hint)))
    }
}

/// Whether a text contains a word, both case-folded, that is not part of a longer word there.
fn contains_whole_word(text: &str, word: &str) -> bool {
    let mut from = 0;
    while let Some(at) = text.get(from..).and_then(|rest| rest.find(word)) {
        let (begin, end) = (from + at, from + at + word.len());
        let before = text[..begin].chars().next_back().zip(word.chars().next());
        let after = word.chars().next_back().zip(text[end..].chars().next());
        if !before.into_iter().chain(after).any(|(left, right)| are_in_same_word(left, right)) {
            return true;
        }
        // The next match may overlap with this one.
        from = begin + text[begin..].chars().next().map_or(1, char::len_utf8);
    }
    false
}
