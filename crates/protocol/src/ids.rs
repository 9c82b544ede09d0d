//! Validated identifiers. Each is opaque text with its own rule, checked once when the text enters the process.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

/// A text breaks the rule of its kind of id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {problem}")]
pub struct BadId {
    /// The kind of id, for people: `run id`, `session key`.
    pub what: &'static str,
    /// The broken rule, in words that tell the caller how to correct the text.
    pub problem: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal, ($max_chars:literal, $pattern:expr), $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn parse(text: impl AsRef<str>) -> Result<Self, BadId> {
                let text = text.as_ref();
                let check: fn(&str) -> Result<(), &'static str> = $check;
                match check(text) {
                    Ok(()) => Ok(Self(text.into())),
                    Err(problem) => Err(BadId { what: $what, problem }),
                }
            }

            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                Self::parse(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                use utoipa::openapi::schema::{ObjectBuilder, Type};
                let text = ObjectBuilder::new().schema_type(Type::String);
                text.min_length(Some(1)).max_length(Some($max_chars)).pattern(Some($pattern)).into()
            }
        }

        impl utoipa::ToSchema for $name {}
    };
}

id!(
    /// Id of a run: 1 to 128 characters of `[A-Za-z0-9._:-]`. An idempotency key has the same alphabet, because it
    /// becomes the run id when one is given. `.` and `..` are refused: URL parsers remove such path segments, so that a
    /// request to stop this run would reach another path.
    RunId, "run id", (128, "^[A-Za-z0-9._:-]+$"), |text| {
        if matches!(text, "." | "..") {
            return Err("is a path segment that URL parsers remove");
        }
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-');
        match text.len() {
            0 => Err("is empty"),
            1..=128 if text.bytes().all(legal) => Ok(()),
            1..=128 => Err("may hold only letters, digits and . _ : -"),
            _ => Err("is longer than 128 characters"),
        }
    }
);

impl RunId {
    /// The id of a new run, in the form of a UUID. Give it the number of one of version 7, so that ids sort by time.
    #[must_use]
    pub fn from_number(number: u128) -> Self {
        let part = |shift: u32| (number >> shift) & 0xffff;
        let (first, last) = (number >> 96, number & 0xffff_ffff_ffff);
        Self(format!("{first:08x}-{:04x}-{:04x}-{:04x}-{last:012x}", part(80), part(64), part(48)).into())
    }
}

id!(
    /// Key of a durable conversation: opaque text of 1 to 512 characters without control characters, returned unchanged
    /// (docs/design/requirements.md, A11).
    SessionKey, "session key", (512, PRINTABLE), |text| check_printable(text, 512)
);

id!(
    /// Id of a configured agent: 1 to 128 characters without control characters. `/` is allowed and is percent-encoded
    /// in paths.
    AgentId, "agent id", (128, PRINTABLE), |text| {
        match text {
            "." | ".." => Err("is a path segment that URL parsers remove"),
            _ if text.trim().is_empty() => Err("is empty"),
            _ => check_printable(text, 128),
        }
    }
);

id!(
    /// Id of a tool call, as the model named it. Providers choose these ids, so any text of 1 to 512 characters without
    /// control characters is accepted.
    CallId, "call id", (512, PRINTABLE), |text| check_printable(text, 512)
);

id!(
    /// On whose behalf something is done: the name of a token, or channel and sender. 1 to 256 characters without
    /// control characters.
    Principal, "principal", (256, PRINTABLE), |text| check_printable(text, 256)
);

id!(
    /// Name of a daemon in a cluster (`[cluster] node`): 1 to 63 letters, digits and hyphens, as in a host name. It is part
    /// of subjects and channel names of the message bus.
    NodeName, "node name", (63, "^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$"), |text| {
        let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        match text {
            "" => Err("is empty"),
            _ if text.len() > 63 => Err("is too long"),
            _ if !text.bytes().all(is_inner) => Err("may hold only letters, digits and hyphens"),
            _ if text.starts_with('-') || text.ends_with('-') => Err("begins or ends with a hyphen"),
            _ => Ok(()),
        }
    }
);

/// Pattern of JSON Schema: no control characters.
const PRINTABLE: &str = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$";

fn check_printable(text: &str, max_chars: usize) -> Result<(), &'static str> {
    if text.is_empty() {
        return Err("is empty");
    }
    if text.chars().count() > max_chars {
        return Err("is too long");
    }
    if text.chars().any(char::is_control) {
        return Err("holds a control character");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_keep_their_text_and_refuse_what_breaks_their_rule() {
        assert_eq!(
            SessionKey::parse("agent:main:user-456/ü").map(|k| k.to_string()),
            Ok("agent:main:user-456/ü".into())
        );
        assert!(SessionKey::parse("").is_err());
        assert!(SessionKey::parse("a\nb").is_err());
        assert!(SessionKey::parse("ü".repeat(512)).is_ok());
        assert!(SessionKey::parse("x".repeat(513)).is_err());
        assert!(RunId::parse("0198-a.b_c:d").is_ok());
        let made = RunId::from_number(0x0198_f3a0_1234_7abc_8def_0123_4567_89ab);
        assert_eq!(made.as_str(), "0198f3a0-1234-7abc-8def-0123456789ab");
        assert_eq!(RunId::parse(made.as_str()), Ok(made));
        assert!(RunId::parse("a/b").is_err());
        assert!(RunId::parse("..").is_err() && RunId::parse("...").is_ok());
        assert!(AgentId::parse(".").is_err() && AgentId::parse(".x").is_ok());
        assert!(RunId::parse("x".repeat(129)).is_err());
        assert!(AgentId::parse("  ").is_err());
        assert!(AgentId::parse("team/writer").is_ok());
        assert!(NodeName::parse("node-1").is_ok());
        assert!(NodeName::parse("-a").is_err() && NodeName::parse("a.b").is_err() && NodeName::parse("").is_err());
    }
}
