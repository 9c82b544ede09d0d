//! Turn inbound chat messages into runs and send replies, progress and notices back to the chat.
//!
//! A network delivers messages to its inbound sink ([`inbound`]). A stop acts there, before any queue. Every other
//! message waits in the inbox until its turn ([`dispatch`]), becomes a run, and its progress is shown in the chat until
//! the run ends ([`progress`]). The run itself delivers the reply ([`reply_delivery`]), so that a stop of the run also
//! stops the delivery. After a crash, the next daemon repairs the drafts and reactions that were left in chats
//! ([`stale_replies`]).
//!
//! A call of a run that waits for a person has a message of its own, with buttons where the network has them
//! ([`approval_messages`]).

mod approval_messages;
mod approval_texts;
mod channel;
mod chat_stop;
mod command_texts;
mod commands;
mod dispatch;
mod finished_reply;
mod guarded_network;
mod inbound;
mod listeners;
mod mcp_commands;
mod notice_sender;
mod notices;
mod operations;
mod progress;
mod question_texts;
mod receipt_texts;
mod reply_delivery;
mod reply_target;
mod schedule_commands;
mod scheduled;
mod send_retry;
mod session_waits;
mod stale_replies;
#[cfg(test)]
mod tests;
mod texts;
mod voice;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_engine::Engine;
use quell_engine::access::RequestOrigin;
use quell_engine::engine::Caller;
use quell_kernel::Moment;
use quell_kernel::channel::chat_language::ChatLanguage;
use quell_kernel::channel::inbox::{Inbox, InboxLimits};
use quell_kernel::channel::sanitise::sanitise_partial_reply;
use quell_protocol::api::{AccessLevel, Grants};
use quell_protocol::approval::ApprovalRow;
use quell_protocol::channel::ChannelRow;
use quell_protocol::{HookEvent, Principal, SessionKey, Surface};
use quell_scope::clock::Clock;
use quell_scope::{PointProbe, Scope};
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use self::approval_messages::ApprovalMessages;
use self::channel::ActiveChannel;
pub use self::listeners::{CHANNEL_DUTY_PREFIX, channel_duty};
pub use self::operations::{ChannelTargetError, ReceiveError};
use self::session_waits::SessionWaits;
use self::stale_replies::StaleReplies;
use super::config::{ChannelConfig, ChannelConfigError};
use super::create_network;
use super::network::{ChatAddress, MessageId, Network};
use super::settings::{LiveSettings, VersionedFlowSettings};

/// The chat channels of one daemon. Clones share their state.
#[derive(Clone)]
pub struct Channels(Arc<ChannelsInner>);

struct ChannelsInner {
    engine: Engine,
    live_settings: LiveSettings,
    /// Reloads a changed configuration; called before a message is routed.
    reload_config: Arc<dyn Fn() + Send + Sync>,
    network_factory: NetworkFactory,
    /// Owns the tasks of the channels: listeners, progress views, notice queues.
    scope: Scope,
    /// Cancelled at shutdown, to stop commands that are still being executed.
    commands_cancelled: CancellationToken,
    inbox: Mutex<Inbox<ChatOrigin>>,
    /// Notified when a message was pushed or a batch has finished.
    wake_dispatcher: Notify,
    /// Changes whenever messages leave the inbox, and so wakes
    /// [`InboundSink::wait_until_stored`](super::network::InboundSink).
    inbox_changes: watch::Sender<u64>,
    active_channels: Mutex<BTreeMap<String, Arc<ActiveChannel>>>,
    unusable_channels: Mutex<BTreeMap<String, ChannelRow>>,
    stale_replies: StaleReplies,
    session_waits: SessionWaits,
    tool_names: BTreeSet<String>,
    approval_messages: ApprovalMessages,
}

pub type NetworkFactory =
    Arc<dyn Fn(&str, &ChannelConfig) -> Result<Arc<dyn Network>, ChannelConfigError> + Send + Sync>;

/// Where a queued message came from, and the token that stops its command.
#[derive(Debug, Clone)]
struct ChatOrigin {
    channel: Arc<ActiveChannel>,
    address: ChatAddress,
    message_id: MessageId,
    conversation: SessionKey,
    /// Cancelled by a stop, if this message is a command that is being executed.
    stop_token: CancellationToken,
}

impl ChatOrigin {
    /// The language of notices for this message.
    fn language(&self, channels: &Channels) -> ChatLanguage {
        channels.conversation_language(&self.channel, &self.conversation)
    }
}

impl Channels {
    /// Starts a listener for every configured channel and follows configuration changes.
    #[must_use]
    pub fn start(engine: Engine, live_settings: LiveSettings, reload_config: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self::start_with_factory(engine, live_settings, reload_config, Arc::new(create_network))
    }

    /// Same as [`Channels::start`], with networks made by `network_factory`. For programs that embed the engine and
    /// bring their own networks.
    #[must_use]
    pub fn start_with_factory(
        engine: Engine,
        live_settings: LiveSettings,
        reload_config: Arc<dyn Fn() + Send + Sync>,
        network_factory: NetworkFactory,
    ) -> Self {
        let tools = engine.tool_names();
        // Before the first request is served.
        engine.set_channel_names(live_settings.current().settings.channels.keys().cloned().collect());
        let channels = Self(Arc::new(ChannelsInner {
            scope: Scope::new(engine.clock(), PointProbe::default()),
            commands_cancelled: CancellationToken::new(),
            engine,
            live_settings,
            reload_config,
            network_factory,
            inbox: Mutex::new(Inbox::new(InboxLimits::default())),
            wake_dispatcher: Notify::new(),
            inbox_changes: watch::Sender::new(0),
            active_channels: Mutex::default(),
            unusable_channels: Mutex::default(),
            stale_replies: StaleReplies::default(),
            session_waits: SessionWaits::default(),
            tool_names: tools,
            approval_messages: ApprovalMessages::default(),
        }));
        channels.engine().schedules().set_delivery(Arc::new(scheduled::ChannelsOfSchedules::new(&channels)));
        channels.0.scope.spawn(listeners::follow_settings(channels.clone()));
        channels.0.scope.spawn(dispatch::run_dispatch_loop(channels.clone()));
        channels
    }

