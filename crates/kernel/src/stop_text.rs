//! Recognises messages that as a whole ask to stop, in many languages.
//!
//! Only whole messages count, after normalisation and without words of politeness: a sentence that contains a stop word is
//! a message for the model.
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
    "停下",
    "停",
    "停一下",
    "快停",
    "暂停",
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
    "멈춤",
    "멈추",
    "그만",
    "중지",
    "중단",
    "정지",
    "스톱",
];

/// What may stand before a stop phrase: politeness and haste. Words of alphabets end with their space.
const PREFIXES: &[&str] = &[
    "please ",
    "bitte ",
    "por favor ",
    "per favore ",
    "s'il te plaît ",
    "s'il vous plaît ",
    "пожалуйста ",
    "请",
    "麻烦",
    "拜托",
    "快",
    "马上",
    "立即",
    "立刻",
    "제발",
    "좀",
    "빨리",
    "당장",
    "お願い",
];

/// What may stand behind one: politeness, and the endings with which a noun asks.
const SUFFIXES: &[&str] = &[
    " please",
    " now",
    " bitte",
    " jetzt",
    " por favor",
    " per favore",
    " s'il te plaît",
    " s'il vous plaît",
    " пожалуйста",
    "吧",
    "一下",
    "啊",
    "해",
    "요",
    "줘",
    "라",
    "좀",
    "주세요",
    "주십시오",
    "세요",
    "십시오",
    "하세요",
    "하십시오",
    "하자",
    "して",
    "してください",
    "して下さい",
    "ください",
    "下さい",
    "くれ",
];

/// Politest forms have three: `제발 중지해 주세요`.
const MAX_AFFIXES: usize = 4;

/// Longer than every stop phrase, in bytes. Normalisation of a longer message ends early.
const MAX_PHRASE_BYTES: usize = 64;

/// True when the whole message asks to stop.
pub fn is_stop_phrase(text: &str) -> bool {
    let text = text.trim_end_matches(|c: char| c.is_whitespace() || is_trailing_punctuation(c));
    normalise_phrase(text).is_some_and(|phrase| {
        // `/중지` is `/stop`. Words of English keep theirs: `/exit` may be a command of a surface.
        let bare = phrase.strip_prefix('/').filter(|rest| !rest.starts_with(|c: char| c.is_ascii()));
        STOP_PHRASES.contains(&phrase.as_str()) || is_polite_stop(bare.unwrap_or(&phrase))
    })
}

/// Takes words of politeness off until a stop phrase is left.
fn is_polite_stop(phrase: &str) -> bool {
    let mut rest = phrase;
    for _ in 0..=MAX_AFFIXES {
        if STOP_PHRASES.contains(&rest) && rest != "/stop" {
            return true;
        }
        let shorter = PREFIXES.iter().find_map(|prefix| rest.strip_prefix(prefix));
        // The longest first: `해 주세요` is two endings, `하세요` is one.
        let suffixes = SUFFIXES.iter().filter_map(|suffix| rest.strip_suffix(suffix));
        match shorter.or_else(|| suffixes.min_by_key(|left| left.len())) {
            Some(left) => rest = left.trim(),
            None => return false,
        }
    }
    false
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
        // Chinese, Japanese and Korean are written with spaces or without.
        if normal.ends_with(|last| !is_east_asian(last)) {
            normal.push(' ');
        }
        for c in word.chars().flat_map(char::to_lowercase) {
            push_composed(&mut normal, simplified(plain_apostrophe(c)));
            if normal.len() > MAX_PHRASE_BYTES {
                return None;
            }
        }
    }
    Some(normal)
}

fn is_east_asian(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7a3}' | '\u{1100}'..='\u{11ff}')
}

/// The simplified form of a traditional Chinese character that the phrases have.
fn simplified(c: char) -> char {
    match c {
        '來' => '来',
        '暫' => '暂',
        '終' => '终',
        '斷' => '断',
        '請' => '请',
        '煩' => '烦',
        '馬' => '马',
        '託' | '托' => '托',
        other => other,
    }
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
