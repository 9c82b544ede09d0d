//! Parse received lines and build outgoing ones. It knows the grammar (RFC 2812 2.3.1, IRCv3 `message-tags`) and no
//! command.

use std::fmt;

use bytes::Bytes;

/// RFC 2812 2.3: a line with its CR LF.
pub(super) const MAX_LINE_BYTES: usize = 512;
/// RFC 2812 2.3.
const MAX_PARAMETERS: usize = 15;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IrcMessage {
    tags: Vec<(String, String)>,
    /// The sender: `nick!user@host` or the name of a server, without control characters; empty if the line has none.
    pub(super) source: String,
    /// In upper case, or three digits.
    pub(super) command: String,
    /// The last one may be a text with spaces.
    pub(super) params: Vec<String>,
}

impl IrcMessage {
    /// Parses a line without its line end. None if it has no command.
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
            if params.len() + 1 == MAX_PARAMETERS {
                params.push(rest.to_owned());
                break;
            }
            let end = rest.find(' ').unwrap_or(rest.len());
            params.push(rest[..end].to_owned());
            rest = rest[end..].trim_start_matches(' ');
        }
        let tags = tags.split(';').filter(|tag| !tag.is_empty()).map(parse_tag).collect();
        Some(Self { tags, source: strip_controls(source), command, params })
    }

    /// The value of a tag that the server set; none if it is empty.
    pub(super) fn tag(&self, name: &str) -> Option<&str> {
        let found = self.tags.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        found.filter(|value| !value.is_empty())
    }

    /// The parameter at this index; empty if there is none.
    pub(super) fn param(&self, at: usize) -> &str {
        self.params.get(at).map_or("", String::as_str)
    }

    /// The last parameter, which is the text for people in replies of servers.
    pub(super) fn text(&self) -> &str {
        self.params.last().map_or("", String::as_str)
    }

    /// The nick or server in the source.
    pub(super) fn nick(&self) -> &str {
        self.source.split(['!', '@']).next().unwrap_or_default()
    }
}

/// IRCv3 `message-tags`: unescapes a value; a backslash before any other character is dropped.
fn parse_tag(tag: &str) -> (String, String) {
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

/// An outgoing line with its CR LF. It is always exactly one line, whatever texts it is built from.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct OutgoingIrcLine(Bytes);

/// Shows only the length, since lines may hold passwords.
impl fmt::Debug for OutgoingIrcLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Line({} bytes)", self.0.len())
    }
}

impl OutgoingIrcLine {
    /// A line of words without spaces.
    pub(super) fn from_words(words: &[&str]) -> Self {
        Self::from_text(&words.join(" "))
    }

    /// A line of words and a text that may have spaces and be empty.
    pub(super) fn from_words_and_text(words: &[&str], text: &str) -> Self {
        Self::from_text(&format!("{} :{text}", words.join(" ")))
    }

    fn from_text(text: &str) -> Self {
        // RFC 2812 2.3.1: no parameter may have these.
        Self(format!("{}\r\n", text.replace(['\r', '\n', '\0'], "")).into())
    }

    pub(super) fn bytes(&self) -> &Bytes {
        &self.0
    }
}

/// A text from the server for people, shortened and without control characters.
pub(super) fn printable(text: &str) -> String {
    const MAX_CHARS: usize = 200;
    text.chars().filter(|c| !c.is_control()).take(MAX_CHARS).collect()
}

fn strip_controls(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// True for a valid name of a user or channel, which goes into logs, keys and outgoing lines.
pub(super) fn is_valid_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_control() || c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_message(line: &str) -> IrcMessage {
        IrcMessage::parse(line).unwrap()
    }

    #[test]
    fn a_line_is_taken_apart() {
        let message = parse_message(
            "@time=2026-01-02T03:04:05.678Z;+x=1;msgid=a\\:b\\s\\\\c\\d\\ :Ann!~a@host privmsg  #tea :hello :there ",
        );
        assert_eq!(message.tag("time"), Some("2026-01-02T03:04:05.678Z"));
        assert_eq!(message.tag("msgid"), Some("a;b \\cd"));
        assert_eq!(message.tag("x"), None, "a client can set what begins with a plus");
        assert_eq!((message.nick(), message.command.as_str()), ("Ann", "PRIVMSG"));
        assert_eq!(message.params, ["#tea", "hello :there "]);
        assert_eq!(parse_message(":a\u{1b}nn!a@h PING").nick(), "ann");
        assert_eq!(parse_message("PING").params, Vec::<String>::new());
        assert_eq!(parse_message(":irc.test 005 me A B=c :are supported").param(2), "B=c");
        assert_eq!(parse_message("A 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16").params[14], "15 16");
    }

    #[test]
    fn an_invalid_line_is_no_message() {
        for line in ["", " ", ":", ":source", ":source ", "@tag", "@tag ", "@ : ", "@a=b :c "] {
            assert_eq!(IrcMessage::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn only_the_line_end_ends_a_line() {
        let line = OutgoingIrcLine::from_words_and_text(&["PRIVMSG", "#tea\r\nQUIT"], "one\r\ntwo\nthree\0");
        assert_eq!(&line.bytes()[..], b"PRIVMSG #teaQUIT :onetwothree\r\n");
        assert_eq!(&OutgoingIrcLine::from_words(&["NICK", "ann\n"]).bytes()[..], b"NICK ann\r\n");
        assert_eq!(format!("{:?}", OutgoingIrcLine::from_words_and_text(&["PASS"], "secret")), "Line(14 bytes)");
    }
}