    /// Stops listening, stops commands that are being executed, and waits until they and the runs have sent their last
    /// messages, or until `deadline` completes.
    ///
    /// # Cancel safety
    /// Safe: the shutdown has been requested, and the tasks go on until the daemon ends.
    pub async fn shut_down(&self, deadline: impl Future<Output = ()>) {
        for channel in std::mem::take(&mut *self.lock_active_channels()).into_values() {
            channel.stop_requested.cancel();
        }
        self.0.scope.cancel();
        self.0.commands_cancelled.cancel();
        tokio::select! {
            _released = self.0.scope.close() => {}
            () = deadline => {
                self.0.scope.kill();
            }
        }
    }

    #[must_use]
    pub fn channel_rows(&self) -> Vec<ChannelRow> {
        let mut rows = self.lock_unusable_channels().clone();
        rows.extend(self.lock_active_channels().iter().map(|(name, channel)| (name.clone(), channel.to_row())));
        rows.into_values().collect()
    }

    fn engine(&self) -> &Engine {
        &self.0.engine
    }

    fn scope(&self) -> &Scope {
        &self.0.scope
    }

    fn approval_messages(&self) -> &ApprovalMessages {
        &self.0.approval_messages
    }

    fn clock(&self) -> Clock {
        self.0.engine.clock()
    }

    fn now(&self) -> Moment {
        self.clock().now()
    }

    fn current_settings(&self) -> Arc<VersionedFlowSettings> {
        self.0.live_settings.current()
    }

    fn find_channel(&self, name: &str) -> Option<Arc<ActiveChannel>> {
        self.lock_active_channels().get(name).cloned()
    }

    /// The current channel of this name: its configuration may have changed since a message arrived.
    fn current_channel(&self, channel: &Arc<ActiveChannel>) -> Arc<ActiveChannel> {
        self.find_channel(&channel.name).unwrap_or_else(|| Arc::clone(channel))
    }

    /// The language of notices in a conversation. Reads memory only: the reply to a stop waits for nothing.
    fn conversation_language(&self, channel: &Arc<ActiveChannel>, conversation: &SessionKey) -> ChatLanguage {
        let channel = self.current_channel(channel);
        chat_language(self.engine().session_language(conversation, channel.config.agent.as_ref()))
    }

    /// The language of notices about no conversation: the one of the channel's agent.
    fn channel_language(&self, channel: &ActiveChannel) -> ChatLanguage {
        chat_language(self.engine().agent_language(channel.config.agent.as_ref()))
    }

    /// The language of what is said about a call that waits.
    fn approval_language(&self, row: &ApprovalRow) -> ChatLanguage {
        chat_language(self.engine().session_language(&row.session_key, Some(&row.agent)))
    }

    /// The part of an unfinished reply that a chat may show: nothing if a hook may still change or withhold the reply.
    fn visible_draft_text(&self, text: &str) -> String {
        if self.engine().hooks().has_hooks_for(HookEvent::MessageSending) {
            return String::new();
        }
        sanitise_partial_reply(text, &self.0.tool_names)
    }

    fn lock_active_channels(&self) -> MutexGuard<'_, BTreeMap<String, Arc<ActiveChannel>>> {
        self.0.active_channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_unusable_channels(&self) -> MutexGuard<'_, BTreeMap<String, ChannelRow>> {
        self.0.unusable_channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_inbox(&self) -> MutexGuard<'_, Inbox<ChatOrigin>> {
        self.0.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify_inbox_changed(&self) {
        self.0.inbox_changes.send_modify(|count| *count += 1);
        self.0.wake_dispatcher.notify_one();
    }
}

/// The engine's caller for a sender in a channel.
fn channel_caller(channel: &str, sender: &str, access_level: AccessLevel) -> Caller {
    Caller {
        principal: channel_principal(channel, sender),
        scope: access_level,
        grants: Grants::for_level(access_level),
        key: quell_kernel::api_key::ApiKey::default(),
        verified_person: false,
        surface: Surface::Channel,
        origin: RequestOrigin::internal(),
    }
}

/// Builds the principal `channel:sender`. A sender that is not valid in a principal's name is replaced by its SHA-256
/// hash.
fn channel_principal(channel: &str, sender: &str) -> Principal {
    let named = Principal::parse(format!("{channel}:{sender}"));
    named.unwrap_or_else(|_| {
        let hash: String = Sha256::digest(sender.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        match Principal::parse(format!("{channel}:{hash}")) {
            Ok(principal) => principal,
            Err(_) => unreachable!("a channel's name is checked, and a hash is printable"),
        }
    })
}

impl std::fmt::Debug for Channels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Channels({:?})", self.lock_active_channels().keys().collect::<Vec<_>>())
    }
}

fn chat_language(tag: Option<String>) -> ChatLanguage {
    tag.map_or(ChatLanguage::default(), |tag| ChatLanguage::from_tag(&tag))
}
