//! Run one listener per channel, reconnect with backoff, and apply configuration changes.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use quell_engine::engine::DutyPermit;
use quell_protocol::channel::ChannelHealth;
use tokio::time::{Instant, sleep};

use super::Channels;
use super::channel::{ActiveChannel, unusable_row};
use super::guarded_network::GuardedNetwork;
use super::inbound::ChannelInboundSink;
use super::notice_sender::run_notice_queue;
use super::notices::NoticeQueue;
use super::stale_replies;
use crate::config::ChannelConfig;
use crate::network::ListenError;

/// The pause after a lost connection doubles from the minimum to the maximum.
const MIN_RECONNECT_DELAY: Duration = Duration::from_secs(2);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(60);
/// After a connection of this length, the pause starts at the minimum again.
const STABLE_CONNECTION_TIME: Duration = Duration::from_secs(60);

/// Begins the names of the duties of listeners.
pub const CHANNEL_DUTY_PREFIX: &str = "channel/";

/// Keeps one listener for each configured channel, and follows configuration changes.
pub(super) async fn follow_settings(channels: Channels) {
    let mut changes = channels.0.live_settings.subscribe();
    // Load these before any message arrives: a repeated message may belong to a run with a stale reply.
    let configured = changes.borrow().settings.channels.keys().cloned().collect();
    stale_replies::load_stale_replies(&channels, configured).await;
    loop {
        let wanted = changes.borrow_and_update().settings.channels.clone();
        channels.engine().set_channel_names(wanted.keys().cloned().collect());
        apply_channel_configs(&channels, &wanted);
        tokio::select! {
            () = channels.scope().cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

/// Stops removed and changed channels, and starts new and changed ones.
fn apply_channel_configs(channels: &Channels, wanted: &BTreeMap<String, ChannelConfig>) {
    let mut active_channels = channels.lock_active_channels();
    let mut stopped_channels = BTreeMap::new();
    active_channels.retain(|name, channel| {
        let is_unchanged = wanted.get(name).is_some_and(|config| config.has_same_settings(&channel.config));
        if !is_unchanged {
            channel.stop_requested.cancel();
            stopped_channels.insert(name.clone(), Arc::clone(channel));
        }
        is_unchanged
    });
    let mut unusable = BTreeMap::new();
    for (name, config) in wanted {
        if active_channels.contains_key(name) {
            continue;
        }
        let network = match (channels.0.network_factory)(name, config) {
            Ok(network) => network,
            Err(config_error) => {
                tracing::error!(channel = name, bad = %config_error, "the channel cannot be used");
                unusable.insert(name.clone(), unusable_row(name, config, &config_error));
                continue;
            }
        };
        let network = GuardedNetwork::wrap(channels.engine(), network);
        let (notice_queue, notices) = NoticeQueue::new();
        let channel = Arc::new(ActiveChannel::new(name, config.clone(), network, notice_queue, channels.clock()));
        channel.set_duty(channels.engine().duty_without_cluster());
        active_channels.insert(name.clone(), Arc::clone(&channel));
        channels.scope().spawn(until_cancelled(channels.clone(), run_notice_queue(Arc::downgrade(&channel), notices)));
        channels.scope().spawn(stale_replies::repair_channel(channels.clone(), Arc::clone(&channel)));
        channels.scope().spawn(run_listener(channels.clone(), channel, stopped_channels.remove(name)));
    }
    *channels.lock_unusable_channels() = unusable;
}

async fn until_cancelled(channels: Channels, work: impl Future<Output = ()>) {
    tokio::select! {
        () = channels.scope().forced() => {}
        () = work => {}
    }
}

/// Listens until the channel is stopped, while this node has the duty. Waits first until the previous channel with the
/// same account has ended.
async fn run_listener(channels: Channels, channel: Arc<ActiveChannel>, previous: Option<Arc<ActiveChannel>>) {
    if let Some(previous) = previous {
        previous.listener_ended.cancelled().await;
    }
    let duty = channel_duty(&channel.name);
    let listening = channels.engine().run_duty(&duty, |permit| listen_with_duty(&channels, &channel, permit));
    tokio::select! {
        () = channel.stop_requested.cancelled() => {}
        () = channels.scope().cancelled() => {}
        () = listening => {}
    }
    channel.set_health(ChannelHealth::Stopped);
    channel.listener_ended.cancel();
    tracing::info!(channel = channel.name, "channel stopped");
}

/// The name of the duty of the node that listens to a channel.
#[must_use]
pub fn channel_duty(channel: &str) -> String {
    format!("{CHANNEL_DUTY_PREFIX}{channel}")
}

/// While this exists, this node listens to the network of the channel.
struct ListenerGuard<'a> {
    channels: &'a Channels,
    channel: &'a ActiveChannel,
}

impl<'a> ListenerGuard<'a> {
    fn new(channels: &'a Channels, channel: &'a ActiveChannel, permit: DutyPermit) -> Self {
        channel.set_duty(Some(permit));
        Self { channels, channel }
    }
}

impl Drop for ListenerGuard<'_> {
    fn drop(&mut self) {
        let Self { channels, channel } = self;
        channel.set_duty(channels.engine().duty_without_cluster());
        channel.set_health(ChannelHealth::Connecting);
        if channel.stop_requested.is_cancelled() || channels.scope().is_cancelled() {
            return;
        }
        // The next listener gets these messages from the network, if it keeps them.
        let withdrawn = channels.lock_inbox().stop(|scope| scope.channel == channel.name);
        channels.notify_inbox_changed();
        for command in withdrawn.commands {
            command.stop_token.cancel();
        }
        for (run, _) in withdrawn.in_flight {
            channels.cancel_session_wait(&run);
        }
        tracing::warn!(
            channel = channel.name,
            messages = withdrawn.messages.len(),
            "another node may listen now: waiting messages are dropped"
        );
    }
}

async fn listen_with_duty(channels: &Channels, channel: &Arc<ActiveChannel>, permit: DutyPermit) {
    let _guard = ListenerGuard::new(channels, channel, permit);
    let sink = ChannelInboundSink { channels: channels.clone(), channel: Arc::clone(channel) };
    let mut next_delay = MIN_RECONNECT_DELAY;
    loop {
        let started_at = Instant::now();
        let listening = AssertUnwindSafe(channel.network.listen(&sink)).catch_unwind();
        let listen_error = listening.await.unwrap_or_else(|_| {
            tracing::error!(channel = channel.name, "a listener panicked");
            ListenError::Connection(
                "Quell has a bug: the listener of this channel panicked; please report this".to_owned(),
            )
        });
        let was_connected = channel.is_connected();
        if was_connected && started_at.elapsed() >= STABLE_CONNECTION_TIME {
            next_delay = MIN_RECONNECT_DELAY;
        }
        let delay = match &listen_error {
            ListenError::Busy { after, .. } => (*after).max(next_delay),
            ListenError::Refused(_) => MAX_RECONNECT_DELAY,
            ListenError::Connection(_) => next_delay,
        };
        tracing::warn!(channel = channel.name, lost = %listen_error, wait_s = delay.as_secs(), "channel lost");
        channel.set_health(match &listen_error {
            ListenError::Refused(why) => ChannelHealth::Refused(why.clone()),
            ListenError::Connection(_) | ListenError::Busy { .. } => ChannelHealth::Lost(listen_error.to_string()),
        });
        sleep(delay).await;
        next_delay = (next_delay * 2).min(MAX_RECONNECT_DELAY);
        if was_connected {
            // The server was reachable a moment ago: reconnect soon.
            next_delay = next_delay.min(2 * MIN_RECONNECT_DELAY);
        }
    }
}
