//! Export and import sessions and download backups as byte streams, so that neither side holds a long one in memory.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::stream;
use quell_protocol::SessionKey;
use quell_protocol::api::SessionRow;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE};
use reqwest::{Body, Method, Response};

use super::{ClientError, ClientRequestTimeout, DaemonClient};

const CHUNK_BYTES: usize = 64 * 1024;

/// An answer that is read in chunks.
#[derive(Debug)]
pub struct Download {
    client: DaemonClient,
    response: Response,
    length: Option<u64>,
}

impl Download {
    /// Length in bytes, if the daemon sent it.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// Reads the next chunk; none at the end.
    ///
    /// # Cancel safety
    /// Safe: a chunk that has arrived stays for the next call.
    pub async fn next_chunk(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        let piece = self.response.chunk().await.map_err(|error| self.client.transport_error(&error))?;
        Ok(piece.map(|bytes| bytes.to_vec()))
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct UploadProgress(Arc<AtomicU64>);

impl UploadProgress {
    pub(crate) fn bytes_sent(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl DaemonClient {
    /// Exports a session as lines of JSON.
    pub(crate) async fn export_session(&self, key: &SessionKey) -> Result<Download, ClientError> {
        self.start_download(&["api", "sessions", key.as_str(), "export"]).await
    }

    /// Imports a session from lines of JSON, completely or not at all. `sent` counts the bytes sent so far.
    pub(crate) async fn import_session(
        &self,
        from: impl Read + Send + 'static,
        sent: UploadProgress,
    ) -> Result<SessionRow, ClientError> {
        let request = self.build_request(Method::POST, &["api", "import"], &[])?;
        let body = Body::wrap_stream(stream::iter(UploadChunks { from, sent }));
        let request = request.header(CONTENT_TYPE, "application/x-ndjson").body(body);
        self.fetch_json(request, ClientRequestTimeout::Unlimited).await
    }

    /// Downloads a copy of the whole database; needs the admin scope.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn download_backup(&self) -> Result<Download, ClientError> {
        self.start_download(&["api", "backup"]).await
    }

    async fn start_download(&self, path: &[&str]) -> Result<Download, ClientError> {
        let request = self.build_request(Method::GET, path, &[])?;
        let response = request.send().await.map_err(|error| self.transport_error(&error))?;
        let response = self.check_status(response).await?;
        let length = response.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        Ok(Download { client: self.clone(), response, length })
    }
}

/// Chunks of a file; counts the bytes that it hands out.
struct UploadChunks<R> {
    from: R,
    sent: UploadProgress,
}

impl<R: Read> Iterator for UploadChunks<R> {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut piece = vec![0; CHUNK_BYTES];
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
