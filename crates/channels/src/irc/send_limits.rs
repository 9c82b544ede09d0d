//! Which targets can be written to, and how many bytes of text fit into a line.

use super::message::{MAX_LINE_BYTES, OutgoingIrcLine};
use super::server_info::Casemapping;
use super::text;

/// Assumed length of `!user@host`, which other servers put in front of a line: ten bytes of user name and 63 of host,
/// as most networks limit them (RFC 1034 3.1 for a host label; `USERLEN` and `HOSTLEN` of servers that announce them).
const ASSUMED_HOSTMASK_BYTES: usize = 1 + 10 + 1 + 63;
/// Length reserved for the suffix of a nick variant.
const NICK_SUFFIX_BYTES: usize = 4;
/// `CHANNELLEN` of most servers.
const ASSUMED_TARGET_BYTES: usize = 50;
/// With less room for text than this a message is refused.
const MIN_TEXT_BYTES: usize = 64;

/// Largest length of a text, and targets that cannot be written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IrcSendLimits {
    nick_bytes: usize,
    hostmask_bytes: usize,
    casemapping: Casemapping,
    /// Rooms that the account is not in, folded by `casemapping`, with the reason.
    closed_rooms: Vec<(String, String)>,
}

impl IrcSendLimits {
    /// Limits of a connection that has just registered.
    pub(super) fn new(nick: &str) -> Self {
        Self {
            nick_bytes: nick.len(),
            hostmask_bytes: ASSUMED_HOSTMASK_BYTES,
            casemapping: Casemapping::default(),
            closed_rooms: Vec::new(),
        }
    }

    pub(super) fn set_nick(&mut self, nick: &str) {
        self.nick_bytes = nick.len();
    }

    /// Records the account's own `nick!user@host`. A longer one than assumed leaves less room for text.
    pub(super) fn observe_source(&mut self, source: &str) {
        let hostmask = source.find('!').map_or(0, |at| source.len() - at);
        self.hostmask_bytes = self.hostmask_bytes.max(hostmask);
    }

    /// Sets the case mapping of the server. Earlier entries of `closed_rooms` stay folded by the old one.
    pub(super) fn set_casemapping(&mut self, casemapping: Casemapping) {
        self.casemapping = casemapping;
    }

    /// Records that the account is in a room.
    pub(super) fn mark_joined(&mut self, room: &str) {
        let room = self.casemapping.fold_case(room);
        self.closed_rooms.retain(|(name, _)| *name != room);
    }

    /// Records that the account is not in a room.
    pub(super) fn mark_left(&mut self, room: &str, why: &str) {
        self.mark_joined(room);
        self.closed_rooms.push((self.casemapping.fold_case(room), why.to_owned()));
    }

    /// Builds the lines that send a text to a target.
    ///
    /// # Errors
    /// The reason why the text can never reach the target.
    pub(super) fn privmsg_lines(&self, target: &str, text: &str) -> Result<Vec<OutgoingIrcLine>, String> {
        if target.is_empty() || target.starts_with(':') || target.contains(|c: char| c.is_control() || " ,".contains(c))
        {
            return Err(format!("{target:?} is neither a room nor a nick"));
        }
        let room = self.casemapping.fold_case(target);
        if let Some((_, why)) = self.closed_rooms.iter().find(|(name, _)| *name == room) {
            return Err(format!("not in {target}: {why}"));
        }
        let max_bytes = max_text_bytes(self.nick_bytes, self.hostmask_bytes, target.len());
        if max_bytes < MIN_TEXT_BYTES {
            return Err("the names around it leave no room for text in a line".to_owned());
        }
        let lines = text::split_lines(text, max_bytes);
        if lines.is_empty() {
            return Err("there is no text in it".to_owned());
        }
        Ok(lines.iter().map(|line| OutgoingIrcLine::from_words_and_text(&["PRIVMSG", target], line)).collect())
    }
}

/// Bytes of text that fit into one line in most rooms of most networks.
pub(super) fn usual_text_bytes(configured_nick: &str) -> usize {
    max_text_bytes(configured_nick.len() + NICK_SUFFIX_BYTES, ASSUMED_HOSTMASK_BYTES, ASSUMED_TARGET_BYTES)
}

/// Bytes of text in a line as other clients receive it: `:nick!user@host PRIVMSG target :text`.
fn max_text_bytes(nick: usize, hostmask: usize, target: usize) -> usize {
    let overhead = ":".len() + nick + hostmask + " PRIVMSG ".len() + target + " :".len() + "\r\n".len();
    MAX_LINE_BYTES.saturating_sub(overhead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits_as_others_get_it() {
        let mut limits = IrcSendLimits::new("quell");
        let text = "word ".repeat(500);
        let longest = |limits: &IrcSendLimits| {
            let lines = limits.privmsg_lines("#tea", &text).unwrap();
            lines.iter().map(|line| line.bytes().len()).max().unwrap()
        };
        assert!(longest(&limits) + ":quell! ".len() + 10 + 1 + 63 <= MAX_LINE_BYTES);
        assert!(longest(&limits) > 400);
        let source = format!("quell!user@{}", "h".repeat(100));
        limits.observe_source(&source);
        assert!(longest(&limits) + source.len() + 2 <= MAX_LINE_BYTES);
        limits.observe_source("quell!u@h");
        assert!(longest(&limits) + source.len() + 2 <= MAX_LINE_BYTES, "a short one proves nothing: hosts change");
        assert_eq!(usual_text_bytes("quell"), 512 - 2 - 1 - 9 - 75 - 9 - 50 - 2);
    }

    #[test]
    fn messages_that_cannot_be_delivered_are_refused() {
        let mut limits = IrcSendLimits::new("quell");
        for target in ["", "a b", "a,b", ":a", "a\r\nQUIT"] {
            assert!(limits.privmsg_lines(target, "hello").unwrap_err().contains("neither"), "{target:?}");
        }
        let long = format!("#{}", "x".repeat(400));
        assert!(limits.privmsg_lines(&long, "hello").unwrap_err().contains("no room"));
        assert_eq!(limits.privmsg_lines("#tea", "\n \n"), Err("there is no text in it".to_owned()));
        limits.mark_left("#Tea", "invite only");
        assert_eq!(limits.privmsg_lines("#tea", "hello"), Err("not in #tea: invite only".to_owned()));
        limits.mark_joined("#TEA");
        assert!(limits.privmsg_lines("#tea", "hello").is_ok());
    }
}
