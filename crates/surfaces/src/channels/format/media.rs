//! Files that an answer names: `[IMAGE:/path/or/url]` and the like, which models write where a network can show files.

use std::ops::Range;

use pulldown_cmark::{Event, Parser, Tag, TagEnd};
use quell_protocol::{Attachment, AttachmentKind};

/// The longest path or URL.
const LONGEST: usize = 4096;

/// The words before the colon.
const KINDS: [(&str, AttachmentKind); 5] = [
    ("IMAGE", AttachmentKind::Image),
    ("AUDIO", AttachmentKind::Audio),
    ("VIDEO", AttachmentKind::Video),
    ("FILE", AttachmentKind::File),
    ("DOCUMENT", AttachmentKind::File),
];

/// The files that an answer names, each once.
#[must_use]
pub fn sources(reply: &str) -> Vec<String> {
    let mut sources: Vec<String> = Vec::new();
    for (_, file) in markers(reply) {
        if !sources.contains(&file.source) {
            sources.push(file.source);
        }
    }
    sources
}

/// Takes the markers of some sources out of an answer: what is left of the text, and the files in their order. In code they are
/// words.
#[must_use]
pub fn media(reply: &str, is_sent: impl Fn(&str) -> bool) -> (String, Vec<Attachment>) {
    let mut found = markers(reply);
    found.retain(|(_, file)| is_sent(&file.source));
    if found.is_empty() {
        return (reply.to_owned(), Vec::new());
    }
    let (mut text, mut files, mut at) = (String::with_capacity(reply.len()), Vec::new(), 0);
    for (range, attachment) in found {
        text.push_str(&reply[at..range.start]);
        at = range.end;
        let alone = ends_line(&text) && reply[at..].trim_start_matches([' ', '\t']).starts_with(['\n', '\r']);
        if alone {
            // Its line goes with it.
            at += reply[at..].find('\n').map_or(0, |end| end + 1);
        } else if text.ends_with([' ', '\n']) || text.is_empty() {
            at += reply[at..].len() - reply[at..].trim_start_matches(' ').len();
        }
        files.push(attachment);
    }
    text.push_str(&reply[at..]);
    (text.trim().to_owned(), files)
}

fn ends_line(text: &str) -> bool {
    let line = text.trim_end_matches([' ', '\t']);
    line.is_empty() || line.ends_with('\n')
}

fn markers(reply: &str) -> Vec<(Range<usize>, Attachment)> {
    let mut found = Vec::new();
    if !reply.contains(':') {
        return found;
    }
    let code = code(reply);
    let mut at = 0;
    while let Some(start) = reply[at..].find('[').map(|start| at + start) {
        at = start + 1;
        let escaped = reply[..start].ends_with('\\');
        // Code is in the order of the text.
        let in_code =
            code[..code.partition_point(|range| range.start <= start)].last().is_some_and(|range| start < range.end);
        if escaped || in_code {
            continue;
        }
        if let Some((length, attachment)) = marker(&reply[start..]) {
            at = start + length;
            found.push((start..at, attachment));
        }
    }
    found
}

/// The marker at the beginning of a text, and its length.
fn marker(text: &str) -> Option<(usize, Attachment)> {
    let inside = text.strip_prefix('[')?;
    let (kind, source) =
        KINDS.iter().find_map(|(word, kind)| Some((*kind, inside.strip_prefix(word)?.strip_prefix(':')?)))?;
    let end = source[..source.floor_char_boundary(LONGEST)].find(['[', ']', '\n'])?;
    let length = text.len() - source.len() + end + 1;
    // `[FILE: x](y)` is a link.
    if !source[end..].starts_with(']') || text[length..].starts_with('(') {
        return None;
    }
    let source = source[..end].trim();
    let plain = !source.is_empty() && !source.chars().any(char::is_control);
    plain.then(|| {
        (length, Attachment { kind, source: source.to_owned(), name: name(source), media_type: None, bytes: None })
    })
}

/// The last part of a path or URL.
fn name(source: &str) -> Option<String> {
    let path = match source.split_once("://") {
        Some((_, rest)) => rest.split(['?', '#']).next()?.split_once('/')?.1,
        None => source,
    };
    path.rsplit('/').next().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// Where code stands, blocks and in lines.
fn code(reply: &str) -> Vec<Range<usize>> {
    let (mut ranges, mut inside) = (Vec::new(), false);
    for (event, range) in Parser::new(reply).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(_)) => {
                inside = true;
                ranges.push(range);
            }
            Event::End(TagEnd::CodeBlock) => inside = false,
            Event::Code(_) if !inside => ranges.push(range),
            _ => {}
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(reply: &str) -> (String, Vec<(AttachmentKind, String)>) {
        let (text, files) = media(reply, |_| true);
        (text, files.into_iter().map(|file| (file.kind, file.source)).collect())
    }

    #[test]
    fn markers_become_attachments() {
        let reply = "Here it is:\n\n[IMAGE:/data/cat.png]\n\nand [DOCUMENT: https://example.org/a/b.pdf?x=1] too. [AUDIO:v.ogg]";
        let (text, files) = media(reply, |_| true);
        assert_eq!(text, "Here it is:\n\n\nand too.");
        let names: Vec<_> = files.iter().map(|file| (file.kind, file.source.as_str(), file.name.as_deref())).collect();
        assert_eq!(
            names,
            [
                (AttachmentKind::Image, "/data/cat.png", Some("cat.png")),
                (AttachmentKind::File, "https://example.org/a/b.pdf?x=1", Some("b.pdf")),
                (AttachmentKind::Audio, "v.ogg", Some("v.ogg")),
            ]
        );
        assert_eq!(sources("[VIDEO:a.mp4]"), (String::new(), vec![(AttachmentKind::Video, "a.mp4".to_owned())]));
    }

    #[test]
    fn a_marker_of_a_file_that_is_not_sent_stays_in_the_text() {
        let reply = "[FILE:a]\n[FILE:b] [IMAGE:a]";
        assert_eq!(super::sources(reply), ["a", "b"]);
        let (text, files) = media(reply, |source| source == "a");
        assert_eq!((text.as_str(), files.len()), ("[FILE:b]", 2));
        assert_eq!(media(reply, |_| false), (reply.to_owned(), Vec::new()));
    }

    #[test]
    fn what_only_looks_like_one_stays_in_the_text() {
        for text in [
            "Write `[IMAGE:x.png]` there.",
            "```\n[FILE:a]\n```",
            "    [FILE:a]",
            "\\[IMAGE:x]",
            "[IMAGE:]",
            "[IMAGE: ]",
            "[IMAGE:a\nb]",
            "[FILE:a](https://example.org)",
            "[image:x] [IMAGES:x] [IMAGE]",
            "[IMAGE:never closed",
        ] {
            assert_eq!(media(text, |_| true), (text.to_owned(), Vec::new()));
        }
    }

    #[test]
    fn many_brackets_take_no_time() {
        let text = "[IMAGE:".repeat(100_000);
        assert_eq!(media(&text, |_| true).1, []);
    }
}
