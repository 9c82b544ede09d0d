//! The models of an agent in the configuration: one name, or several in the order in which they are tried.

use std::fmt;

use schemars::JsonSchema;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The models that an agent may use, as `provider/model`. The first one is used; each other one takes over for the rest
/// of a run when the one before it has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelChain {
    first: String,
    fallbacks: Vec<String>,
}

/// The form in the configuration, for its schema.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum ModelChainForm {
    One(String),
    Several(Vec<String>),
}

impl ModelChain {
    pub fn first(&self) -> &str {
        &self.first
    }

    /// The models after the first, in order.
    pub fn fallbacks(&self) -> &[String] {
        &self.fallbacks
    }

    /// All models, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.first.as_str()).chain(self.fallbacks.iter().map(String::as_str))
    }

    /// The chain without the models after the first.
    #[must_use]
    pub fn without_fallbacks(&self) -> Self {
        self.first.clone().into()
    }
}

impl From<String> for ModelChain {
    fn from(first: String) -> Self {
        Self { first, fallbacks: Vec::new() }
    }
}

impl From<&str> for ModelChain {
    fn from(first: &str) -> Self {
        first.to_owned().into()
    }
}

impl fmt::Display for ModelChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().collect::<Vec<_>>().join(", then "))
    }
}

impl Serialize for ModelChain {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.fallbacks.is_empty() { self.first.serialize(serializer) } else { serializer.collect_seq(self.names()) }
    }
}

impl<'de> Deserialize<'de> for ModelChain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ModelChainVisitor)
    }
}

struct ModelChainVisitor;

impl<'de> Visitor<'de> for ModelChainVisitor {
    type Value = ModelChain;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, or a list of strings in the order in which they are tried")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<ModelChain, E> {
        Ok(name.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ModelChain, A::Error> {
        let Some(first) = list.next_element::<String>()? else {
            return Err(A::Error::custom("an empty list names no model; name one, or leave the key out"));
        };
        let mut chain = ModelChain::from(first);
        while let Some(next) = list.next_element::<String>()? {
            if chain.names().any(|name| name == next) {
                return Err(A::Error::custom(format!("the model {next:?} stands twice in the list; name it once")));
            }
            chain.fallbacks.push(next);
        }
        Ok(chain)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case(json!("a/x"), json!("a/x"), "a/x")]
    #[case(json!(["a/x"]), json!("a/x"), "a/x")]
    #[case(json!(["a/x", "b/y", "c/z"]), json!(["a/x", "b/y", "c/z"]), "a/x, then b/y, then c/z")]
    fn one_name_and_a_list_are_read_and_written(#[case] form: Value, #[case] written: Value, #[case] shown: &str) {
        let chain: ModelChain = serde_json::from_value(form).unwrap();
        assert_eq!((serde_json::to_value(&chain).unwrap(), chain.to_string()), (written, shown.to_owned()));
    }

    #[rstest]
    #[case(json!([]), "names no model")]
    #[case(json!(["a/x", "b/y", "a/x"]), "stands twice")]
    #[case(json!(7), "a string, or a list of strings")]
    #[case(json!(["a/x", 7]), "expected a string")]
    fn a_wrong_form_is_refused_with_its_reason(#[case] form: Value, #[case] reason: &str) {
        let problem = serde_json::from_value::<ModelChain>(form).unwrap_err().to_string();
        assert!(problem.contains(reason), "{problem}");
    }
}
