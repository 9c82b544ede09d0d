//! Send the answers of scheduled runs into chats.

use std::fmt;
use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_engine::channel_origin::{
    ChannelOrigin, ChannelRunOptions, DeliveryContext, DeliveryError, ReplyDelivery, ScheduleCreator,
    ScheduledDelivery, SenderRights,
};
use quell_kernel::channel::sanitise::NarrationPolicy;
use quell_protocol::schedule::{ScheduleDelivery, ScheduleView};
use quell_protocol::{ChannelMessage, Principal, RunId, SessionKey};

use super::channel::ActiveChannel;
use super::send_retry::{SendPersistence, delivery_error, send_piece};
use super::{Channels, ChannelsInner, channel_principal, texts};
use crate::format::split_message;
use crate::network::ChatAddress;

/// The longest place, in bytes. Matrix has the longest, 255 bytes.
const MAX_PLACE_BYTES: usize = 512;

/// The channels, for the engine, which they hold.
pub(super) struct ChannelsOfSchedules(Weak<ChannelsInner>);

impl ChannelsOfSchedules {
    pub(super) fn new(channels: &Channels) -> Self {
        Self(Arc::downgrade(&channels.0))
    }

    fn find(&self, name: &str) -> Result<(Channels, Arc<ActiveChannel>), String> {
        let channels = self.0.upgrade().map(Channels).ok_or("the daemon is shutting down")?;
        let channel = channels.find_channel(name).ok_or_else(|| {
            let names: Vec<String> = channels.channel_rows().into_iter().map(|row| row.name).collect();
            format!("there is no channel {name:?} at work; the configured ones are: {}", names.join(", "))
        })?;
        Ok((channels, channel))
    }
}

impl ScheduledDelivery for ChannelsOfSchedules {
    /// Reads the configuration and not the channels at work: right after a start there are none.
    fn sender_rights(&self, principal: &Principal) -> SenderRights {
        let Some(channels) = self.0.upgrade().map(Channels) else { return SenderRights::Unknown };
        let name = principal.as_str().split_once(':').map_or(principal.as_str(), |(channel, _)| channel);
        let settings = channels.current_settings();
        let Some(config) = settings.settings.channels.get(name) else {
            return SenderRights::None(format!("there is no channel {name:?} any more"));
        };
        match config.access_level(|listed| channel_principal(name, listed) == *principal) {
            Some(level) => SenderRights::Level(level),
            None => SenderRights::None(format!("{principal} is not allowed in the channel {name:?} any more")),
        }
    }

    /// Admins may send anywhere, a run that answers a chat message into its own chat, and others nowhere.
    fn check_delivery(&self, delivery: &ScheduleDelivery, creator: &ScheduleCreator) -> Result<(), String> {
        self.find(&delivery.channel)?;
        let to = &delivery.to;
        if to.trim().is_empty() || to.len() > MAX_PLACE_BYTES || to.chars().any(char::is_control) {
            return Err(format!("a place has 1 to {MAX_PLACE_BYTES} bytes and no control characters"));
        }
        if let Some(chat) = &creator.chat {
            let own = || format!("an answer may be sent to this chat only: {:?} of {:?}", chat.to, chat.channel);
            return if chat == delivery { Ok(()) } else { Err(own()) };
        }
        if ScheduleCreator::may_send_anywhere(creator.scope, creator.surface) {
            return Ok(());
        }
        Err("only admins may have answers sent into chats of others".to_owned())
    }

    fn new_origin(
        &self,
        delivery: &ScheduleDelivery,
        schedule: &ScheduleView,
        run: &RunId,
    ) -> Result<ChannelOrigin, String> {
        let (channels, channel) = self.find(&delivery.channel)?;
        let by = schedule.created_by.as_str();
        let sender = by.strip_prefix(&format!("{}:", delivery.channel)).unwrap_or(by).to_owned();
        let message = ChannelMessage {
            channel: delivery.channel.clone(),
            id: run.to_string(),
            sender,
            sender_name: None,
            reply_target: delivery.to.clone(),
            content: schedule.text.clone(),
            thread: None,
            scope_id: None,
            group: false,
            attachments: Vec::new(),
        };
        let messages = channels.current_settings().settings.messages;
        let narration = if messages.sanitize_narration { NarrationPolicy::Drop } else { NarrationPolicy::Keep };
        let context_lines = vec![format!("A schedule has sent this message ({}).", schedule.id)];
        let options = ChannelRunOptions {
            context_lines: context_lines.into_iter().chain(channel.config.instructions.clone()).collect(),
            send_files_hint: None,
            routed_model: None,
            max_history_chars: messages.history_budget_chars,
            max_steps: Some(messages.max_rounds()),
        };
        let address = ChatAddress { target: delivery.to.clone(), thread: None };
        let reply = ScheduledReply {
            channels,
            channel,
            address,
            run: run.clone(),
            session: schedule.session_key.clone(),
            narration,
        };
        Ok(ChannelOrigin::new(message, options, Arc::new(reply)))
    }
}

impl fmt::Debug for ChannelsOfSchedules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChannelsOfSchedules")
    }
}

/// The answer of one firing.
struct ScheduledReply {
    channels: Channels,
    channel: Arc<ActiveChannel>,
    address: ChatAddress,
    run: RunId,
    session: SessionKey,
    narration: NarrationPolicy,
}

impl ScheduledReply {
    async fn send(&self, answer: &str) -> Result<(), DeliveryError> {
        let channel = self.channels.current_channel(&self.channel);
        let pieces = split_message(answer, &channel.limits.message_format);
        for (sent, piece) in pieces.iter().enumerate() {
            let key = format!("{}-{sent}", self.run);
            send_piece(&*channel.network, &self.address, piece, &key, SendPersistence::UntilCancelled)
                .await
                .map_err(|error| delivery_error(error, sent, pieces.len()))?;
        }
        Ok(())
    }
}

impl ReplyDelivery for ScheduledReply {
    fn fetch_attachments<'a>(&'a self, _context: DeliveryContext<'a>) -> BoxFuture<'a, Vec<String>> {
        async { Vec::new() }.boxed()
    }

    fn format_answer(&self, answer: &str) -> String {
        let language = self.channels.conversation_language(&self.channel, &self.session);
        texts::sanitise_answer(answer, &self.channels.0.tool_names, self.narration, language)
    }

    fn find_files(&self, _answer: &str) -> Vec<String> {
        Vec::new()
    }

    fn deliver_answer<'a>(
        &'a self,
        answer: &'a str,
        _context: DeliveryContext<'a>,
    ) -> BoxFuture<'a, Result<(), DeliveryError>> {
        self.send(answer).boxed()
    }

    fn on_withheld(&self, reason: &str) {
        tracing::info!(run = %self.run, reason, "a hook withheld the answer of a scheduled run");
    }
}
