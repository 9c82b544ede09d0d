//! Finds where a JSON value in running text ends, and classifies it as a tool call, a tool result or ordinary JSON.
//!
//! A value counts as protocol only if it has *nothing but* protocol keys. A tool definition (`description`, a schema
//! under `parameters`) is not a call: people ask for definitions.
//!
//! The scanner reads each byte once, without recursion. It accepts what models write beyond standard JSON: a trailing
//! comma always, and a raw line break in a string as soon as the value is known to be a call.

use serde_json::{Map, Value};

use super::SanitiserRules;

#[derive(Debug, Default)]
pub(super) struct JsonScan {
    pub(super) end: JsonEnd,
    /// Only of a complete value.
    pub(super) shape: JsonShape,
    /// It contains something that neither a call nor a tool result has: it is ordinary JSON.
    pub(super) has_foreign_keys: bool,
    /// It names a tool that exists.
    names_known_tool: bool,
    /// It has a key of [`NAME_KEYS`], of a known tool or not.
    pub(super) has_name: bool,
    pub(super) has_arguments: bool,
    /// It names the call that it answers.
    has_call_id: bool,
    /// It has a key of [`OUTPUT_KEYS`].
    has_output: bool,
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

#[derive(Debug, Default)]
pub(super) enum JsonShape {
    /// JSON that belongs to the reply.
    #[default]
    Other,
    /// A call, or a list of calls.
    Call(ToolMatch),
    /// An API message with calls, or a call of type `function_call`; and the text of the message, if any.
    Message(ToolMatch, Option<String>),
    /// A tool result that names its call.
    ToolResult,
    /// A tool result if it follows a call directly, ordinary JSON elsewhere.
    BareOutput,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolMatch {
    Known,
    Unknown,
}

const NAME_KEYS: &[&str] = &["name", "tool", "tool_name"];
const ARGUMENT_KEYS: &[&str] = &["arguments", "parameters", "args", "input"];
const OUTPUT_KEYS: &[&str] = &["content", "result", "output"];
/// Keys of a call, besides those of name and arguments.
const CALL_KEYS: &[&str] = &["type", "id", "call_id", "tool_call_id", "index"];
const MESSAGE_KEYS: &[&str] = &["role", "content", "tool_calls", "toolcalls", "function_call"];
/// Keys of a tool result, besides the output.
const RESULT_KEYS: &[&str] = &["tool_call_id", "role", "name", "tool", "id", "type", "status", "is_error"];
/// Keys of a bare output, besides the output itself.
const OUTPUT_ID_KEYS: &[&str] = &["id", "tool_call_id", "name", "tool"];
/// All keys that calls, lists of calls and results have.
const PROTOCOL_KEYS: &[&[&str]] =
    &[NAME_KEYS, ARGUMENT_KEYS, OUTPUT_KEYS, CALL_KEYS, MESSAGE_KEYS, RESULT_KEYS, &["function"]];
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
        is_tool_name: false,
        scan: JsonScan::default(),
    };
    let end = loop {
        if let Err(end) = scanner.scan_token() {
            break end;
        }
    };
    let mut scan = JsonScan { end, ..scanner.scan };
    if let JsonEnd::Complete(end) = end
        && !scan.has_foreign_keys
    {
        scan.shape = classify_json(&text[start..end], &scan, rules);
    }
    scan
}

