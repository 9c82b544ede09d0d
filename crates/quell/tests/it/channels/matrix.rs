//! Matrix: a real homeserver, drafts that grow, signs, stops, and a server that goes away and comes back.

use std::time::Instant;

use quell_testkit::model::{Behaviour, Stream};
use quell_testkit::networks::matrix::{MatrixPerson, Room, Synapse, is_skipped};

use super::{CLOSED_WITHIN, House, loses, losses};
use crate::harness::Claim;

/// A homeserver, Alice who is on it, and the room where she talks with an agent.
struct Scene {
    synapse: Synapse,
    house: House,
    alice: MatrixPerson,
    quell: String,
    room: String,
}

impl Scene {
    async fn open() -> Self {
        let claim = Claim::shared().await;
        let synapse = Synapse::start().await;
        let alice = synapse.person("alice").await;
        let (house, quell) = agent((claim, &synapse), &alice, ("quell", "")).await;
        let room = alice.create_room(&[&quell]).await;
        Self { synapse, house, alice, quell, room }
    }

    /// The same for another account of an agent, whose channel is set up with more.
    async fn with_another(self, more: &str) -> Self {
        let Self { synapse, alice, house: House { claim, .. }, .. } = self;
        let (house, quell) = agent((claim, &synapse), &alice, ("another", more)).await;
        let room = alice.create_room(&[&quell]).await;
        Self { synapse, house, alice, quell, room }
    }

    async fn say(&self, text: &str) -> String {
        self.alice.say(&self.room, text).await
    }

    /// Waits for something in the room.
    async fn sees(&mut self, what: &str, condition: impl Fn(&Room) -> bool) -> Room {
        let room = self.room.clone();
        self.alice.wait_for(what, |view| condition(&view.room(&room))).await.room(&room)
    }

    /// Waits until these are all that the agent has said.
    async fn sees_answers(&mut self, answers: &[&str]) -> Room {
        let quell = self.quell.clone();
        self.sees(&format!("{answers:?}"), |room| room.texts_of(&quell) == answers).await
    }

    /// Waits until a message bears this sign alone.
    async fn sees_sign(&mut self, asked: &str, sign: &str) -> Room {
        let quell = self.quell.clone();
        self.sees(sign, |room| room.signs(asked, &quell) == [sign]).await
    }

    /// Waits until a message is being answered, as everybody can see.
    async fn sees_work(&mut self, asked: &str) {
        let quell = self.quell.clone();
        let at_work = |room: &Room| room.typing == [quell.clone()] && room.signs(asked, &quell) == ["👀"];
        self.sees("somebody at work", at_work).await;
    }

    /// Waits until something that the agent shows begins so.
    async fn sees_begin(&mut self, begin: &str) -> Room {
        let quell = self.quell.clone();
        self.sees(begin, |room| room.texts_of(&quell).iter().any(|text| text.starts_with(begin))).await
    }
}

