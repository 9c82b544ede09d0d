//! What operators do with channels besides writing in them: look whether one works, say something in its name, and hand in what
//! a network posts by itself.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use quell_engine::channel::Undelivered;
use quell_engine::clock::Clock;
use quell_engine::dispatch::{Caller, Deed};
use quell_protocol::audit::Action;
use quell_protocol::channel::{ChannelDelivery, ChannelHealth, ChannelReceived, ChannelTest, DeliveryState};
use tokio::time::{Instant, timeout};

use super::Channels;
use super::channel::Channel;
use super::ear::ChannelEar;
use super::send::{send_by, undelivered};
use crate::channels::format::pieces;
use crate::channels::seam::{Ear, Inbound, Place, Unwelcome};

/// How long a network may take to say who an account is.
const PROBE: Duration = Duration::from_secs(20);
/// How long an operator waits for a text to be delivered. Visitors of the daemon give up after 30 s.
const SEND: Duration = Duration::from_secs(25);
/// How long whoever posts a message waits until it is in the database.
const SETTLE: Duration = Duration::from_secs(10);
/// The longest name of a place, in bytes. Those of Matrix have 255 at the most.
const LONGEST_PLACE: usize = 512;

/// Why nobody was asked, or written to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAddressed {
    /// There is no such channel.
    #[error("there is no channel {name:?}; {}", list_of(.known))]
    Unknown {
        /// As it was given.
        name: String,
        /// Those there are.
        known: Vec<String>,
    },
    /// It stands in the configuration and cannot be used.
    #[error("the channel {name} cannot be used: {why}")]
    Unusable {
        /// Its name.
        name: String,
        /// What is wrong with its configuration.
        why: String,
    },
    /// It is not said where, or nothing is said.
    #[error("{0}")]
    Senseless(String),
}

/// Why a posted message was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReceived {
    /// There is no channel of this name that is posted to.
    #[error("there is no channel {0:?} that messages are posted to")]
    NoDoor(String),
    /// The network refused it.
    #[error(transparent)]
    Unwelcome(#[from] Unwelcome),
    /// It was heard, and is not in the database yet.
    #[error("the message was heard and is not kept yet; post it again with the same id")]
    Unsettled,
}

fn list_of(names: &[String]) -> String {
    if names.is_empty() {
        return "none is configured".to_owned();
    }
    format!("there are: {}", names.join(", "))
}

impl Channels {
    /// Asks the network who the account of a channel is. What the network says against it is an answer, too.
    ///
    /// # Errors
    /// [`NotAddressed::Unknown`].
    ///
    /// # Cancel safety
    /// Dropped, it gives the question up.
    pub async fn probe(&self, name: &str) -> Result<ChannelTest, NotAddressed> {
        let channel = match self.addressed(name) {
            Ok(channel) => channel,
            Err(NotAddressed::Unusable { why, .. }) => return Ok(ChannelTest { ok: false, detail: why }),
            Err(error) => return Err(error),
        };
        Ok(match timeout(PROBE, channel.network.probe()).await {
            Ok(Ok(detail)) => ChannelTest { ok: true, detail },
            Ok(Err(trouble)) => ChannelTest { ok: false, detail: trouble.to_string() },
            Err(_elapsed) => ChannelTest { ok: false, detail: format!("no answer within {} s", PROBE.as_secs()) },
        })
    }

