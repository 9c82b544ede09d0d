//! A server that is reached by URL: its requests, each a task of the server's scope, and the session that it opened.
//!
//! The library waits for some requests without regard to a hang-up. Here they end with the scope, whoever waits for them, so
//! that a server which is over has no socket open; and the session is closed by the one who knows that nothing goes on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, JsonRpcMessage};
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use rmcp::transport::streamable_http_client::{StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::slot::{Order, Over, Slot};
use super::start::MAX_MESSAGE;
use crate::scope::Scope;

/// How long a server may take to close its session.
const FAREWELL: Duration = Duration::from_millis(500);

/// What an HTTP request can fail with.
pub(super) type HttpError = StreamableHttpError<reqwest::Error>;

type Headers = HashMap<HeaderName, HeaderValue>;

/// A server that is reached by URL. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Site(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    client: reqwest::Client,
    scope: Scope,
    session: Mutex<Option<Session>>,
}

/// A session that is open at the server, and what its requests carry.
#[derive(Debug)]
struct Session {
    id: Arc<str>,
    uri: Arc<str>,
    auth: Option<String>,
    headers: Headers,
}

impl Site {
    /// Its requests are tasks of this scope, which holds nothing else.
    pub(super) fn new(client: reqwest::Client, scope: &Scope) -> Self {
        Self(Arc::new(Inner { client, scope: scope.clone(), session: Mutex::default() }))
    }

    /// Ends every request, waits until none is open, and closes the session.
    pub(super) async fn end(self, slot: &Slot) -> Over {
        self.0.scope.cancel();
        // waits: for nothing but tasks that the cancel has ended.
        let _requests = self.0.scope.close().await;
        let session = self.session().take();
        if let Some(Session { id, uri, auth, headers }) = session {
            let mut orders = slot.orders();
            // The answer says nothing that could still be acted on.
            // waits: no longer than `FAREWELL`, in the task of the server, which every order to kill hurries on.
            tokio::select! {
                biased;
                _ = orders.wait_for(|order| *order == Order::Kill) => {}
                _ = timeout(FAREWELL, self.0.client.delete_session(uri, id, auth, headers)) => {}
            }
        }
        Over { cause: "its connection ended".to_owned(), how: "closed", ..Over::default() }
    }

    /// Makes a request in a task of its own. It ends with the scope, or when nobody waits for its answer.
    async fn within<T, F>(&self, request: F) -> Result<T, HttpError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, HttpError>> + Send + 'static,
    {
        let (mut answered, answer) = oneshot::channel();
        let scope = self.0.scope.clone();
        self.0.scope.spawn(async move {
            // A request that is dropped closes its connection.
            let result = tokio::select! {
                biased;
                () = scope.cancelled() => return,
                () = answered.closed() => return,
                result = request => result,
            };
            // Nobody takes it who left meanwhile.
            let _ = answered.send(result);
        });
        // waits: for the task above, which the scope ends.
        answer.await.unwrap_or(Err(HttpError::TransportChannelClosed))
    }

    /// Reads a stream in a task of its own, so that its connection is closed with the scope also when nobody reads on.
    fn flowing(&self, mut stream: BoxedSseResponse) -> BoxedSseResponse {
        let (events, mut read) = mpsc::channel(1);
        let scope = self.0.scope.clone();
        self.0.scope.spawn(async move {
            loop {
                let event = async {
                    // waits: beside the cancel, below.
                    let room = events.reserve().await.ok()?;
                    // waits: the same; it is one future.
                    Some((room, stream.next().await?))
                };
                // What is dropped here is not read by anyone any more.
                tokio::select! {
                    biased;
                    () = scope.cancelled() => return,
                    () = events.closed() => return,
                    event = event => match event {
                        Some((room, event)) => room.send(event),
                        None => return,
                    },
                }
            }
        });
        poll_fn(move |task| read.poll_recv(task)).boxed()
    }

    fn session(&self) -> MutexGuard<'_, Option<Session>> {
        self.0.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamableHttpClient for Site {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        id: Option<Arc<str>>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        // waits: for a task of the server's scope, as all waits of this file.
        self.post_message_with_max_sse_event_size(uri, message, id, auth, headers, MAX_MESSAGE).await
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        id: Option<Arc<str>>,
        auth: Option<String>,
        headers: Headers,
        max: usize,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let is_hello = matches!(&message, JsonRpcMessage::Request(request) if matches!(request.request, ClientRequest::InitializeRequest(_)));
        if let (Some(_), Some(session)) = (&id, self.session().as_mut()) {
            session.headers.clone_from(&headers);
        }
        let site = self.clone();
        let request = async move {
            let session = |id| Session { id, uri: uri.clone(), auth: auth.clone(), headers: headers.clone() };
            let client = &site.0.client;
            // waits: raced with the scope in `within`.
            let answer = client
                .post_message_with_max_sse_event_size(uri.clone(), message, id, auth.clone(), headers.clone(), max)
                .await?;
            if let StreamableHttpPostResponse::Json(_, Some(id)) | StreamableHttpPostResponse::Sse(_, Some(id)) =
                &answer
                && is_hello
            {
                *site.session() = Some(session(id.as_str().into()));
            }
            Ok(match answer {
                StreamableHttpPostResponse::Sse(stream, id) => {
                    StreamableHttpPostResponse::Sse(site.flowing(stream), id)
                }
                other => other,
            })
        };
        self.within(request).await
    }

    /// Not yet: other requests may still be on their way, and who ends the server closes its session.
    async fn delete_session(&self, _: Arc<str>, _: Arc<str>, _: Option<String>, _: Headers) -> Result<(), HttpError> {
        Ok(())
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        id: Option<Arc<str>>,
        last_event: Option<String>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<BoxedSseResponse, HttpError> {
        // waits: as `post_message`.
        self.get_stream_with_max_sse_event_size(uri, id, last_event, auth, headers, MAX_MESSAGE).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        id: Option<Arc<str>>,
        last_event: Option<String>,
        auth: Option<String>,
        headers: Headers,
        max: usize,
    ) -> Result<BoxedSseResponse, HttpError> {
        let site = self.clone();
        let request = async move {
            let client = &site.0.client;
            // waits: raced with the scope in `within`.
            let stream = client.get_stream_with_max_sse_event_size(uri, id, last_event, auth, headers, max).await?;
            Ok(site.flowing(stream))
        };
        self.within(request).await
    }
}