impl JsonScan {
    /// True when the scanned part of an incomplete value is a call of a known tool, or a tool result.
    pub(super) fn is_torn_protocol(&self) -> bool {
        !self.has_foreign_keys
            && ((self.names_known_tool && self.has_arguments) || (self.has_call_id && self.has_output))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpectedToken {
    Value,
    ValueOrEnd,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
}

struct JsonScanner<'a> {
    text: &'a str,
    rules: &'a SanitiserRules<'a>,
    at: usize,
    /// `{` and `[`, the outermost first.
    open_brackets: Vec<u8>,
    expected: ExpectedToken,
    /// The key before the next value is one of [`NAME_KEYS`].
    is_tool_name: bool,
    scan: JsonScan,
}

impl<'a> JsonScanner<'a> {
    /// Scans one token. The error is the end of the whole value.
    fn scan_token(&mut self) -> Result<(), JsonEnd> {
        use ExpectedToken::{Colon, CommaOrEnd, KeyOrEnd, Value, ValueOrEnd};
        let byte = *self.text.as_bytes().get(self.at).ok_or(JsonEnd::Unfinished)?;
        match (self.expected, byte) {
            (expected, b' ' | b'\t' | b'\r' | b'\n') => self.advance(expected),
            (Value | ValueOrEnd, b'{') => self.open_bracket(byte, KeyOrEnd),
            (Value | ValueOrEnd, b'[') => {
                self.note_plain_element();
                self.open_bracket(byte, ValueOrEnd)
            }
            (Value | ValueOrEnd, b'"') => self.scan_string_value(),
            (Value | ValueOrEnd, b'-' | b'0'..=b'9' | b't' | b'f' | b'n') => self.scan_scalar(),
            (KeyOrEnd, b'"') => self.scan_key(),
            (Colon, b':') => self.advance(Value),
            (CommaOrEnd, b',') if self.open_brackets.last() == Some(&b'{') => self.advance(KeyOrEnd),
            (CommaOrEnd, b',') => self.advance(ValueOrEnd),
            (KeyOrEnd | CommaOrEnd, b'}') => self.close_bracket(b'{'),
            (ValueOrEnd | CommaOrEnd, b']') => self.close_bracket(b'['),
            _ => Err(JsonEnd::Invalid(self.at)),
        }
    }

    fn advance(&mut self, next: ExpectedToken) -> Result<(), JsonEnd> {
        self.at += 1;
        self.expected = next;
        Ok(())
    }

    fn open_bracket(&mut self, bracket: u8, next: ExpectedToken) -> Result<(), JsonEnd> {
        self.open_brackets.push(bracket);
        self.is_tool_name = false;
        self.advance(next)
    }

    fn close_bracket(&mut self, bracket: u8) -> Result<(), JsonEnd> {
        if self.open_brackets.pop() != Some(bracket) {
            return Err(JsonEnd::Invalid(self.at));
        }
        self.advance(ExpectedToken::CommaOrEnd)?;
        if self.open_brackets.is_empty() { Err(JsonEnd::Complete(self.at)) } else { Ok(()) }
    }

    /// Notes a value that is no object: a list of calls contains only objects.
    fn note_plain_element(&mut self) {
        self.scan.has_foreign_keys |= self.open_brackets == [b'['];
    }

    fn scan_key(&mut self) -> Result<(), JsonEnd> {
        let key = self.scan_string()?;
        self.is_tool_name = NAME_KEYS.contains(&key);
        self.scan.has_name |= self.is_tool_name;
        self.scan.has_arguments |= ARGUMENT_KEYS.contains(&key);
        self.scan.has_output |= OUTPUT_KEYS.contains(&key);
        self.scan.has_call_id |= key == "tool_call_id";
        // Keys count within the value itself, and within an object of a list.
        let is_top_level = matches!(self.open_brackets.as_slice(), [b'{'] | [b'[', b'{']);
        self.scan.has_foreign_keys |= is_top_level && !PROTOCOL_KEYS.iter().any(|keys| keys.contains(&key));
        self.expected = ExpectedToken::Colon;
        Ok(())
    }

