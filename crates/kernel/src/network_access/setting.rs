//! The setting `network` in configuration and API bodies: `"on"`, `"off"`, or a list.

use core::fmt;
use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use super::{NetworkAccess, NetworkRule, NetworkRules};

const EXPECTED: &str = "\"on\", \"off\", or a list of entries such as \"example.org:443\"";

impl Serialize for NetworkAccess {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::On => serializer.serialize_str("on"),
            Self::Off => serializer.serialize_str("off"),
            Self::List(rules) => serializer.collect_seq(rules.entries().iter().map(NetworkRule::to_string)),
        }
    }
}

impl<'de> Deserialize<'de> for NetworkAccess {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NetworkAccessVisitor)
    }
}

struct NetworkAccessVisitor;

impl<'de> Visitor<'de> for NetworkAccessVisitor {
    type Value = NetworkAccess;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<NetworkAccess, E> {
        match text {
            "on" => Ok(NetworkAccess::On),
            "off" => Ok(NetworkAccess::Off),
            entry if entry.parse::<NetworkRule>().is_ok() => {
                Err(E::custom(format!("{entry:?} is one entry; write a list: [{entry:?}]")))
            }
            other => Err(E::custom(format!("{other:?} is no network setting; write {EXPECTED}"))),
        }
    }

    fn visit_bool<E: Error>(self, is_on: bool) -> Result<NetworkAccess, E> {
        let word = if is_on { "on" } else { "off" };
        Err(E::custom(format!("{is_on} is no network setting; write \"{word}\"")))
    }

    /// Parses each entry while the deserializer is at it, so that an error names its line.
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<NetworkAccess, A::Error> {
        let mut rules = Vec::new();
        while let Some(rule) = list.next_element()? {
            rules.push(rule);
        }
        if rules.is_empty() {
            return Err(A::Error::custom(super::NetworkRuleError::empty_list()));
        }
        Ok(NetworkAccess::List(NetworkRules(rules)))
    }
}

impl<'de> Deserialize<'de> for NetworkRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entry = Cow::<'de, str>::deserialize(deserializer)?;
        entry.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for NetworkAccess {
    fn schema_name() -> Cow<'static, str> {
        "NetworkAccess".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Which servers the commands of the agent may reach.",
            "oneOf": [
                {"description": "The network of the daemon.", "type": "string", "const": "on"},
                {"description": "No network but a loopback interface of its own.", "type": "string", "const": "off"},
                {
                    "description": "These servers alone, through a filtering proxy. HOST:PORT each: the host is a \
                        name, *.NAME, an IP address ([IPv6]) or a network (10.0.0.0/8); the port is a number or *.",
                    "type": "array", "minItems": 1, "items": {"type": "string"},
                },
            ],
        })
    }
}
