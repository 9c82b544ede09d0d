//! Drafts, splitting, delivery and failure texts of replies.

use std::time::Duration;

use quell_engine::EngineConfig;
use quell_kernel::approval::ApprovalPolicy;
use quell_kernel::channel::chat_language::ChatLanguage;
use quell_protocol::{Attachment, AttachmentKind, SessionKey};
use quell_testkit::model::{ScriptedResponse, ScriptedStream};
use quell_tools::attachment::attachment_folder;

use super::fake_network::{
    FakeNetwork, FakeNetworkCall, FakeNetworkFault, FakeNetworkState, rate_limit_fault, refusal_fault,
};
use super::{FlowFixture, gated_tool_call};
use crate::flow::texts;
use crate::network::test_support::attachment_from;

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_grows_in_its_draft_and_is_signed() {
    let fixture = FlowFixture::start().await;
    fixture
        .model
        .script(ScriptedStream::new().wait_for_gate("one").text("Good ").wait_for_gate("two").text("morning."));
    let message_id = fixture.network.receive_text("ann", "hello");
    fixture.network.wait_for("the draft", |state| state.texts() == ["..."]).await;
    let state = fixture
        .network
        .wait_for("the sign", |state| state.reactions_on(&message_id) == ["👀"] && state.is_typing())
        .await;
    assert_eq!(state.messages.len(), 1);
    fixture.model.open_gate("one");
    fixture.network.wait_for("the beginning", |state| state.texts() == ["Good"]).await;
    fixture.model.open_gate("two");
    fixture.network.wait_for("the answer", |state| state.texts() == ["Good morning."]).await;
    let state = fixture.network.wait_for("the last sign", |state| state.reactions_on(&message_id) == ["✅"]).await;
    assert!(!state.is_typing());
    fixture.shut_down().await;
}

/// Regression: a draft that failed once was never handed over, and the answer waited for it until the timeout.
#[tokio::test(flavor = "multi_thread")]
async fn a_draft_that_cannot_be_sent_holds_no_answer_up() {
    let fixture = FlowFixture::start().await;
    for (number, fault) in [
        rate_limit_fault(Duration::from_secs(3600)),
        refusal_fault(),
        FakeNetworkFault::LosesResponse { keeps_key: false },
    ]
    .into_iter()
    .enumerate()
    {
        fixture.network.inject_fault(FakeNetworkCall::Send, fault);
        fixture.model.script(ScriptedStream::new().wait_for_gate(format!("gate {number}")).text("The answer."));
        fixture.network.receive_text("ann", "hello");
        fixture.network.wait_until_faults_used().await;
        fixture.model.open_gate(&format!("gate {number}"));
        let answers = |state: &FakeNetworkState| state.texts().iter().filter(|text| **text == "The answer.").count();
        fixture.network.wait_for("the answer", |state| answers(state) == number + 1).await;
    }
    fixture.shut_down().await;
}

