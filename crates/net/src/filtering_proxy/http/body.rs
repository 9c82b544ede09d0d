//! The body of an answer: a text of the proxy, or what a server sends.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};

/// The connection to a server. It moves the bytes of request and answer while it is polled. `None` when it has ended.
pub(super) struct UpstreamConnection(Option<Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>>);

impl UpstreamConnection {
    pub(super) fn new(connection: impl Future<Output = hyper::Result<()>> + Send + 'static) -> Self {
        Self(Some(Box::pin(connection)))
    }

    /// Moves bytes until the connection ends. Its error reaches the request or the body, too.
    ///
    /// # Cancel safety
    /// Safe: it goes on where it was.
    pub(super) async fn drive(&mut self) {
        std::future::poll_fn(|cx| self.poll(cx)).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(open) = &mut self.0 {
            ready!(open.as_mut().poll(cx)).ok();
            self.0 = None;
        }
        Poll::Ready(())
    }
}

pub(super) enum ProxyBody {
    Text(Option<Bytes>),
    Server { body: Incoming, connection: UpstreamConnection },
}

impl ProxyBody {
    pub(super) fn empty() -> Self {
        Self::Text(None)
    }

    pub(super) fn from_text(text: String) -> Self {
        Self::Text(Some(text.into()))
    }

    /// The connection lives as long as the body: no task of its own, and nothing that outlives the client.
    pub(super) fn from_server(body: Incoming, connection: UpstreamConnection) -> Self {
        Self::Server { body, connection }
    }
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        match &mut *self {
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Server { body, connection } => {
                let _ = connection.poll(cx);
                Pin::new(body).poll_frame(cx)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_none(),
            Self::Server { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
            Self::Server { body, .. } => body.size_hint(),
        }
    }
}
