//! The bot's own account.

use std::fmt;

use serde::Deserialize;

use crate::network::OwnAccount;

/// The bot itself (Bot API: `User`, as returned by getMe).
#[derive(Debug, Clone, Deserialize)]
pub(super) struct TelegramBot {
    pub(super) id: i64,
    pub(super) username: String,
    #[serde(default)]
    can_read_all_group_messages: bool,
}

impl TelegramBot {
    pub(super) fn to_own_account(&self) -> OwnAccount {
        OwnAccount { id: self.id.to_string(), name: self.username.clone() }
    }
}

impl fmt::Display for TelegramBot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{} (id {})", self.username, self.id)?;
        if !self.can_read_all_group_messages {
            f.write_str(", in groups it receives only commands, mentions and replies to it (@BotFather: /setprivacy)")?;
        }
        Ok(())
    }
}
