//! Show the history of a session.

use quell_kernel::turn::Turn;
use quell_protocol::api::HistoryMessage;
use quell_protocol::{RunId, SessionKey};
use quell_store::{HistoryItem, StoreError};

use super::Engine;

#[derive(Debug, Clone, PartialEq)]
pub struct HistoryPage {
    pub messages: Vec<HistoryMessage>,
    /// Cursor for the page before this one; `None` at the beginning of the history.
    pub before: Option<String>,
}

/// A turn of a session as messages for people.
#[derive(Debug, Clone, PartialEq)]
pub struct NumberedTurn {
    /// Numbers rise with time and may have gaps.
    pub number: i64,
    pub run: RunId,
    pub messages: Vec<HistoryMessage>,
}

impl Engine {
    /// A session's newest messages, for people: those of at most `turns` turns before the cursor `before`.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn history_page(
        &self,
        key: &SessionKey,
        turns: usize,
        before: Option<String>,
    ) -> Result<HistoryPage, StoreError> {
        let (stored, before) = self.inner().store.history().page(key.clone(), turns, before).await?;
        let mut messages = Vec::new();
        for item in stored {
            match item {
                HistoryItem::Turn { turn, agent, principal } => {
                    let mut turn = parse_turn(&turn)?.history();
                    if let Some(first) = turn.first_mut() {
                        (first.agent, first.principal) = (Some(agent), Some(principal));
                    }
                    messages.extend(turn);
                }
                HistoryItem::Reset { at } => messages.push(reset_message(at)),
            }
        }
        Ok(HistoryPage { messages, before })
    }

    /// The newest turns of a session after its last reset and before number `before`, the newest first; at most
    /// `limit`.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn newest_turns(
        &self,
        key: &SessionKey,
        before: i64,
        limit: usize,
    ) -> Result<Vec<NumberedTurn>, StoreError> {
        let stored = self.inner().store.history().newest_turns(key.clone(), before, limit).await?;
        let parse = |(number, text): (i64, String)| {
            let turn = parse_turn(&text)?;
            Ok(NumberedTurn { number, run: turn.run_id().clone(), messages: turn.history() })
        };
        stored.into_iter().map(parse).collect()
    }

    /// The messages of the first turn of a session after its last reset.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn first_messages(&self, key: &SessionKey) -> Result<Vec<HistoryMessage>, StoreError> {
        let first = self.inner().store.history().first_turn(key.clone()).await?;
        first.map_or_else(|| Ok(Vec::new()), |text| Ok(parse_turn(&text)?.history()))
    }
}

fn parse_turn(text: &str) -> Result<Turn, StoreError> {
    Turn::from_stored(text).map_err(|error| StoreError::Corrupt(error.to_string()))
}

fn reset_message(at: String) -> HistoryMessage {
    HistoryMessage::new(None, "reset", "", &at)
}