    /// Says something in a chat: `to` is `CHANNEL:PLACE`. The first colon parts them, so that a place may have more (row D5).
    ///
    /// # Errors
    /// [`NotAddressed`]: then nothing was sent.
    ///
    /// # Cancel safety
    /// Dropped, it gives up what is under way: it may be shown or not.
    pub async fn send(&self, caller: &Caller, to: &str, text: &str) -> Result<ChannelDelivery, NotAddressed> {
        let (name, target) = to.split_once(':').ok_or_else(|| {
            NotAddressed::Senseless("say where: CHANNEL:PLACE, such as telegram:12345678 or irc:#team".to_owned())
        })?;
        let channel = self.addressed(name)?;
        if target.trim().is_empty() || target.len() > LONGEST_PLACE || target.chars().any(char::is_control) {
            let rule = format!("a place has 1 to {LONGEST_PLACE} bytes and no control characters");
            return Err(NotAddressed::Senseless(rule));
        }
        let pieces = pieces(text, &channel.manners.form);
        if pieces.is_empty() {
            return Err(NotAddressed::Senseless("the text has nothing in it that could be seen".to_owned()));
        }
        let deed = Deed::to(Action::SendToChannel, "channel", name).with(format!("to: {target}"));
        self.engine().audit(caller, deed);
        let (place, deadline) = (Place { target: target.to_owned(), thread: None }, Instant::now() + SEND);
        let (key, of) = (uuid::Uuid::now_v7(), pieces.len());
        for (sent, piece) in pieces.iter().enumerate() {
            if let Err(error) = send_by(&channel, &place, (piece, &format!("{key}-{sent}")), deadline).await {
                return Ok(delivery(sent, of, undelivered(error, sent, of)));
            }
        }
        Ok(ChannelDelivery { delivery: DeliveryState::Delivered, sent: of, of, detail: None })
    }

    /// The most bytes of a body that a channel takes by posts; nothing when it takes none.
    #[must_use]
    pub fn largest_post(&self, name: &str) -> Option<usize> {
        Some(self.channel(name)?.network.inbound()?.largest())
    }

    /// Hears a message that was posted to a channel. When it answers, a stop has acted, and the message is in the database or was
    /// refused for good.
    ///
    /// # Errors
    /// [`NotReceived`]: it may be posted again.
    ///
    /// # Cancel safety
    /// Safe: what was heard goes on.
    pub async fn receive(&self, name: &str, headers: &HeaderMap, body: &[u8]) -> Result<ChannelReceived, NotReceived> {
        let no_door = || NotReceived::NoDoor(name.to_owned());
        let channel = self.channel(name).ok_or_else(no_door)?;
        let inbound: &dyn Inbound = channel.network.inbound().ok_or_else(no_door)?;
        let heard = inbound.read(headers, body, Clock::wall_seconds())?;
        let id = heard.id.clone();
        let ear = ChannelEar { channels: self.clone(), channel: Arc::clone(&channel) };
        ear.hear(heard);
        // What may belong together is kept only when it is known to be whole.
        let patience = SETTLE + Duration::from_millis(channel.config.debounce_ms);
        timeout(patience, ear.settled()).await.map_err(|_elapsed| NotReceived::Unsettled)?;
        Ok(ChannelReceived { id })
    }

    fn addressed(&self, name: &str) -> Result<Arc<Channel>, NotAddressed> {
        if let Some(channel) = self.channel(name) {
            return Ok(channel);
        }
        let rows = self.list();
        match rows.iter().find(|row| row.name == name) {
            Some(row) => Err(NotAddressed::Unusable { name: name.to_owned(), why: why(&row.health) }),
            None => {
                let known = rows.into_iter().map(|row| row.name).collect();
                Err(NotAddressed::Unknown { name: name.to_owned(), known })
            }
        }
    }
}

fn why(health: &ChannelHealth) -> String {
    match health {
        ChannelHealth::Lost(why) | ChannelHealth::Refused(why) => why.clone(),
        ChannelHealth::Connecting | ChannelHealth::Connected | ChannelHealth::Stopped => {
            "it is being changed".to_owned()
        }
    }
}

fn delivery(sent: usize, of: usize, undelivered: Undelivered) -> ChannelDelivery {
    let (delivery, why) = match undelivered {
        Undelivered::Nothing(why) => (DeliveryState::Undelivered, why),
        Undelivered::Partly { why, .. } => (DeliveryState::Partly, why),
        Undelivered::Unknown(why) => (DeliveryState::Unknown, why),
    };
    ChannelDelivery { delivery, sent, of, detail: Some(why) }
}
