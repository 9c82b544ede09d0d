//! Builds session keys of chat conversations, with escaping.
//!
//! The parts come from people and networks. So separators inside a part are escaped, and characters that a session key
//! must not contain are not let through.

use quell_protocol::SessionKey;
use quell_protocol::channel::ChannelMessage;
use sha2::{Digest, Sha256};

/// Maximum length of the channel in a hashed key: a name has at most 64 characters, each escaped to at most three.
const MAX_CHANNEL_CHARS: usize = 3 * 64;

/// Session key of a message: `{channel}_{reply_target}_{sender}`, in a thread
/// `{channel}_{reply_target}_{thread}_{sender}`. `_` and `%` inside a part are percent-escaped, so that no two
/// conversations share a key.
///
/// If the result is too long for a session key or contains control characters, the key is the channel and a hash of the
/// result. No other key has only two parts.
#[must_use]
pub fn conversation_key(message: &ChannelMessage) -> SessionKey {
    let ChannelMessage { channel, reply_target, thread, sender, .. } = message;
    let whole = join_key_parts([Some(channel), Some(reply_target), thread.as_ref(), Some(sender)]);
    SessionKey::parse(&whole).unwrap_or_else(|_| hashed_key(channel, &whole))
}

/// True when a session is a conversation of this channel, whichever transport its runs come from.
#[must_use]
pub fn belongs_to_channel(session: &SessionKey, channel: &str) -> bool {
    session.as_str().strip_prefix(&escape_key_part(channel)).is_some_and(|rest| rest.starts_with('_'))
}

/// Escapes the separator `_` and the escape character `%` in a part of a key.
pub(crate) fn escape_key_part(part: &str) -> String {
    part.replace('%', "%25").replace('_', "%5F")
}

fn join_key_parts(parts: [Option<&String>; 4]) -> String {
    parts.into_iter().flatten().map(|part| escape_key_part(part)).collect::<Vec<_>>().join("_")
}

fn hashed_key(channel: &str, whole: &str) -> SessionKey {
    let channel: String =
        escape_key_part(channel).chars().filter(|c| !c.is_control()).take(MAX_CHANNEL_CHARS).collect();
    let hash: String = Sha256::digest(whole.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    let Ok(key) = SessionKey::parse(format!("{channel}_{hash}")) else {
        unreachable!("a bounded text without control characters is a session key")
    };
    key
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn message(channel: &str, reply_target: &str, thread: Option<&str>, sender: &str) -> ChannelMessage {
        ChannelMessage {
            channel: channel.to_owned(),
            id: "1".to_owned(),
            sender: sender.to_owned(),
            sender_name: None,
            reply_target: reply_target.to_owned(),
            content: String::new(),
            thread: thread.map(str::to_owned),
            scope_id: None,
            group: false,
            attachments: Vec::new(),
        }
    }

    #[rstest]
    #[case::direct(message("telegram", "12345678", None, "alice"), "telegram_12345678_alice")]
    #[case::thread(message("slack", "C123", Some("1741234567"), "alice"), "slack_C123_1741234567_alice")]
    #[case::matrix(message("matrix", "!room:h", None, "@bob:h"), "matrix_!room:h_@bob:h")]
    #[case::escaped(message("my_bot", "a%b", None, "al_ice"), "my%5Fbot_a%25b_al%5Fice")]
    fn a_conversation_is_known_by_its_parts(#[case] message: ChannelMessage, #[case] key: &str) {
        assert_eq!(conversation_key(&message).as_str(), key);
    }

    #[test]
    fn a_key_that_is_too_long_is_the_channel_and_a_hash() {
        let exact = message("irc", &"x".repeat(512 - "irc__bob".len()), None, "bob");
        assert_eq!(conversation_key(&exact).as_str().len(), 512);
        let longer = ChannelMessage { reply_target: format!("{}y", exact.reply_target), ..exact.clone() };
        let other = ChannelMessage { reply_target: format!("{}z", exact.reply_target), ..exact };
        let key = conversation_key(&longer);
        assert_eq!(key.as_str().len(), "irc_".len() + 64);
        assert!(key.as_str().starts_with("irc_"), "{key}");
        assert_eq!(conversation_key(&longer), key, "the same conversation has the same key");
        assert_ne!(conversation_key(&other), key);
    }

    /// `/stop all` used to miss the sessions of such channels.
    #[rstest]
    #[case::plain("a")]
    #[case::escaped("_")]
    fn every_key_of_a_channel_is_known_as_its_own(#[case] letter: &str) {
        let name = letter.repeat(64);
        let short = message(&name, "room", None, "bob");
        let long = message(&name, &"x".repeat(600), None, "bob");
        for key in [conversation_key(&short), conversation_key(&long)] {
            assert!(belongs_to_channel(&key, &name), "{key}");
            assert!(!belongs_to_channel(&key, &name[1..]), "{key}");
        }
    }

    #[test]
    fn control_characters_do_not_come_through() {
        let key = conversation_key(&message("irc", "#room", None, "bob\u{1b}[31m\n"));
        assert!(!key.as_str().contains(char::is_control), "{key:?}");
        assert_ne!(key, conversation_key(&message("irc", "#room", None, "bob[31m")));
    }

    proptest! {
        #[test]
        fn no_two_conversations_share_a_key(
            found in proptest::collection::vec(
                ("[a_%\u{1}]{0,3}", "[a_%\u{1}]{0,3}", proptest::option::of("[a_%\u{1}]{0,3}"), "[a_%\u{1}]{0,3}"),
                2..40,
            )
        ) {
            let mut seen = BTreeMap::new();
            for parts in found {
                let (channel, target, thread, sender) = &parts;
                let key = conversation_key(&message(channel, target, thread.as_deref(), sender));
                let first = seen.entry(key).or_insert_with(|| parts.clone());
                prop_assert_eq!(&*first, &parts);
            }
        }
    }
}
