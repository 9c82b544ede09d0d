//! The HTTP client of servers reached by URL: every request is a task of the server's scope; the session is deleted at
//! the end.
//!
//! The library waits for some requests even after a cancel. Here all requests end with the scope, so an ended server
//! has no open socket. The supervisor deletes the session, because it knows that no request is left.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use quell_scope::{Release, Scope};
use reqwest::StatusCode;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, JsonRpcMessage};
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use rmcp::transport::streamable_http_client::{StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::connect_problem::parse_status;
use super::instance::{InstanceEnd, InstanceShutdown, ServerInstance};
use super::line_limit::MAX_MESSAGE_BYTES;
use super::oauth::ConnectionTokens;

/// How long a server may take to close its session.
const SESSION_CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) type HttpError = StreamableHttpError<reqwest::Error>;

type Headers = HashMap<HeaderName, HeaderValue>;

/// The HTTP client of one server instance. Clones share its session.
#[derive(Debug, Clone)]
pub(super) struct ScopedHttpClient(Arc<ScopedHttpClientInner>);

#[derive(Debug)]
struct ScopedHttpClientInner {
    client: reqwest::Client,
    scope: Scope,
    session: Mutex<Option<McpHttpSession>>,
    /// The tokens of a sign-in, for a server that asks for one.
    tokens: OnceLock<ConnectionTokens>,
}

/// The session that is open at the server, and the data for its requests.
#[derive(Debug)]
struct McpHttpSession {
    id: Arc<str>,
    uri: Arc<str>,
    auth: Option<String>,
    headers: Headers,
}

impl ScopedHttpClient {
    /// All requests are tasks of this scope, which holds nothing else.
    pub(super) fn new(client: reqwest::Client, scope: &Scope) -> Self {
        Self(Arc::new(ScopedHttpClientInner {
            client,
            scope: scope.clone(),
            session: Mutex::default(),
            tokens: OnceLock::new(),
        }))
    }

    /// Sends these tokens with every request from now on.
    pub(super) fn set_tokens(&self, tokens: ConnectionTokens) {
        // It is set once, before the first request.
        let _ = self.0.tokens.set(tokens);
    }

    /// The token of a sign-in, refreshed if needed; else the configured key.
    async fn current_auth(&self, configured: Option<String>) -> Result<Option<String>, HttpError> {
        match self.0.tokens.get() {
            // waits: raced with the scope in `spawn_request`.
            Some(tokens) => Ok(Some(tokens.access_token().await.map_err(HttpError::Auth)?)),
            None => Ok(configured),
        }
    }

    /// Sends a request with the current token. If the server refuses the token, a new one is fetched and the request is
    /// sent once more.
    async fn send_authorized<T, F>(
        &self,
        configured: Option<String>,
        send: impl Fn(Option<String>) -> F,
    ) -> Result<T, HttpError>
    where
        F: Future<Output = Result<T, HttpError>>,
    {
        // waits: raced with the scope in `spawn_request`, as all waits of this function.
        let auth = self.current_auth(configured).await?;
        // waits: raced with the scope in `spawn_request`.
        let answer = send(auth.clone()).await;
        let (Some(tokens), Some(refused), true) =
            (self.0.tokens.get(), auth, answer.as_ref().is_err_and(is_unauthorized))
        else {
            return answer;
        };
        // waits: raced with the scope in `spawn_request`; the refresh goes on after a stop.
        let token = tokens.replace_token(refused).await.map_err(HttpError::Auth)?;
        // waits: raced with the scope in `spawn_request`.
        send(Some(token)).await
    }

    /// Ends every request, waits until none is open, and deletes the session.
    pub(super) async fn cancel_and_close(self, instance: &ServerInstance) -> InstanceEnd {
        self.0.scope.cancel();
        // waits: for tasks that the cancel has ended.
        let _requests = self.0.scope.close().await;
        let session = self.lock_session().take();
        if let Some(McpHttpSession { id, uri, auth, headers }) = session {
            let mut shutdown_changes = instance.watch_shutdown();
            // The token that opened the session may have been replaced since.
            let auth = self.0.tokens.get().and_then(ConnectionTokens::stored_token).or(auth);
            // The answer would change nothing.
            // waits: at most `SESSION_CLOSE_TIMEOUT`, in the supervisor task; a kill of the server ends it earlier.
            tokio::select! {
                biased;
                _ = shutdown_changes.wait_for(|order| *order == InstanceShutdown::Kill) => {}
                _ = timeout(SESSION_CLOSE_TIMEOUT, self.0.client.delete_session(uri, id, auth, headers)) => {}
            }
        }
        InstanceEnd { cause: "its connection ended".to_owned(), how: Release::Closed, ..InstanceEnd::default() }
    }

