//! Pictures in what people say: the markers that stand for them in a text, and the kinds that models take.
//!
//! A marker is `[IMAGE:source]`: a file, a `data:` URL or an `https:` URL. It reads no file; whoever can, hands in the bytes.

mod base64;

use std::fmt;

/// The largest picture that is shown, in bytes; the Messages API of Anthropic takes no larger one.
pub const LARGEST: usize = 5 * 1024 * 1024;
/// How much a marker counts at the most where the length of a text decides: about 1,600 tokens, which is what a large picture
/// costs, however long the data in the text.
const WEIGHT: usize = 6400;

const OPEN: &str = "[IMAGE:";
/// Nothing that a source holds: so a marker is found in one pass, and one that is not closed swallows no text.
const BORDERS: [char; 4] = ['[', ']', '\n', '\r'];

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// What was written.
    Text(&'a str),
    /// What a marker names.
    Picture(&'a str),
}

/// Where a picture is, by the source in its marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source<'a> {
    /// An absolute path.
    File(&'a str),
    /// A `data:` URL, which holds it.
    Data(&'a str),
    /// An `https:` URL; the provider of the model fetches it.
    Url(&'a str),
    /// Nothing of that.
    Unknown,
}

/// A picture as providers take it. Its data is in no print.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    media_type: &'static str,
    base64: String,
}

/// Why a picture is not shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unseen {
    /// It is not there, or cannot be read.
    Gone,
    /// It is outside of the folders that the agent's pictures come from.
    Elsewhere,
    /// It is larger than [`LARGEST`].
    TooLarge,
    /// It is neither PNG, JPEG, GIF nor WebP.
    NoPicture,
    /// The pictures after it are as much as one request takes.
    NoRoom,
}

/// The pieces of a text, in order. What looks like a marker and names nothing is text.
#[must_use]
pub fn pieces(text: &str) -> Vec<Piece<'_>> {
    let (mut pieces, mut rest, mut from) = (Vec::new(), text, 0);
    while let Some(at) = rest.get(from..).and_then(|rest| rest.find(OPEN)).map(|at| from + at) {
        let start = at + OPEN.len();
        let tail = rest.get(start..).unwrap_or_default();
        let end = tail.find(BORDERS).filter(|end| tail.get(*end..).is_some_and(|tail| tail.starts_with(']')));
        let Some(source) = end.and_then(|end| tail.get(..end)).filter(|source| !source.trim().is_empty()) else {
            from = start;
            continue;
        };
        if let Some(before) = rest.get(..at).filter(|before| !before.is_empty()) {
            pieces.push(Piece::Text(before));
        }
        pieces.push(Piece::Picture(source.trim()));
        rest = tail.get(source.len() + 1..).unwrap_or_default();
        from = 0;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest));
    }
    pieces
}

/// What the markers of a text name, in order.
pub fn sources(text: &str) -> impl Iterator<Item = &str> {
    pieces(text).into_iter().filter_map(|piece| match piece {
        Piece::Text(_) => None,
        Piece::Picture(source) => Some(source),
    })
}

/// About how many bytes of a text count where its length decides.
#[must_use]
pub fn weight(text: &str) -> usize {
    if !text.contains(OPEN) {
        return text.len();
    }
    let of_piece = |piece| match piece {
        Piece::Text(text) => text.len(),
        Piece::Picture(source) => (source.len() + OPEN.len() + 1).min(WEIGHT),
    };
    pieces(text).into_iter().map(of_piece).sum()
}

impl<'a> Source<'a> {
    /// What kind of source a marker names.
    #[must_use]
    pub fn of(source: &'a str) -> Self {
        let plain = !source.contains(|c: char| c.is_whitespace() || c.is_control());
        if source.starts_with('/') {
            Self::File(source)
        } else if source.starts_with("data:") {
            Self::Data(source)
        } else if source.len() > "https://".len() && source.starts_with("https://") && plain {
            Self::Url(source)
        } else {
            Self::Unknown
        }
    }
}

impl Picture {
    /// The picture that these bytes are, by what they begin with: no name and no sender is believed.
    ///
    /// # Errors
    /// [`Unseen`] says why it is none that can be shown.
    pub fn of(bytes: &[u8]) -> Result<Self, Unseen> {
        let media_type = media_type(bytes).ok_or(Unseen::NoPicture)?;
        if bytes.len() > LARGEST {
            Err(Unseen::TooLarge)
        } else {
            Ok(Self { media_type, base64: base64::encode(bytes) })
        }
    }

    /// The picture in a `data:` URL.
    ///
    /// # Errors
    /// As [`Picture::of`].
    pub fn of_data_url(url: &str) -> Result<Self, Unseen> {
        let (head, data) = url.split_once(',').ok_or(Unseen::NoPicture)?;
        if !head.ends_with(";base64") {
            return Err(Unseen::NoPicture);
        }
        Self::of_base64(data).map(|(picture, _)| picture)
    }

    /// The picture that this base64 is, with its bytes.
    ///
    /// # Errors
    /// As [`Picture::of`].
    pub fn of_base64(data: &str) -> Result<(Self, Vec<u8>), Unseen> {
        // Each four signs are three bytes: what is too long need not be decoded.
        if data.len() / 4 * 3 > LARGEST + 3 {
            return Err(Unseen::TooLarge);
        }
        let bytes = base64::decode(data).ok_or(Unseen::NoPicture)?;
        Ok((Self::of(&bytes)?, bytes))
    }

    /// Such as `image/png`.
    #[must_use]
    pub fn media_type(&self) -> &'static str {
        self.media_type
    }

    /// Its bytes in base64.
    #[must_use]
    pub fn base64(&self) -> &str {
        &self.base64
    }
}

/// PNG (RFC 2083, 3.1), JPEG (start of image and the next marker), GIF (87a and 89a), WebP (RIFF container, RFC 9649, 2.4).
fn media_type(bytes: &[u8]) -> Option<&'static str> {
    Some(match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => "image/png",
        [0xff, 0xd8, 0xff, ..] => "image/jpeg",
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => "image/gif",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "image/webp",
        _ => return None,
    })
}

impl Unseen {
    /// What stands in the picture's place. The words are fixed, so that they are the same in each request.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Gone => "(a picture stood here; it cannot be read any more)",
            Self::Elsewhere => "(a picture stood here; it lies where this agent sees none)",
            Self::TooLarge => "(a picture stood here; it is too large)",
            Self::NoPicture => "(a picture stood here; it is of a kind that cannot be shown)",
            Self::NoRoom => "(a picture stood here; there is no room for it beside the others)",
        }
    }
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Picture({}, {} signs)", self.media_type, self.base64.len())
    }
}

#[cfg(test)]
mod tests;
