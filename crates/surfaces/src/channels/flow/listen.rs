//! Listeners: one for each channel, started again when its connection is lost, and made anew when its configuration changes.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use quell_protocol::channel::ChannelHealth as Health;
use tokio::time::{Instant, sleep};

use super::Channels;
use super::channel::{Channel, unusable_row};
use super::ear::ChannelEar;
use super::leaves;
use super::outlet::{Outlet, send_notices};
use crate::channels::config::ChannelConfig;
use crate::channels::seam::Lost;

/// The pause after a lost connection doubles from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// Who was connected for so long begins with the first pause again.
const STEADY: Duration = Duration::from_secs(60);

/// Keeps a listener for each channel of the configuration, from now on and whenever it changes.
pub(super) async fn follow_settings(channels: Channels) {
    let mut changes = channels.0.live.subscribe();
    // Before anything is heard: what is told again may be of a run that left something.
    let configured = changes.borrow().settings.channels.keys().cloned().collect();
    leaves::look(&channels, configured).await;
    loop {
        let wanted = changes.borrow_and_update().settings.channels.clone();
        take_over(&channels, &wanted);
        tokio::select! {
            () = channels.scope().cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

/// Stops channels that are gone or were changed, and starts those that are new or were changed.
fn take_over(channels: &Channels, wanted: &BTreeMap<String, ChannelConfig>) {
    let mut at_work = channels.at_work();
    let mut gone = BTreeMap::new();
    at_work.retain(|name, channel| {
        let stays = wanted.get(name).is_some_and(|config| config.is_same_as(&channel.config));
        if !stays {
            channel.stop();
            gone.insert(name.clone(), Arc::clone(channel));
        }
        stays
    });
    let mut unusable = BTreeMap::new();
    for (name, config) in wanted {
        if at_work.contains_key(name) {
            continue;
        }
        let network = match (channels.0.make)(name, config) {
            Ok(network) => network,
            Err(bad) => {
                tracing::error!(channel = name, %bad, "the channel cannot be used");
                unusable.insert(name.clone(), unusable_row(name, config, &bad));
                continue;
            }
        };
        let (outlet, notices) = Outlet::new();
        let channel = Arc::new(Channel::new(name, config.clone(), network, (outlet, channels.clock())));
        at_work.insert(name.clone(), Arc::clone(&channel));
        channels.scope().spawn(until_cancelled(channels.clone(), send_notices(Arc::downgrade(&channel), notices)));
        channels.scope().spawn(leaves::tidy(channels.clone(), Arc::clone(&channel)));
        channels.scope().spawn(listen(channels.clone(), channel, gone.remove(name)));
    }
    *channels.unusable() = unusable;
}

async fn until_cancelled(channels: Channels, work: impl Future<Output = ()>) {
    tokio::select! {
        () = channels.scope().forced() => {}
        () = work => {}
    }
}

/// Listens until the channel is stopped, from when the one before it, which had the same account, does not any more.
async fn listen(channels: Channels, channel: Arc<Channel>, before: Option<Arc<Channel>>) {
    if let Some(before) = before {
        before.ended().await;
    }
    let ear = ChannelEar { channels: channels.clone(), channel: Arc::clone(&channel) };
    let mut pause = FIRST_PAUSE;
    loop {
        let begun = Instant::now();
        let lost = tokio::select! {
            () = channel.stopped() => break,
            () = channels.scope().cancelled() => break,
            lost = AssertUnwindSafe(channel.network.listen(&ear)).catch_unwind() => lost.unwrap_or_else(|_| {
                tracing::error!(channel = channel.name, "a listener panicked");
                Lost::Connection("Quell has a bug: the listener of this channel panicked; please report this".to_owned())
            }),
        };
        let was_connected = channel.is_connected();
        if was_connected && begun.elapsed() >= STEADY {
            pause = FIRST_PAUSE;
        }
        let wait = match &lost {
            Lost::Busy { after, .. } => (*after).max(pause),
            Lost::Refused(_) => LAST_PAUSE,
            Lost::Connection(_) => pause,
        };
        tracing::warn!(channel = channel.name, %lost, wait_s = wait.as_secs(), "channel lost");
        channel.fares(match &lost {
            Lost::Refused(why) => Health::Refused(why.clone()),
            Lost::Connection(_) | Lost::Busy { .. } => Health::Lost(lost.to_string()),
        });
        tokio::select! {
            () = channel.stopped() => break,
            () = channels.scope().cancelled() => break,
            () = sleep(wait) => {}
        }
        pause = (pause * 2).min(LAST_PAUSE);
        if was_connected {
            // The server was there a moment ago: it is looked for soon.
            pause = pause.min(2 * FIRST_PAUSE);
        }
    }
    channel.fares(Health::Stopped);
    channel.end();
    tracing::info!(channel = channel.name, "channel stopped");
}