async fn agent(
    (claim, synapse): (Claim, &Synapse),
    alice: &MatrixPerson,
    (name, more): (&str, &str),
) -> (House, String) {
    let account = synapse.person(name).await;
    let channel = format!(
        "[channels.matrix]\nkind = \"matrix\"\napi_base = \"{}\"\ntoken_env = \"TOKEN\"\nallow = [\"{}\"]\n{more}\n",
        synapse.base_url(),
        alice.id()
    );
    (House::open(claim, &channel, account.token()).await, account.id().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_grow_and_are_stopped_and_interrupted() {
    if is_skipped() {
        return;
    }
    let mut scene = Scene::open().await;
    an_answer_grows_in_one_message_and_is_signed(&mut scene).await;
    a_stop_ends_the_run_and_says_so(&mut scene).await;
    a_conversation_goes_on_in_the_room_that_replaces_its_own(&mut scene).await;
    let mut scene = scene.with_another("interrupt_on_new_message = true").await;
    a_new_message_interrupts(&mut scene).await;
}

async fn an_answer_grows_in_one_message_and_is_signed(scene: &mut Scene) {
    scene.house.model.script(Stream::new().text("Good ").wait_for("more").text("**morning**"));
    let asked = scene.say("hello").await;
    scene.sees_begin("Good").await;
    scene.sees_work(&asked).await;
    scene.house.model.open_gate("more");
    let room = scene.sees_answers(&["Good **morning**"]).await;
    let answer = &room.messages[1];
    assert!(answer.edits > 0, "{answer:?}");
    assert!(answer.html().contains("<strong>morning</strong>"), "{answer:?}");
    assert_eq!(room.messages.len(), 2, "the answer is the draft");
    let room = scene.sees_sign(&asked, "✅").await;
    assert!(room.typing.is_empty(), "nobody is writing any more");
    let request = scene.house.model.request(0).arrived().await;
    let said = request.body["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap().to_owned();
    let place = format!("channel=matrix, reply_target={}, sender=@alice:quell.test", scene.room);
    assert!(said.contains(&place) && said.ends_with("hello"), "{said}");
}

async fn a_stop_ends_the_run_and_says_so(scene: &mut Scene) {
    scene.house.model.script(Behaviour::silent_mid_stream("I have begun"));
    let asked = scene.say("write a book").await;
    scene.sees_begin("I have begun").await;
    scene.sees_work(&asked).await;
    scene.say("/stop").await;
    // From here on the homeserver has it.
    let taken = Instant::now();
    let left = scene.house.model.request(1).client_left().await;
    assert!(left.saturating_duration_since(taken) < CLOSED_WITHIN, "{:?}", left - taken);
    let quell = scene.quell.clone();
    let room = scene
        .sees("what came of it", |room| {
            let texts = room.texts_of(&quell);
            let has = |part: &str| texts.iter().any(|text| text.contains(part));
            has("Stopping your request.") && has("⏹ stopped in") && has("I have begun\n\n⏹ Stopped.")
        })
        .await;
    let texts = room.texts_of(&quell);
    assert_eq!(texts.len(), 4, "the answer before, the draft, the word, and the receipt: {texts:#?}");
    let notice = texts.iter().find(|text| text.starts_with("⏹ stopped in")).unwrap();
    assert!(notice.contains("model closed after") && notice.contains("history valid"), "{notice}");
    let room = scene.sees_sign(&asked, "⏹").await;
    assert!(room.typing.is_empty(), "nobody is writing any more");

    // The next message works, and the model is told.
    scene.house.model.script(Behaviour::text("Here I am."));
    scene.say("and now?").await;
    scene.sees_begin("Here I am.").await;
    scene.house.model.assert_histories_valid();
    let request = scene.house.model.request(2).arrived().await;
    assert!(request.body.to_string().contains("was stopped on purpose by the user"), "{}", request.body);
}

async fn a_conversation_goes_on_in_the_room_that_replaces_its_own(scene: &mut Scene) {
    let room = serde_json::json!({"preset": "public_chat", "invite": [scene.quell], "room_version": "11"});
    scene.room = scene.alice.create_room_with(room).await;
    scene.house.model.script(Behaviour::text("In the old one."));
    scene.say("where are you?").await;
    scene.sees_answers(&["In the old one."]).await;
    scene.room = scene.alice.upgrade(&scene.room, "12").await;
    let quell = scene.quell.clone();
    scene.sees("the agent in the new room", |room| room.members.contains(&quell)).await;
    scene.house.model.script(Behaviour::text("In the new one."));
    scene.say("and now?").await;
    scene.sees_answers(&["In the new one."]).await;
}

async fn a_new_message_interrupts(scene: &mut Scene) {
    scene.house.model.script(Behaviour::silent_mid_stream("Black tea is"));
    let first = scene.say("tell me of tea").await;
    scene.sees_begin("Black tea is").await;
    scene.house.model.script(Behaviour::text("Coffee it is."));
    let second = scene.say("coffee, I mean").await;
    scene.house.model.request(0).client_left().await;
    scene.sees_answers(&["Black tea is\n\n⏹ Stopped: you wrote again.", "Coffee it is."]).await;
    scene.sees_sign(&first, "⏹").await;
    scene.sees_sign(&second, "✅").await;
    scene.house.model.assert_histories_valid();
    assert_eq!(scene.house.model.request_count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_back_is_found_and_each_question_is_answered_once() {
    if is_skipped() {
        return;
    }
    let mut scene = Scene::open().await;
    scene.house.model.script(Behaviour::text("One."));
    let first = scene.say("first").await;
    scene.sees_answers(&["One."]).await;
    scene.sees_sign(&first, "✅").await;

    // Nothing runs, and somebody writes before the agent has found the server again.
    goes_away(&mut scene).await;
    scene.synapse.restart().await;
    scene.house.model.script(Behaviour::text("Two."));
    let second = scene.say("second").await;
    scene.sees_answers(&["One.", "Two."]).await;
    scene.sees_sign(&second, "✅").await;

    // The rest of an answer comes while the server is away.
    scene.house.model.script(Stream::new().text("Three ").wait_for("three").text("at last."));
    let third = scene.say("third").await;
    scene.sees_begin("Three").await;
    goes_away(&mut scene).await;
    scene.house.model.open_gate("three");
    scene.house.model.request(2).finished().await;
    scene.synapse.restart().await;
    scene.house.model.script(Behaviour::text("Four."));
    let fourth = scene.say("fourth").await;
    scene.sees_answers(&["One.", "Two.", "Three at last.", "Four."]).await;
    scene.sees_sign(&third, "✅").await;
    scene.sees_sign(&fourth, "✅").await;

    // A draft grows on when the server is back.
    scene.house.model.script(Stream::new().text("Five ").wait_for("five").text("in the end."));
    let fifth = scene.say("fifth").await;
    scene.sees_begin("Five").await;
    goes_away(&mut scene).await;
    scene.synapse.restart().await;
    scene.house.model.open_gate("five");
    let answers = ["One.", "Two.", "Three at last.", "Four.", "Five in the end."];
    scene.sees_answers(&answers).await;
    let room = scene.sees_sign(&fifth, "✅").await;
    assert_eq!(room.texts_of(&scene.quell), answers, "nothing is said twice");
    assert_eq!(scene.house.model.request_count(), 5);
    scene.house.model.assert_histories_valid();
}

/// The server goes away, and the daemon has noticed.
async fn goes_away(scene: &mut Scene) {
    let before = losses(&scene.house);
    scene.synapse.kill();
    loses(&scene.house, before).await;
}
