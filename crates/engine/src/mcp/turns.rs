//! A transport over pipes that sends in the order in which it was told to. The library gives each message a task of its own,
//! so that a cancel could otherwise be written before its request.

use rmcp::RoleClient;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::sync::oneshot;

/// A transport in which each message waits for the one before. Not for HTTP, where sending a request lasts until its answer.
pub(super) struct InTurn<T> {
    inner: T,
    /// Closed when the message before was sent, or will never be.
    before: Option<oneshot::Receiver<()>>,
}

impl<T> InTurn<T> {
    pub(super) fn new(inner: T) -> Self {
        Self { inner, before: None }
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for InTurn<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let (turn, next) = oneshot::channel::<()>();
        let before = self.before.replace(next);
        let sending = self.inner.send(item);
        async move {
            // It lasts as long as this sending does, however that ends.
            let _turn = turn;
            if let Some(before) = before {
                // waits: in a task of the connection, for another one; no run waits here.
                let _ = before.await;
            }
            // waits: the same, for the writer.
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
        let mut transport = InTurn::new(AsyncRwTransport::new_client(read, write));
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo"}});
        let cancel =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "reason": "x"}});
        let mut request = pin!(transport.send(message(call)));
        let mut cancel = pin!(transport.send(message(cancel)));
        // Their tasks run in any order.
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
        let mut transport = InTurn::new(AsyncRwTransport::new_client(read, write));
        drop(transport.send(message(json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}))));
        transport.send(message(json!({"jsonrpc": "2.0", "id": 2, "method": "ping"}))).await.unwrap();
        let line = BufReader::new(there).lines().next_line().await.unwrap().unwrap();
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["id"], 2);
    }
}
