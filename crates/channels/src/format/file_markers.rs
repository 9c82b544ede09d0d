//! Find `[IMAGE:path]` markers in a reply and turn them into attachments.

use std::ops::Range;

use pulldown_cmark::{Event, Parser, Tag, TagEnd};
use quell_protocol::{Attachment, AttachmentKind};

/// Longest path or URL, in bytes.
const MAX_SOURCE_BYTES: usize = 4096;

/// The words before the colon.
const MARKER_KINDS: [(&str, AttachmentKind); 5] = [
    ("IMAGE", AttachmentKind::Image),
    ("AUDIO", AttachmentKind::Audio),
    ("VIDEO", AttachmentKind::Video),
    ("FILE", AttachmentKind::File),
    ("DOCUMENT", AttachmentKind::File),
];

/// The word before the colon for a kind of file.
#[must_use]
pub fn marker_word(kind: AttachmentKind) -> &'static str {
    MARKER_KINDS.iter().find(|(_, other)| *other == kind).map_or("FILE", |(word, _)| word)
}

/// The distinct sources of all markers in a reply, in order.
#[must_use]
pub fn attachment_sources(reply: &str) -> Vec<String> {
    let mut sources: Vec<String> = Vec::new();
    for (_, file) in find_markers(reply) {
        if !sources.contains(&file.source) {
            sources.push(file.source);
        }
    }
    sources
}

/// Removes the markers of the sources accepted by `is_sent` from a reply. Returns the remaining text and the
/// attachments in order. Markers in code stay text.
#[must_use]
pub fn extract_attachments(reply: &str, is_sent: impl Fn(&str) -> bool) -> (String, Vec<Attachment>) {
    let mut found = find_markers(reply);
    found.retain(|(_, file)| is_sent(&file.source));
    if found.is_empty() {
        return (reply.to_owned(), Vec::new());
    }
    let (mut text, mut files, mut at) = (String::with_capacity(reply.len()), Vec::new(), 0);
    for (range, attachment) in found {
        text.push_str(&reply[at..range.start]);
        at = range.end;
        let alone = is_at_line_start(&text) && reply[at..].trim_start_matches([' ', '\t']).starts_with(['\n', '\r']);
        if alone {
            // Remove its whole line.
            at += reply[at..].find('\n').map_or(0, |end| end + 1);
        } else if text.ends_with([' ', '\n']) || text.is_empty() {
            at += reply[at..].len() - reply[at..].trim_start_matches(' ').len();
        }
        files.push(attachment);
    }
    text.push_str(&reply[at..]);
    (text.trim().to_owned(), files)
}

fn is_at_line_start(text: &str) -> bool {
    let line = text.trim_end_matches([' ', '\t']);
    line.is_empty() || line.ends_with('\n')
}

fn find_markers(reply: &str) -> Vec<(Range<usize>, Attachment)> {
    let mut found = Vec::new();
    if !reply.contains(':') {
        return found;
    }
    let code = code_ranges(reply);
    let mut at = 0;
    while let Some(start) = reply[at..].find('[').map(|start| at + start) {
        at = start + 1;
        let escaped = reply[..start].ends_with('\\');
        // The ranges of code are sorted.
        let in_code =
            code[..code.partition_point(|range| range.start <= start)].last().is_some_and(|range| start < range.end);
        if escaped || in_code {
            continue;
        }
        if let Some((length, attachment)) = parse_marker(&reply[start..]) {
            at = start + length;
            found.push((start..at, attachment));
        }
    }
    found
}

/// Parses the marker at the beginning of a text. Returns it with its length in bytes.
fn parse_marker(text: &str) -> Option<(usize, Attachment)> {
    let inside = text.strip_prefix('[')?;
    let (kind, source) =
        MARKER_KINDS.iter().find_map(|(word, kind)| Some((*kind, inside.strip_prefix(word)?.strip_prefix(':')?)))?;
    let end = source[..source.floor_char_boundary(MAX_SOURCE_BYTES)].find(['[', ']', '\n'])?;
    let length = text.len() - source.len() + end + 1;
    // `[FILE: x](y)` is a link.
    if !source[end..].starts_with(']') || text[length..].starts_with('(') {
        return None;
    }
    let source = source[..end].trim();
    let is_valid = !source.is_empty() && !source.chars().any(char::is_control);
    is_valid.then(|| {
        (length, Attachment { kind, source: source.to_owned(), name: file_name(source), media_type: None, bytes: None })
    })
}

/// The last part of a path or URL.
fn file_name(source: &str) -> Option<String> {
    let path = match source.split_once("://") {
        Some((_, rest)) => rest.split(['?', '#']).next()?.split_once('/')?.1,
        None => source,
    };
    path.rsplit('/').next().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// Ranges of code blocks and inline code.
fn code_ranges(reply: &str) -> Vec<Range<usize>> {
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

    fn extracted_sources(reply: &str) -> (String, Vec<(AttachmentKind, String)>) {
        let (text, files) = extract_attachments(reply, |_| true);
        (text, files.into_iter().map(|file| (file.kind, file.source)).collect())
    }

    #[test]
    fn markers_become_attachments() {
        let reply = "Here it is:\n\n[IMAGE:/data/cat.png]\n\nand [DOCUMENT: https://example.org/a/b.pdf?x=1] too. [AUDIO:v.ogg]";
        let (text, files) = extract_attachments(reply, |_| true);
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
        assert_eq!(
            extracted_sources("[VIDEO:a.mp4]"),
            (String::new(), vec![(AttachmentKind::Video, "a.mp4".to_owned())])
        );
    }

    #[test]
    fn a_marker_of_a_file_that_is_not_sent_stays_in_the_text() {
        let reply = "[FILE:a]\n[FILE:b] [IMAGE:a]";
        assert_eq!(attachment_sources(reply), ["a", "b"]);
        let (text, files) = extract_attachments(reply, |source| source == "a");
        assert_eq!((text.as_str(), files.len()), ("[FILE:b]", 2));
        assert_eq!(extract_attachments(reply, |_| false), (reply.to_owned(), Vec::new()));
    }

    #[test]
    fn text_that_only_looks_like_a_marker_stays() {
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
            assert_eq!(extract_attachments(text, |_| true), (text.to_owned(), Vec::new()));
        }
    }

    #[test]
    fn many_brackets_take_no_time() {
        let text = "[IMAGE:".repeat(100_000);
        assert_eq!(extract_attachments(&text, |_| true).1, []);
    }
}
