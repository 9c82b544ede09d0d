//! What people see of an answer: it grows, is cut into pieces, is delivered once, and says so when there is none.

use std::time::Duration;

use quell_engine::tools::attachment::folder_of;
use quell_protocol::{Attachment, AttachmentKind, SessionKey};
use quell_testkit::model::{Behaviour, Stream};

use super::House;
use super::paper::{Call, Fault, Page, busy, refused};

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_grows_in_its_draft_and_is_signed() {
    let house = House::open().await;
    house.model.script(Stream::new().wait_for("one").text("Good ").wait_for("two").text("morning."));
    let asked = house.paper.say("ann", "hello");
    house.paper.wait_for("the draft", |page| page.texts() == ["..."]).await;
    let page = house.paper.wait_for("the sign", |page| page.signs_on(&asked) == ["👀"] && page.is_typing()).await;
    assert_eq!(page.written.len(), 1);
    house.model.open_gate("one");
    house.paper.wait_for("the beginning", |page| page.texts() == ["Good"]).await;
    house.model.open_gate("two");
    house.paper.wait_for("the answer", |page| page.texts() == ["Good morning."]).await;
    let page = house.paper.wait_for("the last sign", |page| page.signs_on(&asked) == ["✅"]).await;
    assert!(!page.is_typing());
    house.close().await;
}

/// A draft that failed once was never handed over, and the answer waited for it until its time was over.
#[tokio::test(flavor = "multi_thread")]
async fn a_draft_that_cannot_be_sent_holds_no_answer_up() {
    let house = House::open().await;
    for (number, fault) in [busy(Duration::from_secs(3600)), refused(), Fault::LosesAnswer].into_iter().enumerate() {
        house.paper.fault(Call::Send, fault);
        house.model.script(Stream::new().wait_for(format!("gate {number}")).text("The answer."));
        house.paper.say("ann", "hello");
        house.paper.faults_are_over().await;
        house.model.open_gate(&format!("gate {number}"));
        let answers = |page: &Page| page.texts().iter().filter(|text| **text == "The answer.").count();
        house.paper.wait_for("the answer", |page| answers(page) == number + 1).await;
    }
    house.close().await;
}

