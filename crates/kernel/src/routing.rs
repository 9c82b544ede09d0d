//! Which model a message is for (row D5): words in it give a hint, and a hint has a route to a model. It knows no providers
//! and no agents: a message without a hint is for whatever model its conversation has.

mod letters;
#[cfg(test)]
mod tests;

use letters::{fold, stand_together};

/// Words that give a hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keywords {
    /// One of them is enough.
    pub words: Vec<String>,
    /// What they say of a message.
    pub hint: String,
}

/// Where messages with a hint go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRoute {
    /// The hint.
    pub hint: String,
    /// The provider, as it is configured.
    pub provider: String,
    /// The model, as the provider names it.
    pub model: String,
}

/// The rules by which messages find their models.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routing {
    keywords: Vec<Folded>,
    routes: Vec<ModelRoute>,
}

/// Keywords as they are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Folded {
    words: Vec<String>,
    hint: String,
}

/// What is wrong with one entry of the rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct BadRouting {
    /// Which key of which entry, such as `keywords.0.hint`.
    pub place: String,
    /// What is wrong with it and what would be right.
    pub problem: String,
}

impl Routing {
    /// Rules in the order in which they are asked.
    #[must_use]
    pub fn new(keywords: Vec<Keywords>, routes: Vec<ModelRoute>) -> Self {
        let folded = |Keywords { words, hint }: Keywords| Folded {
            // A blank word would be in every message.
            words: words.iter().map(|word| fold(word.trim())).filter(|word| !word.is_empty()).collect(),
            hint,
        };
        Self { keywords: keywords.into_iter().map(folded).collect(), routes }
    }

    /// The hint of the first entry that has a word of this text: in upper or lower case, and as a whole word where its script
    /// puts spaces between words; Chinese, Japanese and Korean words anywhere.
    #[must_use]
    pub fn hint(&self, text: &str) -> Option<&str> {
        if self.keywords.is_empty() {
            return None;
        }
        let text = fold(text);
        let entry = self.keywords.iter().find(|entry| entry.words.iter().any(|word| has_word(&text, word)))?;
        Some(&entry.hint)
    }

    /// The model that a text is for, as `provider/model`; none when no word of it gives a hint.
    #[must_use]
    pub fn model_for(&self, text: &str) -> Option<String> {
        let hint = self.hint(text)?;
        let route = self.routes.iter().find(|route| route.hint == hint)?;
        Some(format!("{}/{}", route.provider, route.model))
    }

    /// The routes, in their order.
    #[must_use]
    pub fn routes(&self) -> &[ModelRoute] {
        &self.routes
    }

    /// What can never work, in the order of the entries.
    #[must_use]
    pub fn problems(&self) -> Vec<BadRouting> {
        let of_keywords = self.keywords.iter().enumerate().filter_map(|(n, entry)| {
            let bad = |key: &str, problem: String| Some(BadRouting { place: format!("keywords.{n}.{key}"), problem });
            if entry.words.is_empty() {
                return bad("words", "names no word, so it can never match; give at least one".to_owned());
            }
            if !self.routes.iter().any(|route| route.hint == entry.hint) {
                let hint = &entry.hint;
                return bad(
                    "hint",
                    format!("{hint:?} has no route; add [[routing.model_routes]] with hint = {hint:?}"),
                );
            }
            None
        });
        let of_routes = self.routes.iter().enumerate().filter_map(|(n, route)| {
            let (key, problem) = self.route_problem(n, route)?;
            Some(BadRouting { place: format!("model_routes.{n}.{key}"), problem })
        });
        of_keywords.chain(of_routes).collect()
    }

    fn route_problem(&self, n: usize, route: &ModelRoute) -> Option<(&'static str, String)> {
        let blank = |text: &str| text.trim().is_empty();
        let named = [("hint", &route.hint), ("provider", &route.provider), ("model", &route.model)];
        if let Some((key, _)) = named.into_iter().find(|(_, text)| blank(text)) {
            return Some((key, "is blank".to_owned()));
        }
        let is_taken = self.routes.iter().take(n).any(|before| before.hint == route.hint);
        is_taken.then(|| ("hint", format!("{:?} has a route above, so this one is never taken", route.hint)))
    }
}

/// Whether a word stands in a text, both folded, and is not a part of a longer word there.
fn has_word(text: &str, word: &str) -> bool {
    let mut from = 0;
    while let Some(at) = text.get(from..).and_then(|rest| rest.find(word)) {
        let (begin, end) = (from + at, from + at + word.len());
        let before = text[..begin].chars().next_back().zip(word.chars().next());
        let after = word.chars().next_back().zip(text[end..].chars().next());
        if !before.into_iter().chain(after).any(|(left, right)| stand_together(left, right)) {
            return true;
        }
        // The next place may overlap with this one.
        from = begin + text[begin..].chars().next().map_or(1, char::len_utf8);
    }
    false
}
