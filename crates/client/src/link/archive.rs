//! Sessions out and in, and copies of everything, in pieces: neither side has to hold a long one whole.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::stream;
use quell_protocol::SessionKey;
use quell_protocol::api::SessionRow;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE};
use reqwest::{Body, Method, Response};

use super::{Link, LinkError, Span};

/// Bytes that are read from a file at a time.
const PIECE: usize = 64 * 1024;

/// An answer that comes in pieces.
#[derive(Debug)]
pub struct Download {
    link: Link,
    response: Response,
    length: Option<u64>,
}

impl Download {
    /// How long it is, when the daemon said so.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// The next piece; none at the end.
    ///
    /// # Errors
    /// [`LinkError::Lost`] when the connection broke before the end.
    ///
    /// # Cancel safety
    /// Safe: a piece that has arrived stays for the next call.
    pub async fn piece(&mut self) -> Result<Option<Vec<u8>>, LinkError> {
        let piece = self.response.chunk().await.map_err(|error| self.link.broken(&error))?;
        Ok(piece.map(|bytes| bytes.to_vec()))
    }
}

/// How much of an upload has been sent.
#[derive(Debug, Clone, Default)]
pub struct Sent(Arc<AtomicU64>);

impl Sent {
    /// In bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Link {
    /// A session as lines of JSON.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn export_session(&self, key: &SessionKey) -> Result<Download, LinkError> {
        self.download(&["api", "sessions", key.as_str(), "export"]).await
    }

    /// Takes in a session from its lines. `sent` says how far it is.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it may leave the session imported, whole or not at all.
    pub async fn import_session(&self, from: impl Read + Send + 'static, sent: Sent) -> Result<SessionRow, LinkError> {
        let request = self.request(Method::POST, &["api", "import"], &[])?;
        let body = Body::wrap_stream(stream::iter(Pieces { from, sent }));
        self.ask(request.header(CONTENT_TYPE, "application/x-ndjson").body(body), Span::Open).await
    }

    /// A copy of the whole database, for an admin.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn backup(&self) -> Result<Download, LinkError> {
        self.download(&["api", "backup"]).await
    }

    async fn download(&self, path: &[&str]) -> Result<Download, LinkError> {
        let request = self.request(Method::GET, path, &[])?;
        let response = request.send().await.map_err(|error| self.broken(&error))?;
        let response = self.accepted(response).await?;
        let length = response.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        Ok(Download { link: self.clone(), response, length })
    }
}

/// The pieces of a file.
struct Pieces<R> {
    from: R,
    sent: Sent,
}

impl<R: Read> Iterator for Pieces<R> {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut piece = vec![0; PIECE];
        match self.from.read(&mut piece) {
            Ok(0) => None,
            Ok(read) => {
                piece.truncate(read);
                self.sent.0.fetch_add(read as u64, Ordering::Relaxed);
                Some(Ok(piece))
            }
            Err(error) => Some(Err(error)),
        }
    }
}
