//! State of one active channel: its network, limits, notice queue, health and counters.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_engine::engine::DutyPermit;
use quell_protocol::api::{AccessLevel, OnBusy};
use quell_protocol::channel::{ChannelHealth, ChannelRow};
use quell_scope::clock::Clock;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::notices::NoticeQueue;
use crate::config::{ChannelConfig, ChannelConfigError};
use crate::network::{Network, NetworkLimits, OwnAccount};

/// Limit for files being fetched, and separately for files being sent, at the same time; each may have 20 MiB.
const MAX_CONCURRENT_FILES: usize = 8;
/// Limit for presses of buttons that are being answered; further ones have their effect, but are not answered.
const MAX_CONCURRENT_PRESSES: usize = 64;

const MESSAGES: &str = "quell_channel_messages_total";
const ANSWERS: &str = "quell_channel_answers_total";
const UNDELIVERED: &str = "quell_channel_undelivered_total";
/// Set to 0 when the channel connects. Source: the Prometheus guide to instrumentation, "Avoid missing metrics".
const COUNTERS: [&str; 3] = [MESSAGES, ANSWERS, UNDELIVERED];

pub(super) struct ActiveChannel {
    pub(super) name: String,
    pub(super) config: ChannelConfig,
    pub(super) network: Arc<dyn Network>,
    pub(super) limits: NetworkLimits,
    pub(super) notices: NoticeQueue,
    /// Held while a fetched file is in memory.
    pub(super) fetch_permits: Semaphore,
    /// Held while a voice message is in memory and transcribed, which takes longer than to fetch it.
    pub(super) transcription_permits: Semaphore,
    /// Held while a file is being sent; apart from `fetch_permits`, so that sending never waits for runs that fetch.
    pub(super) send_permits: Semaphore,
    /// Held while the press of a button is answered.
    pub(super) press_permits: Arc<Semaphore>,
    /// Whether the channel is connected.
    connected: watch::Sender<bool>,
    /// Whether this node listens to the network. Another one may, in a cluster.
    duty: Mutex<Option<DutyPermit>>,
    /// Cancelled to ask the listener to end.
    pub(super) stop_requested: CancellationToken,
    /// Cancelled when the listener has ended, so that another may use the account.
    pub(super) listener_ended: CancellationToken,
    clock: Clock,
    status: Mutex<ChannelStatus>,
}

#[derive(Debug, Default)]
struct ChannelStatus {
    health: ChannelHealth,
    health_since: Option<String>,
    account: Option<OwnAccount>,
    received: u64,
    answered: u64,
    undelivered: u64,
}

impl ActiveChannel {
    pub(super) fn new(
        name: &str,
        config: ChannelConfig,
        network: Arc<dyn Network>,
        notices: NoticeQueue,
        clock: Clock,
    ) -> Self {
        Self {
            name: name.to_owned(),
            config,
            limits: network.limits(),
            network,
            notices,
            fetch_permits: Semaphore::new(MAX_CONCURRENT_FILES),
            transcription_permits: Semaphore::new(MAX_CONCURRENT_FILES),
            send_permits: Semaphore::new(MAX_CONCURRENT_FILES),
            press_permits: Arc::new(Semaphore::new(MAX_CONCURRENT_PRESSES)),
            connected: watch::Sender::new(false),
            duty: Mutex::default(),
            stop_requested: CancellationToken::new(),
            listener_ended: CancellationToken::new(),
            clock,
            status: Mutex::default(),
        }
    }

    /// The access level of a sender; `None` if they are not allowed.
    pub(super) fn access_level(&self, sender: &str) -> Option<AccessLevel> {
        self.config.access_level(|listed| listed == sender)
    }

    /// True if a sender may allow the calls of runs in this channel.
    pub(super) fn is_approver(&self, sender: &str) -> bool {
        self.access_level(sender).is_some() && self.config.approvers.iter().any(|name| name == sender)
    }

    /// How to treat a message that arrives while the conversation has an active run.
    pub(super) fn on_busy(&self) -> OnBusy {
        if self.config.interrupt_on_new_message {
            OnBusy::Interrupt
        } else {
            self.config.on_busy.unwrap_or(OnBusy::Queue)
        }
    }

    pub(super) fn is_own_account(&self, sender: &str) -> bool {
        self.lock_status().account.as_ref().is_some_and(|own| own.id == sender)
    }

    pub(super) fn set_connected(&self, account: OwnAccount) {
        self.lock_status().account = Some(account);
        for counter in COUNTERS {
            metrics::counter!(counter, "channel" => self.name.clone()).absolute(0);
        }
        self.set_health(ChannelHealth::Connected);
    }

    pub(super) fn set_health(&self, health: ChannelHealth) {
        let mut status = self.lock_status();
        if status.health != health {
            status.health_since = Some(self.clock.rfc3339(self.clock.now()));
            status.health = health;
        }
        let is_connected = status.health == ChannelHealth::Connected;
        drop(status);
        let value = if is_connected { 1.0 } else { 0.0 };
        metrics::gauge!("quell_channel_connected", "channel" => self.name.clone()).set(value);
        self.connected.send_replace(is_connected);
    }

    /// Waits until the channel is connected.
    pub(super) async fn wait_until_connected(&self) {
        // The sender lives in self.
        let _ = self.connected.subscribe().wait_for(|is_connected| *is_connected).await;
    }

    pub(super) fn set_duty(&self, permit: Option<DutyPermit>) {
        *self.duty.lock().unwrap_or_else(PoisonError::into_inner) = permit;
    }

    /// True while this node listens to the network, and no other one can. Checked for everything that the network
    /// delivers: a daemon that was suspended finds out here.
    pub(super) fn is_listener(&self) -> bool {
        let duty = self.duty.lock().unwrap_or_else(PoisonError::into_inner);
        duty.as_ref().is_some_and(DutyPermit::permits_work)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.lock_status().health == ChannelHealth::Connected
    }

    pub(super) fn count_received(&self) {
        self.lock_status().received += 1;
        metrics::counter!(MESSAGES, "channel" => self.name.clone()).increment(1);
    }

    pub(super) fn count_answered(&self) {
        self.lock_status().answered += 1;
        metrics::counter!(ANSWERS, "channel" => self.name.clone()).increment(1);
    }

    pub(super) fn count_undelivered(&self) {
        self.lock_status().undelivered += 1;
        metrics::counter!(UNDELIVERED, "channel" => self.name.clone()).increment(1);
    }

    pub(super) fn to_row(&self) -> ChannelRow {
        self.lock_status().to_row(&self.name, &self.config)
    }

    fn lock_status(&self) -> MutexGuard<'_, ChannelStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn unusable_row(name: &str, config: &ChannelConfig, bad: &ChannelConfigError) -> ChannelRow {
    let health = ChannelHealth::Refused(bad.to_string());
    ChannelStatus { health, ..ChannelStatus::default() }.to_row(name, config)
}

impl ChannelStatus {
    fn to_row(&self, name: &str, config: &ChannelConfig) -> ChannelRow {
        ChannelRow {
            name: name.to_owned(),
            kind: config.kind.as_str().to_owned(),
            health: self.health.clone(),
            since: self.health_since.clone(),
            account: self.account.as_ref().map(|own| own.name.clone()),
            heard: self.received,
            answered: self.answered,
            undelivered: self.undelivered,
        }
    }
}

impl std::fmt::Debug for ActiveChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ActiveChannel({})", self.name)
    }
}
