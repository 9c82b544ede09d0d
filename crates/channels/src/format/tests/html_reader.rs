//! Strict HTML parser for checking output; shares no code with the writers.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HtmlDialect {
    /// Bot API: Formatting options, HTML style.
    Telegram,
    /// `org.matrix.custom.html`.
    Matrix,
}

const TELEGRAM_TAGS: &str = "b i u s a code pre blockquote tg-spoiler";
const MATRIX_TAGS: &str = "p strong em del u code pre ul ol li blockquote h1 h2 h3 h4 h5 h6 table tr th td a hr br";

/// Parses HTML and returns its text. Unknown, unbalanced or misplaced tags and unescaped characters are errors.
pub(super) fn parse_html_text(html: &str, dialect: HtmlDialect) -> Result<String, String> {
    let (mut words, mut open, mut rest) = (String::new(), Vec::<String>::new(), html);
    while let Some(at) = rest.find(['<', '&', '>']) {
        words.push_str(&rest[..at]);
        rest = &rest[at..];
        match rest.as_bytes()[0] {
            b'>' => return Err(format!("a lone > in {html}")),
            b'&' => {
                let known = [("&amp;", '&'), ("&lt;", '<'), ("&gt;", '>'), ("&quot;", '"')];
                let entity = known.iter().find(|(entity, _)| rest.starts_with(entity));
                let (entity, sign) = entity.ok_or_else(|| format!("a lone & in {html}"))?;
                words.push(*sign);
                rest = &rest[entity.len()..];
            }
            _ => {
                let end = rest.find('>').ok_or_else(|| format!("an open tag in {html}"))?;
                check_tag(&rest[1..end], dialect, &mut open).map_err(|error| format!("{error} in {html}"))?;
                rest = &rest[end + 1..];
            }
        }
    }
    words.push_str(rest);
    if open.is_empty() { Ok(words) } else { Err(format!("{open:?} are not closed in {html}")) }
}

fn check_tag(tag: &str, dialect: HtmlDialect, open: &mut Vec<String>) -> Result<(), String> {
    if let Some(name) = tag.strip_prefix('/') {
        return if open.pop().as_deref() == Some(name) {
            Ok(())
        } else {
            Err(format!("{name} is closed and was not open"))
        };
    }
    let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
    let known = if dialect == HtmlDialect::Telegram { TELEGRAM_TAGS } else { MATRIX_TAGS };
    if !known.split(' ').any(|other| other == name) {
        return Err(format!("{name} is no tag"));
    }
    let fits = match (name, attributes.split_once('=')) {
        (_, None) => attributes.is_empty() && name != "a",
        ("a", Some(("href", url))) => {
            ["\"http://", "\"https://", "\"mailto:"].iter().any(|scheme| url.to_lowercase().starts_with(scheme))
        }
        ("code", Some(("class", class))) => {
            class.starts_with("\"language-") && open.last().is_some_and(|outer| outer == "pre")
        }
        ("ol", Some(("start", number))) => number.trim_matches('"').parse::<u64>().is_ok(),
        _ => false,
    };
    if !fits {
        return Err(format!("{attributes} does not belong to {name}"));
    }
    let within = |outer: &str| open.iter().any(|name| name == outer);
    let top = open.last().map(String::as_str);
    let wrong = match (dialect, name) {
        (_, "li") => !matches!(top, Some("ul" | "ol")),
        (_, "tr") => top != Some("table"),
        (_, "td" | "th") => top != Some("tr"),
        (HtmlDialect::Telegram, "code") => open.iter().any(|name| !matches!(name.as_str(), "pre" | "blockquote")),
        (HtmlDialect::Telegram, "blockquote") => within("blockquote"),
        (HtmlDialect::Telegram, _) => within("code") || within("pre"),
        (HtmlDialect::Matrix, _) => within("code"),
    };
    if wrong {
        return Err(format!("{name} does not stand in {open:?}"));
    }
    if !matches!(name, "hr" | "br") {
        open.push(name.to_owned());
    }
    Ok(())
}
