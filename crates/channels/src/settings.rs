//! Hold the channel settings in force; replacing them notifies subscribers.
//!
//! The binary replaces them when the configuration file changes. A reader gets all of them as they were at one moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use quell_kernel::routing::ModelRouter;
use tokio::sync::watch;

use super::config::{ChannelConfig, MessageSettings};

#[derive(Debug, Clone, Default)]
pub struct FlowSettings {
    pub channels: BTreeMap<String, ChannelConfig>,
    pub messages: MessageSettings,
    /// Decides which model answers a message.
    pub routing: ModelRouter,
}

#[derive(Debug, Clone, Default)]
pub struct VersionedFlowSettings {
    /// 0 at the start, plus one for each replacement.
    pub generation: u64,
    pub settings: FlowSettings,
}

/// The settings in force. Clones share them.
#[derive(Debug, Clone)]
pub struct LiveSettings(Arc<watch::Sender<Arc<VersionedFlowSettings>>>);

impl LiveSettings {
    #[must_use]
    pub fn new(settings: FlowSettings) -> Self {
        Self(Arc::new(watch::Sender::new(Arc::new(VersionedFlowSettings { generation: 0, settings }))))
    }

    #[must_use]
    pub fn current(&self) -> Arc<VersionedFlowSettings> {
        Arc::clone(&self.0.borrow())
    }

    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<VersionedFlowSettings>> {
        self.0.subscribe()
    }

    pub fn replace(&self, settings: FlowSettings) {
        self.0.send_modify(|current| {
            let generation = current.generation.saturating_add(1);
            *current = Arc::new(VersionedFlowSettings { generation, settings });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_keep_their_settings_and_waiters_are_notified() {
        let live = LiveSettings::new(FlowSettings::default());
        let (before, waiting) = (live.current(), live.subscribe());
        let messages = MessageSettings { message_timeout_s: 7, ..MessageSettings::default() };
        live.clone().replace(FlowSettings { messages, ..FlowSettings::default() });
        assert_eq!((before.generation, before.settings.messages.message_timeout_s), (0, 300));
        assert_eq!((live.current().generation, live.current().settings.messages.message_timeout_s), (1, 7));
        assert!(waiting.has_changed().expect("it is still there"));
    }
}
