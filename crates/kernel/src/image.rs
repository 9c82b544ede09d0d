//! Finds image markers in text, and checks that image data has a format that models accept.
//!
//! A marker is `[IMAGE:source]` with a file, a `data:` URL or an `https:` URL. This module reads no files; the caller
//! passes in the bytes.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Maximum size of an image in bytes: the Messages API of Anthropic accepts no larger one.
pub const MAX_IMAGE_BYTES: usize = 5 * 1024 * 1024;
/// Maximum size that a marker counts in estimates of text size: about 1,600 tokens, the cost of a large image, however
/// long the data in the marker is.
const MAX_MARKER_SIZE: usize = 6400;

/// Stands in a text for people where an image was.
const IMAGE_WORD: &str = "(a picture)";

const MARKER_START: &str = "[IMAGE:";
/// Characters that a source cannot contain. So markers are found in one pass, and an unclosed marker does not swallow
/// text.
const MARKER_DELIMITERS: [char; 4] = ['[', ']', '\n', '\r'];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkedText<'a> {
    Text(&'a str),
    Image(&'a str),
}

/// Location of an image, parsed from the source in its marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageSource<'a> {
    /// An absolute path.
    File(&'a str),
    /// A `data:` URL, which contains the image.
    Data(&'a str),
    /// An `https:` URL; the provider of the model fetches it.
    Url(&'a str),
    Unknown,
}

/// An image in the form that providers accept. `Debug` does not print its data.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    media_type: &'static str,
    base64: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageUnavailable {
    /// The file is missing or cannot be read.
    Unreadable,
    /// The file is outside of the folders that the agent may read images from.
    OutsideImageFolders,
    TooLarge,
    /// The data is not PNG, JPEG, GIF or WebP.
    UnsupportedFormat,
    /// The images after this one use up the limit of one request.
    OverRequestLimit,
}

/// Splits a text into pieces, in order. A marker with an empty source is text.
pub fn split_markers(text: &str) -> Vec<MarkedText<'_>> {
    let (mut pieces, mut rest, mut from) = (Vec::new(), text, 0);
    while let Some(at) = rest.get(from..).and_then(|rest| rest.find(MARKER_START)).map(|at| from + at) {
        let start = at + MARKER_START.len();
        let tail = rest.get(start..).unwrap_or_default();
        let end = tail.find(MARKER_DELIMITERS).filter(|end| tail.get(*end..).is_some_and(|tail| tail.starts_with(']')));
        let Some(source) = end.and_then(|end| tail.get(..end)).filter(|source| !source.trim().is_empty()) else {
            from = start;
            continue;
        };
        if let Some(before) = rest.get(..at).filter(|before| !before.is_empty()) {
            pieces.push(MarkedText::Text(before));
        }
        pieces.push(MarkedText::Image(source.trim()));
        rest = tail.get(source.len() + 1..).unwrap_or_default();
        from = 0;
    }
    if !rest.is_empty() {
        pieces.push(MarkedText::Text(rest));
    }
    pieces
}

/// The text with a word in place of each image that it contains itself.
pub fn without_image_data(text: &str) -> String {
    let mut short = String::with_capacity(text.len().min(1024));
    for piece in split_markers(text) {
        match piece {
            MarkedText::Text(text) => short.push_str(text),
            MarkedText::Image(source) if matches!(ImageSource::parse(source), ImageSource::Data(_)) => {
                short.push_str(IMAGE_WORD);
            }
            MarkedText::Image(source) => short.extend([MARKER_START, source, "]"]),
        }
    }
    short
}

/// The sources of all markers in a text, in order.
pub fn image_sources(text: &str) -> impl Iterator<Item = &str> {
    split_markers(text).into_iter().filter_map(|piece| match piece {
        MarkedText::Text(_) => None,
        MarkedText::Image(source) => Some(source),
    })
}

/// Estimated size of a text in bytes. An image in it counts `MAX_MARKER_SIZE` at most.
pub fn estimate_text_size(text: &str) -> usize {
    if !text.contains(MARKER_START) {
        return text.len();
    }
    let piece_size = |piece| match piece {
        MarkedText::Text(text) => text.len(),
        MarkedText::Image(source) => (source.len() + MARKER_START.len() + 1).min(MAX_MARKER_SIZE),
    };
    split_markers(text).into_iter().map(piece_size).sum()
}

impl<'a> ImageSource<'a> {
    pub fn parse(source: &'a str) -> Self {
        let is_plain = !source.contains(|c: char| c.is_whitespace() || c.is_control());
        if source.starts_with('/') {
            Self::File(source)
        } else if source.starts_with("data:") {
            Self::Data(source)
        } else if source.len() > "https://".len() && source.starts_with("https://") && is_plain {
            Self::Url(source)
        } else {
            Self::Unknown
        }
    }
}

impl Image {
    /// Detects the format from the first bytes; a file name or a declared media type is not trusted.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ImageUnavailable> {
        let media_type = detect_media_type(bytes).ok_or(ImageUnavailable::UnsupportedFormat)?;
        if bytes.len() > MAX_IMAGE_BYTES {
            Err(ImageUnavailable::TooLarge)
        } else {
            Ok(Self { media_type, base64: STANDARD.encode(bytes) })
        }
    }

    pub fn from_data_url(url: &str) -> Result<Self, ImageUnavailable> {
        let (head, data) = url.split_once(',').ok_or(ImageUnavailable::UnsupportedFormat)?;
        if !head.ends_with(";base64") {
            return Err(ImageUnavailable::UnsupportedFormat);
        }
        Self::from_base64(data).map(|(image, _)| image)
    }

    /// Decodes an image from base64, and returns its bytes, too.
    pub fn from_base64(data: &str) -> Result<(Self, Vec<u8>), ImageUnavailable> {
        // Four characters encode three bytes: text that is too long need not be decoded.
        if data.len() / 4 * 3 > MAX_IMAGE_BYTES + 3 {
            return Err(ImageUnavailable::TooLarge);
        }
        let bytes = STANDARD.decode(data).map_err(|_| ImageUnavailable::UnsupportedFormat)?;
        Ok((Self::from_bytes(&bytes)?, bytes))
    }

    pub fn media_type(&self) -> &'static str {
        self.media_type
    }

    /// The bytes of the image in base64.
    pub fn base64(&self) -> &str {
        &self.base64
    }
}

/// True for data in a format that models accept.
pub(crate) fn is_image(bytes: &[u8]) -> bool {
    detect_media_type(bytes).is_some()
}

/// Recognises PNG (RFC 2083, 3.1), JPEG (start of image and the next marker), GIF (87a and 89a), and WebP (RIFF
/// container, RFC 9649, 2.4).
fn detect_media_type(bytes: &[u8]) -> Option<&'static str> {
    Some(match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => "image/png",
        [0xff, 0xd8, 0xff, ..] => "image/jpeg",
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => "image/gif",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "image/webp",
        _ => return None,
    })
}

impl ImageUnavailable {
    /// Text that replaces the image. It is fixed, so that it is the same in each request.
    pub fn placeholder(self) -> &'static str {
        match self {
            Self::Unreadable => "(a picture stood here; it cannot be read any more)",
            Self::OutsideImageFolders => "(a picture stood here; it lies where this agent sees none)",
            Self::TooLarge => "(a picture stood here; it is too large)",
            Self::UnsupportedFormat => "(a picture stood here; it is of a kind that cannot be shown)",
            Self::OverRequestLimit => "(a picture stood here; there is no room for it beside the others)",
        }
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({}, {} characters)", self.media_type, self.base64.len())
    }
}

#[cfg(test)]
mod tests;
