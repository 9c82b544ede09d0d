//! Single-pass, tolerant scanner that finds where a JSON value in running text ends and whether it can be a call.
//!
//! It reads each byte once, without recursion. It accepts what models write beyond standard JSON: a trailing comma
//! always, and a raw line break in a string as soon as the value is known to be a call.

use super::SanitiserRules;
use super::work_counter::count_bytes;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct JsonScan {
    pub(super) end: JsonEnd,
    /// It contains something that neither a call nor a tool result has: it is ordinary JSON.
    pub(super) has_foreign_keys: bool,
    /// It names a tool that exists.
    pub(super) names_known_tool: bool,
    /// It has a key of [`NAME_KEYS`], of a known tool or not.
    pub(super) has_name: bool,
    pub(super) has_arguments: bool,
    /// It names the call that it answers.
    pub(super) has_call_id: bool,
    /// It has a key of [`OUTPUT_KEYS`].
    pub(super) has_output: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum JsonEnd {
    /// Offset behind its last bracket.
    Complete(usize),
    /// The text ends before the value.
    #[default]
    Unfinished,
    /// Offset from which it is no JSON.
    Invalid(usize),
}

impl JsonScan {
    /// True when the scanned part of an incomplete value is a call of a known tool, or a tool result.
    pub(super) fn is_torn_protocol(&self) -> bool {
        !self.has_foreign_keys
            && ((self.names_known_tool && self.has_arguments) || (self.has_call_id && self.has_output))
    }
}

pub(super) const NAME_KEYS: &[&str] = &["name", "tool", "tool_name"];
pub(super) const ARGUMENT_KEYS: &[&str] = &["arguments", "parameters", "args", "input"];
pub(super) const OUTPUT_KEYS: &[&str] = &["content", "result", "output"];
/// The other keys that calls, lists of calls and results have.
const OTHER_KEYS: &[&str] = &[
    "type",
    "id",
    "call_id",
    "tool_call_id",
    "index",
    "function",
    "function_call",
    "tool_calls",
    "toolcalls",
    "role",
    "status",
    "is_error",
];
/// Maximum length of a tool name. Longer strings are not looked up.
const MAX_TOOL_NAME_BYTES: usize = 256;

/// Scans the value whose opening bracket is at `start`, in time linear in the bytes that it reads.
pub(super) fn scan_json_value(text: &str, start: usize, rules: &SanitiserRules<'_>) -> JsonScan {
    let mut scanner = JsonScanner {
        text,
        rules,
        at: start,
        open_brackets: Vec::new(),
        expected: ExpectedToken::Value,
        key_kind: KeyKind::Other,
        scan: JsonScan::default(),
    };
    let end = scanner.scan_to_end();
    count_bytes(scanner.at - start + 1);
    JsonScan { end, ..scanner.scan }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonBracket {
    Object,
    Array,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpectedToken {
    Value,
    ValueOrEnd,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
}

/// Kind of the key before a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyKind {
    Name,
    Other,
}

struct JsonScanner<'a> {
    text: &'a str,
    rules: &'a SanitiserRules<'a>,
    at: usize,
    open_brackets: Vec<JsonBracket>,
    expected: ExpectedToken,
    key_kind: KeyKind,
    scan: JsonScan,
}

impl<'a> JsonScanner<'a> {
    fn scan_to_end(&mut self) -> JsonEnd {
        while let Some(&byte) = self.text.as_bytes().get(self.at) {
            let result = match (self.expected, byte) {
                (_, b' ' | b'\t' | b'\r' | b'\n') => {
                    self.at += 1;
                    Ok(())
                }
                (ExpectedToken::Value | ExpectedToken::ValueOrEnd, b'{') => self.open_bracket(JsonBracket::Object),
                (ExpectedToken::Value | ExpectedToken::ValueOrEnd, b'[') => self.open_bracket(JsonBracket::Array),
                (ExpectedToken::Value | ExpectedToken::ValueOrEnd, b'"') => self.scan_string_value(),
                (ExpectedToken::Value | ExpectedToken::ValueOrEnd, b'-' | b'0'..=b'9' | b't' | b'f' | b'n') => {
                    self.scan_scalar()
                }
                (ExpectedToken::KeyOrEnd, b'"') => self.scan_key(),
                (ExpectedToken::Colon, b':') => self.advance(ExpectedToken::Value),
                (ExpectedToken::CommaOrEnd, b',') => match self.open_brackets.last() {
                    Some(JsonBracket::Object) => self.advance(ExpectedToken::KeyOrEnd),
                    _ => self.advance(ExpectedToken::ValueOrEnd),
                },
                (ExpectedToken::KeyOrEnd | ExpectedToken::CommaOrEnd, b'}') => self.close_bracket(JsonBracket::Object),
                (ExpectedToken::ValueOrEnd | ExpectedToken::CommaOrEnd, b']') => self.close_bracket(JsonBracket::Array),
                _ => Err(JsonEnd::Invalid(self.at)),
            };
            if let Err(end) = result {
                return end;
            }
        }
        JsonEnd::Unfinished
    }

    fn advance(&mut self, next: ExpectedToken) -> Result<(), JsonEnd> {
        self.at += 1;
        self.expected = next;
        Ok(())
    }

    fn open_bracket(&mut self, bracket: JsonBracket) -> Result<(), JsonEnd> {
        if bracket == JsonBracket::Array {
            self.note_plain_element();
        }
        self.open_brackets.push(bracket);
        self.key_kind = KeyKind::Other;
        self.advance(match bracket {
            JsonBracket::Object => ExpectedToken::KeyOrEnd,
            JsonBracket::Array => ExpectedToken::ValueOrEnd,
        })
    }

    fn close_bracket(&mut self, bracket: JsonBracket) -> Result<(), JsonEnd> {
        if self.open_brackets.pop() != Some(bracket) {
            return Err(JsonEnd::Invalid(self.at));
        }
        self.advance(ExpectedToken::CommaOrEnd)?;
        if self.open_brackets.is_empty() { Err(JsonEnd::Complete(self.at)) } else { Ok(()) }
    }

    /// Notes a value that is no object: a list of calls contains only objects.
    fn note_plain_element(&mut self) {
        self.scan.has_foreign_keys |= self.open_brackets == [JsonBracket::Array];
    }

    /// True within the value itself, or within an object of a list.
    fn is_top_level(&self) -> bool {
        matches!(self.open_brackets.as_slice(), [JsonBracket::Object] | [JsonBracket::Array, JsonBracket::Object])
    }

    fn scan_key(&mut self) -> Result<(), JsonEnd> {
        let key = self.scan_string()?;
        self.key_kind = if NAME_KEYS.contains(&key) { KeyKind::Name } else { KeyKind::Other };
        let (arguments, output) = (ARGUMENT_KEYS.contains(&key), OUTPUT_KEYS.contains(&key));
        self.scan.has_name |= self.key_kind == KeyKind::Name;
        self.scan.has_arguments |= arguments;
        self.scan.has_output |= output;
        self.scan.has_call_id |= key == "tool_call_id";
        if self.is_top_level() && self.key_kind != KeyKind::Name && !arguments && !output && !OTHER_KEYS.contains(&key)
        {
            self.scan.has_foreign_keys = true;
        }
        self.expected = ExpectedToken::Colon;
        Ok(())
    }

    fn scan_string_value(&mut self) -> Result<(), JsonEnd> {
        self.note_plain_element();
        let value = self.scan_string()?;
        if self.key_kind == KeyKind::Name && value.len() <= MAX_TOOL_NAME_BYTES {
            self.scan.names_known_tool |= self.rules.is_known_tool(value);
        }
        self.key_kind = KeyKind::Other;
        self.expected = ExpectedToken::CommaOrEnd;
        Ok(())
    }

    fn scan_string(&mut self) -> Result<&'a str, JsonEnd> {
        let (text, from) = (self.text, self.at + 1);
        let bytes = text.as_bytes();
        self.at = from;
        while let Some(&byte) = bytes.get(self.at) {
            match byte {
                b'"' => {
                    self.at += 1;
                    return Ok(&text[from..self.at - 1]);
                }
                b'\\' if self.at + 1 < bytes.len() => self.at += 2,
                0..0x20 if !(self.scan.names_known_tool && self.scan.has_arguments) => {
                    return Err(JsonEnd::Invalid(self.at));
                }
                _ => self.at += 1,
            }
        }
        Err(JsonEnd::Unfinished)
    }

    fn scan_scalar(&mut self) -> Result<(), JsonEnd> {
        self.note_plain_element();
        let from = self.at;
        let word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
        self.at += self.text.as_bytes()[from..].iter().take_while(|byte| word(byte)).count();
        let scalar = &self.text[from..self.at];
        let is_number = scalar.starts_with(|c: char| c == '-' || c.is_ascii_digit());
        let is_word = ["true", "false", "null"]
            .iter()
            .any(|whole| *whole == scalar || (self.at == self.text.len() && whole.starts_with(scalar)));
        if !is_number && !is_word {
            return Err(JsonEnd::Invalid(from));
        }
        self.key_kind = KeyKind::Other;
        self.expected = ExpectedToken::CommaOrEnd;
        Ok(())
    }
}
