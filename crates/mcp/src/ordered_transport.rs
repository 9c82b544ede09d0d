//! A transport that sends messages in call order, so that a cancel never overtakes its request.
//!
//! The library sends each message in a task of its own.

use rmcp::RoleClient;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::sync::oneshot;

/// A transport in which each message waits for the previous one. Not for HTTP, where sending a request lasts until its
/// answer.
pub(super) struct OrderedTransport<T> {
    inner: T,
    /// Closed when the previous message was sent, or will never be.
    previous_sent: Option<oneshot::Receiver<()>>,
}

impl<T> OrderedTransport<T> {
    pub(super) fn new(inner: T) -> Self {
        Self { inner, previous_sent: None }
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for OrderedTransport<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let (sent_guard, sent) = oneshot::channel::<()>();
        let previous_sent = self.previous_sent.replace(sent);
        let sending = self.inner.send(item);
        async move {
            // It is dropped when this send ends, however it ends.
            let _sent_guard = sent_guard;
            if let Some(before) = previous_sent {
                // waits: in a task of the connection, for another one; no run waits here.
                let _ = before.await;
            }
            // waits: in the same task, for the writer.
            sending.await
        }
    }

    fn receive(&mut self) -> impl Future<Output = Option<RxJsonRpcMessage<RoleClient>>> + Send {
        self.inner.receive()
    }

    fn close(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        self.inner.close()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::poll;
    use rmcp::transport::async_rw::AsyncRwTransport;
    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt, BufReader, duplex, split};

    use super::*;

    fn message(message: Value) -> TxJsonRpcMessage<RoleClient> {
        serde_json::from_value(message).unwrap()
    }

    #[tokio::test]
    async fn a_cancel_is_not_written_before_its_request() {
        let (here, there) = duplex(4096);
        let (read, write) = split(here);
        let mut transport = OrderedTransport::new(AsyncRwTransport::new_client(read, write));
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo"}});
        let cancel =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "reason": "x"}});
        let mut request = pin!(transport.send(message(call)));
        let mut cancel = pin!(transport.send(message(cancel)));
        // The tasks may run in any order.
        assert!(poll!(&mut cancel).is_pending());
        request.as_mut().await.unwrap();
        cancel.await.unwrap();
        let mut lines = BufReader::new(there).lines();
        for method in ["tools/call", "notifications/cancelled"] {
            let line: Value = serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
            assert_eq!(line["method"], method);
        }
    }

    #[tokio::test]
    async fn a_message_that_is_given_up_holds_up_none() {
        let (here, there) = duplex(4096);
        let (read, write) = split(here);
        let mut transport = OrderedTransport::new(AsyncRwTransport::new_client(read, write));
        drop(transport.send(message(json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}))));
        transport.send(message(json!({"jsonrpc": "2.0", "id": 2, "method": "ping"}))).await.unwrap();
        let line = BufReader::new(there).lines().next_line().await.unwrap().unwrap();
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["id"], 2);
    }
}
