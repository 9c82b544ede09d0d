//! Whom a connection reaches, and in how many bytes.

use super::message::{LONGEST_LINE, Line};
use super::server::Casemapping;
use super::words;

/// `!user@host` as other people's servers put it in front of a line: ten bytes of name and 63 of host, as most networks have
/// them (RFC 1034 3.1 for the label of a host; `USERLEN` and `HOSTLEN` of the servers that tell).
const ASSUMED_HOSTMASK: usize = 1 + 10 + 1 + 63;
/// A nick that is taken is made longer than the wished one.
const LONGER_NICK: usize = 4;
/// `CHANNELLEN` of most servers.
const ASSUMED_TARGET: usize = 50;
/// With less room than this in a line nobody can be talked to.
const LEAST_ROOM: usize = 64;

/// What a text has to fit into, and where it may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reach {
    nick: usize,
    hostmask: usize,
    casemapping: Casemapping,
    /// Rooms that it is not in, folded, and why.
    shut: Vec<(String, String)>,
}

impl Reach {
    /// Of a connection that has just registered.
    pub(super) fn new(nick: &str) -> Self {
        Self { nick: nick.len(), hostmask: ASSUMED_HOSTMASK, casemapping: Casemapping::default(), shut: Vec::new() }
    }

    /// The nick has changed.
    pub(super) fn called(&mut self, nick: &str) {
        self.nick = nick.len();
    }

    /// The own `nick!user@host` was seen: one that is longer than assumed leaves less for the text.
    pub(super) fn seen_as(&mut self, source: &str) {
        let hostmask = source.find('!').map_or(0, |at| source.len() - at);
        self.hostmask = self.hostmask.max(hostmask);
    }

    /// The server compares names like this. Rooms that are shut are known by names that it has folded.
    pub(super) fn compares(&mut self, casemapping: Casemapping) {
        self.casemapping = casemapping;
    }

    /// It is in a room.
    pub(super) fn is_in(&mut self, room: &str) {
        let room = self.casemapping.fold(room);
        self.shut.retain(|(name, _)| *name != room);
    }

    /// It is not in a room.
    pub(super) fn is_out(&mut self, room: &str, why: &str) {
        self.is_in(room);
        self.shut.push((self.casemapping.fold(room), why.to_owned()));
    }

    /// The lines that say a text to a target.
    ///
    /// # Errors
    /// Why it never reaches the target.
    pub(super) fn lines(&self, target: &str, text: &str) -> Result<Vec<Line>, String> {
        if target.is_empty() || target.starts_with(':') || target.contains(|c: char| c.is_control() || " ,".contains(c))
        {
            return Err(format!("{target:?} is neither a room nor a nick"));
        }
        let room = self.casemapping.fold(target);
        if let Some((_, why)) = self.shut.iter().find(|(name, _)| *name == room) {
            return Err(format!("not in {target}: {why}"));
        }
        let room = room_for_text(self.nick, self.hostmask, target.len());
        if room < LEAST_ROOM {
            return Err("the names around it leave no room for text in a line".to_owned());
        }
        let lines = words::lines(text, room);
        if lines.is_empty() {
            return Err("there is no text in it".to_owned());
        }
        Ok(lines.iter().map(|line| Line::with_text(&["PRIVMSG", target], line)).collect())
    }
}

/// How many bytes of text fit into one line in most rooms of most networks.
pub(super) fn usual_room_for_text(wished_nick: &str) -> usize {
    room_for_text(wished_nick.len() + LONGER_NICK, ASSUMED_HOSTMASK, ASSUMED_TARGET)
}

/// What is left of a line as others get it: `:nick!user@host PRIVMSG target :text`.
fn room_for_text(nick: usize, hostmask: usize, target: usize) -> usize {
    let around = ":".len() + nick + hostmask + " PRIVMSG ".len() + target + " :".len() + "\r\n".len();
    LONGEST_LINE.saturating_sub(around)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits_as_others_get_it() {
        let mut reach = Reach::new("quell");
        let text = "word ".repeat(500);
        let longest = |reach: &Reach| {
            let lines = reach.lines("#tea", &text).unwrap();
            lines.iter().map(|line| line.bytes().len()).max().unwrap()
        };
        assert!(longest(&reach) + ":quell! ".len() + 10 + 1 + 63 <= LONGEST_LINE);
        assert!(longest(&reach) > 400);
        let source = format!("quell!user@{}", "h".repeat(100));
        reach.seen_as(&source);
        assert!(longest(&reach) + source.len() + 2 <= LONGEST_LINE);
        reach.seen_as("quell!u@h");
        assert!(longest(&reach) + source.len() + 2 <= LONGEST_LINE, "a short one proves nothing: hosts change");
        assert_eq!(usual_room_for_text("quell"), 512 - 2 - 1 - 9 - 75 - 9 - 50 - 2);
    }

    #[test]
    fn what_reaches_nobody_is_refused() {
        let mut reach = Reach::new("quell");
        for target in ["", "a b", "a,b", ":a", "a\r\nQUIT"] {
            assert!(reach.lines(target, "hello").unwrap_err().contains("neither"), "{target:?}");
        }
        let long = format!("#{}", "x".repeat(400));
        assert!(reach.lines(&long, "hello").unwrap_err().contains("no room"));
        assert_eq!(reach.lines("#tea", "\n \n"), Err("there is no text in it".to_owned()));
        reach.is_out("#Tea", "invite only");
        assert_eq!(reach.lines("#tea", "hello"), Err("not in #tea: invite only".to_owned()));
        reach.is_in("#TEA");
        assert!(reach.lines("#tea", "hello").is_ok());
    }
}
