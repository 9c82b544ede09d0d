//! What a channel hears: whose message it is, whether it is a stop, and into the inbox with the rest. None of it waits.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_kernel::channel::commands::Command;
use quell_kernel::channel::inbox::{Heard as Taken, Letter};
use quell_kernel::channel::keys::history_key;
use quell_kernel::stop_text;
use quell_protocol::{ChannelMessage, RunId};
use sha2::{Digest, Sha256};

use super::channel::Channel;
use super::stop::{Aloud, Reach, stop};
use super::{Channels, Extra, words};
use crate::channels::seam::{Ear, Heard, Own};

/// Longer texts are not taken: a network's longest message is far shorter.
const LONGEST: usize = 256 * 1024;

/// The ear of one channel.
pub(super) struct ChannelEar {
    pub(super) channels: Channels,
    pub(super) channel: Arc<Channel>,
}

impl Ear for ChannelEar {
    fn connected(&self, own: Own) {
        tracing::info!(channel = self.channel.name, account = own.name, "channel connected");
        self.channel.connected(own);
    }

    fn hear(&self, heard: Heard) {
        let channel = &self.channel;
        if channel.is_own(&heard.sender) {
            return;
        }
        let Some(rights) = channel.rights(&heard.sender) else {
            tracing::debug!(channel = channel.name, sender = heard.sender, "a message of somebody who is not allowed");
            return;
        };
        if heard.text.len() > LONGEST || (heard.text.trim().is_empty() && heard.attachments.is_empty()) {
            return;
        }
        let command = Command::of(&heard.text).filter(|_| heard.addressed);
        let reach = match command {
            Some(Command::Stop(reach)) => Some(Reach::of(reach, rights)),
            Some(_) => None,
            // What is meant for somebody else, such as `/stop@another`, is no stop word.
            None => stop_text::is_stop(&heard.text).then_some(Reach::Conversation(rights)),
        };
        if reach.is_none() && !heard.addressed {
            return;
        }
        channel.count_heard();
        let aloud = if heard.addressed { Aloud::Always } else { Aloud::IfItStopped };
        let (message, extra) = self.read(heard);
        tracing::info!(channel = message.channel, sender = message.sender, "inbound message");
        tracing::debug!(channel = message.channel, text = message.content, "text of an inbound message");
        match reach {
            Some(reach) => {
                if self.channels.inbox().is_new(&message.channel, &message.id) {
                    stop(&self.channels, (&message, &extra), (reach, aloud));
                }
            }
            None => self.queue(message, extra),
        }
    }

    fn settled(&self) -> BoxFuture<'_, ()> {
        async move {
            let mark = self.channels.inbox().mark();
            let mut left = self.channels.0.left.subscribe();
            loop {
                left.borrow_and_update();
                if self.channels.inbox().is_settled(&self.channel.name, mark) {
                    return;
                }
                // The sender lives as long as the channels do.
                let _ = left.changed().await;
            }
        }
        .boxed()
    }

    fn cursor(&self) -> BoxFuture<'_, Option<String>> {
        async move {
            match self.channels.engine().channel_cursor(&self.channel.name).await {
                Ok(cursor) => cursor,
                Err(error) => {
                    tracing::error!(channel = self.channel.name, %error, "where to go on listening cannot be read");
                    None
                }
            }
        }
        .boxed()
    }

    fn keep_cursor(&self, cursor: String) -> BoxFuture<'_, ()> {
        async move {
            if let Err(error) = self.channels.engine().keep_channel_cursor(&self.channel.name, cursor).await {
                tracing::error!(channel = self.channel.name, %error, "where to go on listening cannot be kept");
            }
        }
        .boxed()
    }
}

impl ChannelEar {
    fn read(&self, heard: Heard) -> (ChannelMessage, Extra) {
        let message = ChannelMessage {
            channel: self.channel.name.clone(),
            id: heard.id,
            sender: heard.sender,
            sender_name: heard.sender_name,
            reply_target: heard.place.target.clone(),
            content: heard.text.trim().to_owned(),
            thread: heard.place.thread.clone(),
            scope_id: heard.scope_id,
            group: heard.group,
            attachments: heard.attachments,
        };
        let (channel, stopped) = (Arc::clone(&self.channel), self.channels.0.ending.child_token());
        (message, Extra { channel, place: heard.place, message: heard.message, stopped })
    }

    fn queue(&self, message: ChannelMessage, extra: Extra) {
        let is_command = Command::of(&message.content).is_some();
        let patience = if is_command { 0 } else { self.channel.config.debounce_ms };
        let letter = Letter {
            conversation: history_key(&message),
            run: run_of(&message),
            patience: Duration::from_millis(patience),
            message,
            extra,
        };
        match self.channels.inbox().hear(letter) {
            Taken::Taken => {}
            Taken::Repeat => return,
            Taken::Crowded(refused) => {
                let Extra { channel, place, .. } = &refused.extra;
                tracing::warn!(channel = channel.name, sender = refused.message.sender, "too many messages wait");
                channel.outlet.seldom(place, &refused.message.sender, words::CROWDED);
                self.channels.tell_left();
            }
        }
        self.channels.0.news.notify_one();
    }
}

/// The run of a message has the same id whenever the message is told, so that a repeat is known after a restart too.
pub(super) fn run_of(message: &ChannelMessage) -> RunId {
    let hash: String =
        Sha256::digest(message.id.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    match RunId::parse(format!("{}:{hash}", message.channel)) {
        Ok(run) => run,
        Err(_) => unreachable!("a channel's name is checked, and a hash is legal in an id"),
    }
}
