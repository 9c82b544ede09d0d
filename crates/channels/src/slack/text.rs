//! Convert Slack's message syntax into readable text.
//!
//! The syntax (formatting text for app surfaces): `<@U1>`, `<#C1|general>`, `<!here>`, `<https://example.org|label>`,
//! and three escapes. Pure, in one pass.

/// The readable text, without the mentions of the account at its beginning.
pub(super) fn to_readable_text(text: &str, own_id: &str) -> String {
    let mut rest = text.trim();
    while let Some(after) = strip_mention(rest, own_id) {
        rest = after.trim_start_matches([',', ':']).trim_start();
    }
    let mut readable = String::with_capacity(rest.len());
    while let Some(at) = rest.find('<') {
        readable.push_str(&unescape(&rest[..at]));
        rest = &rest[at + 1..];
        match reference_end(rest) {
            Some(end) => {
                push_reference(&mut readable, &rest[..end]);
                rest = &rest[end + 1..];
            }
            None => readable.push('<'),
        }
    }
    readable.push_str(&unescape(rest));
    readable.trim().to_owned()
}

pub(super) fn mentions_account(text: &str, own_id: &str) -> bool {
    text.match_indices("<@").any(|(at, _)| strip_mention(&text[at..], own_id).is_some())
}

/// Slack: escaping text. Exactly three characters are escaped.
pub(super) fn unescape(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

/// Slack: escaping text, for a text without markup.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The rest of a text that begins with a mention of the account.
fn strip_mention<'a>(text: &'a str, own_id: &str) -> Option<&'a str> {
    let rest = text.strip_prefix("<@")?.strip_prefix(own_id)?;
    match rest.strip_prefix('|') {
        Some(label) => label[reference_end(label)?..].strip_prefix('>'),
        None => rest.strip_prefix('>'),
    }
}

/// The end of a reference in `<` and `>`. It contains neither of them and no line break.
fn reference_end(text: &str) -> Option<usize> {
    text.find(['<', '>', '\n']).filter(|end| text[*end..].starts_with('>'))
}

/// Appends the readable text of a reference in `<` and `>`.
fn push_reference(readable: &mut String, inner: &str) {
    let (target, label) = inner.split_once('|').map_or((inner, None), |(target, label)| (target, Some(label)));
    let label = label.filter(|label| !label.is_empty());
    match target.as_bytes().first() {
        Some(prefix @ (b'@' | b'#')) => {
            readable.push(char::from(*prefix));
            readable.push_str(&unescape(label.unwrap_or(&target[1..]).trim_start_matches(char::from(*prefix))));
        }
        Some(b'!') => match label {
            Some(label) => readable.push_str(&unescape(label)),
            None => {
                readable.push('@');
                readable.push_str(&unescape(&target[1..]));
            }
        },
        _ => push_link(readable, target, label),
    }
}

fn push_link(readable: &mut String, target: &str, label: Option<&str>) {
    let (target, label) = (unescape(target), label.map(unescape));
    // Slack adds a label if a person typed the address without its scheme.
    let is_bare = |label: &str| {
        target.strip_suffix(label).is_some_and(|scheme| scheme.is_empty() || scheme.ends_with(['/', ':']))
    };
    match label {
        Some(label) if !is_bare(&label) => readable.push_str(&format!("{label} ({target})")),
        Some(_) | None => readable.push_str(&target),
    }
}
