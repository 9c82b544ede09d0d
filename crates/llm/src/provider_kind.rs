//! The `kind` of a provider in the configuration: one of the dialects, by its name.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{EnumAccess, Error, VariantAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use super::dialect::{
    AnthropicMessages, ChatCompletions, DIALECTS, Dialect, GeminiContent, OpenAiResponses, ProviderEnvironment,
};

/// The name of the type in the schema and in error texts.
const TYPE_NAME: &str = "ProviderKind";

static NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| ProviderKind::all().map(ProviderKind::name).collect());

#[derive(Clone, Copy)]
pub struct ProviderKind(pub(super) &'static dyn Dialect);

impl ProviderKind {
    pub const OPENAI: Self = Self(&ChatCompletions::OPENAI);
    pub const ANTHROPIC: Self = Self(&AnthropicMessages);
    pub const OPENAI_RESPONSES: Self = Self(&OpenAiResponses);
    pub const GEMINI: Self = Self(&GeminiContent);
    pub const DEMO: Self = Self(&ChatCompletions::DEMO);

    pub fn all() -> impl Iterator<Item = Self> {
        DIALECTS.iter().map(|dialect| Self(*dialect))
    }

    /// The name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.kind()
    }

    /// True when a request can ask for thinking.
    #[must_use]
    pub fn has_thinking(self) -> bool {
        self.0.has_thinking()
    }

    /// True when the provider can search the web by itself.
    #[must_use]
    pub fn has_web_search(self) -> bool {
        self.0.has_web_search()
    }

    /// The provider that environment variables configure when the configuration has none.
    #[must_use]
    pub fn environment(self) -> Option<&'static ProviderEnvironment> {
        self.0.environment()
    }
}

impl PartialEq for ProviderKind {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for ProviderKind {}

impl fmt::Debug for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for ProviderKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Reads an enum and no text, so that a wrong value is reported like that of every other choice.
impl<'de> Deserialize<'de> for ProviderKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_enum(TYPE_NAME, &NAMES, ProviderKindVisitor)
    }
}

struct ProviderKindVisitor;

impl<'de> Visitor<'de> for ProviderKindVisitor {
    type Value = ProviderKind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "enum {TYPE_NAME}")
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<ProviderKind, A::Error> {
        let (name, variant) = data.variant::<String>()?;
        let kind = ProviderKind::all().find(|kind| kind.name() == name);
        let kind = kind.ok_or_else(|| Error::unknown_variant(&name, &NAMES))?;
        variant.unit_variant()?;
        Ok(kind)
    }
}

impl JsonSchema for ProviderKind {
    fn schema_name() -> Cow<'static, str> {
        TYPE_NAME.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let choice = |dialect: &&dyn Dialect| json!({"description": dialect.description(), "type": "string", "const": dialect.kind()});
        let choices: Vec<Value> = DIALECTS.iter().map(choice).collect();
        json_schema!({"description": "The wire formats.", "oneOf": choices})
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::ProviderConfig;

    #[rstest]
    #[case("openai", "OpenAI chat completions, which most servers support.")]
    #[case("openai-responses", "OpenAI responses, which keep the reasoning of OpenAI's own models.")]
    #[case("anthropic", "Anthropic messages.")]
    #[case("gemini", "Google Gemini.")]
    #[case("demo", "The built-in demo model, which has the wire format of OpenAI, on a loopback port of this process.")]
    fn the_schema_has_each_kind_with_its_description(#[case] name: &str, #[case] description: &str) {
        let schema = schemars::schema_for!(ProviderConfig);
        let kinds = &schema.as_value()["$defs"]["ProviderKind"];
        assert_eq!(kinds["description"], "The wire formats.");
        let choices: Vec<String> = kinds["oneOf"].as_array().unwrap().iter().map(Value::to_string).collect();
        let expected = json!({"description": description, "type": "string", "const": name}).to_string();
        assert!(choices.contains(&expected), "{kinds:#}");
        assert_eq!(choices.len(), DIALECTS.len());
    }

    #[test]
    fn a_wrong_kind_is_reported_at_its_place() {
        let error = |section: &str| toml::from_str::<ProviderConfig>(section).unwrap_err();
        let unknown = error("kind = \"wrong\"");
        let says = format!("unknown variant `wrong`, expected one of `{}`", NAMES.join("`, `"));
        assert_eq!((unknown.message(), unknown.span()), (says.as_str(), Some(7..14)));
        let number = error("kind = 5");
        assert_eq!((number.message(), number.span()), ("wanted string or table", Some(7..8)));
    }

    #[test]
    fn a_kind_is_written_as_it_is_read() {
        for kind in ProviderKind::all() {
            let written = serde_json::to_value(kind).unwrap();
            assert_eq!(written, kind.name());
            assert_eq!(serde_json::from_value::<ProviderKind>(written).unwrap(), kind);
        }
    }
}
