//! IRC network: one nick, channels and private messages, optional TLS and SASL. Lines that begin with the nick are
//! addressed to it.
//!
//! This is a client of its own because the existing crates bring a second TLS library and another licence. It follows
//! RFC 2812 as today's servers do (modern.ircdocs.horse), and from IRCv3 `CAP`, `sasl`, `message-tags`, `server-time`,
//! `account-tag`.
//!
//! The server does not confirm messages. A message counts as sent when the socket has accepted it.

mod account;
mod connection;
mod line_reader;
mod message;
mod outbox;
mod registration;
mod send_limits;
mod server_info;
mod session;
#[cfg(test)]
pub(crate) mod tests;
mod text;

use std::time::Duration;

use uuid::Uuid;

use account::IrcAccount;
use outbox::{IrcOutbox, IrcSendPriority};

use super::config::{ChannelConfig, ChannelConfigError};
use super::format::{LengthUnit, Markup, MessageFormat, MessagePiece};
use super::network::{
    ChatAddress, InboundSink, ListenError, MessageId, Network, NetworkError, NetworkLimits, SendError, SenderIdentity,
    async_trait,
};
use super::wire::byte_stream::{self, ByteStream};

/// Not used, since IRC has neither edits nor typing indicators; the trait asks for values.
const UNUSED_INTERVAL: Duration = Duration::from_secs(60);

/// One nick on one network.
#[derive(Debug)]
pub struct IrcNetwork {
    account: IrcAccount,
    outbox: IrcOutbox,
}

impl IrcNetwork {
    /// Checks the keys of `[channels.X]`. It connects when it listens.
    pub fn new(name: &str, config: &ChannelConfig) -> Result<Self, ChannelConfigError> {
        Ok(Self { account: IrcAccount::new(name, config)?, outbox: IrcOutbox::default() })
    }

    async fn connect(&self) -> Result<ByteStream, ListenError> {
        let IrcAccount { host, port, security, .. } = &self.account;
        let connected = byte_stream::connect(host, *port, *security).await;
        connected.map_err(|error| ListenError::Connection(format!("{host}:{port} cannot be reached: {error}")))
    }

    async fn send_with_priority(
        &self,
        address: &ChatAddress,
        piece: &MessagePiece,
        priority: IrcSendPriority,
    ) -> Result<MessageId, SendError> {
        self.outbox.queue_message(&address.target, &piece.formatted, priority)?.wait_until_sent().await?;
        Ok(MessageId(Uuid::now_v7().simple().to_string()))
    }
}

#[async_trait]
impl Network for IrcNetwork {
    fn limits(&self) -> NetworkLimits {
        let max_length = send_limits::usual_text_bytes(&self.account.configured_nick);
        NetworkLimits {
            message_format: MessageFormat { markup: Markup::Plain, max_length, length_unit: LengthUnit::Bytes },
            edit_interval: UNUSED_INTERVAL,
            typing_interval: UNUSED_INTERVAL,
        }
    }

    /// A nick proves nothing unless the server protects it.
    fn sender_identity(&self) -> SenderIdentity {
        SenderIdentity::Claimed
    }

    async fn listen(&self, sink: &dyn InboundSink) -> ListenError {
        let listening = async { connection::listen(&self.account, &self.outbox, self.connect().await?, sink).await };
        let Err(lost) = listening.await;
        lost
    }

    async fn send(&self, address: &ChatAddress, piece: &MessagePiece, _key: &str) -> Result<MessageId, SendError> {
        self.send_with_priority(address, piece, IrcSendPriority::Normal).await
    }

    async fn send_urgent(
        &self,
        address: &ChatAddress,
        piece: &MessagePiece,
        _key: &str,
    ) -> Result<MessageId, SendError> {
        self.send_with_priority(address, piece, IrcSendPriority::Urgent).await
    }

    async fn probe(&self) -> Result<String, NetworkError> {
        let probing = async { connection::probe_account(&self.account, self.connect().await?).await };
        probing.await.map_err(|lost: ListenError| NetworkError(lost.to_string()))
    }
}
