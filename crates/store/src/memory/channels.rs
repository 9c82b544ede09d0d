//! State of chat channels, and webhooks that wait for delivery.

use quell_protocol::RunId;

use super::{MemoryStore, ReplyEntry};
use crate::channels::MAX_EXECUTED_COMMANDS;
use crate::{
    ChannelStore, PendingReply, QueuedWebhook, StaleReply, StoreFuture, StoredRunState, StoredWebhook, WebhookStore,
};

impl ChannelStore for MemoryStore {
    fn cursor(&self, channel: String) -> StoreFuture<'_, Option<String>> {
        self.read(move |data| Ok(data.cursors.get(&channel).cloned()))
    }

    fn save_cursor(&self, channel: String, cursor: String) -> StoreFuture<'_, ()> {
        self.change(move |data| {
            data.cursors.insert(channel, cursor);
        })
    }

    fn is_command_executed(&self, command: String) -> StoreFuture<'_, bool> {
        self.read(move |data| Ok(data.commands.contains(&command)))
    }

    fn mark_command_executed(&self, command: String) -> StoreFuture<'_, ()> {
        self.change(move |data| {
            if !data.commands.contains(&command) {
                data.commands.push_back(command);
            }
            while data.commands.len() > MAX_EXECUTED_COMMANDS as usize {
                data.commands.pop_front();
            }
        })
    }

    fn save_pending_reply(&self, pending_reply: PendingReply) -> StoreFuture<'_, ()> {
        let boot = self.boot;
        self.change(move |data| {
            let run = pending_reply.run.to_string();
            data.pending_replies.insert(run, ReplyEntry { boot, outcome_sent: false, reply: pending_reply });
        })
    }

    fn save_pending_reply_draft(&self, run: RunId, draft: Option<String>) -> StoreFuture<'_, ()> {
        self.change(move |data| {
            if let Some(entry) = data.pending_replies.get_mut(run.as_str()) {
                entry.reply.draft_message = draft;
            }
        })
    }

    fn mark_outcome_sent(&self, run: RunId) -> StoreFuture<'_, ()> {
        self.change(move |data| {
            if let Some(entry) = data.pending_replies.get_mut(run.as_str()) {
                entry.outcome_sent = true;
            }
        })
    }

    fn delete_pending_reply(&self, run: RunId) -> StoreFuture<'_, ()> {
        self.change(move |data| {
            data.pending_replies.remove(run.as_str());
        })
    }

    fn has_pending_reply(&self, run: RunId) -> StoreFuture<'_, bool> {
        self.read(move |data| Ok(data.pending_replies.contains_key(run.as_str())))
    }

    fn delete_stale_replies_except(&self, channels: Vec<String>) -> StoreFuture<'_, usize> {
        let boot = self.boot;
        self.write(move |data| {
            let before = data.pending_replies.len();
            data.pending_replies.retain(|_, entry| entry.boot == boot || channels.contains(&entry.reply.channel));
            Ok(before - data.pending_replies.len())
        })
    }

    fn list_stale_replies(&self) -> StoreFuture<'_, Vec<StaleReply>> {
        let boot = self.boot;
        self.read(move |data| Ok(find_stale_replies(data, boot)))
    }

    fn take_stale_replies(&self, channel: String) -> StoreFuture<'_, Vec<StaleReply>> {
        let boot = self.boot;
        self.write(move |data| {
            let mut taken = find_stale_replies(data, boot);
            taken.retain(|stale| stale.pending_reply.channel == channel);
            for entry in data.pending_replies.values_mut().filter(|entry| entry.reply.channel == channel) {
                entry.boot = boot;
            }
            Ok(taken)
        })
    }
}

fn find_stale_replies(data: &super::Data, boot: u64) -> Vec<StaleReply> {
    let stale = data.pending_replies.values().filter(|entry| entry.boot < boot);
    let stale = stale.map(|entry| {
        let run = data.runs.iter().find(|run| run.row.id == entry.reply.run);
        let steered_into = run.and_then(|run| match &run.row.state {
            StoredRunState::Steered { into } => Some(into.clone()),
            StoredRunState::Accepted | StoredRunState::Started | StoredRunState::Ended => None,
        });
        StaleReply { pending_reply: entry.reply.clone(), steered_into, outcome_sent: entry.outcome_sent }
    });
    stale.collect()
}

impl WebhookStore for MemoryStore {
    fn save(&self, deliveries: Vec<QueuedWebhook>, limit: u32) -> StoreFuture<'_, usize> {
        self.write(move |data| {
            for webhook in deliveries {
                let is_same =
                    |stored: &StoredWebhook| (&stored.webhook.url, &stored.webhook.id) == (&webhook.url, &webhook.id);
                if !data.webhooks.iter().any(is_same) {
                    let number = data.next_number();
                    data.webhooks.push(StoredWebhook { number, attempts: 0, webhook });
                }
            }
            let excess = data.webhooks.len().saturating_sub(limit as usize);
            Ok(data.webhooks.drain(..excess).count())
        })
    }

    fn next(&self, url: String) -> StoreFuture<'_, Option<StoredWebhook>> {
        self.read(move |data| Ok(data.webhooks.iter().find(|stored| stored.webhook.url == url).cloned()))
    }

    fn delete(&self, number: i64) -> StoreFuture<'_, ()> {
        self.change(move |data| data.webhooks.retain(|stored| stored.number != number))
    }

    fn count_failed_attempt(&self, number: i64) -> StoreFuture<'_, ()> {
        self.change(move |data| {
            if let Some(stored) = data.webhooks.iter_mut().find(|stored| stored.number == number) {
                stored.attempts += 1;
            }
        })
    }

    fn delete_except(&self, urls: Vec<String>) -> StoreFuture<'_, usize> {
        self.write(move |data| Ok(data.webhooks.extract_if(.., |stored| !urls.contains(&stored.webhook.url)).count()))
    }
}
