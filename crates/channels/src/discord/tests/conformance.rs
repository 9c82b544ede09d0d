//! Discord in the tests that all networks share: anna writes in a channel.

use super::*;
use crate::network::conformance::{NetworkFixture, SendFault};

pub(crate) struct DiscordConformance {
    fixture: DiscordFixture,
    anna: String,
    channel: String,
}

impl DiscordConformance {
    pub(crate) async fn start() -> Self {
        let fixture = DiscordFixture::new().await;
        fixture.server.disable_rate_limits();
        let (anna, channel) = (fixture.server.add_person("anna"), fixture.server.add_channel());
        Self { fixture, anna, channel }
    }
}

#[async_trait]
impl NetworkFixture for DiscordConformance {
    fn network(&self) -> &dyn Network {
        &*self.fixture.network
    }

    fn address(&self) -> ChatAddress {
        chat_address(&self.channel)
    }

    async fn write(&self, text: &str, _: &dyn InboundSink) {
        self.fixture.server.post_message(&self.channel, &self.anna, text);
    }

    async fn write_file(&self, bytes: &'static [u8], _: &dyn InboundSink) {
        let file = ("a.txt", "text/plain", bytes);
        self.fixture.server.post_message_with_file(&self.channel, &self.anna, "look", file);
    }

    async fn wait_for_shown(&self, _: usize) -> Vec<String> {
        let (messages, own_id) = (self.fixture.server.messages(&self.channel), self.fixture.server.bot_id());
        messages.into_iter().filter(|shown| shown.author == own_id).map(|shown| shown.text).collect()
    }

    fn fail_next_send(&self, fault: SendFault) {
        let fault = match fault {
            SendFault::RateLimited(seconds) => {
                FakeDiscordFault::RateLimited { after: Duration::from_secs(seconds), scope: RateLimitScope::User }
            }
            SendFault::AnswerLost => FakeDiscordFault::LoseAnswer,
        };
        self.fixture.server.inject_fault(DiscordRoute::Send, fault);
    }

    async fn stop_server(&self) {
        self.fixture.server.stop_listening().await;
    }

    async fn start_server(&self) {
        self.fixture.server.resume_listening();
    }
}
