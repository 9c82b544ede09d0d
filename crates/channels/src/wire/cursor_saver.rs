//! Save the position of a listener after everything before it is stored; a newer position replaces a waiting one.

use std::future::pending;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::network::InboundSink;

/// Saves one cursor after the other.
pub(crate) struct CursorSaver<'a> {
    sink: &'a dyn InboundSink,
    saving: Option<BoxFuture<'a, String>>,
    pending_cursor: Option<String>,
}

impl<'a> CursorSaver<'a> {
    pub(crate) fn new(sink: &'a dyn InboundSink) -> Self {
        Self { sink, saving: None, pending_cursor: None }
    }

    /// Sets the next cursor to save. Everything before it must have been delivered to the sink.
    pub(crate) fn set_cursor(&mut self, cursor: String) {
        self.pending_cursor = Some(cursor);
    }

    /// Waits until one cursor is saved, and returns it. Never returns if there is none to save.
    ///
    /// # Cancel safety
    /// Safe: the next call continues a save that was begun.
    pub(crate) async fn save_next(&mut self) -> String {
        if self.saving.is_none()
            && let Some(cursor) = self.pending_cursor.take()
        {
            let sink = self.sink;
            let saving = async move {
                sink.wait_until_stored().await;
                sink.save_cursor(cursor.clone()).await;
                cursor
            };
            self.saving = Some(saving.boxed());
        }
        let Some(saving) = &mut self.saving else { return pending().await };
        let saved = saving.await;
        self.saving = None;
        saved
    }
}
