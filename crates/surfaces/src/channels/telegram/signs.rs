//! Reactions. Telegram lets bots use some emoji only, and shows one reaction of a bot on a message: a new one takes the place of
//! the old one. So that taking an old sign off does not take off the new one, the last sign on each message is remembered.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::api::Api;
use super::send::{address, forget_topic, number};
use crate::channels::seam::{MessageId, NotSent, Place};
use crate::channels::wire::http::Repeatable;

/// Messages whose signs are remembered. A sign of one that is forgotten is taken off whatever it is.
const REMEMBERED: usize = 1024;

/// Signs of the flow that Telegram does not have (Bot API: `ReactionTypeEmoji`), and what stands for them: done, failed, stopped
/// as ordered.
const STAND_INS: [(&str, &str); 3] = [("✅", "👍"), ("⚠", "💔"), ("⏹", "🫡")];

/// The last sign on each of the latest messages.
#[derive(Debug, Default)]
pub(super) struct Signs {
    /// Chat, message, sign.
    latest: Mutex<VecDeque<(String, String, String)>>,
}

impl Signs {
    /// Puts a sign on a message.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have put it there.
    pub(super) async fn add(&self, api: &Api, on: (&Place, &MessageId), sign: &str) -> Result<(), NotSent> {
        let emoji = stand_in(sign);
        // Before the call: whoever takes the old sign off meanwhile must not take off this one.
        self.remember(on, &emoji);
        react(api, on, json!([{"type": "emoji", "emoji": emoji}])).await
    }

    /// Takes a sign off a message, unless another one stands there by now.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have taken it off.
    pub(super) async fn remove(&self, api: &Api, on: (&Place, &MessageId), sign: &str) -> Result<(), NotSent> {
        match self.forget(on, &stand_in(sign)) {
            Stands::Another => Ok(()),
            Stands::ThisOrUnknown => react(api, on, json!([])).await,
        }
    }

    fn remember(&self, (place, message): (&Place, &MessageId), emoji: &str) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.retain(|(chat, number, _)| *chat != place.target || *number != message.0);
        if latest.len() >= REMEMBERED {
            latest.pop_front();
        }
        latest.push_back((place.target.clone(), message.0.clone(), emoji.to_owned()));
    }

    fn forget(&self, (place, message): (&Place, &MessageId), emoji: &str) -> Stands {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let found = latest.iter().position(|(chat, number, _)| *chat == place.target && *number == message.0);
        let Some(index) = found else { return Stands::ThisOrUnknown };
        if latest[index].2 != emoji {
            return Stands::Another;
        }
        latest.remove(index);
        Stands::ThisOrUnknown
    }
}

/// Which sign stands on a message.
enum Stands {
    ThisOrUnknown,
    Another,
}

/// The emoji that Telegram knows for a sign. It writes all of them without the mark for coloured ones.
fn stand_in(sign: &str) -> String {
    let sign = sign.replace('\u{fe0f}', "");
    STAND_INS.iter().find(|(wanted, _)| *wanted == sign).map_or(sign, |(_, known)| (*known).to_owned())
}

async fn react(api: &Api, (place, message): (&Place, &MessageId), signs: Value) -> Result<(), NotSent> {
    let mut body = address(place)?;
    forget_topic(&mut body);
    body["message_id"] = number(message)?;
    body["reaction"] = signs;
    // Doing it again changes nothing.
    let done = api.call("setMessageReaction", &body).await;
    done.map(drop).map_err(|failure| failure.not_sent(Repeatable::Yes))
}
