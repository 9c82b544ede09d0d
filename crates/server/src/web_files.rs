//! The files of the page. The program contains them, compressed; debug builds read them from the disk at each request.

use std::borrow::Cow;
use std::io::Read as _;

use flate2::read::GzDecoder;
use sha2::{Digest as _, Sha256};

pub(crate) struct WebFile {
    content: WebFileContent,
    /// SHA-256 of the content as it is kept.
    pub(crate) hash: [u8; 32],
}

enum WebFileContent {
    Plain(Vec<u8>),
    #[cfg(page_in_program)]
    Gzip(&'static [u8]),
}

impl WebFile {
    #[cfg(page_in_program)]
    pub(crate) fn read(path: &str) -> Option<Self> {
        /// Path below `web/`, and the file in gzip.
        const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/page_files.rs"));
        let (_, data) = FILES.iter().find(|(name, _)| *name == path)?;
        Some(Self { content: WebFileContent::Gzip(data), hash: Sha256::digest(data).into() })
    }

    #[cfg(not(page_in_program))]
    pub(crate) fn read(path: &str) -> Option<Self> {
        let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../web"));
        let is_served = crate::page_files::list(folder).ok()?.iter().any(|name| name == path);
        is_served.then(|| std::fs::read(folder.join(path)).ok().map(Self::plain)).flatten()
    }

    pub(crate) fn plain(data: Vec<u8>) -> Self {
        Self { hash: Sha256::digest(&data).into(), content: WebFileContent::Plain(data) }
    }

    pub(crate) fn data(&self) -> Cow<'_, [u8]> {
        match &self.content {
            WebFileContent::Plain(data) => Cow::Borrowed(data),
            #[cfg(page_in_program)]
            WebFileContent::Gzip(data) => Cow::Owned(decompress(data)),
        }
    }

    /// The file in gzip, if it is kept so.
    pub(crate) fn compressed(&self) -> Option<&'static [u8]> {
        match self.content {
            WebFileContent::Plain(_) => None,
            #[cfg(page_in_program)]
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
    fn other_files_are_not_read() {
        assert!(WebFile::read("index.html").is_some());
        for path in
            ["", "js", "js/", "package.json", "test/run.test.mjs", "../Cargo.toml", "js/../index.html", "/etc/hostname"]
        {
            assert!(WebFile::read(path).is_none(), "{path}");
        }
    }
}
