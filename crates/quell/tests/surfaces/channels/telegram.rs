//! Telegram: growing drafts, reactions, stops from the chat, recovery after a restart.

use quell_store::test_support::{CountedRows, OtherProgram};
use quell_testkit::commands::{self, ProcessMarker};
use quell_testkit::leaks;
use quell_testkit::model::{ScriptedResponse, ScriptedStream};
use quell_testkit::networks::telegram::{FakeTelegram, FakeTelegramMessage, TOKEN, TelegramTestUser};
use serde_json::{Value, json};

use super::ChannelDaemonFixture;
use crate::test_daemon::quell_exe;
use crate::test_engine::{ProcessLock, WAIT_TIMEOUT, background_call};

const ANN: TelegramTestUser = TelegramTestUser { id: 77, name: "ann" };
/// A private chat has the id of its user.
const CHAT: i64 = 77;

fn channel_config(telegram: &FakeTelegram) -> String {
    format!(
        "[channels.telegram]\nkind = \"telegram\"\napi_base = \"{}\"\ntoken_env = \"TOKEN\"\nallow = [\"77\"]\n",
        telegram.base_url()
    )
}

async fn start() -> (FakeTelegram, ChannelDaemonFixture) {
    let process_lock = ProcessLock::shared().await;
    let telegram = FakeTelegram::start().await;
    let fixture = ChannelDaemonFixture::start(process_lock, &channel_config(&telegram), TOKEN).await;
    (telegram, fixture)
}

/// Waits until this is the only reaction to a message.
async fn wait_reaction(telegram: &FakeTelegram, message: i64, reaction: &str) {
    let shown = |it: &FakeTelegramMessage| it.id == message && it.reactions == [reaction];
    telegram.wait_for(reaction, |it| it.messages(CHAT).iter().any(shown)).await;
}

