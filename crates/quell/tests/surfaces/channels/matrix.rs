//! Matrix: growing drafts, reactions, stops.

use quell_testkit::model::{ScriptedResponse, ScriptedStream};
use quell_testkit::networks::matrix::{MatrixRoomView, MatrixTestUser, Synapse, is_skipped};

use super::ChannelDaemonFixture;
use crate::test_engine::ProcessLock;

/// A homeserver, its user Alice, and her room with an agent.
struct MatrixDaemonFixture {
    _synapse: Synapse,
    base: ChannelDaemonFixture,
    alice: MatrixTestUser,
    agent_id: String,
    room: String,
}

impl MatrixDaemonFixture {
    async fn start() -> Self {
        let process_lock = ProcessLock::shared().await;
        let synapse = Synapse::start().await;
        let (alice, agent) = (synapse.register_user("alice").await, synapse.register_user("quell").await);
        let channel = format!(
            "[channels.matrix]\nkind = \"matrix\"\napi_base = \"{}\"\ntoken_env = \"TOKEN\"\nallow = [\"{}\"]\n",
            synapse.base_url(),
            alice.id()
        );
        let base = ChannelDaemonFixture::start(process_lock, &channel, agent.token()).await;
        let agent_id = agent.id().to_owned();
        let room = alice.create_room(&[&agent_id]).await;
        Self { _synapse: synapse, base, alice, agent_id, room }
    }

    async fn send_message(&self, text: &str) -> String {
        self.alice.send_message(&self.room, text).await
    }

    async fn wait_room(&mut self, what: &str, condition: impl Fn(&MatrixRoomView) -> bool) -> MatrixRoomView {
        let room = self.room.clone();
        self.alice.wait_for(what, |view| condition(&view.room(&room))).await.room(&room)
    }

    /// Waits until these are all texts of the agent.
    async fn wait_answers(&mut self, answers: &[&str]) -> MatrixRoomView {
        let quell = self.agent_id.clone();
        self.wait_room(&format!("{answers:?}"), |room| room.texts_of(&quell) == answers).await
    }

    /// Waits until a message has this reaction alone.
    async fn wait_reaction(&mut self, asked: &str, sign: &str) -> MatrixRoomView {
        let quell = self.agent_id.clone();
        self.wait_room(sign, |room| room.reactions_by(asked, &quell) == [sign]).await
    }

    /// Waits until the room shows that the agent works on a message.
    async fn wait_working(&mut self, asked: &str) {
        let quell = self.agent_id.clone();
        let at_work =
            |room: &MatrixRoomView| room.typing == [quell.clone()] && room.reactions_by(asked, &quell) == ["👀"];
        self.wait_room("somebody at work", at_work).await;
    }

    async fn wait_text_starting(&mut self, begin: &str) -> MatrixRoomView {
        let quell = self.agent_id.clone();
        self.wait_room(begin, |room| room.texts_of(&quell).iter().any(|text| text.starts_with(begin))).await
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: Synapse"]
async fn answers_grow_and_are_stopped() {
    if is_skipped() {
        return;
    }
    let mut fixture = MatrixDaemonFixture::start().await;
    check_draft_grows(&mut fixture).await;
    check_stop(&mut fixture).await;
}

async fn check_draft_grows(fixture: &mut MatrixDaemonFixture) {
    fixture.base.model.script(ScriptedStream::new().text("Good ").wait_for_gate("more").text("**morning**"));
    let asked = fixture.send_message("hello").await;
    fixture.wait_text_starting("Good").await;
    fixture.wait_working(&asked).await;
    fixture.base.model.open_gate("more");
    let room = fixture.wait_answers(&["Good **morning**"]).await;
    let answer = &room.messages[1];
    assert!(answer.edits > 0, "{answer:?}");
    assert!(answer.html().contains("<strong>morning</strong>"), "{answer:?}");
    assert_eq!(room.messages.len(), 2, "the answer must replace the draft");
    fixture.wait_reaction(&asked, "✅").await;
    fixture.wait_room("nobody is typing", |room| room.typing.is_empty()).await;
    let request = fixture.base.model.request_at(0).wait_arrived().await;
    let content = request.body["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap().to_owned();
    let place = format!("channel=matrix, reply_target={}, sender=@alice:quell.test", fixture.room);
    assert!(content.contains(&place) && content.ends_with("hello"), "{content}");
}

async fn check_stop(fixture: &mut MatrixDaemonFixture) {
    fixture.base.model.script(ScriptedResponse::silent_mid_stream("I have begun"));
    let asked = fixture.send_message("write a book").await;
    fixture.wait_text_starting("I have begun").await;
    fixture.wait_working(&asked).await;
    fixture.send_message("/stop").await;
    fixture.base.model.request_at(1).wait_client_left().await;
    let quell = fixture.agent_id.clone();
    let room = fixture
        .wait_room("what came of it", |room| {
            let texts = room.texts_of(&quell);
            let has = |part: &str| texts.iter().any(|text| text.contains(part));
            has("Stopping your request.") && has("⏹ stopped in") && has("I have begun\n\n⏹ Stopped.")
        })
        .await;
    let texts = room.texts_of(&quell);
    assert_eq!(texts.len(), 4, "the earlier answer, the draft, the stop reply, and the receipt: {texts:#?}");
    let notice = texts.iter().find(|text| text.starts_with("⏹ stopped in")).unwrap();
    assert!(notice.contains("model closed after") && notice.contains("history valid"), "{notice}");
    fixture.wait_reaction(&asked, "⏹").await;
    fixture.wait_room("nobody is typing", |room| room.typing.is_empty()).await;

    // The next message works, and the model learns of the stop.
    fixture.base.model.script(ScriptedResponse::text("Here I am."));
    fixture.send_message("and now?").await;
    fixture.wait_text_starting("Here I am.").await;
    fixture.base.assert_stop_told(2).await;
}
