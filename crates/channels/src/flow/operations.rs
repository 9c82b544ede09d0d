//! Operations on channels from the API: probe an account, send a text, receive a posted message.

use std::sync::Arc;
use std::time::Duration;

use quell_engine::channel_origin::DeliveryError;
use quell_engine::engine::{AuditAction, Caller};
use quell_protocol::audit::Action;
use quell_protocol::channel::{ChannelDelivery, ChannelHealth, ChannelReceived, ChannelTest, DeliveryState};
use quell_scope::clock::Clock;
use reqwest::header::HeaderMap;
use tokio::time::{Instant, timeout, timeout_at};

use super::Channels;
use super::channel::ActiveChannel;
use super::inbound::ChannelInboundSink;
use super::send_retry::{RetrySafety, SendPersistence, delivery_error, retry};
use crate::format::split_message;
use crate::network::{ChatAddress, InboundEndpoint, InboundRejection, InboundSink, SendError};

/// Time limit of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for the delivery of a text. Clients of the daemon give up after 30 s.
const SEND_TIMEOUT: Duration = Duration::from_secs(25);
/// How long a posted message may take to be stored.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a target, in bytes. Matrix has the longest, 255 bytes.
const MAX_TARGET_BYTES: usize = 512;

/// Why a channel could not be probed or written to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChannelTargetError {
    #[error("there is no channel {name:?}; {}", known_channels_text(.known))]
    Unknown {
        name: String,
        /// The names of the configured channels.
        known: Vec<String>,
    },
    /// The channel is configured and cannot be used.
    #[error("the channel {name} cannot be used: {why}")]
    Unusable {
        name: String,
        /// The configuration error, or the last connection error.
        why: String,
    },
    /// The target or the text is missing or invalid.
    #[error("{0}")]
    InvalidRequest(String),
}

/// Why a posted message was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// No channel of this name accepts posted messages.
    #[error("there is no channel {0:?} that messages are posted to")]
    NoEndpoint(String),
    #[error(transparent)]
    Rejected(#[from] InboundRejection),
    /// Another node of the cluster listens to this channel.
    #[error("this node does not listen to the channel {0:?} now; post the message again")]
    NotListening(String),
    /// The message was received, and is not stored yet.
    #[error("the message was received but is not stored yet; post it again with the same id")]
    NotStored,
}

fn known_channels_text(names: &[String]) -> String {
    if names.is_empty() {
        return "none is configured".to_owned();
    }
    format!("there are: {}", names.join(", "))
}

impl Channels {
    /// Checks the account of a channel with its network. An error of the network is a result with `ok: false`.
    ///
    /// # Errors
    /// [`ChannelTargetError::Unknown`] if there is no such channel.
    ///
    /// # Cancel safety
    /// Safe: dropping the future gives up the request.
    pub async fn probe(&self, name: &str) -> Result<ChannelTest, ChannelTargetError> {
        let channel = match self.require_channel(name) {
            Ok(channel) => channel,
            Err(ChannelTargetError::Unusable { why, .. }) => return Ok(ChannelTest { ok: false, detail: why }),
            Err(error) => return Err(error),
        };
        Ok(match timeout(PROBE_TIMEOUT, channel.network.probe()).await {
            Ok(Ok(detail)) => ChannelTest { ok: true, detail },
            Ok(Err(trouble)) => ChannelTest { ok: false, detail: trouble.to_string() },
            Err(_elapsed) => {
                ChannelTest { ok: false, detail: format!("no answer within {} s", PROBE_TIMEOUT.as_secs()) }
            }
        })
    }