    /// Runs a request in a task of its own. It ends with the scope, or when its caller stops waiting.
    async fn spawn_request<T, F>(&self, request: F) -> Result<T, HttpError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, HttpError>> + Send + 'static,
    {
        let (mut response_sender, response_receiver) = oneshot::channel();
        let scope = self.0.scope.clone();
        self.0.scope.spawn(async move {
            // Dropping a request closes its connection.
            let result = tokio::select! {
                biased;
                () = scope.cancelled() => return,
                () = response_sender.closed() => return,
                result = request => result,
            };
            // This fails if the caller has left meanwhile.
            let _ = response_sender.send(result);
        });
        // waits: for the task above, which the scope ends.
        response_receiver.await.unwrap_or(Err(HttpError::TransportChannelClosed))
    }

    /// Reads a stream in a task of its own, so that its connection closes with the scope even if nobody reads on.
    fn spawn_stream_reader(&self, mut stream: BoxedSseResponse) -> BoxedSseResponse {
        let (events, mut event_receiver) = mpsc::channel(1);
        let scope = self.0.scope.clone();
        self.0.scope.spawn(async move {
            loop {
                let event = async {
                    // waits: beside the cancel, below.
                    let room = events.reserve().await.ok()?;
                    // waits: in the same future.
                    Some((room, stream.next().await?))
                };
                // An event that is dropped here has no reader any more.
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
        poll_fn(move |task| event_receiver.poll_recv(task)).boxed()
    }

    fn lock_session(&self) -> MutexGuard<'_, Option<McpHttpSession>> {
        self.0.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The transport calls the methods with a size of events, which call these: the size is always the same.
impl StreamableHttpClient for ScopedHttpClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        id: Option<Arc<str>>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let is_initialize = matches!(&message, JsonRpcMessage::Request(request) if matches!(request.request, ClientRequest::InitializeRequest(_)));
        if let (Some(_), Some(session)) = (&id, self.lock_session().as_mut()) {
            session.headers.clone_from(&headers);
        }
        let this = self.clone();
        let request = async move {
            let post = |token: Option<String>| {
                let (this, id) = (this.clone(), id.clone());
                let (uri, message, headers) = (uri.clone(), message.clone(), headers.clone());
                async move {
                    let client = &this.0.client;
                    let sent = client.post_message_with_max_sse_event_size(
                        uri.clone(),
                        message,
                        id,
                        token.clone(),
                        headers.clone(),
                        MAX_MESSAGE_BYTES,
                    );
                    // waits: raced with the scope in `spawn_request`.
                    let answer = sent.await?;
                    if let StreamableHttpPostResponse::Json(_, Some(id)) | StreamableHttpPostResponse::Sse(_, Some(id)) =
                        &answer
                        && is_initialize
                    {
                        let session = McpHttpSession { id: id.as_str().into(), uri, auth: token, headers };
                        *this.lock_session() = Some(session);
                    }
                    Ok(answer)
                }
            };
            // waits: raced with the scope in `spawn_request`.
            let answer = this.send_authorized(auth, post).await?;
            Ok(match answer {
                StreamableHttpPostResponse::Sse(stream, id) => {
                    StreamableHttpPostResponse::Sse(this.spawn_stream_reader(stream), id)
                }
                other => other,
            })
        };
        self.spawn_request(request).await
    }

    /// Does nothing: other requests may still be in progress, and `cancel_and_close` deletes the session.
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
        let this = self.clone();
        let request = async move {
            let get = |token| {
                let (uri, id, last_event, headers) = (uri.clone(), id.clone(), last_event.clone(), headers.clone());
                this.0.client.get_stream_with_max_sse_event_size(uri, id, last_event, token, headers, MAX_MESSAGE_BYTES)
            };
            // waits: raced with the scope in `spawn_request`.
            let stream = this.send_authorized(auth, get).await?;
            Ok(this.spawn_stream_reader(stream))
        };
        self.spawn_request(request).await
    }
}

/// True if the server refused the token (HTTP 401).
fn is_unauthorized(error: &HttpError) -> bool {
    match error {
        HttpError::AuthRequired(_) => true,
        HttpError::HttpStatus(status) => status.status == StatusCode::UNAUTHORIZED.as_u16(),
        HttpError::Client(error) => error.status() == Some(StatusCode::UNAUTHORIZED),
        HttpError::UnexpectedServerResponse(text) => parse_status(text) == Some(StatusCode::UNAUTHORIZED.as_u16()),
        _ => false,
    }
}
