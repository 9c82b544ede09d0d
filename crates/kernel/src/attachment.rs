//! Files that a client sends with its message, in base64: their limits.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::image::{MAX_IMAGE_BYTES, is_image};

/// Maximum number of files of one message.
pub const MAX_ATTACHMENTS: usize = 10;
/// Maximum size of a file that is no picture, in bytes.
pub const MAX_FILE_BYTES: usize = 8 * 1024 * 1024;
/// Maximum size of all files of one message, in bytes. They are in memory until their run
/// begins and saves them, or ends.
pub const MAX_TOTAL_BYTES: usize = 12 * 1024 * 1024;

/// The text of a message that has files alone.
pub const FILES_ONLY_TEXT: &str = "(files, without words)";

/// A file that came with a message. `Debug` does not print its content.
#[derive(Clone, PartialEq, Eq)]
pub struct MessageFile {
    /// The name that the sender gave it.
    pub name: Option<String>,
    pub kind: MessageFileKind,
    pub bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageFileKind {
    /// A picture in a format that models accept, recognised by its first bytes.
    Image,
    Other,
}

/// Why a file is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttachmentProblem {
    #[error("its content is not base64")]
    NotBase64,
    #[error("it is empty")]
    Empty,
    #[error("it has {0} bytes; a picture may have {MAX_IMAGE_BYTES}, and another file {MAX_FILE_BYTES}")]
    TooLarge(usize),
    #[error("it is declared as a picture, and is neither PNG, JPEG, GIF nor WebP")]
    UnknownPicture,
}

impl MessageFile {
    /// Decodes a file. `content` is base64, also as a `data:` URL; `media_type` is what the sender declares.
    ///
    /// # Errors
    /// [`AttachmentProblem`] if models cannot be given this file.
    pub fn decode(name: Option<String>, media_type: Option<&str>, content: &str) -> Result<Self, AttachmentProblem> {
        let content = content.trim();
        let data = match content.split_once(',') {
            Some((head, data)) if head.starts_with("data:") && head.ends_with(";base64") => data,
            Some(_) | None => content,
        };
        // Four characters encode three bytes: text that is too long need not be decoded.
        let estimate = data.len() / 4 * 3;
        if estimate > MAX_FILE_BYTES + 3 {
            return Err(AttachmentProblem::TooLarge(estimate));
        }
        let bytes = STANDARD.decode(data).map_err(|_| AttachmentProblem::NotBase64)?;
        let kind = if is_image(&bytes) { MessageFileKind::Image } else { MessageFileKind::Other };
        let limit = match kind {
            MessageFileKind::Image => MAX_IMAGE_BYTES,
            MessageFileKind::Other => MAX_FILE_BYTES,
        };
        let is_declared_picture = media_type.is_some_and(|media_type| media_type.starts_with("image/"));
        match bytes.len() {
            0 => Err(AttachmentProblem::Empty),
            size if size > limit => Err(AttachmentProblem::TooLarge(size)),
            _ if kind == MessageFileKind::Other && is_declared_picture => Err(AttachmentProblem::UnknownPicture),
            _ => Ok(Self { name, kind, bytes }),
        }
    }
}

impl std::fmt::Debug for MessageFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MessageFile({:?}, {:?}, {} bytes)", self.name, self.kind, self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

    fn decode(media_type: Option<&str>, bytes: &[u8]) -> Result<MessageFile, AttachmentProblem> {
        MessageFile::decode(None, media_type, &STANDARD.encode(bytes))
    }

    #[test]
    fn a_picture_is_recognised_by_its_bytes() {
        for media_type in [Some("image/png"), Some("image/jpeg"), Some("application/octet-stream"), None] {
            assert_eq!(decode(media_type, PNG).expect("a picture").kind, MessageFileKind::Image);
        }
        let url = format!("data:image/png;base64,{}", STANDARD.encode(PNG));
        assert_eq!(MessageFile::decode(None, None, &url).expect("a picture").bytes, PNG);
        assert_eq!(decode(Some("text/plain"), b"a, b").expect("a file").kind, MessageFileKind::Other);
    }

    #[test]
    fn what_no_model_can_be_given_is_refused_with_a_reason() {
        assert_eq!(MessageFile::decode(None, None, "a*b"), Err(AttachmentProblem::NotBase64));
        assert_eq!(MessageFile::decode(None, None, ""), Err(AttachmentProblem::Empty));
        assert_eq!(decode(Some("image/heic"), b"ftypheic"), Err(AttachmentProblem::UnknownPicture));
        let mut picture = PNG.to_vec();
        picture.resize(MAX_IMAGE_BYTES + 1, 0);
        assert_eq!(decode(None, &picture), Err(AttachmentProblem::TooLarge(MAX_IMAGE_BYTES + 1)));
        picture.pop();
        assert!(decode(None, &picture).is_ok());
        let file = vec![b'x'; MAX_FILE_BYTES + 1];
        assert_eq!(decode(None, &file), Err(AttachmentProblem::TooLarge(MAX_FILE_BYTES + 1)));
        let long = "A".repeat(MAX_FILE_BYTES * 2);
        assert!(matches!(MessageFile::decode(None, None, &long), Err(AttachmentProblem::TooLarge(_))));
    }
}
