//! IRC: rooms and private messages of one nick, over TLS unless told otherwise. Lines that begin with the nick are for it.
//!
//! A client of its own and not a crate: those there are bring a second TLS library and a licence of their own. It follows
//! RFC 2812 as servers of today do (modern.ircdocs.horse), and of IRCv3 `CAP`, `sasl`, `message-tags`, `server-time`, `account-tag`.
//!
//! The server tells nobody whether a line arrived. A message counts as sent when the socket has taken it.

mod account;
mod connection;
mod flood;
mod incoming;
mod live;
mod message;
mod outbox;
mod reach;
mod registration;
mod sasl;
mod server;
#[cfg(test)]
mod tests;
mod words;

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use uuid::Uuid;

use account::Account;
use outbox::{Outbox, Turn};

use super::config::{BadChannel, ChannelConfig};
use super::format::{Form, Markup, Measure, Piece};
use super::seam::{Ear, Lost, Manners, MessageId, Network, NotSent, Place, Trouble};
use super::wire::stream::{self, Stream};

/// Nothing can be edited here, and nobody sees who is writing.
const NEVER_USED: Duration = Duration::from_secs(60);

/// One nick on one network.
#[derive(Debug)]
pub struct Irc {
    account: Account,
    outbox: Outbox,
}

impl Irc {
    /// One with these keys. It connects when it listens.
    ///
    /// # Errors
    /// [`BadChannel`] names the key that is wrong.
    pub fn new(name: &str, config: &ChannelConfig) -> Result<Self, BadChannel> {
        Ok(Self { account: Account::new(name, config)?, outbox: Outbox::default() })
    }

    async fn connect(&self) -> Result<Stream, Lost> {
        let Account { host, port, security, .. } = &self.account;
        let connected = stream::connect(host, *port, *security).await;
        connected.map_err(|error| Lost::Connection(format!("{host}:{port} cannot be reached: {error}")))
    }
}

impl Network for Irc {
    fn manners(&self) -> Manners {
        let longest = reach::usual_room_for_text(&self.account.nick);
        Manners {
            form: Form { markup: Markup::Plain, longest, measure: Measure::Bytes },
            edit_every: NEVER_USED,
            typing_every: NEVER_USED,
        }
    }

    fn listen<'a>(&'a self, ear: &'a dyn Ear) -> BoxFuture<'a, Lost> {
        async move {
            match self.connect().await {
                Ok(stream) => connection::listen(&self.account, &self.outbox, stream, ear).await,
                Err(lost) => lost,
            }
        }
        .boxed()
    }

    fn send<'a>(
        &'a self,
        place: &'a Place,
        piece: &'a Piece,
        _key: &'a str,
    ) -> BoxFuture<'a, Result<MessageId, NotSent>> {
        async move {
            self.outbox.put(&place.target, &piece.marked, Turn::Last)?.gone().await?;
            Ok(MessageId(Uuid::now_v7().simple().to_string()))
        }
        .boxed()
    }

    fn send_first<'a>(
        &'a self,
        place: &'a Place,
        piece: &'a Piece,
        _key: &'a str,
    ) -> BoxFuture<'a, Result<MessageId, NotSent>> {
        async move {
            self.outbox.put(&place.target, &piece.marked, Turn::First)?.gone().await?;
            Ok(MessageId(Uuid::now_v7().simple().to_string()))
        }
        .boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Trouble>> {
        async move {
            let stream = self.connect().await.map_err(|lost| Trouble(lost.to_string()))?;
            connection::look(&self.account, stream).await
        }
        .boxed()
    }
}
