//! Parse the announcements of a server in RPL_ISUPPORT (005): case mapping, channel types, network name.

use super::message::{IrcMessage, printable};

/// How a server compares nicks and rooms (`CASEMAPPING`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Casemapping {
    /// A-Z is a-z.
    Ascii,
    /// RFC 1459 2.2: also `[]\^` are the capitals of `{}|~`. The default of servers that announce nothing.
    #[default]
    Rfc1459,
    /// As above without `^`.
    Rfc1459Strict,
    /// Anything else: the lower case of Unicode.
    Unicode,
}

impl Casemapping {
    /// Folds a name, so that equal names become the same text.
    pub(super) fn fold_case(self, name: &str) -> String {
        let special = |c| match c {
            '[' => '{',
            ']' => '}',
            '\\' => '|',
            '^' if self == Self::Rfc1459 => '~',
            c => c.to_ascii_lowercase(),
        };
        match self {
            Self::Ascii => name.to_ascii_lowercase(),
            Self::Rfc1459 | Self::Rfc1459Strict => name.chars().map(special).collect(),
            Self::Unicode => name.to_lowercase(),
        }
    }

    /// True if two names are equal for the server.
    pub(super) fn equals(self, one: &str, other: &str) -> bool {
        self.fold_case(one) == self.fold_case(other)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IrcServerInfo {
    pub(super) name: String,
    pub(super) network: Option<String>,
    pub(super) casemapping: Casemapping,
    /// The first characters of room names.
    room_types: String,
}

impl IrcServerInfo {
    pub(super) fn new(name: &str) -> Self {
        // RFC 2812 1.3, without types that hardly any server has.
        Self { name: printable(name), network: None, casemapping: Casemapping::default(), room_types: "#&".to_owned() }
    }

    /// Applies one `005` line.
    pub(super) fn apply_isupport(&mut self, message: &IrcMessage) {
        // The first parameter is the own nick, the last one a text for people.
        let tokens = message.params.iter().skip(1).take(message.params.len().saturating_sub(2));
        for (name, value) in tokens.filter_map(|token| token.split_once('=')) {
            match name {
                "CASEMAPPING" => {
                    self.casemapping = match value {
                        "ascii" => Casemapping::Ascii,
                        "rfc1459" => Casemapping::Rfc1459,
                        "rfc1459-strict" | "strict-rfc1459" => Casemapping::Rfc1459Strict,
                        _ => Casemapping::Unicode,
                    }
                }
                "CHANTYPES" => self.room_types = value.to_owned(),
                "NETWORK" => self.network = Some(printable(&value.replace("\\x20", " "))),
                _ => {}
            }
        }
    }

    /// True for a room name, also with a prefix that addresses only some members (`STATUSMSG`: `@#room`).
    pub(super) fn is_room_name(&self, target: &str) -> bool {
        let name = target.trim_start_matches(['@', '+']);
        [target, name].iter().any(|name| name.starts_with(|c| self.room_types.contains(c)))
    }

    /// The text after this nick and a colon or comma. None if the text does not begin so.
    pub(super) fn strip_nick_prefix<'a>(&self, nick: &str, text: &'a str) -> Option<&'a str> {
        let (begin, rest) = text.trim_start().split_once([':', ','])?;
        self.casemapping.equals(begin, nick).then(|| rest.trim())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server_info_from(tokens: &str) -> IrcServerInfo {
        let mut server = IrcServerInfo::new("irc.test");
        server.apply_isupport(&IrcMessage::parse(&format!(":irc.test 005 me {tokens} :are supported")).unwrap());
        server
    }

    #[test]
    fn names_are_compared_as_the_server_does() {
        let same = |tokens: &str, one, other| server_info_from(tokens).casemapping.equals(one, other);
        assert!(same("X", "A[]\\^", "a{}|~"), "what a server does that says nothing");
        assert!(same("CASEMAPPING=rfc1459", "A^", "a~"));
        assert!(same("CASEMAPPING=rfc1459-strict", "A[", "a{"));
        assert!(!same("CASEMAPPING=rfc1459-strict", "A^", "a~"));
        assert!(same("CASEMAPPING=ascii", "ANN", "ann"));
        assert!(!same("CASEMAPPING=ascii", "A[", "a{"));
        assert!(!same("CASEMAPPING=ascii", "Ä", "ä"));
        assert!(same("CASEMAPPING=rfc8265", "Ä", "ä"));
    }

    #[test]
    fn rooms_are_known_by_their_first_character() {
        let plain = server_info_from("NETWORK=Test\\x20Net");
        assert_eq!(plain.network.as_deref(), Some("Test Net"));
        assert!(plain.is_room_name("#tea") && plain.is_room_name("&tea") && plain.is_room_name("@#tea"));
        assert!(
            !plain.is_room_name("ann")
                && !plain.is_room_name("+tea")
                && !plain.is_room_name("")
                && !plain.is_room_name("$$*")
        );
        assert!(server_info_from("CHANTYPES=#+").is_room_name("+tea"));
        assert!(!server_info_from("CHANTYPES=").is_room_name("#tea"));
    }

    #[test]
    fn a_line_is_for_whom_it_names_first() {
        let server = server_info_from("CASEMAPPING=rfc1459");
        let said = |text| server.strip_nick_prefix("Quell[x]", text);
        assert_eq!(said("Quell[x]: hello"), Some("hello"));
        assert_eq!(said("  QUELL{X},hello: there "), Some("hello: there"));
        assert_eq!(said("quell[x]:"), Some(""));
        for text in ["quell[x] hello", "quell: hello", "dear quell[x]: hello", "hello, quell[x]: you", "", ":"] {
            assert_eq!(said(text), None, "{text}");
        }
    }
}
