//! Files of the page that the build has not compressed: its texts in one language, and in debug builds all. Each is
//! compressed at its first request.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

/// By path and SHA-256 of the content.
#[derive(Default)]
pub(crate) struct GzipCache(Mutex<HashMap<(String, [u8; 32]), Bytes>>);

impl GzipCache {
    pub(crate) fn get_or_compress(&self, path: &str, hash: [u8; 32], data: &[u8]) -> Bytes {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        files.entry((path.to_owned(), hash)).or_insert_with(|| gzip(data)).clone()
    }
}

fn gzip(data: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // Writing into a vector cannot fail.
    let _ = encoder.write_all(data);
    encoder.finish().unwrap_or_default().into()
}
