//! Remove mentions of the bot from a text and report whom it addresses: `/stop@the_bot` is `/stop`, `@the_bot, hello`
//! is `hello`.

use std::fmt;
use std::ops::Range;

use serde::Deserialize;

use crate::network::OwnAccount;

/// Further entities are ignored; Telegram sends no more for one message.
const MAX_ENTITIES: usize = 100;

/// The bot itself (Bot API: `User`, as returned by getMe).
#[derive(Debug, Clone, Deserialize)]
pub(super) struct TelegramBot {
    pub(super) id: i64,
    pub(super) username: String,
    #[serde(default)]
    can_read_all_group_messages: bool,
}

impl TelegramBot {
    pub(super) fn to_own_account(&self) -> OwnAccount {
        OwnAccount { id: self.id.to_string(), name: self.username.clone() }
    }
}

impl fmt::Display for TelegramBot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{} (id {})", self.username, self.id)?;
        if !self.can_read_all_group_messages {
            f.write_str(", in groups it receives only commands, mentions and replies to it (@BotFather: /setprivacy)")?;
        }
        Ok(())
    }
}

/// Bot API: `MessageEntity`.
#[derive(Debug, Deserialize)]
pub(super) struct TelegramMessageEntity {
    #[serde(rename = "type")]
    kind: String,
    offset: usize,
    length: usize,
    /// The mentioned user, for users without a user name.
    user: Option<MentionedUser>,
}

#[derive(Debug, Deserialize)]
struct MentionedUser {
    id: i64,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct AddressedText {
    pub(super) text: String,
    /// True if the text names this bot.
    pub(super) mentions_bot: bool,
    /// True if the text begins with a command for another bot.
    pub(super) is_for_other_bot: bool,
}

impl AddressedText {
    pub(super) fn parse(text: &str, entities: &[TelegramMessageEntity], account: &TelegramBot) -> Self {
        let mut addressed = Self { text: String::new(), mentions_bot: false, is_for_other_bot: false };
        let mut removed_ranges = Vec::new();
        for entity in entities.iter().take(MAX_ENTITIES) {
            let Some(range) = entity_byte_range(text, entity) else { continue };
            let entity_text = &text[range.clone()];
            match entity.kind.as_str() {
                "bot_command" => match entity_text.split_once('@') {
                    Some((command, name)) if name.eq_ignore_ascii_case(&account.username) => {
                        addressed.mentions_bot = true;
                        removed_ranges.push(range.start + command.len()..range.end);
                    }
                    Some(_) if range.start == 0 => addressed.is_for_other_bot = true,
                    _ => {}
                },
                "mention" if is_bot_mention(entity_text, account) => {
                    addressed.mentions_bot = true;
                    removed_ranges.extend(Some(range).filter(|range| is_at_edge(text, range)));
                }
                "text_mention" if entity.user.as_ref().is_some_and(|user| user.id == account.id) => {
                    addressed.mentions_bot = true;
                    removed_ranges.extend(Some(range).filter(|range| is_at_edge(text, range)));
                }
                _ => {}
            }
        }
        addressed.text = remove_ranges(text, removed_ranges);
        addressed
    }
}

fn is_bot_mention(mention: &str, account: &TelegramBot) -> bool {
    mention.strip_prefix('@').is_some_and(|name| name.eq_ignore_ascii_case(&account.username))
}

/// True if a name is the first or the last word. Then it is an address; elsewhere it is a part of the text.
fn is_at_edge(text: &str, name: &Range<usize>) -> bool {
    text[..name.start].trim().is_empty() || text[name.end..].trim().is_empty()
}

fn remove_ranges(text: &str, mut removed_ranges: Vec<Range<usize>>) -> String {
    removed_ranges.sort_by_key(|range| range.start);
    let leading = removed_ranges.first().is_some_and(|range| text[..range.start].trim().is_empty());
    let (mut remaining, mut at) = (String::with_capacity(text.len()), 0);
    for range in removed_ranges {
        remaining.push_str(text.get(at..range.start).unwrap_or_default());
        at = at.max(range.end);
    }
    remaining.push_str(&text[at..]);
    // Punctuation after a leading name: `@the_bot: hello`.
    let remaining = if leading { remaining.trim_start().trim_start_matches([',', ':']) } else { remaining.as_str() };
    remaining.trim().to_owned()
}

/// The bytes of an entity, whose offsets count UTF-16 code units.
fn entity_byte_range(text: &str, entity: &TelegramMessageEntity) -> Option<Range<usize>> {
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

    use super::{AddressedText, TelegramBot, TelegramMessageEntity};

    fn parse_text(text: &str, entities: Value) -> AddressedText {
        let account: TelegramBot = serde_json::from_value(json!({"id": 9, "username": "the_bot"})).unwrap();
        let entities: Vec<TelegramMessageEntity> = serde_json::from_value(entities).unwrap();
        AddressedText::parse(text, &entities, &account)
    }

    fn entity_json(kind: &str, offset: usize, length: usize) -> Value {
        json!({"type": kind, "offset": offset, "length": length})
    }

    #[rstest]
    #[case("@the_bot: hello", entity_json("mention", 0, 8), "hello")]
    #[case(" @the_bot, hello ", entity_json("mention", 1, 8), "hello")]
    #[case("ask @the_bot about it", entity_json("mention", 4, 8), "ask @the_bot about it")]
    #[case("😀 hello @the_bot", entity_json("mention", 9, 8), "😀 hello")]
    #[case("/stop@the_bot now", entity_json("bot_command", 0, 13), "/stop now")]
    #[case("please /stop@The_Bot", entity_json("bot_command", 7, 13), "please /stop")]
    #[case("The Bot: hello", json!({"type": "text_mention", "offset": 0, "length": 7, "user": {"id": 9}}), "hello")]
    #[case("@the_bot", entity_json("mention", 0, 8), "")]
    fn a_name_by_which_it_is_addressed_is_left_out(#[case] text: &str, #[case] entity: Value, #[case] left: &str) {
        assert_eq!(
            parse_text(text, json!([entity])),
            AddressedText { text: left.to_owned(), mentions_bot: true, is_for_other_bot: false }
        );
    }

    #[rstest]
    #[case::beyond_the_end(entity_json("mention", 0, 99))]
    #[case::far_beyond(entity_json("bot_command", usize::MAX, usize::MAX))]
    #[case::inside_a_character(entity_json("mention", 1, 3))]
    #[case::of_nothing(entity_json("mention", 2, 0))]
    #[case::of_no_name(entity_json("mention", 0, 2))]
    #[case::of_somebody_else(json!({"type": "text_mention", "offset": 3, "length": 4, "user": {"id": 1}}))]
    #[case::of_nobody(entity_json("text_mention", 3, 4))]
    fn a_mark_that_means_nothing_is_left_alone(#[case] entity: Value) {
        let left = AddressedText { text: "😀 @the_bot".to_owned(), mentions_bot: false, is_for_other_bot: false };
        assert_eq!(parse_text("😀 @the_bot", json!([entity])), left);
    }

    #[test]
    fn marks_over_each_other_are_taken_one_after_the_other() {
        let entities =
            json!([entity_json("mention", 0, 8), entity_json("mention", 0, 8), entity_json("bot_command", 9, 13)]);
        assert_eq!(parse_text("@the_bot /stop@the_bot", entities).text, "/stop");
    }
}
