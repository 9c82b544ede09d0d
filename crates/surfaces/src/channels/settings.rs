//! What the message flow works by, which may be replaced while it works. The roof replaces it when the configuration file
//! changes; whoever asks gets all of it as it was at one moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use quell_kernel::routing::Routing;
use tokio::sync::watch;

use super::config::{ChannelConfig, MessageSettings};

/// What the message flow works by.
#[derive(Debug, Clone, Default)]
pub struct FlowSettings {
    /// The channels by name.
    pub channels: BTreeMap<String, ChannelConfig>,
    /// How their messages are answered.
    pub messages: MessageSettings,
    /// Which model a message is for.
    pub routing: Routing,
}

/// The same with the number of its replacement.
#[derive(Debug, Clone, Default)]
pub struct Numbered {
    /// 0 at the start, one more for each replacement.
    pub generation: u64,
    /// What is in force.
    pub settings: FlowSettings,
}

/// The settings in force. Clones are the same.
#[derive(Debug, Clone)]
pub struct LiveSettings(Arc<watch::Sender<Arc<Numbered>>>);

impl LiveSettings {
    /// These are in force until others replace them.
    #[must_use]
    pub fn new(settings: FlowSettings) -> Self {
        Self(Arc::new(watch::Sender::new(Arc::new(Numbered { generation: 0, settings }))))
    }

    /// Those that are in force now.
    #[must_use]
    pub fn now(&self) -> Arc<Numbered> {
        Arc::clone(&self.0.borrow())
    }

    /// For who waits for others.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<Numbered>> {
        self.0.subscribe()
    }

    /// From now on these are in force.
    pub fn replace(&self, settings: FlowSettings) {
        self.0.send_modify(|current| {
            let generation = current.generation.saturating_add(1);
            *current = Arc::new(Numbered { generation, settings });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_asked_keeps_what_was_in_force_and_who_waits_is_told() {
        let live = LiveSettings::new(FlowSettings::default());
        let (before, waiting) = (live.now(), live.subscribe());
        let messages = MessageSettings { message_timeout_s: 7, ..MessageSettings::default() };
        live.clone().replace(FlowSettings { messages, ..FlowSettings::default() });
        assert_eq!((before.generation, before.settings.messages.message_timeout_s), (0, 300));
        assert_eq!((live.now().generation, live.now().settings.messages.message_timeout_s), (1, 7));
        assert!(waiting.has_changed().expect("it is still there"));
    }
}
