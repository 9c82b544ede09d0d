//! What a server tells of itself when one has registered (`RPL_ISUPPORT`, 005): how it compares names, what a room is.

use super::message::{Message, told};

/// How a server compares nicks and rooms (`CASEMAPPING`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Casemapping {
    /// A-Z is a-z.
    Ascii,
    /// RFC 1459 2.2: `[]\^` are the capitals of `{}|~`, too. What servers do that say nothing.
    #[default]
    Rfc1459,
    /// As above without `^`.
    Rfc1459Strict,
    /// Anything else: the lower case of Unicode.
    Unicode,
}

impl Casemapping {
    /// A name as all ways of writing it are compared.
    pub(super) fn fold(self, name: &str) -> String {
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

    /// Whether two names are one.
    pub(super) fn is_same(self, one: &str, other: &str) -> bool {
        self.fold(one) == self.fold(other)
    }
}

/// What the server said of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    /// Its name.
    pub(super) name: String,
    /// The name of the network, if it has one.
    pub(super) network: Option<String>,
    pub(super) casemapping: Casemapping,
    /// With which characters the names of rooms begin.
    room_types: String,
}

impl Server {
    pub(super) fn new(name: &str) -> Self {
        // RFC 2812 1.3, without those that hardly any server has.
        Self { name: told(name), network: None, casemapping: Casemapping::default(), room_types: "#&".to_owned() }
    }

    /// Takes in one `005`.
    pub(super) fn learn(&mut self, message: &Message) {
        // The first parameter is the own nick, the last one is for people.
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
                "NETWORK" => self.network = Some(told(&value.replace("\\x20", " "))),
                _ => {}
            }
        }
    }

    /// True for the name of a room, also with the sign of those in it who are meant (`STATUSMSG`: `@#room`).
    pub(super) fn is_room(&self, target: &str) -> bool {
        let name = target.trim_start_matches(['@', '+']);
        [target, name].iter().any(|name| name.starts_with(|c| self.room_types.contains(c)))
    }

    /// The text of a line that begins with this nick and a colon or comma, without them. None when it does not.
    pub(super) fn said_to<'a>(&self, nick: &str, text: &'a str) -> Option<&'a str> {
        let (begin, rest) = text.trim_start().split_once([':', ','])?;
        self.casemapping.is_same(begin, nick).then(|| rest.trim())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(tokens: &str) -> Server {
        let mut server = Server::new("irc.test");
        server.learn(&Message::parse(&format!(":irc.test 005 me {tokens} :are supported")).unwrap());
        server
    }

    #[test]
    fn names_are_compared_as_the_server_does() {
        let same = |tokens: &str, one, other| server(tokens).casemapping.is_same(one, other);
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
        let plain = server("NETWORK=Test\\x20Net");
        assert_eq!(plain.network.as_deref(), Some("Test Net"));
        assert!(plain.is_room("#tea") && plain.is_room("&tea") && plain.is_room("@#tea"));
        assert!(!plain.is_room("ann") && !plain.is_room("+tea") && !plain.is_room("") && !plain.is_room("$$*"));
        assert!(server("CHANTYPES=#+").is_room("+tea"));
        assert!(!server("CHANTYPES=").is_room("#tea"));
    }

    #[test]
    fn a_line_is_for_whom_it_names_first() {
        let server = server("CASEMAPPING=rfc1459");
        let said = |text| server.said_to("Quell[x]", text);
        assert_eq!(said("Quell[x]: hello"), Some("hello"));
        assert_eq!(said("  QUELL{X},hello: there "), Some("hello: there"));
        assert_eq!(said("quell[x]:"), Some(""));
        for text in ["quell[x] hello", "quell: hello", "dear quell[x]: hello", "hello, quell[x]: you", "", ":"] {
            assert_eq!(said(text), None, "{text}");
        }
    }
}
