//! Matrix network: unencrypted rooms through the client-server API with `/sync` long polling.
//!
//! It does not use the Matrix SDK, which owns tasks and a database: about ten calls are enough here. The listener makes
//! one long poll of `/sync` after the other. If a response left out events, they are fetched.

mod api;
mod attachments;
mod call_error;
mod events;
mod known_rooms;
mod limiter;
mod listener;
mod message_parser;
mod reactions;
mod room_tasks;
mod sending;
mod settings;
#[cfg(test)]
pub(crate) mod tests;
mod timeline_gaps;

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::config::{ChannelConfig, ChannelConfigError};
use super::format::{LengthUnit, Markup, MessageFormat, MessagePiece};
use super::network::{
    ChatAddress, InboundSink, ListenError, MessageId, Network, NetworkError, NetworkFeatures, NetworkLimits,
    OwnAccount, SendError, async_trait,
};
use super::wire::call_error::CallError;
use api::MatrixApi;
use reactions::ReactionCache;
use settings::MatrixSettings;

/// Largest length of a text. An event may have 65,536 bytes (Matrix specification: size limits). An edit holds the text
/// twice, with markup and without, and JSON escapes may double both; the rest is for the fields of the server.
const MAX_MESSAGE_BYTES: usize = 15_000;
/// Time between two edits of one message. Edits are permanent events, sent to everybody in the room.
const EDIT_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two typing notifications, which last for ten seconds.
const TYPING_INTERVAL: Duration = Duration::from_secs(4);

/// One account on a homeserver.
#[derive(Debug)]
pub struct MatrixNetwork {
    channel_name: String,
    settings: MatrixSettings,
    api: MatrixApi,
    /// The account as the server names it; none before the first call.
    account: Mutex<Option<OwnAccount>>,
    /// Encrypted rooms that got the notice that they cannot be read.
    notified_rooms: Mutex<HashSet<String>>,
    reaction_cache: Mutex<ReactionCache>,
}

impl MatrixNetwork {
    /// Checks the keys of `[channels.NAME]`.
    pub fn new(name: &str, config: &ChannelConfig) -> Result<Self, ChannelConfigError> {
        let settings = MatrixSettings::parse(name, config)?;
        let api = MatrixApi::new(&settings).map_err(|error| ChannelConfigError::new(name, "api_base", error.0))?;
        Ok(Self {
            channel_name: name.to_owned(),
            settings,
            api,
            account: Mutex::default(),
            notified_rooms: Mutex::default(),
            reaction_cache: Mutex::default(),
        })
    }

    /// Asks the server for the account of the token.
    async fn fetch_account(&self) -> Result<OwnAccount, CallError> {
        let id = self.api.whoami().await?;
        let name = self.api.display_name(&id).await?.unwrap_or_else(|| settings::local_part(&id).to_owned());
        let account = OwnAccount { id, name };
        *lock(&self.account) = Some(account.clone());
        Ok(account)
    }

    /// The id of the account. It is fetched once.
    async fn account_id(&self) -> Result<String, CallError> {
        let known = lock(&self.account).as_ref().map(|account| account.id.clone());
        match known {
            Some(id) => Ok(id),
            None => Ok(self.fetch_account().await?.id),
        }
    }
}

#[async_trait]
impl Network for MatrixNetwork {
    fn limits(&self) -> NetworkLimits {
        let message_format =
            MessageFormat { markup: Markup::MatrixHtml, max_length: MAX_MESSAGE_BYTES, length_unit: LengthUnit::Bytes };
        NetworkLimits { message_format, edit_interval: EDIT_INTERVAL, typing_interval: TYPING_INTERVAL }
    }

    async fn listen(&self, sink: &dyn InboundSink) -> ListenError {
        let Err(lost) = listener::listen_until_lost(self, sink).await;
        lost.into_listen_error()
    }

    async fn send(&self, address: &ChatAddress, piece: &MessagePiece, key: &str) -> Result<MessageId, SendError> {
        sending::send_message(&self.api, address, piece, key).await
    }

    async fn probe(&self) -> Result<String, NetworkError> {
        let id = self.api.whoami().await.map_err(CallError::into_network_error)?;
        let rooms = match self.api.count_joined_rooms().await.map_err(CallError::into_network_error)? {
            0 => "in no room; invite it into one".to_owned(),
            1 => "in 1 room".to_owned(),
            many => format!("in {many} rooms"),
        };
        Ok(format!("{id}, {rooms}"))
    }

    fn features(&self) -> NetworkFeatures<'_> {
        NetworkFeatures {
            drafts: Some(self),
            typing: Some(self),
            reactions: Some(self),
            files: Some(self),
            ..NetworkFeatures::default()
        }
    }
}

/// Locks a mutex. The data is complete whenever the lock is free, so a panic elsewhere does not matter.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
