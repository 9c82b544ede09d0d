//! Matrix: growing drafts, reactions, stops, room upgrades, reconnects.

use std::time::Instant;

use quell_testkit::model::{ScriptedResponse, ScriptedStream};
use quell_testkit::networks::matrix::{MatrixRoomView, MatrixTestUser, Synapse, is_skipped};

use super::{CLOSED_WITHIN, ChannelDaemonFixture, connection_losses, wait_connection_lost};
use crate::test_engine::ProcessLock;

/// A homeserver, its user Alice, and her room with an agent.
struct MatrixDaemonFixture {
    synapse: Synapse,
    base: ChannelDaemonFixture,
    alice: MatrixTestUser,
    agent_id: String,
    room: String,
}

impl MatrixDaemonFixture {
    async fn start() -> Self {
        let process_lock = ProcessLock::shared().await;
        let synapse = Synapse::start().await;
        let alice = synapse.register_user("alice").await;
        let (fixture, quell) = start_agent((process_lock, &synapse), &alice, ("quell", "")).await;
        let room = alice.create_room(&[&quell]).await;
        Self { synapse, base: fixture, alice, agent_id: quell, room }
    }

    /// Starts a daemon with another account on the same homeserver, and more lines in its channel's configuration.
    async fn restart_with_account(self, more: &str) -> Self {
        let Self { synapse, alice, base: ChannelDaemonFixture { process_lock, .. }, .. } = self;
        let (fixture, quell) = start_agent((process_lock, &synapse), &alice, ("another", more)).await;
        let room = alice.create_room(&[&quell]).await;
        Self { synapse, base: fixture, alice, agent_id: quell, room }
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

async fn start_agent(
    (process_lock, synapse): (ProcessLock, &Synapse),
    alice: &MatrixTestUser,
    (name, more): (&str, &str),
) -> (ChannelDaemonFixture, String) {
    let account = synapse.register_user(name).await;
    let channel = format!(
        "[channels.matrix]\nkind = \"matrix\"\napi_base = \"{}\"\ntoken_env = \"TOKEN\"\nallow = [\"{}\"]\n{more}\n",
        synapse.base_url(),
        alice.id()
    );
    (ChannelDaemonFixture::start(process_lock, &channel, account.token()).await, account.id().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_grow_and_are_stopped_and_interrupted() {
    if is_skipped() {
        return;
    }
    let mut fixture = MatrixDaemonFixture::start().await;
    check_draft_grows(&mut fixture).await;
    check_stop(&mut fixture).await;
    check_room_upgrade(&mut fixture).await;
    let mut fixture = fixture.restart_with_account("interrupt_on_new_message = true").await;
    check_interrupt(&mut fixture).await;
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
    let room = fixture.wait_reaction(&asked, "✅").await;
    assert!(room.typing.is_empty(), "the agent is still shown as typing");
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
    // From here on the homeserver has the message.
    let taken = Instant::now();
    let left = fixture.base.model.request_at(1).wait_client_left().await;
    assert!(left.saturating_duration_since(taken) < CLOSED_WITHIN, "{:?}", left - taken);
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
    let room = fixture.wait_reaction(&asked, "⏹").await;
    assert!(room.typing.is_empty(), "the agent is still shown as typing");

    // The next message works, and the model learns of the stop.
    fixture.base.model.script(ScriptedResponse::text("Here I am."));
    fixture.send_message("and now?").await;
    fixture.wait_text_starting("Here I am.").await;
    fixture.base.assert_stop_told(2).await;
}

async fn check_room_upgrade(fixture: &mut MatrixDaemonFixture) {
    let room = serde_json::json!({"preset": "public_chat", "invite": [fixture.agent_id], "room_version": "11"});
    fixture.room = fixture.alice.create_room_with(room).await;
    fixture.base.model.script(ScriptedResponse::text("In the old one."));
    fixture.send_message("where are you?").await;
    fixture.wait_answers(&["In the old one."]).await;
    fixture.room = fixture.alice.upgrade_room(&fixture.room, "12").await;
    let quell = fixture.agent_id.clone();
    fixture.wait_room("the agent in the new room", |room| room.members.contains(&quell)).await;
    fixture.base.model.script(ScriptedResponse::text("In the new one."));
    fixture.send_message("and now?").await;
    fixture.wait_answers(&["In the new one."]).await;
}

async fn check_interrupt(fixture: &mut MatrixDaemonFixture) {
    fixture.base.model.script(ScriptedResponse::silent_mid_stream("Black tea is"));
    let first = fixture.send_message("tell me of tea").await;
    fixture.wait_text_starting("Black tea is").await;
    fixture.base.model.script(ScriptedResponse::text("Coffee it is."));
    let second = fixture.send_message("coffee, I mean").await;
    fixture.base.model.request_at(0).wait_client_left().await;
    fixture.wait_answers(&["Black tea is\n\n⏹ Stopped: you wrote again.", "Coffee it is."]).await;
    fixture.wait_reaction(&first, "⏹").await;
    fixture.wait_reaction(&second, "✅").await;
    fixture.base.model.assert_histories_valid();
    assert_eq!(fixture.base.model.request_count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_back_is_found_and_each_question_is_answered_once() {
    if is_skipped() {
        return;
    }
    let mut fixture = MatrixDaemonFixture::start().await;
    fixture.base.model.script(ScriptedResponse::text("One."));
    let first = fixture.send_message("first").await;
    fixture.wait_answers(&["One."]).await;
    fixture.wait_reaction(&first, "✅").await;

    // The server restarts while nothing runs, and a user writes before the agent has reconnected.
    stop_homeserver(&mut fixture).await;
    fixture.synapse.restart().await;
    fixture.base.model.script(ScriptedResponse::text("Two."));
    let second = fixture.send_message("second").await;
    fixture.wait_answers(&["One.", "Two."]).await;
    fixture.wait_reaction(&second, "✅").await;

    // The rest of an answer comes while the server is away.
    fixture.base.model.script(ScriptedStream::new().text("Three ").wait_for_gate("three").text("at last."));
    let third = fixture.send_message("third").await;
    fixture.wait_text_starting("Three").await;
    stop_homeserver(&mut fixture).await;
    fixture.base.model.open_gate("three");
    fixture.base.model.request_at(2).wait_finished().await;
    fixture.synapse.restart().await;
    fixture.base.model.script(ScriptedResponse::text("Four."));
    let fourth = fixture.send_message("fourth").await;
    fixture.wait_answers(&["One.", "Two.", "Three at last.", "Four."]).await;
    fixture.wait_reaction(&third, "✅").await;
    fixture.wait_reaction(&fourth, "✅").await;

    // A draft grows on when the server is back.
    fixture.base.model.script(ScriptedStream::new().text("Five ").wait_for_gate("five").text("in the end."));
    let fifth = fixture.send_message("fifth").await;
    fixture.wait_text_starting("Five").await;
    stop_homeserver(&mut fixture).await;
    fixture.synapse.restart().await;
    fixture.base.model.open_gate("five");
    let answers = ["One.", "Two.", "Three at last.", "Four.", "Five in the end."];
    fixture.wait_answers(&answers).await;
    let room = fixture.wait_reaction(&fifth, "✅").await;
    assert_eq!(room.texts_of(&fixture.agent_id), answers, "a message was sent twice");
    assert_eq!(fixture.base.model.request_count(), 5);
    fixture.base.model.assert_histories_valid();
}

/// Kills the homeserver and waits until the daemon has noticed.
async fn stop_homeserver(fixture: &mut MatrixDaemonFixture) {
    let before = connection_losses(&fixture.base);
    fixture.synapse.kill();
    wait_connection_lost(&fixture.base, before).await;
}
