//! Recognises messages that as a whole ask to stop, in many languages.
//!
//! Only whole messages count, after normalisation: a sentence that contains a stop word is a message for the model.
//! Words that can also mean "give me a moment" are left out on purpose.

/// The command and the messages that mean the same, normalised: lower case, composed characters, one space between
/// words, no punctuation at the end.
const STOP_PHRASES: &[&str] = &[
    "/stop",
    // English
    "stop",
    "esc",
    "abort",
    "exit",
    "interrupt",
    "halt",
    "please stop",
    "stop please",
    "stop openclaw",
    "openclaw stop",
    "stop quell",
    "quell stop",
    "stop action",
    "stop current action",
    "stop run",
    "stop current run",
    "stop agent",
    "stop the agent",
    "stop don't do anything",
    "stop dont do anything",
    "stop do not do anything",
    "stop doing anything",
    "do not do that",
    // German
    "stopp",
    "anhalten",
    "aufhören",
    "hoer auf",
    "hör auf",
    // French
    "arrete",
    "arrête",
    // Spanish
    "pare",
    "deten",
    "detén",
    "detente",
    // Portuguese
    "parar",
    "pare agora",
    "pare por favor",
    "por favor pare",
    "interromper",
    "interrompa",
    // Italian
    "ferma",
    "fermo",
    "fermati",
    "fermare",
    "basta",
    "smettila",
    "interrompi",
    // Turkish
    "dur",
    "durdur",
    "durun",
    "lütfen dur",
    // Vietnamese
    "dừng",
    "dừng lại",
    "dừng ngay",
    "ngừng",
    "ngừng lại",
    // Indonesian
    "berhenti",
    "hentikan",
    "tolong berhenti",
    // Russian
    "стоп",
    "остановись",
    "останови",
    "остановить",
    "прекрати",
    // Arabic
    "توقف",
    // Hindi
    "रुको",
    // Chinese
    "停止",
    "停下来",
    "停下來",
    "停下",
    "停",
    "停一下",
    "快停",
    "暂停",
    "暫停",
    "中止",
    "中断",
    "终止",
    "住手",
    // Japanese
    "やめて",
    "止めて",
    "ストップ",
    // Korean
    "멈춰",
    "멈춰요",
    "멈춰줘",
    "멈춰 줘",
    "멈추세요",
    "그만",
    "그만해",
    "그만해요",
    "그만 해",
    "중지",
    "중지해",
    "중단",
    "중단해",
    "정지",
    "스톱",
];

/// Longer than every stop phrase, in bytes. Normalisation of a longer message ends early.
const MAX_PHRASE_BYTES: usize = 64;

/// True when the whole message asks to stop.
pub fn is_stop_phrase(text: &str) -> bool {
    let text = text.trim_end_matches(|c: char| c.is_whitespace() || is_trailing_punctuation(c));
    normalise_phrase(text).is_some_and(|text| STOP_PHRASES.contains(&text.as_str()))
}

/// ASCII and CJK full stops, commas, exclamation and question marks, colons, semicolons, quotes, closing brackets,
/// ellipsis.
fn is_trailing_punctuation(c: char) -> bool {
    matches!(
        c,
        '.' | ','
            | '!'
            | '?'
            | ':'
            | ';'
            | '\''
            | '"'
            | ')'
            | ']'
            | '}'
            | '>'
            | '…'
            | '。'
            | '，'
            | '、'
            | '！'
            | '？'
            | '：'
            | '；'
            | '．'
            | '｡'
            | '､'
            | '‘'
            | '’'
            | '“'
            | '”'
            | '«'
            | '»'
            | '」'
            | '』'
            | '】'
            | '》'
            | '〉'
            | '）'
            | '］'
            | '｝'
            | '؟'
            | '،'
            | '؛'
            | '।'
            | '`'
            | '´'
    )
}

/// Normalises case, apostrophes, spaces and composition. Returns `None` if the text is longer than any stop phrase.
fn normalise_phrase(text: &str) -> Option<String> {
    let mut normal = String::new();
    for word in text.split_whitespace() {
        if !normal.is_empty() {
            normal.push(' ');
        }
        for c in word.chars().flat_map(char::to_lowercase) {
            push_composed(&mut normal, plain_apostrophe(c));
            if normal.len() > MAX_PHRASE_BYTES {
                return None;
            }
        }
    }
    Some(normal)
}

fn plain_apostrophe(c: char) -> char {
    match c {
        '‘' | '’' | 'ʼ' | '＇' | '`' | '´' => '\'',
        other => other,
    }
}

/// Appends a character, composed with the previous one: some systems send decomposed text.
fn push_composed(text: &mut String, c: char) {
    let composed = text.chars().next_back().and_then(|before| compose_letter(before, c));
    if composed.is_some() {
        text.pop();
    }
    text.push(composed.unwrap_or(c));
}

fn compose_letter(before: char, mark: char) -> Option<char> {
    Some(match (before, mark) {
        ('e', '\u{301}') => 'é',
        ('e', '\u{302}') => 'ê',
        ('o', '\u{308}') => 'ö',
        ('u', '\u{308}') => 'ü',
        ('u', '\u{31b}') => 'ư',
        ('ư', '\u{300}') => 'ừ',
        ('a', '\u{323}') => 'ạ',
        ('フ', '\u{309a}') => 'プ',
        _ => return compose_hangul(before, mark),
    })
}

/// Korean syllables are composed by arithmetic (Unicode, section 3.12): leading consonant and vowel, then a final
/// consonant.
fn compose_hangul(before: char, next: char) -> Option<char> {
    const SYLLABLES: u32 = 0xAC00;
    const FINALS: u32 = 28;
    let (before, next) = (u32::from(before), u32::from(next));
    match (before, next) {
        (0x1100..=0x1112, 0x1161..=0x1175) => {
            char::from_u32(SYLLABLES + ((before - 0x1100) * 21 + (next - 0x1161)) * FINALS)
        }
        (SYLLABLES..=0xD7A3, 0x11A8..=0x11C2) if (before - SYLLABLES).is_multiple_of(FINALS) => {
            char::from_u32(before + (next - 0x11A7))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
