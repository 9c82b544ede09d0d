//! Discord in the tests that all networks share: anna writes in a channel.

use super::*;
use crate::network::conformance::{NetworkFixture, SendFault};

pub(crate) async fn start() -> DiscordFixture {
    let fixture = DiscordFixture::new().await;
    fixture.server.update(|state| state.limits = None);
    fixture
}

#[async_trait]
impl NetworkFixture for DiscordFixture {
    fn network(&self) -> &dyn Network {
        &*self.network
    }

    fn address(&self) -> ChatAddress {
        self.channel_address()
    }

    async fn write(&self, text: &str, _: &dyn InboundSink) {
        self.post(text);
    }

    async fn write_file(&self, bytes: &'static [u8], _: &dyn InboundSink) {
        let file = ("a.txt", "text/plain", bytes);
        self.server.post_message_with_file(&self.channel, &self.person, "look", file);
    }

    async fn wait_for_shown(&self, _: usize) -> Vec<String> {
        let (messages, own_id) = (self.messages(), self.server.bot_id());
        messages.into_iter().filter(|shown| shown.author == own_id).map(|shown| shown.text).collect()
    }

    fn press(&self, message: &MessageId, data: &str) {
        self.server.press_button(&self.channel, &self.person, &message.0, data);
    }

    fn fail_next_send(&self, fault: SendFault) {
        let fault = match fault {
            SendFault::RateLimited(seconds) => {
                FakeDiscordFault::RateLimited { after: Duration::from_secs(seconds), scope: RateLimitScope::User }
            }
            SendFault::AnswerLost => FakeDiscordFault::LoseAnswer,
        };
        self.server.inject_fault(DiscordRoute::Send, fault);
    }

    async fn stop_server(&self) {
        self.server.stop_listening().await;
    }

    async fn start_server(&self) {
        self.server.resume_listening();
    }
}
