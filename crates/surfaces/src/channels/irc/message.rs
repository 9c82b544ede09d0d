//! Lines of IRC, taken apart and put together. It knows the grammar (RFC 2812 2.3.1, IRCv3 `message-tags`) and no command.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

/// RFC 2812 2.3: a line with its CR LF.
pub(super) const LONGEST_LINE: usize = 512;
/// RFC 2812 2.3.
const MOST_PARAMETERS: usize = 15;

/// A line that the server sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    tags: Vec<(String, String)>,
    /// Where it comes from: `nick!user@host`, or a server's name, without control characters; empty where the line does not say.
    pub(super) source: String,
    /// In upper case, or three digits.
    pub(super) command: String,
    /// The text is the last one.
    pub(super) params: Vec<String>,
}

impl Message {
    /// Takes a line without its end apart. None when it has no command.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (tags, rest) = match line.strip_prefix('@') {
            Some(rest) => rest.split_once(' ')?,
            None => ("", line),
        };
        let rest = rest.trim_start_matches(' ');
        let (source, rest) = match rest.strip_prefix(':') {
            Some(rest) => rest.split_once(' ')?,
            None => ("", rest),
        };
        let mut rest = rest.trim_start_matches(' ');
        let end = rest.find(' ').unwrap_or(rest.len());
        let command = rest[..end].to_ascii_uppercase();
        rest = rest[end..].trim_start_matches(' ');
        if command.is_empty() {
            return None;
        }
        let mut params = Vec::new();
        while !rest.is_empty() {
            if let Some(text) = rest.strip_prefix(':') {
                params.push(text.to_owned());
                break;
            }
            if params.len() + 1 == MOST_PARAMETERS {
                params.push(rest.to_owned());
                break;
            }
            let end = rest.find(' ').unwrap_or(rest.len());
            params.push(rest[..end].to_owned());
            rest = rest[end..].trim_start_matches(' ');
        }
        let tags = tags.split(';').filter(|tag| !tag.is_empty()).map(tag).collect();
        Some(Self { tags, source: without_controls(source), command, params })
    }

    /// The value of a tag that the server put there.
    pub(super) fn tag(&self, name: &str) -> Option<&str> {
        let found = self.tags.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        found.filter(|value| !value.is_empty())
    }

    /// The parameter at this place; empty when there is none.
    pub(super) fn param(&self, at: usize) -> &str {
        self.params.get(at).map_or("", String::as_str)
    }

    /// The last parameter, which is what servers write for people.
    pub(super) fn text(&self) -> &str {
        self.params.last().map_or("", String::as_str)
    }

    /// The nick that it comes from, or the server.
    pub(super) fn nick(&self) -> &str {
        self.source.split(['!', '@']).next().unwrap_or_default()
    }
}

/// IRCv3 `message-tags`: the escapes of values; a backslash in front of anything else disappears.
fn tag(tag: &str) -> (String, String) {
    let (name, escaped) = tag.split_once('=').unwrap_or((tag, ""));
    let (mut value, mut chars) = (String::with_capacity(escaped.len()), escaped.chars());
    while let Some(c) = chars.next() {
        let unescaped = if c == '\\' { chars.next() } else { Some(c) };
        match (c, unescaped) {
            ('\\', Some(':')) => value.push(';'),
            ('\\', Some('s')) => value.push(' '),
            ('\\', Some('r')) => value.push('\r'),
            ('\\', Some('n')) => value.push('\n'),
            (_, Some(other)) => value.push(other),
            (_, None) => {}
        }
    }
    (name.to_owned(), value)
}

/// A line to be sent, complete with its end. Whatever it is made of, it is one line.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Line(Bytes);

/// Lines hold passwords.
impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Line({} bytes)", self.0.len())
    }
}

impl Line {
    /// Of words without spaces.
    pub(super) fn of(words: &[&str]) -> Self {
        let mut line = BytesMut::new();
        words.iter().for_each(|word| put(&mut line, word));
        line.put_slice(b"\r\n");
        Self(line.freeze())
    }

    /// Of words and a text, which may hold spaces and be empty.
    pub(super) fn with_text(words: &[&str], text: &str) -> Self {
        let mut line = BytesMut::new();
        words.iter().for_each(|word| put(&mut line, word));
        line.put_slice(b" :");
        line.put(text.bytes().filter(|byte| !ends_a_line(*byte)).collect::<Bytes>());
        line.put_slice(b"\r\n");
        Self(line.freeze())
    }

    pub(super) fn bytes(&self) -> &Bytes {
        &self.0
    }
}

fn put(line: &mut BytesMut, word: &str) {
    if !line.is_empty() {
        line.put_u8(b' ');
    }
    line.put(word.bytes().filter(|byte| !ends_a_line(*byte)).collect::<Bytes>());
}

/// RFC 2812 2.3.1: what no parameter holds.
fn ends_a_line(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n' | b'\0')
}

/// What a server says for people, short and without control characters.
pub(super) fn told(text: &str) -> String {
    const SHOWN: usize = 200;
    text.chars().filter(|c| !c.is_control()).take(SHOWN).collect()
}

fn without_controls(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// True for what can be the name of somebody or something: it goes into logs, keys and lines of ours.
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_control() || c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Message {
        Message::parse(line).unwrap()
    }

    #[test]
    fn a_line_is_taken_apart() {
        let message = parsed(
            "@time=2026-01-02T03:04:05.678Z;+x=1;msgid=a\\:b\\s\\\\c\\d\\ :Ann!~a@host privmsg  #tea :hello :there ",
        );
        assert_eq!(message.tag("time"), Some("2026-01-02T03:04:05.678Z"));
        assert_eq!(message.tag("msgid"), Some("a;b \\cd"));
        assert_eq!(message.tag("x"), None, "a client can set what begins with a plus");
        assert_eq!((message.nick(), message.command.as_str()), ("Ann", "PRIVMSG"));
        assert_eq!(message.params, ["#tea", "hello :there "]);
        assert_eq!(parsed(":a\u{1b}nn!a@h PING").nick(), "ann");
        assert_eq!(parsed("PING").params, Vec::<String>::new());
        assert_eq!(parsed(":irc.test 005 me A B=c :are supported").param(2), "B=c");
        assert_eq!(parsed("A 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16").params[14], "15 16");
    }

    #[test]
    fn what_is_no_line_is_none() {
        for line in ["", " ", ":", ":source", ":source ", "@tag", "@tag ", "@ : ", "@a=b :c "] {
            assert_eq!(Message::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn nothing_ends_a_line_but_its_end() {
        let line = Line::with_text(&["PRIVMSG", "#tea\r\nQUIT"], "one\r\ntwo\nthree\0");
        assert_eq!(&line.bytes()[..], b"PRIVMSG #teaQUIT :onetwothree\r\n");
        assert_eq!(&Line::of(&["NICK", "ann\n"]).bytes()[..], b"NICK ann\r\n");
        assert_eq!(format!("{:?}", Line::with_text(&["PASS"], "secret")), "Line(14 bytes)");
    }
}
