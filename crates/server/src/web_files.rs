//! The files of the page. Release builds contain them, compressed; debug builds read them from the disk at each request,
//! so that an edit shows at once.

use std::borrow::Cow;
use std::io::Read as _;

use flate2::read::GzDecoder;
use sha2::{Digest as _, Sha256};

include!(concat!(env!("OUT_DIR"), "/web_files.rs"));

pub(crate) struct WebFile {
    content: WebFileContent,
    /// SHA-256 of the content as it is kept.
    pub(crate) hash: [u8; 32],
}

enum WebFileContent {
    Plain(Vec<u8>),
    #[cfg_attr(debug_assertions, expect(dead_code, reason = "read from the disk in debug builds"))]
    Gzip(&'static [u8]),
}

impl WebFile {
    #[cfg(not(debug_assertions))]
    pub(crate) fn read(path: &str) -> Option<Self> {
        let (_, data) = FILES.iter().find(|(name, _)| *name == path)?;
        Some(Self { content: WebFileContent::Gzip(data), hash: Sha256::digest(data).into() })
    }

    #[cfg(debug_assertions)]
    pub(crate) fn read(path: &str) -> Option<Self> {
        const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web");
        FILES.iter().find(|(name, _)| *name == path)?;
        Some(Self::plain(std::fs::read(std::path::Path::new(FOLDER).join(path)).ok()?))
    }

    pub(crate) fn plain(data: Vec<u8>) -> Self {
        Self { hash: Sha256::digest(&data).into(), content: WebFileContent::Plain(data) }
    }

    pub(crate) fn data(&self) -> Cow<'_, [u8]> {
        match &self.content {
            WebFileContent::Plain(data) => Cow::Borrowed(data),
            WebFileContent::Gzip(data) => Cow::Owned(decompress(data)),
        }
    }

    /// The file in gzip, if it is kept so.
    pub(crate) fn compressed(&self) -> Option<&'static [u8]> {
        match self.content {
            WebFileContent::Plain(_) => None,
            WebFileContent::Gzip(data) => Some(data),
        }
    }
}

/// Decompresses data that the build has compressed.
pub(crate) fn decompress(gzip: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    // Cannot fail: reading from memory, and the data is whole.
    let _ = GzDecoder::new(gzip).read_to_end(&mut data);
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_contains_the_files_of_the_page() {
        let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../web"));
        assert!(FILES.iter().any(|(path, _)| *path == "index.html"));
        for (path, data) in FILES {
            assert!(decompress(data) == std::fs::read(folder.join(path)).unwrap(), "{path}");
        }
    }

    #[test]
    fn other_files_are_not_read() {
        for path in
            ["", "js", "js/", "package.json", "test/run.test.mjs", "../Cargo.toml", "js/../index.html", "/etc/hostname"]
        {
            assert!(WebFile::read(path).is_none(), "{path}");
        }
    }
}
