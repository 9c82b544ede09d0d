//! Strips leading English narration such as "Let me check" when the policy asks for it.
//!
//! This also catches sentences that are part of an answer ("I'll explain ..."). So it is off by default.

/// Beginnings of narration lines, in lower case.
const BEGINNINGS: [&str; 16] = [
    "let me",
    "i'll",
    "i will",
    "i am going to",
    "i'm going to",
    "searching",
    "looking up",
    "fetching",
    "checking",
    "using the",
    "using my",
    "one moment",
    "hold on",
    "just a moment",
    "give me a moment",
    "allow me to",
];

/// Longer than each of [`BEGINNINGS`] with the character behind it.
const MAX_BEGINNING_CHARS: usize = 24;

/// Strips narration from a complete reply. Returns `None` if nothing else would remain.
pub(super) fn strip_narration(text: &str) -> Option<&str> {
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find('\n').map_or(rest.len(), |at| at + 1);
        let line = rest[..end].trim();
        if !line.is_empty() && !is_narration(line) {
            return Some(rest);
        }
        rest = &rest[end..];
    }
    None
}

fn is_narration(line: &str) -> bool {
    let start = line.chars().take(MAX_BEGINNING_CHARS).map(|c| if c == '’' { '\'' } else { c });
    let start: String = start.flat_map(char::to_lowercase).collect();
    BEGINNINGS
        .iter()
        .any(|beginning| start.strip_prefix(beginning).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric)))
}