fn reactions(telegram: &FakeTelegram, message: i64) -> Vec<String> {
    let messages = telegram.messages(CHAT);
    messages.iter().find(|shown| shown.id == message).map(|shown| shown.reactions.clone()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_grows_in_one_message_and_is_signed() {
    let (telegram, fixture) = start().await;
    fixture.model.script(ScriptedStream::new().text("Good ").wait_for_gate("more").text("**morning**"));
    let asked = telegram.post_message(CHAT, ANN, "hello");
    telegram.wait_for("the beginning", |it| it.bot_texts(CHAT).iter().any(|text| text.starts_with("Good"))).await;
    wait_reaction(&telegram, asked, "👀").await;
    telegram.wait_for("somebody who is writing", |it| it.chats.get(&CHAT).is_some_and(|chat| chat.is_typing())).await;
    fixture.model.open_gate("more");
    telegram.wait_for("the answer", |it| it.bot_texts(CHAT) == ["Good morning"]).await;
    wait_reaction(&telegram, asked, "👍").await;
    assert_eq!(telegram.messages(CHAT).len(), 2, "the answer must replace the draft");
    let request = fixture.model.request_at(0).wait_arrived().await;
    let text = request.body["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap().to_owned();
    assert!(text.contains("Channel context: channel=telegram, reply_target=77, sender=77"), "{text}");
    assert!(text.ends_with("hello"), "{text}");
    let history = fixture.daemon.api().get("/api/sessions/telegram_77_77/history").await.expect_status(200);
    let texts: Vec<&Value> = history["items"].as_array().unwrap().iter().map(|message| &message["text"]).collect();
    assert_eq!(texts, [&json!("hello"), &json!("Good **morning**")], "the channel context was stored in the history");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_from_the_chat_ends_the_run_and_says_so() {
    let (telegram, fixture) = start().await;
    fixture.model.script(ScriptedResponse::silent_mid_stream("I have begun"));
    let asked = telegram.post_message(CHAT, ANN, "write a book");
    telegram.wait_for("the draft", |it| it.bot_texts(CHAT).iter().any(|text| text.contains("I have begun"))).await;
    telegram.post_message(CHAT, ANN, "/stop");
    fixture.model.request_at(0).wait_client_left().await;
    let state = telegram
        .wait_for("what came of it", |it| {
            let texts = it.bot_texts(CHAT);
            let has = |part: &str| texts.iter().any(|text| text.contains(part));
            has("Stopping your request.") && has("⏹ stopped in") && has("I have begun\n\n⏹ Stopped.")
        })
        .await;
    let notice = state.bot_texts(CHAT).into_iter().find(|text| text.starts_with("⏹ stopped in")).unwrap().to_owned();
    assert!(notice.contains("model closed after") && notice.contains("history valid"), "{notice}");
    wait_reaction(&telegram, asked, "🫡").await;
    assert!(!telegram.is_typing(CHAT), "the bot is still shown as typing");

    // The next message works, and the model learns of the stop.
    fixture.model.script(ScriptedResponse::text("Here I am."));
    telegram.post_message(CHAT, ANN, "and now?");
    telegram.wait_for("the next answer", |it| it.bot_texts(CHAT).contains(&"Here I am.")).await;
    fixture.assert_stop_told(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pressed_button_allows_the_call_and_is_audited() {
    let process_lock = ProcessLock::shared().await;
    let telegram = FakeTelegram::start().await;
    let section =
        format!("approvals = {{ list_files = \"ask\" }}\n{}approvers = [\"77\"]\n", channel_config(&telegram));
    let fixture = ChannelDaemonFixture::start(process_lock, &section, TOKEN).await;
    let call = ScriptedResponse::tool_call("c1", "list_files", &json!({"path": "."}));
    fixture.model.script(call).script(ScriptedResponse::text("It is empty."));
    telegram.post_message(CHAT, ANN, "what is there?");
    let find = |it: &[FakeTelegramMessage]| it.iter().find(|shown| !shown.buttons.is_empty()).cloned();
    let state = telegram.wait_for("the buttons", |it| find(it.messages(CHAT)).is_some()).await;
    let shown = find(state.messages(CHAT)).unwrap();
    telegram.press_button(CHAT, ANN, shown.id, &shown.buttons[0].data);
    let end = "list_files was allowed by telegram:77.";
    let is_over = |it: &FakeTelegramMessage| it.id == shown.id && it.text.contains(end) && it.buttons.is_empty();
    telegram.wait_for(end, |it| it.messages(CHAT).iter().any(is_over)).await;
    telegram.wait_for("the answer", |it| it.bot_texts(CHAT).contains(&"It is empty.")).await;
    let answered = telegram.wait_for("the reply", |it| it.presses.iter().all(|press| !press.answers.is_empty())).await;
    assert_eq!(answered.presses[0].answers, [("✅ Allowed: list_files.".to_owned(), false)]);
    let audit = fixture.daemon.api().get("/api/audit").await.expect_status(200);
    let rows = audit["items"].as_array().unwrap();
    let row = rows.iter().find(|row| row["action"] == "approve").expect("an audited approval");
    assert_eq!((&row["principal"], &row["surface"]), (&json!("telegram:77"), &json!("channel")), "{row:#}");
}

/// Regression: the stop got no reply at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_a_command_that_was_left_in_the_background_and_says_so() {
    let (telegram, fixture) = start().await;
    let marker = ProcessMarker::new();
    let call = background_call(commands::setsid_child(&marker));
    fixture.model.script(call).script(ScriptedResponse::text("It runs."));
    let asked = telegram.post_message(CHAT, ANN, "serve it");
    // The run is not over when its answer is shown: until its reaction is set, a stop aborts the run itself.
    telegram.wait_for("the end of the request", |it| it.bot_texts(CHAT) == ["It runs."]).await;
    wait_reaction(&telegram, asked, "👍").await;
    marker.wait_for_count(2).await;
    telegram.post_message(CHAT, ANN, "/stop");
    let replies = ["Ending 1 background command.", "⏹ 1 background command ended"];
    telegram.wait_for("the end", |it| replies.iter().all(|text| it.bot_texts(CHAT).contains(text))).await;
    assert!(marker.marked_processes().is_empty(), "{:?}", marker.marked_processes());
    telegram.post_message(CHAT, ANN, "/stop");
    let nothing = "Nothing of yours is running here.";
    telegram.wait_for("nothing more", |it| it.bot_texts(CHAT).contains(&nothing)).await;
}

fn connect_database(fixture: &ChannelDaemonFixture) -> OtherProgram {
    OtherProgram::connect(&fixture.daemon.home().data_dir())
}

/// Sends a message and waits until the answer has begun, in the chat and in the database.
async fn start_answer(telegram: &FakeTelegram, fixture: &ChannelDaemonFixture) -> i64 {
    fixture.model.script(ScriptedResponse::silent_mid_stream("I have begun"));
    let asked = telegram.post_message(CHAT, ANN, "write a book");
    telegram.wait_for("the draft", |it| it.bot_texts(CHAT).contains(&"I have begun")).await;
    wait_reaction(telegram, asked, "👀").await;
    let database = connect_database(fixture);
    leaks::wait_until(WAIT_TIMEOUT, move || {
        let drafts = database.count(CountedRows::PendingReplyDrafts);
        let texts = database.count(CountedRows::JournalLinesWith("I have begun"));
        if drafts > 0 && texts > 0 {
            Ok(())
        } else {
            Err(format!("{drafts} drafts and {texts} texts are in the database"))
        }
    })
    .await;
    asked
}

/// Regression: the chat showed for ever that the agent was working.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_daemon_ends_the_reply_that_a_killed_one_left() {
    let (telegram, mut fixture) = start().await;
    let asked = start_answer(&telegram, &fixture).await;
    fixture.daemon.kill9().await;
    assert_eq!(reactions(&telegram, asked), ["👀"], "a killed daemon changed the reaction");
    let next = fixture.daemon.home().start(quell_exe()).await;
    fixture.daemon = next;
    let ended = "I have begun\n\n⚠️ Quell was restarted before this was answered. Ask again.";
    telegram.wait_for("the end of the draft", |it| it.bot_texts(CHAT) == [ended]).await;
    wait_reaction(&telegram, asked, "🫡").await;

    fixture.model.script(ScriptedResponse::text("Here I am."));
    let again = telegram.post_message(CHAT, ANN, "and now?");
    telegram.wait_for("the next answer", |it| it.bot_texts(CHAT) == [ended, "Here I am."]).await;
    wait_reaction(&telegram, again, "👍").await;
    fixture.model.assert_histories_valid();
    assert!(fixture.daemon.stop().await.success(), "{}", fixture.daemon.output());
    assert_eq!(connect_database(&fixture).count(CountedRows::PendingReplies), 0);
    assert_eq!(telegram.state().bot_texts(CHAT), [ended, "Here I am."], "the end was sent twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_shuts_down_leaves_nothing_in_a_chat() {
    let (telegram, fixture) = start().await;
    let asked = start_answer(&telegram, &fixture).await;
    assert!(fixture.daemon.stop().await.success(), "{}", fixture.daemon.output());
    let state = telegram.state();
    let ended = "I have begun\n\n⚠️ Stopped: Quell is shutting down. Ask again when it is back.";
    assert_eq!(state.bot_texts(CHAT), [ended]);
    assert_eq!(reactions(&telegram, asked), ["🫡"]);
    assert_eq!(connect_database(&fixture).count(CountedRows::PendingReplies), 0);
}

mod timing {
    use quell_testkit::timing::report_time;

    use super::*;

    /// The target is 5 ms from the arrival of the message.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_stop_from_the_chat_closes_the_model_request() {
        let (telegram, fixture) = start().await;
        fixture.model.script(ScriptedResponse::silent_mid_stream("I have begun"));
        telegram.post_message(CHAT, ANN, "write a book");
        fixture.model.request_at(0).wait_streaming().await;
        let begun = std::time::Instant::now();
        telegram.post_message(CHAT, ANN, "/stop");
        let left = fixture.model.request_at(0).wait_client_left().await;
        report_time("a stop from Telegram", left - begun);
    }
}
