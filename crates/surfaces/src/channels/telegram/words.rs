//! The words of a message, without those by which a bot is addressed: `/stop@the_bot` is `/stop`, `@the_bot, hello` is `hello`.

use std::ops::Range;

use serde::Deserialize;

use super::hear::Account;

/// More marks than this are not looked at; Telegram tells no more of one message.
const MARKS: usize = 100;

/// Bot API: `MessageEntity`.
#[derive(Debug, Deserialize)]
pub(super) struct Entity {
    #[serde(rename = "type")]
    kind: String,
    offset: usize,
    length: usize,
    /// Whom a mention of somebody without a user name means.
    user: Option<Mentioned>,
}

#[derive(Debug, Deserialize)]
struct Mentioned {
    id: i64,
}

/// What a text says, and to whom.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Words {
    /// What is left for the agent.
    pub(super) text: String,
    /// It names this bot.
    pub(super) names_bot: bool,
    /// It begins with a command for another one.
    pub(super) names_other: bool,
}

impl Words {
    /// Reads a text with its marks.
    pub(super) fn read(text: &str, entities: &[Entity], account: &Account) -> Self {
        let mut words = Self { text: String::new(), names_bot: false, names_other: false };
        let mut dropped = Vec::new();
        for entity in entities.iter().take(MARKS) {
            let Some(range) = bytes(text, entity) else { continue };
            let marked = &text[range.clone()];
            match entity.kind.as_str() {
                "bot_command" => match marked.split_once('@') {
                    Some((command, name)) if name.eq_ignore_ascii_case(&account.username) => {
                        words.names_bot = true;
                        dropped.push(range.start + command.len()..range.end);
                    }
                    Some(_) if range.start == 0 => words.names_other = true,
                    _ => {}
                },
                "mention" if names(marked, account) => {
                    words.names_bot = true;
                    dropped.extend(Some(range).filter(|range| stands_apart(text, range)));
                }
                "text_mention" if entity.user.as_ref().is_some_and(|user| user.id == account.id) => {
                    words.names_bot = true;
                    dropped.extend(Some(range).filter(|range| stands_apart(text, range)));
                }
                _ => {}
            }
        }
        words.text = without(text, dropped);
        words
    }
}

fn names(mention: &str, account: &Account) -> bool {
    mention.strip_prefix('@').is_some_and(|name| name.eq_ignore_ascii_case(&account.username))
}

/// Whether a name is the first or the last word: then it is an address, and elsewhere a part of what is said.
fn stands_apart(text: &str, name: &Range<usize>) -> bool {
    text[..name.start].trim().is_empty() || text[name.end..].trim().is_empty()
}

fn without(text: &str, mut dropped: Vec<Range<usize>>) -> String {
    dropped.sort_by_key(|range| range.start);
    let leading = dropped.first().is_some_and(|range| text[..range.start].trim().is_empty());
    let (mut left, mut at) = (String::with_capacity(text.len()), 0);
    for range in dropped {
        left.push_str(text.get(at..range.start).unwrap_or_default());
        at = at.max(range.end);
    }
    left.push_str(&text[at..]);
    // What follows a name that stands first: `@the_bot: hello`.
    let left = if leading { left.trim_start().trim_start_matches([',', ':']) } else { left.as_str() };
    left.trim().to_owned()
}

/// The bytes that a mark covers; it counts UTF-16 code units.
fn bytes(text: &str, entity: &Entity) -> Option<Range<usize>> {
    let end = entity.offset.checked_add(entity.length)?;
    let (mut units, mut start) = (0, None);
    for (at, character) in text.char_indices() {
        if units == entity.offset {
            start = Some(at);
        }
        if units == end {
            return start.map(|start| start..at).filter(|range| !range.is_empty());
        }
        units += character.len_utf16();
    }
    let start = start.filter(|_| units == end)?;
    Some(start..text.len())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::{Account, Entity, Words};

    fn read(text: &str, entities: Value) -> Words {
        let account: Account = serde_json::from_value(json!({"id": 9, "username": "the_bot"})).unwrap();
        let entities: Vec<Entity> = serde_json::from_value(entities).unwrap();
        Words::read(text, &entities, &account)
    }

    fn mark(kind: &str, offset: usize, length: usize) -> Value {
        json!({"type": kind, "offset": offset, "length": length})
    }

    #[rstest]
    #[case("@the_bot: hello", mark("mention", 0, 8), "hello")]
    #[case(" @the_bot, hello ", mark("mention", 1, 8), "hello")]
    #[case("ask @the_bot about it", mark("mention", 4, 8), "ask @the_bot about it")]
    #[case("😀 hello @the_bot", mark("mention", 9, 8), "😀 hello")]
    #[case("/stop@the_bot now", mark("bot_command", 0, 13), "/stop now")]
    #[case("please /stop@The_Bot", mark("bot_command", 7, 13), "please /stop")]
    #[case("The Bot: hello", json!({"type": "text_mention", "offset": 0, "length": 7, "user": {"id": 9}}), "hello")]
    #[case("@the_bot", mark("mention", 0, 8), "")]
    fn a_name_by_which_it_is_addressed_is_left_out(#[case] text: &str, #[case] entity: Value, #[case] left: &str) {
        assert_eq!(read(text, json!([entity])), Words { text: left.to_owned(), names_bot: true, names_other: false });
    }

    #[rstest]
    #[case::beyond_the_end(mark("mention", 0, 99))]
    #[case::far_beyond(mark("bot_command", usize::MAX, usize::MAX))]
    #[case::inside_a_character(mark("mention", 1, 3))]
    #[case::of_nothing(mark("mention", 2, 0))]
    #[case::of_no_name(mark("mention", 0, 2))]
    #[case::of_somebody_else(json!({"type": "text_mention", "offset": 3, "length": 4, "user": {"id": 1}}))]
    #[case::of_nobody(mark("text_mention", 3, 4))]
    fn a_mark_that_means_nothing_is_left_alone(#[case] entity: Value) {
        let left = Words { text: "😀 @the_bot".to_owned(), names_bot: false, names_other: false };
        assert_eq!(read("😀 @the_bot", json!([entity])), left);
    }

    #[test]
    fn marks_over_each_other_are_taken_one_after_the_other() {
        let marks = json!([mark("mention", 0, 8), mark("mention", 0, 8), mark("bot_command", 9, 13)]);
        assert_eq!(read("@the_bot /stop@the_bot", marks).text, "/stop");
    }
}