    fn scan_string_value(&mut self) -> Result<(), JsonEnd> {
        self.note_plain_element();
        let value = self.scan_string()?;
        if self.is_tool_name && value.len() <= MAX_TOOL_NAME_BYTES {
            self.scan.names_known_tool |= self.rules.is_known_tool(value);
        }
        self.is_tool_name = false;
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
        self.is_tool_name = false;
        self.expected = ExpectedToken::CommaOrEnd;
        Ok(())
    }
}

fn classify_json(text: &str, scan: &JsonScan, rules: &SanitiserRules<'_>) -> JsonShape {
    match serde_json::from_str(text) {
        Ok(Value::Array(items)) => match_call_list(&items, rules).map_or(JsonShape::Other, JsonShape::Call),
        Ok(Value::Object(object)) => classify_object(&object, rules),
        // The scanner accepts more than standard JSON.
        _ if scan.is_torn_protocol() => JsonShape::Call(ToolMatch::Known),
        _ => JsonShape::Other,
    }
}

fn classify_object(object: &Map<String, Value>, rules: &SanitiserRules<'_>) -> JsonShape {
    if let Some(tool) = match_call(object, rules) {
        let marked = object.get("type").and_then(Value::as_str).is_some_and(|kind| kind == "function_call");
        return if marked { JsonShape::Message(tool, None) } else { JsonShape::Call(tool) };
    }
    if let Some(tool) = match_calls_message(object, rules) {
        let content = object.get("content").and_then(Value::as_str).filter(|text| !text.trim().is_empty());
        return JsonShape::Message(tool, content.map(str::to_owned));
    }
    let names_call = object.get("tool_call_id").and_then(Value::as_str).is_some_and(|id| !id.is_empty());
    let has_output = OUTPUT_KEYS.iter().any(|key| object.contains_key(*key));
    if names_call && has_output && !rules.tools.is_empty() && has_only_keys(object, &[RESULT_KEYS, OUTPUT_KEYS]) {
        return JsonShape::ToolResult;
    }
    let bare = object.contains_key("result") || object.contains_key("output");
    if bare && has_only_keys(object, &[OUTPUT_ID_KEYS, &["result", "output"]]) {
        JsonShape::BareOutput
    } else {
        JsonShape::Other
    }
}

fn match_calls_message(object: &Map<String, Value>, rules: &SanitiserRules<'_>) -> Option<ToolMatch> {
    if !has_only_keys(object, &[MESSAGE_KEYS]) {
        return None;
    }
    if let Some(one) = object.get("function_call") {
        return match_call(one.as_object()?, rules);
    }
    let list = object.get("tool_calls").or_else(|| object.get("toolcalls"))?;
    match_call_list(list.as_array()?, rules)
}

fn match_call_list(items: &[Value], rules: &SanitiserRules<'_>) -> Option<ToolMatch> {
    let mut tool = (!items.is_empty()).then_some(ToolMatch::Unknown)?;
    for item in items {
        if match_call(item.as_object()?, rules)? == ToolMatch::Known {
            tool = ToolMatch::Known;
        }
    }
    Some(tool)
}

fn match_call(object: &Map<String, Value>, rules: &SanitiserRules<'_>) -> Option<ToolMatch> {
    if let Some(inner) = object.get("function").and_then(Value::as_object) {
        return has_only_keys(object, &[CALL_KEYS, &["function"]]).then(|| match_flat_call(inner, rules)).flatten();
    }
    match_flat_call(object, rules)
}

fn match_flat_call(object: &Map<String, Value>, rules: &SanitiserRules<'_>) -> Option<ToolMatch> {
    let name = NAME_KEYS.iter().find_map(|key| object.get(*key)?.as_str())?;
    let arguments = ARGUMENT_KEYS.iter().find_map(|key| object.get(*key))?;
    if is_schema(arguments) || !has_only_keys(object, &[CALL_KEYS, NAME_KEYS, ARGUMENT_KEYS]) {
        return None;
    }
    Some(if rules.is_known_tool(name) { ToolMatch::Known } else { ToolMatch::Unknown })
}

/// Recognises a tool definition, which has a schema in the place of arguments.
fn is_schema(arguments: &Value) -> bool {
    arguments.get("properties").is_some_and(Value::is_object)
        && arguments.get("type").is_some_and(|kind| kind == "object")
}

fn has_only_keys(object: &Map<String, Value>, allowed: &[&[&str]]) -> bool {
    object.keys().all(|key| allowed.iter().any(|keys| keys.contains(&key.as_str())))
}
