//! The language of notices, errors and help in chats, chosen from the language tag of a session or an agent.

/// A language that the texts of chats exist in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChatLanguage {
    /// Also the fallback for every other language.
    #[default]
    English,
    Korean,
    Chinese,
}

impl ChatLanguage {
    /// Chooses by the first part of a language tag, such as `ko-KR` or `zh_CN`.
    #[must_use]
    pub fn from_tag(tag: &str) -> Self {
        let primary = tag.trim().split(['-', '_', '.', '@']).next().unwrap_or_default();
        match primary.to_ascii_lowercase().as_str() {
            "ko" => Self::Korean,
            "zh" => Self::Chinese,
            _ => Self::English,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("en-US", ChatLanguage::English)]
    #[case("ko-KR", ChatLanguage::Korean)]
    #[case("KO", ChatLanguage::Korean)]
    #[case("ko_KR.UTF-8", ChatLanguage::Korean)]
    #[case("zh", ChatLanguage::Chinese)]
    #[case("zh-Hant-TW", ChatLanguage::Chinese)]
    #[case::another_language("de-DE", ChatLanguage::English)]
    #[case::konkani_is_not_korean("kok-IN", ChatLanguage::English)]
    #[case::blank("", ChatLanguage::English)]
    fn a_tag_selects_a_language(#[case] tag: &str, #[case] language: ChatLanguage) {
        assert_eq!(ChatLanguage::from_tag(tag), language);
    }
}
