//! Accept messages from a network: check the sender, handle stops at once, put the rest into the inbox. Nothing here
//! waits.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_kernel::channel::commands::ChannelCommand;
use quell_kernel::channel::inbox::{InboxMessage, InboxPushOutcome};
use quell_kernel::channel::session_keys::conversation_key;
use quell_kernel::stop_text;
use quell_protocol::{ChannelMessage, RunId};
use sha2::{Digest, Sha256};

use super::approval_messages::{answer_press, decide_press};
use super::channel::ActiveChannel;
use super::chat_stop::{ChannelStopScope, StopReplyPolicy, handle_stop};
use super::notices::NoticePriority;
use super::{Channels, ChatOrigin, texts};
use crate::network::{ButtonPress, InboundMessage, InboundSink, OwnAccount};

/// Longer texts are dropped: the longest message of any network is far shorter.
const MAX_TEXT_BYTES: usize = 256 * 1024;

pub(super) struct ChannelInboundSink {
    pub(super) channels: Channels,
    pub(super) channel: Arc<ActiveChannel>,
}

impl InboundSink for ChannelInboundSink {
    fn on_connected(&self, account: OwnAccount) {
        tracing::info!(channel = self.channel.name, account = account.name, "channel connected");
        self.channel.set_connected(account);
    }

    fn on_message(&self, inbound: InboundMessage) {
        let channel = &self.channel;
        if channel.is_own_account(&inbound.sender) || !channel.is_listener() {
            return;
        }
        let Some(access_level) = channel.access_level(&inbound.sender) else {
            tracing::debug!(channel = channel.name, sender = inbound.sender, "message of a sender who is not allowed");
            return;
        };
        if inbound.text.len() > MAX_TEXT_BYTES || (inbound.text.trim().is_empty() && inbound.attachments.is_empty()) {
            return;
        }
        let command = ChannelCommand::parse(&inbound.text).filter(|_| inbound.is_addressed);
        let stop_scope = match command {
            Some(ChannelCommand::Stop(reach)) => Some(ChannelStopScope::from_command(reach, access_level)),
            Some(_) => None,
            // A command for another bot, such as `/stop@another`, is not a stop phrase.
            None => stop_text::is_stop_phrase(&inbound.text).then_some(ChannelStopScope::Conversation(access_level)),
        };
        if stop_scope.is_none() && !inbound.is_addressed {
            return;
        }
        channel.count_received();
        let reply_policy =
            if inbound.is_addressed { StopReplyPolicy::Always } else { StopReplyPolicy::IfSomethingStopped };
        let (message, origin) = self.build_channel_message(inbound);
        tracing::info!(channel = message.channel, sender = message.sender, "inbound message");
        tracing::debug!(channel = message.channel, text = message.content, "text of an inbound message");
        match stop_scope {
            Some(scope) => {
                if self.channels.lock_inbox().record_message_id(&message.channel, &message.id) {
                    handle_stop(&self.channels, &message, &origin, scope, reply_policy);
                }
            }
            None => self.enqueue_message(message, origin),
        }
    }

    fn on_button_press(&self, press: ButtonPress) {
        let channel = &self.channel;
        if channel.is_own_account(&press.sender) || !channel.is_listener() {
            return;
        }
        tracing::info!(channel = channel.name, sender = press.sender, "button pressed");
        let reply = decide_press(&self.channels, channel, &press);
        match Arc::clone(&channel.press_permits).try_acquire_owned() {
            Ok(permit) => drop(self.channels.scope().spawn(answer_press(Arc::clone(channel), press, reply, permit))),
            Err(_) => tracing::warn!(channel = channel.name, "a press was not answered: too many wait"),
        }
    }

    fn wait_until_stored(&self) -> BoxFuture<'_, ()> {
        async move {
            let last_seq = self.channels.lock_inbox().last_seq();
            let mut inbox_changes = self.channels.0.inbox_changes.subscribe();
            loop {
                inbox_changes.borrow_and_update();
                if self.channels.lock_inbox().is_drained_up_to(&self.channel.name, last_seq) {
                    return;
                }
                // Cannot fail: the sender lives as long as `self.channels`.
                let _ = inbox_changes.changed().await;
            }
        }
        .boxed()
    }

    fn load_cursor(&self) -> BoxFuture<'_, Option<String>> {
        async move {
            match self.channels.engine().channel_store().cursor(self.channel.name.clone()).await {
                Ok(cursor) => cursor,
                Err(error) => {
                    tracing::error!(channel = self.channel.name, %error, "cannot load the cursor of a channel");
                    None
                }
            }
        }
        .boxed()
    }

    fn save_cursor(&self, cursor: String) -> BoxFuture<'_, ()> {
        async move {
            if !self.channel.is_listener() {
                return;
            }
            if let Err(error) =
                self.channels.engine().channel_store().save_cursor(self.channel.name.clone(), cursor).await
            {
                tracing::error!(channel = self.channel.name, %error, "cannot save the cursor of a channel");
            }
        }
        .boxed()
    }
}

impl ChannelInboundSink {
    fn build_channel_message(&self, inbound: InboundMessage) -> (ChannelMessage, ChatOrigin) {
        let message = ChannelMessage {
            channel: self.channel.name.clone(),
            id: inbound.id,
            sender: inbound.sender,
            sender_name: inbound.sender_name,
            reply_target: inbound.address.target.clone(),
            content: inbound.text.trim().to_owned(),
            thread: inbound.address.thread.clone(),
            scope_id: inbound.scope_id,
            group: inbound.is_group,
            attachments: inbound.attachments,
        };
        let (channel, stopped) = (Arc::clone(&self.channel), self.channels.0.commands_cancelled.child_token());
        let origin = ChatOrigin {
            channel,
            address: inbound.address,
            message_id: inbound.message_id,
            conversation: conversation_key(&message),
            stop_token: stopped,
        };
        (message, origin)
    }

    fn enqueue_message(&self, message: ChannelMessage, origin: ChatOrigin) {
        let is_command = ChannelCommand::parse(&message.content).is_some();
        let debounce_ms = if is_command { 0 } else { self.channel.config.debounce_ms };
        let queued = InboxMessage {
            conversation: origin.conversation.clone(),
            run_id: message_run_id(&message),
            debounce: Duration::from_millis(debounce_ms),
            message,
            extra: origin,
        };
        match self.channels.lock_inbox().push(queued) {
            InboxPushOutcome::Queued => {}
            InboxPushOutcome::Duplicate => return,
            InboxPushOutcome::Evicted(evicted) => {
                let ChatOrigin { channel, address, .. } = &evicted.extra;
                tracing::warn!(
                    channel = channel.name,
                    sender = evicted.message.sender,
                    "a waiting message was dropped: the inbox is full"
                );
                let (priority, sender) = (NoticePriority::Text, &evicted.message.sender);
                let text = texts::TOO_MANY_WAITING.text(evicted.extra.language(&self.channels));
                channel.notices.push_unless_recent(priority, address, sender, text);
                self.channels.notify_inbox_changed();
            }
        }
        self.channels.0.wake_dispatcher.notify_one();
    }
}

/// Derives the run's id from the message's id, so that a repeated message is recognised even after a restart.
pub(super) fn message_run_id(message: &ChannelMessage) -> RunId {
    let hash: String =
        Sha256::digest(message.id.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    match RunId::parse(format!("{}:{hash}", message.channel)) {
        Ok(run) => run,
        Err(_) => unreachable!("a channel's name is checked, and a hash is legal in an id"),
    }
}