/// Regression: a draft without a confirmation stayed as "..." for ever, beside the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_draft_whose_confirmation_is_lost_is_found_again_by_its_key() {
    let fixture = FlowFixture::start().await;
    fixture.network.inject_fault(FakeNetworkCall::Send, FakeNetworkFault::LosesResponse { keeps_key: true });
    fixture.model.script(ScriptedStream::new().text("The ").wait_for_gate("more").text("answer."));
    let message_id = fixture.network.receive_text("ann", "hello");
    fixture.network.wait_for("the draft", |state| state.texts() == ["The"]).await;
    fixture.model.open_gate("more");
    fixture.network.wait_for("the answer", |state| state.reactions_on(&message_id) == ["✅"]).await;
    assert_eq!(fixture.network.state().texts(), ["The answer."]);
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_that_was_deleted_is_followed_by_the_answer_as_a_message() {
    let fixture = FlowFixture::start().await;
    fixture.model.script(ScriptedStream::new().text("Good ").wait_for_gate("more").text("morning."));
    fixture.network.receive_text("ann", "hello");
    fixture.network.wait_for("the draft", |state| state.texts() == ["Good"]).await;
    fixture.network.inject_fault(FakeNetworkCall::Edit, refusal_fault());
    fixture.model.open_gate("more");
    fixture.network.wait_for_text("Good morning.").await;
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_is_not_changed_for_nothing() {
    let network = FakeNetwork::with_typing_interval(Duration::from_millis(20));
    let fixture = FlowFixture::start_with_data((tempfile::tempdir().unwrap(), network), "", |_| {}).await;
    fixture.model.script(ScriptedStream::new().text("Working").wait_for_gate("more").text(" on it."));
    fixture.network.receive_text("ann", "hello");
    fixture.network.wait_for("the draft", |state| state.texts() == ["Working"]).await;
    let before = fixture.network.state();
    // An edit that is due comes before the second of them: the edit interval is half of the typing interval.
    let typed = |state: &FakeNetworkState| state.typing_calls.len() >= before.typing_calls.len() + 5;
    let state = fixture.network.wait_for("further typing", typed).await;
    assert_eq!(state.messages, before.messages);
    fixture.model.open_gate("more");
    fixture.network.wait_for("the answer", |state| state.texts() == ["Working on it."]).await;
    fixture.shut_down().await;
}

/// Regression: a chat showed a call that waits only when its draft could be edited again, on Telegram after 3 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_is_shown_before_the_next_edit() {
    let network = FakeNetwork::with_edit_interval(Duration::from_secs(3600));
    let ask_before_recall = |config: &mut EngineConfig| {
        for agent in config.agents.values_mut() {
            agent.approvals.insert("recall".to_owned(), ApprovalPolicy::Ask);
        }
    };
    let data = (tempfile::tempdir().unwrap(), network);
    let fixture = FlowFixture::start_with_data(data, "approvers = [\"root\"]", ask_before_recall).await;
    fixture.model.script(gated_tool_call("call"));
    fixture.network.receive_text("ann", "look");
    fixture.network.wait_for("the draft", |state| state.texts() == ["..."]).await;
    fixture.model.open_gate("call");
    fixture.network.wait_for_text("recall").await;
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_is_cut_and_a_lost_answer_of_the_network_doubles_nothing() {
    let fixture = FlowFixture::start_with("drafts = false", |_| {}).await;
    let paragraphs: Vec<String> = (0..8).map(|number| format!("{number} {}", "word ".repeat(60))).collect();
    fixture.model.script(ScriptedResponse::text(paragraphs.join("\n\n")));
    fixture.network.inject_fault(FakeNetworkCall::Send, rate_limit_fault(Duration::from_millis(20)));
    fixture.network.receive_text("ann", "tell me much");
    fixture.network.wait_for_text("7 word").await;
    let state = fixture.network.state();
    assert!(state.messages.len() >= 3 && state.messages.iter().all(|it| it.text.chars().count() <= 1000));
    for number in 0..8 {
        assert_eq!(state.texts().iter().filter(|text| text.contains(&format!("{number} word"))).count(), 1);
    }
    fixture.model.script(ScriptedResponse::text("Short."));
    fixture.network.inject_fault(FakeNetworkCall::Send, FakeNetworkFault::LosesResponse { keeps_key: false });
    let message_id = fixture.network.receive_text("ann", "and now");
    fixture.network.wait_for("the sign that it is not known", |state| state.reactions_on(&message_id) == ["⚠️"]).await;
    fixture.network.wait_for_text(texts::DELIVERY_UNKNOWN.text(ChatLanguage::English)).await;
    assert_eq!(fixture.network.state().texts().iter().filter(|text| **text == "Short.").count(), 1);
    fixture.model.script(ScriptedResponse::text("Refused."));
    fixture.network.inject_fault(FakeNetworkCall::Send, refusal_fault());
    fixture.network.receive_text("ann", "once more");
    let state = fixture.network.wait_for_text(texts::ANSWER_UNDELIVERED.text(ChatLanguage::English)).await;
    assert!(!state.contains_text("Refused."), "{state:#?}");
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_waits_for_a_server_that_restarts() {
    let fixture = FlowFixture::start_with("drafts = false", |_| {}).await;
    for _ in 0..8 {
        fixture.network.inject_fault(FakeNetworkCall::Send, rate_limit_fault(Duration::from_millis(5)));
    }
    fixture.ask("ann", "hello", "Patience.").await;
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_told_and_never_an_empty_answer() {
    let fixture = FlowFixture::start().await;
    fixture.model.script(ScriptedResponse::status(400));
    let message_id = fixture.network.receive_text("ann", "hello");
    fixture.network.wait_for_text("⚠️ This failed.").await;
    fixture.network.wait_for("its sign", |state| state.reactions_on(&message_id) == ["⚠️"]).await;
    fixture.model.script(ScriptedResponse::text(""));
    fixture.network.receive_text("ann", "say nothing");
    fixture.network.wait_for_text("ended without an answer").await;
    fixture.model.script(ScriptedResponse::text(
        "<tool_call>{\"name\": \"shell\", \"arguments\": {\"command\": \"ls\"}}</tool_call>",
    ));
    fixture.network.receive_text("ann", "call a tool as text");
    fixture.network.wait_for_text("The model wrote a tool call as text").await;
    fixture.model.assert_histories_valid();
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_takes_too_long_is_stopped_and_says_so() {
    let fixture = FlowFixture::start().await;
    let mut settings = fixture.live_settings.current().settings.clone();
    settings.messages.message_timeout_s = 1;
    settings.messages.max_tool_iterations = 1;
    fixture.live_settings.replace(settings);
    fixture.model.script(ScriptedResponse::silent_mid_stream("Slowly"));
    let message_id = fixture.network.receive_text("ann", "hello");
    let state = fixture.network.wait_for_text("⚠️ Request timed out").await;
    assert!(state.contains_text("Slowly\n\n⚠️"), "{state:#?}");
    fixture.network.wait_for("its sign", |state| state.reactions_on(&message_id) == ["⚠️"]).await;
    fixture.model.request_at(0).wait_client_left().await;
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_has_no_more_rounds_than_its_messages_say() {
    let fixture = FlowFixture::start().await;
    let mut settings = fixture.live_settings.current().settings.clone();
    settings.messages.max_tool_iterations = 3;
    fixture.live_settings.replace(settings);
    for call in ["c1", "c2", "c3", "c4"] {
        fixture.model.script(ScriptedResponse::tool_call(call, "recall", &serde_json::json!({"query": "boats"})));
    }
    let message_id = fixture.network.receive_text("ann", "look again and again");
    fixture.network.wait_for("its sign", |state| state.reactions_on(&message_id) == ["⏹"]).await;
    fixture.network.wait_for_text("the steps of this request are used up").await;
    assert_eq!(fixture.model.recorded_requests().len(), 3);
    fixture.model.assert_histories_valid();
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_are_told_where_that_is_wanted() {
    let fixture = FlowFixture::start_with("show_tool_calls = true", |_| {}).await;
    fixture.model.script(ScriptedResponse::tool_call("c1", "recall", &serde_json::json!({"query": "boats"})));
    fixture.model.script(ScriptedResponse::text("Nothing about boats."));
    fixture.network.receive_text("ann", "what do you know of boats?");
    fixture
        .network
        .wait_for("the notice", |state| {
            state.contains_text("recall: boats") || state.contains_text("🔧 `recall`: boats")
        })
        .await;
    fixture.network.wait_for_text("Nothing about boats.").await;
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_and_changes_of_files_are_shown_where_tools_are() {
    for (setting, is_shown) in [("show_tool_calls = true", true), ("", false)] {
        let fixture = FlowFixture::start_with(setting, |_| {}).await;
        let plan = serde_json::json!({"items": [{"text": "Paint the boat", "status": "in_progress"}]});
        fixture.model.script(ScriptedResponse::tool_call("c1", "todo", &plan));
        let write = serde_json::json!({"path": "boat.txt", "content": "red\n"});
        fixture.model.script(ScriptedResponse::tool_call("c2", "write_file", &write));
        fixture.model.script(ScriptedResponse::text("It is red."));
        let message_id = fixture.network.receive_text("ann", "paint my boat");
        if is_shown {
            fixture.network.wait_for_text("● Paint the boat").await;
            fixture.network.wait_for_text("+red").await;
        }
        let state = fixture.network.wait_for("the end", |state| state.reactions_on(&message_id) == ["✅"]).await;
        assert_eq!(state.contains_text("+red"), is_shown, "{:?}", state.texts());
        assert_eq!(state.contains_text("Paint the boat"), is_shown, "{:?}", state.texts());
        fixture.shut_down().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_come_in_and_go_out_of_the_workdir_alone() {
    let fixture = FlowFixture::start().await;
    let file = |kind, source: &str, name: &str| {
        let name = Some(name.to_owned());
        Attachment { kind, name, ..attachment_from(source) }
    };
    let mut inbound = fixture.network.inbound_message("room", "ann", "look at these");
    inbound.attachments =
        vec![file(AttachmentKind::File, "contents", "../../notes.txt"), file(AttachmentKind::Image, "gone", "cat.png")];
    let other_file = format!("{}/r1/0-cat.png", attachment_folder(&SessionKey::parse("paper_room_bob").unwrap()));
    let work = fixture.dir.path().join("work/main");
    for (path, text) in [(work.join(&other_file), "bob's own"), (work.join("fine.txt"), "a fine text")] {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let answer = format!("Here it is: [FILE:/etc/passwd] [FILE:{other_file}] [FILE:nowhere.txt] [FILE:fine.txt]");
    fixture.model.script(ScriptedResponse::text(&answer));
    let message_id = inbound.message_id.0.clone();
    fixture.network.receive_message(inbound);
    let request = fixture.model.request_at(0).wait_arrived().await.body.to_string();
    assert!(request.contains("look at these\\n[FILE:") && request.contains("notes.txt]"), "{request}");
    assert!(request.contains("[image could not be fetched: it is gone]"), "{request}");
    let state = fixture.network.wait_for("the end", |state| state.reactions_on(&message_id) == ["✅"]).await;
    assert!(
        state.contains_text("file fine.txt: a fine text"),
        "what is wrong with one keeps no other back: {:?}",
        state.texts()
    );
    assert!(!state.contains_text("root:") && !state.contains_text("bob's own"), "{:?}", state.texts());
    let file_errors = state.texts().into_iter().find(|text| text.contains("nowhere.txt could not be sent")).unwrap();
    assert!(
        file_errors.contains("⚠️ /etc/passwd could not be sent") && file_errors.contains("not of this conversation"),
        "{file_errors}"
    );
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_are_answered_without_a_model() {
    let fixture = FlowFixture::start().await;
    fixture.network.receive_text("ann", "/help");
    fixture.network.wait_for_text("/stop all").await;
    fixture.network.receive_text("ann", "/models");
    fixture.network.wait_for_text("Providers: scripted.").await;
    fixture.network.receive_text("ann", "/model other");
    fixture.network.wait_for_text("This conversation is for scripted/other from now on.").await;
    assert_eq!(fixture.model.request_count(), 0);
    fixture.ask("ann", "hello", "Hello.").await;
    assert_eq!(fixture.model.request_at(0).wait_arrived().await.body["model"], "other");
    fixture.network.receive_text("ann", "/new");
    fixture.network.wait_for_text("A new conversation begins.").await;
    fixture.ask("ann", "do you know me?", "Who are you?").await;
    let request = fixture.model.request_at(1).wait_arrived().await.body.clone();
    assert!(!request.to_string().contains("Hello."), "{request}");
    assert_eq!(request["model"], "other", "the choice stays");
    fixture.shut_down().await;
}

/// The system prompt lists the skills that existed when the conversation began.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_keeps_its_prompt_until_it_begins_anew() {
    let fixture = FlowFixture::start_with("", |config| {
        config.agents.values_mut().for_each(|agent| agent.skills = Some("skills".to_owned()));
    })
    .await;
    let skills = fixture.dir.path().join("work/main/skills");
    let add_skill = |name: &str| {
        std::fs::create_dir_all(skills.join(name)).unwrap();
        let text = format!("---\nname: {name}\ndescription: For {name}.\n---\n");
        std::fs::write(skills.join(name).join("SKILL.md"), text).unwrap();
    };
    let prompt = async |index: usize| {
        let answer = format!("Answer {index}.");
        fixture.model.script(ScriptedResponse::text(&answer));
        fixture.network.receive_text("ann", "hello");
        fixture.network.wait_for_text(&answer).await;
        fixture.model.request_at(index).wait_arrived().await.body["messages"][0]["content"].as_str().unwrap().to_owned()
    };
    add_skill("boats");
    let first = prompt(0).await;
    assert!(first.ends_with("\n\n- boats: For boats. (skills/boats/SKILL.md)"), "{first}");
    add_skill("trains");
    assert_eq!(prompt(1).await, first, "byte for byte");
    fixture.network.receive_text("ann", "/new");
    fixture.network.wait_for_text("A new conversation begins.").await;
    assert_eq!(prompt(2).await, format!("{first}\n- trains: For trains. (skills/trains/SKILL.md)"));
    fixture.shut_down().await;
}

/// Regression: the texts named policies, commands of the daemon, and paths of its files.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_message_is_explained_to_its_sender() {
    let fixture = FlowFixture::start_with("on_busy = \"reject\"", |_| {}).await;
    fixture.start_silent_run("first", "hm").await;
    fixture.network.receive_text("ann", "second");
    let state = fixture.network.wait_for_text("Your last request is still at work").await;
    assert!(!state.texts().concat().contains("olicy"), "{:?}", state.texts());
    fixture.shut_down().await;
}