/// Where nobody knew whether the draft was there it stood as "..." for ever, beside the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_draft_whose_confirmation_is_lost_is_found_again_by_its_key() {
    let house = House::open().await;
    house.paper.fault(Call::Send, Fault::LosesAnswerOnce);
    house.model.script(Stream::new().text("The ").wait_for("more").text("answer."));
    let asked = house.paper.say("ann", "hello");
    house.paper.wait_for("the draft", |page| page.texts() == ["The"]).await;
    house.model.open_gate("more");
    house.paper.wait_for("the answer", |page| page.signs_on(&asked) == ["✅"]).await;
    assert_eq!(house.paper.page().texts(), ["The answer."]);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_that_was_deleted_is_followed_by_the_answer_as_a_message() {
    let house = House::open().await;
    house.model.script(Stream::new().text("Good ").wait_for("more").text("morning."));
    house.paper.say("ann", "hello");
    house.paper.wait_for("the draft", |page| page.texts() == ["Good"]).await;
    house.paper.fault(Call::Edit, refused());
    house.model.open_gate("more");
    house.paper.wait_for("the answer", |page| page.says("Good morning.")).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_is_not_changed_for_nothing() {
    let house = House::open().await;
    house.model.script(Stream::new().text("Working").wait_for("more").text(" on it."));
    house.paper.say("ann", "hello");
    house.paper.wait_for("the draft", |page| page.texts() == ["Working"]).await;
    let edits = house.paper.page().written[0].edits;
    // Far longer than drafts take here.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(house.paper.page().written[0].edits, edits);
    house.model.open_gate("more");
    house.paper.wait_for("the answer", |page| page.texts() == ["Working on it."]).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_is_cut_and_a_lost_answer_of_the_network_doubles_nothing() {
    let house = House::with("drafts = false", |_| {}).await;
    let paragraphs: Vec<String> = (0..8).map(|number| format!("{number} {}", "word ".repeat(60))).collect();
    house.model.script(Behaviour::text(paragraphs.join("\n\n")));
    house.paper.fault(Call::Send, busy(Duration::from_millis(20)));
    house.paper.say("ann", "tell me much");
    house.paper.wait_for("the last piece", |page| page.says("7 word")).await;
    let page = house.paper.page();
    assert!(page.written.len() >= 3 && page.written.iter().all(|it| it.text.chars().count() <= 1000));
    for number in 0..8 {
        assert_eq!(page.texts().iter().filter(|text| text.contains(&format!("{number} word"))).count(), 1);
    }
    house.model.script(Behaviour::text("Short."));
    house.paper.fault(Call::Send, Fault::LosesAnswer);
    let asked = house.paper.say("ann", "and now");
    house.paper.wait_for("the sign that it is not known", |page| page.signs_on(&asked) == ["⚠️"]).await;
    assert_eq!(house.paper.page().texts().iter().filter(|text| **text == "Short.").count(), 1);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_waits_for_a_server_that_restarts() {
    let house = House::with("drafts = false", |_| {}).await;
    for _ in 0..8 {
        house.paper.fault(Call::Send, busy(Duration::from_millis(5)));
    }
    house.model.script(Behaviour::text("Patience."));
    house.paper.say("ann", "hello");
    house.paper.wait_for("the answer", |page| page.texts() == ["Patience."]).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_told_and_never_an_empty_answer() {
    let house = House::open().await;
    house.model.script(Behaviour::status(400));
    let asked = house.paper.say("ann", "hello");
    house.paper.wait_for("the failure", |page| page.says("⚠️ This failed.")).await;
    house.paper.wait_for("its sign", |page| page.signs_on(&asked) == ["⚠️"]).await;
    house.model.script(Behaviour::text(""));
    house.paper.say("ann", "say nothing");
    house.paper.wait_for("a word", |page| page.says("ended without an answer")).await;
    house
        .model
        .script(Behaviour::text("<tool_call>{\"name\": \"shell\", \"arguments\": {\"command\": \"ls\"}}</tool_call>"));
    house.paper.say("ann", "call a tool as text");
    house.paper.wait_for("a word", |page| page.says("The model wrote a tool call as text")).await;
    house.model.assert_histories_valid();
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_takes_too_long_is_stopped_and_says_so() {
    let house = House::open().await;
    let mut settings = house.live.now().settings.clone();
    settings.messages.message_timeout_s = 1;
    settings.messages.max_tool_iterations = 1;
    house.live.replace(settings);
    house.model.script(Behaviour::silent_mid_stream("Slowly"));
    let asked = house.paper.say("ann", "hello");
    let page = house.paper.wait_for("the time-out", |page| page.says("⚠️ Request timed out")).await;
    assert!(page.says("Slowly\n\n⚠️"), "{page:#?}");
    house.paper.wait_for("its sign", |page| page.signs_on(&asked) == ["⚠️"]).await;
    house.model.request(0).client_left().await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_are_told_where_that_is_wanted() {
    let house = House::with("show_tool_calls = true", |_| {}).await;
    house.model.script(Behaviour::tool_call("c1", "recall", &serde_json::json!({"query": "boats"})));
    house.model.script(Behaviour::text("Nothing about boats."));
    house.paper.say("ann", "what do you know of boats?");
    house.paper.wait_for("the notice", |page| page.says("recall: boats") || page.says("🔧 `recall`: boats")).await;
    house.paper.wait_for("the answer", |page| page.says("Nothing about boats.")).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_come_in_and_go_out_of_the_workdir_alone() {
    let house = House::open().await;
    let file = |kind, source: &str, name: &str| Attachment {
        kind,
        source: source.to_owned(),
        name: Some(name.to_owned()),
        media_type: None,
        bytes: None,
    };
    let mut heard = house.paper.heard("room", "ann", "look at these");
    heard.attachments =
        vec![file(AttachmentKind::File, "contents", "../../notes.txt"), file(AttachmentKind::Image, "gone", "cat.png")];
    let bobs = format!("{}/r1/0-cat.png", folder_of(&SessionKey::parse("paper_room_bob").unwrap()));
    let work = house.dir.path().join("work/main");
    for (path, text) in [(work.join(&bobs), "bob's own"), (work.join("fine.txt"), "a fine text")] {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let answer = format!("Here it is: [FILE:/etc/passwd] [FILE:{bobs}] [FILE:nowhere.txt] [FILE:fine.txt]");
    house.model.script(Behaviour::text(&answer));
    let asked = heard.message.0.clone();
    house.paper.tell(heard);
    let request = house.model.request(0).arrived().await.body.to_string();
    assert!(request.contains("look at these\\n[FILE:") && request.contains("notes.txt]"), "{request}");
    assert!(request.contains("[image could not be fetched: it is gone]"), "{request}");
    let page = house.paper.wait_for("the end", |page| page.signs_on(&asked) == ["✅"]).await;
    assert!(page.says("file fine.txt: a fine text"), "what is wrong with one keeps no other back: {:?}", page.texts());
    assert!(!page.says("root:") && !page.says("bob's own"), "{:?}", page.texts());
    let said = page.texts().into_iter().find(|text| text.contains("nowhere.txt could not be sent")).unwrap();
    assert!(said.contains("⚠️ /etc/passwd could not be sent") && said.contains("not of this conversation"), "{said}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_are_answered_without_a_model() {
    let house = House::open().await;
    house.paper.say("ann", "/help");
    house.paper.wait_for("the help", |page| page.says("/stop all")).await;
    house.paper.say("ann", "/models");
    house.paper.wait_for("the providers", |page| page.says("Providers: scripted.")).await;
    house.paper.say("ann", "/model other");
    house.paper.wait_for("the choice", |page| page.says("This conversation is for scripted/other from now on.")).await;
    assert_eq!(house.model.request_count(), 0);
    house.model.script(Behaviour::text("Hello."));
    house.paper.say("ann", "hello");
    house.paper.wait_for("the answer", |page| page.says("Hello.")).await;
    assert_eq!(house.model.request(0).arrived().await.body["model"], "other");
    house.paper.say("ann", "/new");
    house.paper.wait_for("the new conversation", |page| page.says("A new conversation begins.")).await;
    house.model.script(Behaviour::text("Who are you?"));
    house.paper.say("ann", "do you know me?");
    house.paper.wait_for("the answer", |page| page.says("Who are you?")).await;
    let request = house.model.request(1).arrived().await.body.clone();
    assert!(!request.to_string().contains("Hello."), "{request}");
    assert_eq!(request["model"], "other", "the choice stays");
    house.close().await;
}

/// Row D9: the skills stand in the prompt as they were when the conversation began.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_keeps_its_prompt_until_it_begins_anew() {
    let house = House::with("", |config| {
        config.agents.values_mut().for_each(|agent| agent.skills = Some("skills".to_owned()));
    })
    .await;
    let skills = house.dir.path().join("work/main/skills");
    let put = |name: &str| {
        std::fs::create_dir_all(skills.join(name)).unwrap();
        let text = format!("---\nname: {name}\ndescription: For {name}.\n---\n");
        std::fs::write(skills.join(name).join("SKILL.md"), text).unwrap();
    };
    let prompt = async |index: usize| {
        let answer = format!("Answer {index}.");
        house.model.script(Behaviour::text(&answer));
        house.paper.say("ann", "hello");
        house.paper.wait_for("the answer", |page| page.says(&answer)).await;
        house.model.request(index).arrived().await.body["messages"][0]["content"].as_str().unwrap().to_owned()
    };
    put("boats");
    let first = prompt(0).await;
    assert!(first.ends_with("\n\n- boats: For boats. (skills/boats/SKILL.md)"), "{first}");
    put("trains");
    assert_eq!(prompt(1).await, first, "byte for byte");
    house.paper.say("ann", "/new");
    house.paper.wait_for("the new conversation", |page| page.says("A new conversation begins.")).await;
    assert_eq!(prompt(2).await, format!("{first}\n- trains: For trains. (skills/trains/SKILL.md)"));
    house.close().await;
}

/// People read of policies, commands of the daemon, and paths of its files.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_taken_is_said_in_words_for_who_asked() {
    let house = House::with("on_busy = \"reject\"", |_| {}).await;
    house.model.script(Behaviour::silent_mid_stream("hm"));
    house.paper.say("ann", "first");
    house.model.request(0).streaming().await;
    house.paper.say("ann", "second");
    let page = house.paper.wait_for("a word", |page| page.says("Your last request is still at work")).await;
    assert!(!page.texts().concat().contains("olicy"), "{:?}", page.texts());
    house.close().await;
}
