//! Listens for the notifications of other nodes, on a connection and a thread of its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use quell_protocol::NodeName;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::settings::Connector;
use crate::StoreError;

/// Until the next attempt after a connection was lost.
const RECONNECT_DELAY: Duration = Duration::from_millis(250);

/// The payload of a notification for all nodes.
const EVERY_NODE: &str = "*";

/// Begins the payload that says that a letter is stored for a node. No node name contains a colon.
const LETTER_PREFIX: &str = "letter:";

pub(super) fn letter_notification(node: &str) -> String {
    format!("{LETTER_PREFIX}{node}")
}

pub(super) struct Listener {
    wakeups: watch::Receiver<u64>,
    letters: watch::Receiver<u64>,
    closing: CancellationToken,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Listener {
    pub(super) fn start(connector: Arc<Connector>, node: NodeName) -> Result<Self, StoreError> {
        let (wake, wakeups) = watch::channel(0);
        let (notify_letter, letters) = watch::channel(0);
        let closing = CancellationToken::new();
        let failed = |error: std::io::Error| StoreError::Unwritable(format!("cannot start a thread: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let closed = closing.clone();
        let body = move || {
            runtime.block_on(async {
                let listening = listen_forever(&connector, &node, &wake, &notify_letter);
                tokio::select! { () = listening => {}, () = closed.cancelled() => {} }
            });
        };
        let thread = std::thread::Builder::new().name("quell-store-n".to_owned()).spawn(body).map_err(failed)?;
        Ok(Self { wakeups, letters, closing, thread: Mutex::new(Some(thread)) })
    }

    pub(super) fn wakeups(&self) -> watch::Receiver<u64> {
        self.wakeups.clone()
    }

    pub(super) fn letter_notifications(&self) -> watch::Receiver<u64> {
        self.letters.clone()
    }

    pub(super) fn close(&self) {
        self.closing.cancel();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that listens to the database panicked");
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

async fn listen_forever(
    connector: &Connector,
    node: &NodeName,
    wake: &watch::Sender<u64>,
    notify_letter: &watch::Sender<u64>,
) {
    let own_letters = letter_notification(node.as_str());
    loop {
        let mut notified = |payload: &str| {
            if payload == EVERY_NODE || payload == node.as_str() {
                wake.send_modify(|count| *count += 1);
            }
            if payload == EVERY_NODE || payload == own_letters {
                notify_letter.send_modify(|count| *count += 1);
            }
        };
        if let Err(error) = connector.listen("LISTEN quell", &mut notified).await {
            tracing::debug!(%error, "the connection for notifications is lost");
        }
        tokio::time::sleep(RECONNECT_DELAY).await;
    }
}
