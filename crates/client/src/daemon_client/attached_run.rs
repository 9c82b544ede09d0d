//! Send a message whose run lasts no longer than this connection: when the client dies, the daemon stops the run.

use std::time::Duration;

use quell_protocol::api::{SendRequest, StopAnswer};
use quell_protocol::{RunId, SessionKey};
use reqwest::Method;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use tokio::time::timeout;

use super::run_events::RunEventStream;
use super::{ClientError, DaemonClient, REQUEST_TIMEOUT};

/// Longer than any run.
const UNLIMITED: Duration = Duration::from_secs(365 * 24 * 3600);

pub enum AttachedSend {
    /// The events of the message's run. If this is dropped before `run.ended`, the daemon stops the run.
    Following(RunEventStream),
    /// The message was a stop text.
    Stopped(StopAnswer),
}

impl DaemonClient {
    /// Sends a message with this run id and follows its run. A lost connection is opened again to follow the stop.
    ///
    /// # Errors
    /// No run is left at work: the message was refused, or the daemon noticed that the connection broke.
    ///
    /// # Cancel safety
    /// If dropped, the daemon stops the run, also if it was not accepted yet.
    pub async fn send_attached(
        &self,
        session: &SessionKey,
        run: &RunId,
        message: &SendRequest,
    ) -> Result<AttachedSend, ClientError> {
        let message = SendRequest { idempotency_key: Some(run.clone()), ..message.clone() };
        let path = ["api", "sessions", session.as_str(), "runs"];
        let request = self.build_request(Method::POST, &path, &[("stopOnDisconnect", "1")])?;
        let request = request.header(ACCEPT, "text/event-stream").json(&message);
        let sent = timeout(REQUEST_TIMEOUT, async {
            let response = request.send().await.map_err(|error| self.transport_error(&error))?;
            self.check_status(response).await
        });
        let timed_out = |_| ClientError::ConnectionLost {
            url: self.base_url().to_string(),
            cause: "it did not answer in time".into(),
        };
        let mut response = sent.await.map_err(timed_out)??;
        let is_stream =
            response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        if !is_stream {
            let body = self.read_body(&mut response).await?;
            let answer = serde_json::from_slice(&body);
            return answer
                .map(AttachedSend::Stopped)
                .map_err(|error| self.unexpected_answer(format!("its JSON is invalid: {error}")));
        }
        let mut follower = self.run_event_follower(run, 0);
        if self.is_on_unix_socket() {
            // The connection is open as long as the daemon is there; giving it up would stop the run, as after Ctrl-Z.
            follower.idle_timeout = UNLIMITED;
        }
        Ok(AttachedSend::Following(follower.on_connection(response).into_stream()))
    }
}
