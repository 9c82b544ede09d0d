//! Slack in the tests that all networks share: ann writes in a channel.

use super::*;
use crate::network::conformance::{NetworkFixture, SendFault};

pub(crate) struct SlackConformance {
    fixture: SlackFixture,
    ann: String,
    channel: String,
}

impl SlackConformance {
    pub(crate) async fn start() -> Self {
        let fixture = SlackFixture::new().await;
        fixture.server.set_rate_limit("chat.postMessage", usize::MAX, Duration::ZERO);
        let (ann, channel) = (fixture.server.add_person("ann"), fixture.server.add_channel());
        Self { fixture, ann, channel }
    }
}

#[async_trait]
impl NetworkFixture for SlackConformance {
    fn network(&self) -> &dyn Network {
        &*self.fixture.network
    }

    fn address(&self) -> ChatAddress {
        chat_address(&self.channel)
    }

    async fn write(&self, text: &str, _: &dyn InboundSink) {
        self.fixture.server.post_message(&self.channel, &self.ann, text);
    }

    async fn write_file(&self, bytes: &'static [u8], _: &dyn InboundSink) {
        let file = ("a.txt", "text/plain", bytes);
        self.fixture.server.post_message_with_file(&self.channel, &self.ann, "look", file);
    }

    async fn wait_for_shown(&self, _: usize) -> Vec<String> {
        let messages = self.fixture.server.messages(&self.channel);
        messages.into_iter().filter(|shown| shown.author == BOT).map(|shown| shown.text).collect()
    }

    fn fail_next_send(&self, fault: SendFault) {
        let fault = match fault {
            SendFault::RateLimited(seconds) => FakeSlackFault::RateLimited(seconds),
            SendFault::AnswerLost => FakeSlackFault::LoseAnswer,
        };
        self.fixture.server.inject_fault("chat.postMessage", fault);
    }

    async fn stop_server(&self) {
        self.fixture.server.stop_listening().await;
    }

    async fn start_server(&self) {
        self.fixture.server.resume_listening();
    }
}
