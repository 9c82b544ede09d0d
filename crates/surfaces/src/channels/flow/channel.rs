//! One configured channel at work: its network, how it fares, and its outlet.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_engine::clock::Clock;
use quell_protocol::api::{OnBusy, Scope as Rights};
use quell_protocol::channel::{ChannelHealth as Health, ChannelRow};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::outlet::Outlet;
use crate::channels::config::{BadChannel, ChannelConfig, ChannelKind};
use crate::channels::seam::{Manners, Network, Own};

/// Files that come, and that go, at the same time; each may have 20 MiB.
const FILES_AT_ONCE: usize = 8;

const MESSAGES: &str = "quell_channel_messages_total";
const ANSWERS: &str = "quell_channel_answers_total";
const UNDELIVERED: &str = "quell_channel_undelivered_total";
/// Shown as 0 until the first one. Source: the Prometheus guide to instrumentation, "Avoid missing metrics".
const COUNTERS: [&str; 3] = [MESSAGES, ANSWERS, UNDELIVERED];

/// A channel at work.
pub(super) struct Channel {
    pub(super) name: String,
    pub(super) config: ChannelConfig,
    pub(super) network: Arc<dyn Network>,
    pub(super) manners: Manners,
    pub(super) outlet: Outlet,
    /// Held while a file comes, and is in memory.
    pub(super) fetching: Semaphore,
    /// Held while a file goes; apart from the other, because a run that fetches keeps the place of others.
    pub(super) sending: Semaphore,
    /// Cancelled when it is connected for the first time.
    reached: CancellationToken,
    /// Cancelled when it is to listen no longer.
    stopped: CancellationToken,
    /// Cancelled when it does listen no longer.
    ended: CancellationToken,
    clock: Clock,
    facts: Mutex<Facts>,
}

#[derive(Debug, Default)]
struct Facts {
    health: Health,
    since: Option<String>,
    own: Option<Own>,
    heard: u64,
    answered: u64,
    undelivered: u64,
}

impl Channel {
    pub(super) fn new(
        name: &str,
        config: ChannelConfig,
        network: Arc<dyn Network>,
        (outlet, clock): (Outlet, Clock),
    ) -> Self {
        Self {
            name: name.to_owned(),
            config,
            manners: network.manners(),
            network,
            outlet,
            fetching: Semaphore::new(FILES_AT_ONCE),
            sending: Semaphore::new(FILES_AT_ONCE),
            reached: CancellationToken::new(),
            stopped: CancellationToken::new(),
            ended: CancellationToken::new(),
            clock,
            facts: Mutex::default(),
        }
    }

    /// What somebody who writes here may do; nothing when they may not write.
    pub(super) fn rights(&self, sender: &str) -> Option<Rights> {
        let named = |list: &[String]| list.iter().any(|name| name == sender);
        if named(&self.config.operators) {
            return Some(Rights::Admin);
        }
        let everybody = self.config.allow.iter().any(|name| name == "*");
        (everybody || named(&self.config.allow)).then_some(Rights::Write)
    }

    /// What a new message does while an earlier one is being answered.
    pub(super) fn on_busy(&self) -> OnBusy {
        if self.config.interrupt_on_new_message {
            OnBusy::Interrupt
        } else {
            self.config.on_busy.unwrap_or(OnBusy::Queue)
        }
    }

    pub(super) fn is_own(&self, sender: &str) -> bool {
        self.facts().own.as_ref().is_some_and(|own| own.id == sender)
    }

    pub(super) fn connected(&self, own: Own) {
        self.facts().own = Some(own);
        for counter in COUNTERS {
            metrics::counter!(counter, "channel" => self.name.clone()).absolute(0);
        }
        self.fares(Health::Connected);
        self.reached.cancel();
    }

    /// Waits until it was connected once.
    pub(super) async fn reached(&self) {
        self.reached.cancelled().await;
    }

    pub(super) fn fares(&self, health: Health) {
        let mut facts = self.facts();
        if facts.health != health {
            facts.since = Some(self.clock.rfc3339(self.clock.now()));
            facts.health = health;
        }
        let connected = if facts.health == Health::Connected { 1.0 } else { 0.0 };
        drop(facts);
        metrics::gauge!("quell_channel_connected", "channel" => self.name.clone()).set(connected);
    }

    pub(super) fn is_connected(&self) -> bool {
        self.facts().health == Health::Connected
    }

    pub(super) fn count_heard(&self) {
        self.facts().heard += 1;
        metrics::counter!(MESSAGES, "channel" => self.name.clone()).increment(1);
    }

    pub(super) fn count_answered(&self) {
        self.facts().answered += 1;
        metrics::counter!(ANSWERS, "channel" => self.name.clone()).increment(1);
    }

    pub(super) fn count_undelivered(&self) {
        self.facts().undelivered += 1;
        metrics::counter!(UNDELIVERED, "channel" => self.name.clone()).increment(1);
    }

    pub(super) fn row(&self) -> ChannelRow {
        let facts = self.facts();
        ChannelRow {
            name: self.name.clone(),
            kind: self.config.kind.word().to_owned(),
            health: facts.health.clone(),
            since: facts.since.clone(),
            account: facts.own.as_ref().map(|own| own.name.clone()),
            heard: facts.heard,
            answered: facts.answered,
            undelivered: facts.undelivered,
        }
    }

    /// It listens no longer.
    pub(super) fn stop(&self) {
        self.stopped.cancel();
    }

    /// It has let its account go.
    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    pub(super) async fn stopped(&self) {
        self.stopped.cancelled().await;
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The row of a channel whose configuration cannot be used.
pub(super) fn unusable_row(name: &str, config: &ChannelConfig, bad: &BadChannel) -> ChannelRow {
    ChannelRow {
        name: name.to_owned(),
        kind: config.kind.word().to_owned(),
        health: Health::Refused(bad.to_string()),
        since: None,
        account: None,
        heard: 0,
        answered: 0,
        undelivered: 0,
    }
}

impl ChannelKind {
    /// The network in a word, as it stands in the configuration.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Irc => "irc",
            Self::Matrix => "matrix",
            Self::Telegram => "telegram",
            Self::Webhook => "webhook",
            Self::Discord => "discord",
            Self::Slack => "slack",
        }
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Channel({})", self.name)
    }
}