    /// Sends a text to `to`, which is `CHANNEL:TARGET`. The first colon separates the two, so that a target may contain
    /// colons.
    ///
    /// # Errors
    /// [`ChannelTargetError`]: nothing was sent.
    ///
    /// # Cancel safety
    /// Safe: dropping the future gives up the request that is in flight; the text may be shown or not.
    pub async fn send_text(
        &self,
        caller: &Caller,
        to: &str,
        text: &str,
    ) -> Result<ChannelDelivery, ChannelTargetError> {
        let (name, target) = to.split_once(':').ok_or_else(|| {
            ChannelTargetError::InvalidRequest(
                "say where: CHANNEL:PLACE, such as telegram:12345678 or irc:#team".to_owned(),
            )
        })?;
        let channel = self.require_channel(name)?;
        if target.trim().is_empty() || target.len() > MAX_TARGET_BYTES || target.chars().any(char::is_control) {
            let rule = format!("a place has 1 to {MAX_TARGET_BYTES} bytes and no control characters");
            return Err(ChannelTargetError::InvalidRequest(rule));
        }
        let pieces = split_message(text, &channel.limits.message_format);
        if pieces.is_empty() {
            return Err(ChannelTargetError::InvalidRequest("the text has nothing in it that could be seen".to_owned()));
        }
        let audit_action =
            AuditAction::on_target(Action::SendToChannel, "channel", name).with_detail(format!("to: {target}"));
        self.engine().audit(caller, audit_action);
        let (address, deadline) =
            (ChatAddress { target: target.to_owned(), thread: None }, Instant::now() + SEND_TIMEOUT);
        let (key, total) = (uuid::Uuid::now_v7(), pieces.len());
        for (sent, piece) in pieces.iter().enumerate() {
            let key = format!("{key}-{sent}");
            let send = || async {
                let lost = |_| Err(SendError::Unknown { why: "no answer in time".to_owned(), is_repeatable: false });
                timeout_at(deadline, channel.network.send(&address, piece, &key)).await.unwrap_or_else(lost)
            };
            if let Err(error) = retry(send, RetrySafety::OnlyWithKey, SendPersistence::FewTriesBefore(deadline)).await {
                return Ok(failed_delivery(sent, total, delivery_error(error, sent, total)));
            }
        }
        Ok(ChannelDelivery { delivery: DeliveryState::Delivered, sent: total, of: total, detail: None })
    }

    /// Maximum body size of a posted message, in bytes; `None` if the channel accepts none.
    #[must_use]
    pub fn max_post_bytes(&self, name: &str) -> Option<usize> {
        Some(self.find_channel(name)?.network.features().inbound_endpoint?.max_body_bytes())
    }

    /// Accepts a message that was posted to a channel. When it returns, a stop has acted, and the message is stored or
    /// finally refused.
    ///
    /// # Errors
    /// [`ReceiveError`]: the message may be posted again.
    ///
    /// # Cancel safety
    /// Safe: an accepted message is processed further.
    pub async fn receive_post(
        &self,
        name: &str,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<ChannelReceived, ReceiveError> {
        let no_endpoint = || ReceiveError::NoEndpoint(name.to_owned());
        let channel = self.find_channel(name).ok_or_else(no_endpoint)?;
        let endpoint: &dyn InboundEndpoint = channel.network.features().inbound_endpoint.ok_or_else(no_endpoint)?;
        let inbound = endpoint.parse_request(headers, body, Clock::wall_seconds())?;
        if !channel.is_listener() {
            return Err(ReceiveError::NotListening(name.to_owned()));
        }
        let id = inbound.id.clone();
        let sink = ChannelInboundSink { channels: self.clone(), channel: Arc::clone(&channel) };
        sink.on_message(inbound);
        // Debounced messages are stored only after the debounce time.
        let store_timeout = STORE_TIMEOUT + Duration::from_millis(channel.config.debounce_ms);
        timeout(store_timeout, sink.wait_until_stored()).await.map_err(|_elapsed| ReceiveError::NotStored)?;
        Ok(ChannelReceived { id })
    }

    fn require_channel(&self, name: &str) -> Result<Arc<ActiveChannel>, ChannelTargetError> {
        if let Some(channel) = self.find_channel(name) {
            return Ok(channel);
        }
        let rows = self.channel_rows();
        match rows.iter().find(|row| row.name == name) {
            Some(row) => Err(ChannelTargetError::Unusable { name: name.to_owned(), why: health_reason(&row.health) }),
            None => {
                let known = rows.into_iter().map(|row| row.name).collect();
                Err(ChannelTargetError::Unknown { name: name.to_owned(), known })
            }
        }
    }
}

fn health_reason(health: &ChannelHealth) -> String {
    match health {
        ChannelHealth::Lost(why) | ChannelHealth::Refused(why) => why.clone(),
        ChannelHealth::Connecting | ChannelHealth::Connected | ChannelHealth::Stopped => {
            "it is being changed".to_owned()
        }
    }
}

fn failed_delivery(sent: usize, total: usize, undelivered: DeliveryError) -> ChannelDelivery {
    let (delivery, why) = match undelivered {
        DeliveryError::NotDelivered(why) => (DeliveryState::Undelivered, why),
        DeliveryError::PartlyDelivered { why, .. } => (DeliveryState::Partly, why),
        DeliveryError::Unknown(why) => (DeliveryState::Unknown, why),
    };
    ChannelDelivery { delivery, sent, of: total, detail: Some(why) }
}
