//! Slack's way of writing down what people write (formatting text for app surfaces): `<@U1>`, `<#C1|general>`, `<!here>`,
//! `<https://example.org|label>`, and three escapes. Pure, in one pass.

use std::borrow::Cow;

/// The text as a person reads it, without the mention of the account with which it begins.
pub(super) fn readable(text: &str, own: &str) -> String {
    let mut rest = text.trim();
    while let Some(after) = mention(rest, own) {
        rest = after.trim_start_matches([',', ':']).trim_start();
    }
    let mut readable = String::with_capacity(rest.len());
    while let Some(at) = rest.find('<') {
        readable.push_str(&unescaped(&rest[..at]));
        rest = &rest[at + 1..];
        match inner_end(rest) {
            Some(end) => {
                push_reference(&mut readable, &rest[..end]);
                rest = &rest[end + 1..];
            }
            None => readable.push('<'),
        }
    }
    readable.push_str(&unescaped(rest));
    readable.trim().to_owned()
}

/// True when a text mentions the account.
pub(super) fn names(text: &str, own: &str) -> bool {
    text.match_indices("<@").any(|(at, _)| mention(&text[at..], own).is_some())
}

/// Slack: escaping text. Three characters are escaped, and nothing else.
pub(super) fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
}

/// What follows a mention of the account with which a text begins.
fn mention<'a>(text: &'a str, own: &str) -> Option<&'a str> {
    let rest = text.strip_prefix("<@")?.strip_prefix(own)?;
    match rest.strip_prefix('|') {
        Some(label) => label[inner_end(label)?..].strip_prefix('>'),
        None => rest.strip_prefix('>'),
    }
}

/// Where what stands between `<` and `>` ends. Within, there is neither of them, and no line break.
fn inner_end(text: &str) -> Option<usize> {
    text.find(['<', '>', '\n']).filter(|end| text[*end..].starts_with('>'))
}

/// Writes what stands between `<` and `>` as words.
fn push_reference(readable: &mut String, inner: &str) {
    let (target, label) = inner.split_once('|').map_or((inner, None), |(target, label)| (target, Some(label)));
    let label = label.filter(|label| !label.is_empty());
    match target.as_bytes().first() {
        Some(mark @ (b'@' | b'#')) => {
            readable.push(char::from(*mark));
            readable.push_str(&unescaped(label.unwrap_or(&target[1..]).trim_start_matches(char::from(*mark))));
        }
        Some(b'!') => match label {
            Some(label) => readable.push_str(&unescaped(label)),
            None => {
                readable.push('@');
                readable.push_str(&unescaped(&target[1..]));
            }
        },
        _ => push_link(readable, target, label),
    }
}

fn push_link(readable: &mut String, target: &str, label: Option<&str>) {
    let (target, label) = (unescaped(target), label.map(unescaped));
    // Slack labels what a person typed without its scheme.
    let is_bare = |label: &str| {
        target.strip_suffix(label).is_some_and(|scheme| scheme.is_empty() || scheme.ends_with(['/', ':']))
    };
    match label {
        Some(label) if !is_bare(&label) => readable.push_str(&format!("{label} ({target})")),
        Some(_) | None => readable.push_str(&target),
    }
}
