//! Choose language and character set from `LC_ALL`, `LC_CTYPE`, `LC_MESSAGES` and `LANG`, whose values the binary
//! reads.

/// Languages that have texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Language {
    /// English, also the fallback for every other language.
    #[default]
    English,
    Korean,
    Chinese,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Glyphs {
    Unicode,
    #[default]
    Ascii,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Locale {
    pub language: Language,
    pub glyphs: Glyphs,
}

impl Locale {
    /// Parses the locale names of messages and of characters, such as `ko_KR.UTF-8`. An empty name means `C`.
    pub fn of(messages: &str, characters: &str) -> Self {
        let charset = characters.rsplit_once('.').map_or("", |(_, charset)| charset).to_ascii_lowercase();
        let charset = charset.split('@').next().unwrap_or_default();
        let glyphs = if matches!(charset, "utf-8" | "utf8") { Glyphs::Unicode } else { Glyphs::Ascii };
        let language = match messages.split(['_', '.', '-', '@']).next() {
            // Without Unicode the letters of the other languages cannot be shown.
            _ if glyphs == Glyphs::Ascii => Language::English,
            Some("ko") => Language::Korean,
            Some("zh") => Language::Chinese,
            _ => Language::English,
        };
        Self { language, glyphs }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("", "", Language::English, Glyphs::Ascii)]
    #[case("C", "C", Language::English, Glyphs::Ascii)]
    #[case("C", "C.UTF-8", Language::English, Glyphs::Unicode)]
    #[case("ko_KR.UTF-8", "ko_KR.UTF-8", Language::Korean, Glyphs::Unicode)]
    #[case("zh_CN.utf8@pinyin", "zh_CN.utf8@pinyin", Language::Chinese, Glyphs::Unicode)]
    #[case("ko_KR.eucKR", "ko_KR.eucKR", Language::English, Glyphs::Ascii)]
    #[case("de_DE.UTF-8", "de_DE.UTF-8", Language::English, Glyphs::Unicode)]
    fn locales_as_people_have_them(
        #[case] messages: &str,
        #[case] characters: &str,
        #[case] language: Language,
        #[case] glyphs: Glyphs,
    ) {
        assert_eq!(Locale::of(messages, characters), Locale { language, glyphs });
    }
}
