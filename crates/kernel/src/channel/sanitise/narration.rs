//! Lines at the beginning of a reply by which a model says, in English, what it is about to do.
//!
//! It also catches sentences that are part of an answer ("I'll explain ..."), which is why it is off unless asked for.

/// How such lines begin.
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

/// None of them is longer, the character behind it included.
const LONGEST: usize = 24;

/// A whole reply without such lines; none if nothing but them is there.
pub(super) fn dropped(text: &str) -> Option<&str> {
    let rest = behind(text);
    (!rest.trim().is_empty()).then_some(rest)
}

/// What may be shown of a reply that is being written: a line that can still become narration is held back.
pub(super) fn dropped_so_far(text: &str) -> &str {
    let rest = behind(text);
    let is_last = !rest.contains('\n');
    let begun = plain(rest.trim_start());
    if is_last && BEGINNINGS.iter().any(|beginning| beginning.starts_with(&begun)) { "" } else { rest }
}

fn behind(text: &str) -> &str {
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find('\n').map_or(rest.len(), |at| at + 1);
        let line = rest[..end].trim();
        if !line.is_empty() && !is_narration(line) {
            break;
        }
        rest = &rest[end..];
    }
    rest
}

fn is_narration(line: &str) -> bool {
    let line = plain(line);
    BEGINNINGS
        .iter()
        .any(|beginning| line.strip_prefix(beginning).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric)))
}

/// The beginning of a line as the table writes it.
fn plain(line: &str) -> String {
    let lower = line.chars().take(LONGEST).map(|c| if c == '’' { '\'' } else { c });
    lower.flat_map(char::to_lowercase).collect()
}
