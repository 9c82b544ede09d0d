//! Telegram: drafts that grow, signs, stops from the chat, and what a restart leaves.

use std::path::{Path, PathBuf};

use quell_testkit::commands::{self, Marker};
use quell_testkit::leaks;
use quell_testkit::model::{Behaviour, Stream};
use quell_testkit::networks::telegram::{FakeTelegram, Person, TOKEN};
use rusqlite::Connection;
use serde_json::{Value, json};

use super::{CLOSED_WITHIN, House, PATIENCE};
use crate::cli::exe;
use crate::harness::Claim;

const ANN: Person = Person { id: 77, name: "ann" };
/// A private chat has the number of its person.
const CHAT: i64 = 77;

fn channel(telegram: &FakeTelegram, more: &str) -> String {
    format!(
        "[channels.telegram]\nkind = \"telegram\"\napi_base = \"{}\"\ntoken_env = \"TOKEN\"\nallow = [\"77\"]\n{more}\n",
        telegram.base_url()
    )
}

async fn open(more: &str) -> (FakeTelegram, House) {
    let claim = Claim::shared().await;
    let telegram = FakeTelegram::start().await;
    let house = House::open(claim, &channel(&telegram, more), TOKEN).await;
    (telegram, house)
}

fn signs(telegram: &FakeTelegram, message: i64) -> Vec<String> {
    let messages = telegram.messages(CHAT);
    messages.iter().find(|shown| shown.id == message).map(|shown| shown.reactions.clone()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_grows_in_one_message_and_is_signed() {
    let (telegram, house) = open("").await;
    house.model.script(Stream::new().text("Good ").wait_for("more").text("**morning**"));
    let asked = telegram.say(CHAT, ANN, "hello");
    telegram.wait_for("the beginning", |it| it.bot_texts(CHAT).iter().any(|text| text.starts_with("Good"))).await;
    assert_eq!(signs(&telegram, asked), ["👀"]);
    telegram.wait_for("somebody who is writing", |it| it.chats.get(&CHAT).is_some_and(|chat| chat.is_typing())).await;
    house.model.open_gate("more");
    telegram.wait_for("the answer", |it| it.bot_texts(CHAT) == ["Good morning"]).await;
    telegram.wait_for("the last sign", |it| it.messages(CHAT)[0].reactions == ["👍"]).await;
    assert_eq!(telegram.messages(CHAT).len(), 2, "the answer is the draft");
    let request = house.model.request(0).arrived().await;
    let said = request.body["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap().to_owned();
    assert!(said.contains("Channel context: channel=telegram, reply_target=77, sender=77"), "{said}");
    assert!(said.ends_with("hello"), "{said}");
    let history = house.daemon.http().get("/api/sessions/telegram_77_77/history").await.expect_status(200);
    let texts: Vec<&Value> = history["items"].as_array().unwrap().iter().map(|message| &message["text"]).collect();
    assert_eq!(texts, [&json!("hello"), &json!("Good **morning**")], "what rides with a message is not stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_from_the_chat_ends_the_run_and_says_so() {
    let (telegram, house) = open("").await;
    house.model.script(Behaviour::silent_mid_stream("I have begun"));
    let asked = telegram.say(CHAT, ANN, "write a book");
    telegram.wait_for("the draft", |it| it.bot_texts(CHAT).iter().any(|text| text.contains("I have begun"))).await;
    let begun = std::time::Instant::now();
    telegram.say(CHAT, ANN, "/stop");
    house.model.request(0).client_left().await;
    assert!(begun.elapsed() < CLOSED_WITHIN, "{:?}", begun.elapsed());
    let state = telegram
        .wait_for("what came of it", |it| {
            let texts = it.bot_texts(CHAT);
            let has = |part: &str| texts.iter().any(|text| text.contains(part));
            has("Stopping your request.") && has("⏹ stopped in") && has("I have begun\n\n⏹ Stopped.")
        })
        .await;
    let notice = state.bot_texts(CHAT).into_iter().find(|text| text.starts_with("⏹ stopped in")).unwrap().to_owned();
    assert!(notice.contains("model closed after") && notice.contains("history valid"), "{notice}");
    telegram.wait_for("the last sign", |it| it.messages(CHAT)[0].reactions == ["🫡"]).await;
    assert_eq!(signs(&telegram, asked), ["🫡"]);
    assert!(!telegram.typing(CHAT), "nobody is writing any more");

    // The next message works, and the model is told.
    house.model.script(Behaviour::text("Here I am."));
    telegram.say(CHAT, ANN, "and now?");
    telegram.wait_for("the next answer", |it| it.bot_texts(CHAT).contains(&"Here I am.")).await;
    house.model.assert_histories_valid();
    let request = house.model.request(1).arrived().await;
    assert!(request.body.to_string().contains("was stopped on purpose by the user"), "{}", request.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_word_reaches_what_waits_and_nothing_else_is_said_of_nothing() {
    let (telegram, house) = open("").await;
    telegram.say(CHAT, ANN, "정지");
    telegram.wait_for("an answer", |it| it.bot_texts(CHAT) == ["Nothing of yours is running here."]).await;
    house.model.script(Behaviour::silent_mid_stream("One"));
    telegram.say(CHAT, ANN, "first");
    house.model.request(0).streaming().await;
    for text in ["second", "third"] {
        telegram.say(CHAT, ANN, text);
    }
    // Both wait for their turn.
    let http = house.daemon.http();
    loop {
        let runs = http.get("/api/runs?state=active").await.expect_status(200);
        if runs["items"].as_array().unwrap().len() == 3 {
            break;
        }
    }
    telegram.say(CHAT, ANN, "Stop!");
    let said = "Stopping your request. 2 waiting messages will not be answered.";
    telegram.wait_for("the stop", |it| it.bot_texts(CHAT).contains(&said)).await;
    house.model.request(0).client_left().await;
    telegram.wait_for("the receipt", |it| it.bot_texts(CHAT).iter().any(|text| text.starts_with("⏹ stopped"))).await;
    assert_eq!(house.model.request_count(), 1, "nothing that waited was begun");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_message_interrupts_and_both_are_read_as_one() {
    let (telegram, house) = open("interrupt_on_new_message = true").await;
    house.model.script(Stream::new().hold_headers("never"));
    telegram.say(CHAT, ANN, "안녕");
    house.model.request(0).arrived().await;
    house.model.script(Behaviour::text("네"));
    telegram.say(CHAT, ANN, "무시해");
    house.model.request(0).client_left().await;
    telegram.wait_for("the answer", |it| it.bot_texts(CHAT).contains(&"네")).await;
    let request = house.model.request(1).arrived().await;
    let messages: Vec<&Value> =
        request.body["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "user").collect();
    assert_eq!(messages.len(), 1, "{:#}", request.body);
    let said = messages[0]["content"].as_str().unwrap();
    assert!(said.ends_with("안녕\n\n무시해"), "{said}");
    assert!(said.contains("The user wrote again before the request above was begun"), "{said}");
    assert!(
        telegram.messages(CHAT).iter().all(|shown| !shown.text.contains("stopped in")),
        "nobody asked for a receipt"
    );
}

/// It was answered with nothing at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_a_command_that_was_left_in_the_background_and_says_so() {
    let (telegram, house) = open("").await;
    let mark = Marker::new();
    let command = json!({"command": commands::setsid_child(&mark), "background": true});
    house.model.script(Behaviour::tool_call("c1", "shell", &command)).script(Behaviour::text("It runs."));
    let asked = telegram.say(CHAT, ANN, "serve it");
    // What is shown is not yet over: until the sign says so, a stop ends the request itself.
    telegram.wait_for("the end of the request", |it| it.bot_texts(CHAT) == ["It runs."]).await;
    telegram
        .wait_for("its sign", |it| it.messages(CHAT).iter().any(|it| it.id == asked && it.reactions == ["👍"]))
        .await;
    mark.at_least(2).await;
    telegram.say(CHAT, ANN, "/stop");
    let told = ["Ending 1 background command.", "⏹ 1 background command ended"];
    telegram.wait_for("the end", |it| told.iter().all(|text| it.bot_texts(CHAT).contains(text))).await;
    assert!(mark.survivors().is_empty(), "{:?}", mark.survivors());
    telegram.say(CHAT, ANN, "/stop");
    let nothing = "Nothing of yours is running here.";
    telegram.wait_for("nothing more", |it| it.bot_texts(CHAT).contains(&nothing)).await;
}

fn database(house: &House) -> PathBuf {
    house.daemon.home().data().join("quell.db")
}

/// Looks into the database beside the daemon.
fn counted(database: &Path, sql: &str) -> i64 {
    Connection::open(database).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Somebody asks, and the answer has begun: in the chat, and in what is written down.
async fn answer_begun(telegram: &FakeTelegram, house: &House) -> i64 {
    house.model.script(Behaviour::silent_mid_stream("I have begun"));
    let asked = telegram.say(CHAT, ANN, "write a book");
    telegram.wait_for("the draft", |it| it.bot_texts(CHAT).contains(&"I have begun")).await;
    assert_eq!(signs(telegram, asked), ["👀"]);
    let database = database(house);
    leaks::settled(PATIENCE, move || {
        let drafts = counted(&database, "SELECT count(*) FROM channel_traces WHERE draft IS NOT NULL");
        let texts = counted(&database, "SELECT count(*) FROM journal WHERE line LIKE '%I have begun%'");
        if drafts > 0 && texts > 0 {
            Ok(())
        } else {
            Err(format!("{drafts} drafts and {texts} texts are written down"))
        }
    })
    .await;
    asked
}

/// It looked for ever as if somebody were working.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_daemon_left_in_a_chat_is_ended_by_the_next_one() {
    let (telegram, mut house) = open("").await;
    let asked = answer_begun(&telegram, &house).await;
    house.daemon.kill9().await;
    assert_eq!(signs(&telegram, asked), ["👀"], "a daemon that is killed tells nothing");
    let next = house.daemon.home().start(exe()).await;
    house.daemon = next;
    let ended = "I have begun\n\n⚠️ Quell was restarted before this was answered. Ask again.";
    telegram.wait_for("the end of the draft", |it| it.bot_texts(CHAT) == [ended]).await;
    telegram.wait_for("the sign", |it| it.messages(CHAT)[0].reactions == ["🫡"]).await;

    house.model.script(Behaviour::text("Here I am."));
    let again = telegram.say(CHAT, ANN, "and now?");
    telegram.wait_for("the next answer", |it| it.bot_texts(CHAT) == [ended, "Here I am."]).await;
    telegram
        .wait_for("its sign", |it| it.messages(CHAT).iter().any(|it| it.id == again && it.reactions == ["👍"]))
        .await;
    house.model.assert_histories_valid();
    assert!(house.daemon.stop().await.success(), "{}", house.daemon.output());
    assert_eq!(counted(&database(&house), "SELECT count(*) FROM channel_traces"), 0);
    assert_eq!(telegram.state().bot_texts(CHAT), [ended, "Here I am."], "it is told once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_shuts_down_leaves_nothing_in_a_chat() {
    let (telegram, house) = open("").await;
    let asked = answer_begun(&telegram, &house).await;
    assert!(house.daemon.stop().await.success(), "{}", house.daemon.output());
    let state = telegram.state();
    let ended = "I have begun\n\n⚠️ Stopped: Quell is shutting down. Ask again when it is back.";
    assert_eq!(state.bot_texts(CHAT), [ended]);
    assert_eq!(signs(&telegram, asked), ["🫡"]);
    assert_eq!(counted(&database(&house), "SELECT count(*) FROM channel_traces"), 0);
}
