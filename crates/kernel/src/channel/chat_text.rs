//! A text for people in a chat, in every language that chats have. Without a translation it does not compile.

use std::fmt::Display;

use super::chat_language::ChatLanguage;

/// A text in all languages. Values take the place of names in braces, such as `{n}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChatText {
    english: &'static str,
    korean: &'static str,
    chinese: &'static str,
}

impl ChatText {
    /// A text in English, Korean and Chinese.
    ///
    /// # Panics
    /// If one is empty, or if the three do not have the same places for values. For a constant, that is an error of the
    /// compiler.
    #[must_use]
    pub const fn new(english: &'static str, korean: &'static str, chinese: &'static str) -> Self {
        assert!(!english.is_empty() && !korean.is_empty() && !chinese.is_empty(), "a text is empty in one language");
        assert!(
            has_places_of(english, korean) && has_places_of(korean, english),
            "the Korean text has other places for values than the English one"
        );
        assert!(
            has_places_of(english, chinese) && has_places_of(chinese, english),
            "the Chinese text has other places for values than the English one"
        );
        Self { english, korean, chinese }
    }

    /// The text in one language, as it stands.
    #[must_use]
    pub const fn text(self, language: ChatLanguage) -> &'static str {
        match language {
            ChatLanguage::English => self.english,
            ChatLanguage::Korean => self.korean,
            ChatLanguage::Chinese => self.chinese,
        }
    }

    /// The text with its values. A value is inserted as it is, also if it has braces.
    #[must_use]
    pub fn format(self, language: ChatLanguage, values: &[(&str, &dyn Display)]) -> String {
        let mut pieces = self.text(language).split('{');
        let mut formatted = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let Some((name, rest)) = piece.split_once('}') else { continue };
            let value = values.iter().find(|(known, _)| *known == name);
            debug_assert!(value.is_some(), "no value for {name:?} in {:?}", self.english);
            formatted.extend(value.map(|(_, value)| value.to_string()));
            formatted.push_str(rest);
        }
        formatted
    }
}

/// True if `other` has each `{name}` of `text`, as often as `text`.
const fn has_places_of(text: &str, other: &str) -> bool {
    let bytes = text.as_bytes();
    let mut start = 0;
    while start < bytes.len() {
        if bytes[start] == b'{' {
            let mut end = start;
            while bytes[end] != b'}' {
                end += 1;
                assert!(end < bytes.len(), "a brace is not closed");
            }
            if count_occurrences(bytes, bytes, start, end) != count_occurrences(other.as_bytes(), bytes, start, end) {
                return false;
            }
        }
        start += 1;
    }
    true
}

/// How often `text` has the bytes `start..=end` of `source`.
const fn count_occurrences(text: &[u8], source: &[u8], start: usize, end: usize) -> usize {
    let (mut count, mut at) = (0, 0);
    while at + (end - start) < text.len() {
        let mut length = 0;
        while length <= end - start && text[at + length] == source[start + length] {
            length += 1;
        }
        count += (length > end - start) as usize;
        at += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const GREETING: ChatText = ChatText::new("{n} from {who}", "{who}의 {n}", "{who}的{n}");

    #[test]
    fn values_take_their_places_in_each_language() {
        let values: &[(&str, &dyn Display)] = &[("n", &3), ("who", &"{n}")];
        assert_eq!(GREETING.format(ChatLanguage::English, values), "3 from {n}");
        assert_eq!(GREETING.format(ChatLanguage::Korean, values), "{n}의 3");
        assert_eq!(GREETING.format(ChatLanguage::Chinese, values), "{n}的3");
    }

    #[rstest]
    #[case::missing("{n} left", "남음", "剩余 {n}")]
    #[case::another_name("{n} left", "{n} 남음", "剩余 {m}")]
    #[case::one_too_many("left", "{n} 남음", "剩余")]
    #[case::twice("{n} left", "{n} 남음", "{n} 剩余 {n}")]
    #[case::part_of_a_name("{nn}", "{n}", "{nn}")]
    #[case::not_closed("{n", "{n}", "{n}")]
    #[case::empty("left", "", "剩余")]
    #[should_panic]
    fn a_text_whose_translations_differ_in_places_is_refused(
        #[case] english: &'static str,
        #[case] korean: &'static str,
        #[case] chinese: &'static str,
    ) {
        let _ = ChatText::new(english, korean, chinese);
    }
}
