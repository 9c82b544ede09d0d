//! Reads a JSON value in running text: where it ends, and whether it can be, or can still become, a tool call. One pass, no
//! recursion; each byte is looked at once, whatever the brackets do.
//!
//! It takes what models write rather than what the standard says: a comma before a closing bracket always, and a bare line
//! break in a string as soon as the value is known to be a call.

use super::Rules;
use super::work::count;

/// What stands at a bracket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Value {
    /// Where it ends.
    pub(super) end: End,
    /// It holds something that neither a call nor a tool's answer has: it is the answer's own JSON.
    pub(super) foreign: bool,
    /// It names a tool that exists.
    pub(super) known: bool,
    /// It holds a name, of whatever.
    pub(super) name: bool,
    /// It holds arguments.
    pub(super) arguments: bool,
    /// It says which call it answers.
    pub(super) answers: bool,
    /// It holds what a tool gave back.
    pub(super) output: bool,
}

/// Where a value ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Behind its last bracket.
    Complete(usize),
    /// Not within the text.
    Unfinished,
    /// It is no JSON from here on.
    Broken(usize),
}

impl Value {
    /// True when what can be seen of a value that is not whole is a call of a tool that exists, or a tool's answer.
    pub(super) fn is_torn_protocol(&self) -> bool {
        !self.foreign && ((self.known && self.arguments) || (self.answers && self.output))
    }
}

/// Keys that name a tool.
pub(super) const NAME_KEYS: &[&str] = &["name", "tool", "tool_name"];
/// Keys that hold a call's arguments.
pub(super) const ARGUMENT_KEYS: &[&str] = &["arguments", "parameters", "args", "input"];
/// Keys that hold what a tool gave back.
pub(super) const OUTPUT_KEYS: &[&str] = &["content", "result", "output"];
/// The other keys that calls, lists of calls and answers have.
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
/// A tool's name is not longer; what is, need not be looked up.
const LONGEST_NAME: usize = 256;

/// Reads the value whose opening bracket stands at `start`. Linear in what it reads.
pub(super) fn read(text: &str, start: usize, rules: &Rules<'_>) -> Value {
    let mut reader = Reader {
        text,
        rules,
        at: start,
        open: Vec::new(),
        next: Next::Value,
        key: Key::Other,
        seen: Value {
            end: End::Unfinished,
            foreign: false,
            known: false,
            name: false,
            arguments: false,
            answers: false,
            output: false,
        },
    };
    let end = reader.run();
    count(reader.at - start + 1);
    Value { end, ..reader.seen }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bracket {
    Object,
    Array,
}

/// What may come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Value,
    ValueOrEnd,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
}

/// What the key before a value says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Name,
    Other,
}

struct Reader<'a> {
    text: &'a str,
    rules: &'a Rules<'a>,
    at: usize,
    open: Vec<Bracket>,
    next: Next,
    key: Key,
    seen: Value,
}

impl<'a> Reader<'a> {
    fn run(&mut self) -> End {
        while let Some(&byte) = self.text.as_bytes().get(self.at) {
            let taken = match (self.next, byte) {
                (_, b' ' | b'\t' | b'\r' | b'\n') => {
                    self.at += 1;
                    Ok(())
                }
                (Next::Value | Next::ValueOrEnd, b'{') => self.push(Bracket::Object),
                (Next::Value | Next::ValueOrEnd, b'[') => self.push(Bracket::Array),
                (Next::Value | Next::ValueOrEnd, b'"') => self.text_value(),
                (Next::Value | Next::ValueOrEnd, b'-' | b'0'..=b'9' | b't' | b'f' | b'n') => self.scalar(),
                (Next::KeyOrEnd, b'"') => self.key(),
                (Next::Colon, b':') => self.step(Next::Value),
                (Next::CommaOrEnd, b',') => match self.open.last() {
                    Some(Bracket::Object) => self.step(Next::KeyOrEnd),
                    _ => self.step(Next::ValueOrEnd),
                },
                (Next::KeyOrEnd | Next::CommaOrEnd, b'}') => self.pop(Bracket::Object),
                (Next::ValueOrEnd | Next::CommaOrEnd, b']') => self.pop(Bracket::Array),
                _ => Err(End::Broken(self.at)),
            };
            if let Err(end) = taken {
                return end;
            }
        }
        End::Unfinished
    }

    fn step(&mut self, next: Next) -> Result<(), End> {
        self.at += 1;
        self.next = next;
        Ok(())
    }

    fn push(&mut self, bracket: Bracket) -> Result<(), End> {
        if bracket == Bracket::Array {
            self.plain_element();
        }
        self.open.push(bracket);
        self.key = Key::Other;
        self.step(match bracket {
            Bracket::Object => Next::KeyOrEnd,
            Bracket::Array => Next::ValueOrEnd,
        })
    }

    fn pop(&mut self, bracket: Bracket) -> Result<(), End> {
        if self.open.pop() != Some(bracket) {
            return Err(End::Broken(self.at));
        }
        self.step(Next::CommaOrEnd)?;
        if self.open.is_empty() { Err(End::Complete(self.at)) } else { Ok(()) }
    }

    /// In a list of calls there is nothing but objects.
    fn plain_element(&mut self) {
        self.seen.foreign |= self.open == [Bracket::Array];
    }

    /// True for keys of the value itself, or of the objects in it when it is a list.
    fn at_the_top(&self) -> bool {
        matches!(self.open.as_slice(), [Bracket::Object] | [Bracket::Array, Bracket::Object])
    }

    fn key(&mut self) -> Result<(), End> {
        let key = self.string()?;
        self.key = if NAME_KEYS.contains(&key) { Key::Name } else { Key::Other };
        let (arguments, output) = (ARGUMENT_KEYS.contains(&key), OUTPUT_KEYS.contains(&key));
        self.seen.name |= self.key == Key::Name;
        self.seen.arguments |= arguments;
        self.seen.output |= output;
        self.seen.answers |= key == "tool_call_id";
        if self.at_the_top() && self.key != Key::Name && !arguments && !output && !OTHER_KEYS.contains(&key) {
            self.seen.foreign = true;
        }
        self.next = Next::Colon;
        Ok(())
    }

    fn text_value(&mut self) -> Result<(), End> {
        self.plain_element();
        let value = self.string()?;
        if self.key == Key::Name && value.len() <= LONGEST_NAME {
            self.seen.known |= self.rules.knows(value);
        }
        self.key = Key::Other;
        self.next = Next::CommaOrEnd;
        Ok(())
    }

    fn string(&mut self) -> Result<&'a str, End> {
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
                0..0x20 if !(self.seen.known && self.seen.arguments) => return Err(End::Broken(self.at)),
                _ => self.at += 1,
            }
        }
        Err(End::Unfinished)
    }

    fn scalar(&mut self) -> Result<(), End> {
        self.plain_element();
        let from = self.at;
        let word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
        self.at += self.text.as_bytes()[from..].iter().take_while(|byte| word(byte)).count();
        let scalar = &self.text[from..self.at];
        let is_number = scalar.starts_with(|c: char| c == '-' || c.is_ascii_digit());
        let is_word = ["true", "false", "null"]
            .iter()
            .any(|whole| *whole == scalar || (self.at == self.text.len() && whole.starts_with(scalar)));
        if !is_number && !is_word {
            return Err(End::Broken(from));
        }
        self.key = Key::Other;
        self.next = Next::CommaOrEnd;
        Ok(())
    }
}
