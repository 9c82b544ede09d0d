//! Stops from a chat: what they reach, whose they are, and what they say.

use std::time::{Duration, Instant};

use quell_engine::agent::AgentConfig;
use quell_engine::cell::Progress;
use quell_engine::dispatch::{StopText, Submission, Submitted};
use quell_protocol::api::OnBusy;
use quell_protocol::{AgentId, SessionKey, Verdict};
use quell_testkit::model::{Behaviour, Stream};
use serde_json::json;

use super::House;
use super::paper::{Call, Fault, busy};

/// A stop used to register as the newest task, and ended itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_what_runs_and_is_no_run_itself() {
    let house = House::open().await;
    house.model.script(Behaviour::silent_mid_stream("I begin"));
    let asked = house.paper.say("ann", "write");
    house.paper.wait_for("the draft", |page| page.says("I begin")).await;
    let stop = house.paper.say("ann", "/stop");
    house.model.request(0).client_left().await;
    let page = house.paper.wait_for("the receipt", |page| page.says("⏹ stopped in")).await;
    assert!(page.says("Stopping your request."), "{page:#?}");
    let page = house.paper.wait_for("the last sign", |page| page.signs_on(&asked) == ["⏹"]).await;
    assert!(page.says("I begin\n\n⏹ Stopped."), "{page:#?}");
    assert!(!page.is_typing() && page.signs_on(&stop).is_empty(), "{page:#?}");
    assert_eq!(house.engine.active_runs().len(), 0);
    house.close().await;
}

/// The loop that took messages waited for a place among the runs, and did not read the stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_is_read_while_every_place_is_taken() {
    let house = House::with("", |config| config.limits.in_flight_runs = 1).await;
    house.model.script(Behaviour::silent_mid_stream("one"));
    house.paper.say("ann", "first");
    house.model.request(0).streaming().await;
    for sender in ["bob", "eve", "joe"] {
        house.paper.say(sender, "wait in line");
    }
    house.paper.say("bob", "STOP");
    let page = house.paper.wait_for("an answer", |page| page.says("1 waiting message will not be answered.")).await;
    assert!(!page.says("⏹ stopped in"), "what waited held nothing: {page:#?}");
    house.paper.say("ann", "/stop");
    house.model.request(0).client_left().await;
    house.close().await;
}

/// With interruption off, a second message displaced the first one, which could not be stopped any more.
#[tokio::test(flavor = "multi_thread")]
async fn what_runs_stays_in_reach_however_much_waits_behind_it() {
    let house = House::open().await;
    house.model.script(Behaviour::silent_mid_stream("one"));
    for number in 0..5 {
        house.paper.say("ann", &format!("message {number}"));
    }
    house.model.request(0).streaming().await;
    house.paper.wait_for("all of them", |page| page.told == 5).await;
    while house.engine.active_runs().len() < 5 {
        tokio::task::yield_now().await;
    }
    house.paper.say("ann", "stop");
    house.model.request(0).client_left().await;
    let said = "Stopping your request. 4 waiting messages will not be answered.";
    house.paper.wait_for("what was stopped", |page| page.texts().contains(&said)).await;
    // What comes next waits for the end of what was stopped, and is answered.
    house.model.script(Behaviour::text("Here."));
    house.paper.say("ann", "and now?");
    house.paper.wait_for("the next answer", |page| page.says("Here.")).await;
    assert_eq!(house.model.request_count(), 2);
    house.model.assert_histories_valid();
    house.close().await;
}

/// A stopped turn stood behind its successor, and the conversation was dead from then on.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_lives_on_after_stops_at_any_moment() {
    let house = House::open().await;
    house.model.by_prompt(|prompt, _| match prompt.contains("still there?") {
        true => Behaviour::text("Alive."),
        false => Behaviour::silent_mid_stream("hm"),
    });
    for round in 0..20 {
        house.paper.say("ann", &format!("round {round}"));
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        house.paper.say("ann", "/stop");
        while house.paper.page().told < 2 * (round + 1) || !house.engine.active_runs().is_empty() {
            tokio::task::yield_now().await;
        }
    }
    house.paper.say("ann", "still there?");
    house.paper.wait_for("an answer", |page| page.says("Alive.")).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_stops_what_another_asked_for_but_an_operator_stops_all() {
    let house = House::open().await;
    for sender in ["ann", "bob"] {
        house.model.script(Behaviour::silent_mid_stream("hm"));
        house.paper.say(sender, "go");
    }
    house.model.request(1).streaming().await;
    house.paper.say("eve", "/stop");
    house.paper.say("eve", "/stop all");
    house
        .paper
        .wait_for("two answers", |page| {
            page.says("Nothing of yours is running here.") && page.says("/stop all is for operators")
        })
        .await;
    assert_eq!(house.engine.active_runs().len(), 2);
    house.paper.say("root", "/stop all");
    house.paper.wait_for("the stop", |page| page.says("Stopping 2 requests.")).await;
    for request in 0..2 {
        house.model.request(request).client_left().await;
    }
    house.close().await;
}

/// Each run had a message of its own, and of a busy channel the last ones were dropped.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_many_runs_is_told_in_one_message() {
    let house = House::open().await;
    let senders = ["ann", "bob", "eve", "joe", "kim"];
    for sender in senders {
        house.model.script(Behaviour::silent_mid_stream("hm"));
        house.paper.say(sender, "go");
    }
    for request in 0..senders.len() {
        house.model.request(request).streaming().await;
    }
    house.paper.say("root", "/stop all");
    let summed_up = |text: &&str| text.starts_with("⏹ 5 requests stopped, the slowest in ");
    let page = house.paper.wait_for("the end", |page| page.texts().iter().any(summed_up)).await;
    let texts = page.texts();
    let said = texts.iter().find(|text| summed_up(text)).unwrap();
    assert!(said.ends_with(" · all processes dead, nothing left open · all histories valid"), "{said}");
    assert!(texts.contains(&"Stopping 5 requests.") && !page.says("⏹ stopped in"), "{texts:?}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_not_for_the_account_is_heard_for_its_stop_word_alone() {
    let house = House::open().await;
    house.model.script(Behaviour::silent_mid_stream("hm"));
    house.paper.say("ann", "go");
    house.model.request(0).streaming().await;
    let mut heard = house.paper.heard("room", "ann", "what do you all think?");
    heard.addressed = false;
    house.paper.tell(heard.clone());
    (heard.id, heard.text) = ("other".to_owned(), "stop!".to_owned());
    house.paper.tell(heard);
    house.model.request(0).client_left().await;
    house.paper.wait_for("the receipt", |page| page.says("⏹ stopped in")).await;
    assert_eq!(house.model.request_count(), 1);
    house.close().await;
}

/// Every stop started a task that answered it, without bound.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_stops_acts_at_once_and_is_answered_within_bounds() {
    let house = House::open().await;
    house.model.script(Behaviour::silent_mid_stream("hm"));
    house.paper.say("ann", "go");
    house.model.request(0).streaming().await;
    for _ in 0..2000 {
        house.paper.say("ann", "/stop");
    }
    house.model.request(0).client_left().await;
    let page = house.paper.wait_for("all of them", |page| page.told == 2001 && page.says("⏹ stopped in")).await;
    let answers = page.written.iter().filter(|written| !written.text.starts_with("hm")).count();
    assert!(answers < 300, "{answers} answers to 2,000 stops");
    house.close().await;
}

/// One place that the network wants to be left alone held up the answers to everybody else.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_room_does_not_hold_up_the_answer_to_a_stop_in_another() {
    let house = House::open().await;
    house.paper.fault(Call::Send, Fault::Hangs);
    house.paper.say_in("slow room", "bob", "/help");
    house.paper.faults_are_over().await;
    let begun = Instant::now();
    house.paper.say_in("room", "ann", "/stop");
    house.paper.wait_for("an answer", |page| page.says("Nothing of yours is running here.")).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    house.close().await;
}

/// It came when the last line of a long help had gone.
#[tokio::test(flavor = "multi_thread")]
async fn the_answer_to_a_stop_waits_behind_nothing_that_is_said_in_its_place() {
    let house = House::with("drafts = false", |_| {}).await;
    house.model.script(Behaviour::silent_mid_stream("hm"));
    house.paper.say("ann", "go");
    house.model.request(0).streaming().await;
    house.paper.fault(Call::Send, Fault::Hangs);
    house.paper.say("ann", "/help");
    house.paper.faults_are_over().await;
    house.paper.say("ann", "/stop");
    house.paper.wait_for("the receipt", |page| page.says("Stopping your request.") && page.says("⏹ stopped in")).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_reaches_an_answer_on_its_way() {
    let house = House::with("drafts = false", |_| {}).await;
    house.model.script(Behaviour::text("The answer."));
    house.paper.fault(Call::Send, Fault::Hangs);
    house.paper.say("ann", "tell me");
    house.model.request(0).finished().await;
    let run = loop {
        let runs = house.engine.active_runs();
        let run = runs.first().map(|run| run.run_id.clone()).unwrap();
        let held = house.engine.run(&run).await.unwrap().unwrap().held;
        if held.iter().any(|row| row.label == "paper room") {
            break run;
        }
    };
    // It is the answer that hangs, and not what is said of the stop.
    house.paper.faults_are_over().await;
    house.paper.say("ann", "/stop");
    house.paper.wait_for("the receipt", |page| page.says("1 delivery cancelled")).await;
    let view = house.engine.run(&run).await.unwrap().unwrap();
    let receipt = view.receipt.unwrap();
    assert!(receipt.leftovers.is_empty());
    let row = receipt.resources.iter().find(|row| row.label == "paper room").unwrap();
    assert_eq!(row.how, "cancelled");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_reaches_files_that_are_being_fetched() {
    let house = House::open().await;
    let mut heard = house.paper.heard("room", "ann", "look");
    heard.attachments.push(quell_protocol::Attachment {
        kind: quell_protocol::AttachmentKind::Image,
        source: "slow".to_owned(),
        name: None,
        media_type: None,
        bytes: None,
    });
    house.paper.tell(heard);
    loop {
        let runs = house.engine.active_runs();
        let Some(run) = runs.first() else { continue };
        let held = house.engine.run(&run.run_id).await.unwrap().unwrap().held;
        if held.iter().any(|row| row.label == "1 attachments from paper") {
            break;
        }
    }
    house.paper.say("ann", "/stop");
    house.paper.wait_for("the receipt", |page| page.says("1 delivery cancelled")).await;
    assert_eq!(house.model.request_count(), 0);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_from_elsewhere_is_told_in_the_chat() {
    let house = House::open().await;
    house.model.script(Behaviour::silent_mid_stream("I begin"));
    let asked = house.paper.say("ann", "write");
    house.paper.wait_for("the draft", |page| page.says("I begin")).await;
    let run = house.engine.active_runs()[0].run_id.clone();
    let admin = super::super::caller("page", "admin", quell_protocol::api::Scope::Admin);
    let scope = quell_kernel::registry::StopScope::Run { id: run, session: None };
    let ask = quell_kernel::registry::StopAsk {
        push: quell_kernel::Push::Gentle,
        reason: quell_protocol::StopReason::User,
        surface: quell_protocol::Surface::Page,
    };
    assert!(house.engine.stop(&admin, &scope, &ask).did_something());
    house.paper.wait_for("the end", |page| page.says("I begin\n\n⏹ stopped in")).await;
    house.paper.wait_for("the last sign", |page| page.signs_on(&asked) == ["⏹"]).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_stop_forces() {
    let house = House::with("", |config| config.stop.grace = Duration::from_secs(60)).await;
    house.model.script(Stream::new().text("hm").wait_for("never"));
    house.paper.fault(Call::Edit, busy(Duration::from_millis(1)));
    house.paper.say("ann", "go");
    house.model.request(0).streaming().await;
    house.paper.say("ann", "/stop");
    house.paper.say("ann", "/stop");
    house.paper.wait_for("the receipt", |page| page.says("⏹ stopped in")).await;
    house.close().await;
}

/// The child was stopped, and its person read that nothing was running.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_that_finds_nothing_but_a_sub_run_in_the_background_says_so() {
    let house = House::with("", |config| {
        let main = config.agents.values().next().unwrap().clone();
        let parent = AgentId::parse("main").ok();
        let scout = AgentConfig { role: Some("scout".to_owned()), parent, ..main };
        config.agents.insert(AgentId::parse("scout").unwrap(), scout);
    })
    .await;
    let call = json!({"agent": "scout", "prompt": "watch the tide", "wait": false});
    house.model.by_prompt(move |prompt, request| {
        let has_result = request.body["messages"].as_array().unwrap().iter().any(|message| message["role"] == "tool");
        match (prompt.ends_with("watch the tide"), has_result) {
            (true, _) => Behaviour::silent_mid_stream("The tide"),
            (false, false) => Behaviour::tool_call("c1", "spawn_agent", &call),
            (false, true) => Behaviour::text("The scout watches."),
        }
    });
    let asked = house.paper.say("ann", "have it watched");
    house.paper.wait_for("the answer", |page| page.signs_on(&asked) == ["✅"]).await;
    loop {
        let at_work = house.engine.active_runs();
        if at_work.len() == 1 && at_work[0].parent.is_some() && at_work[0].state == "running" {
            break;
        }
        tokio::task::yield_now().await;
    }
    house.paper.say("ann", "/stop");
    house.paper.wait_for("the receipt", |page| page.says("⏹ stopped in")).await;
    let page = house.paper.page();
    assert!(page.says("Stopping your request.") && !page.says("Nothing of yours"), "{:?}", page.texts());
    house.close().await;
}

/// What noted things after an answer was a task by itself, which no stop reached.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_finds_what_consolidates_the_memory_behind_an_answer() {
    let house = House::with("", |config| config.memory.consolidate = true).await;
    house.model.by_prompt(|prompt, _| match prompt.contains("worth remembering?") {
        true => Behaviour::silent_mid_stream("{"),
        false => Behaviour::text("It is red now."),
    });
    for (nth, stop) in ["/stop", "stop"].into_iter().enumerate() {
        let asked = house.paper.say("ann", "please paint my boat red");
        house.paper.wait_for("the answer", |page| page.signs_on(&asked) == ["✅"]).await;
        let request = 2 * nth + 1;
        house.model.request(request).streaming().await;
        house.paper.say("bob", stop);
        house.paper.say("ann", stop);
        house.model.request(request).client_left().await;
        assert_eq!(house.paper.page().signs_on(&asked), ["✅"]);
    }
    // The request was answered, so that a word that may have been meant for others is not answered.
    let of_notes = "Nothing of yours is running here any more. What was still being noted behind an answer is dropped.";
    let page = house.paper.wait_for("the answer to the first stop", |page| page.texts().contains(&of_notes)).await;
    assert_eq!(page.texts().iter().filter(|text| text.contains("top")).count(), 0, "{page:#?}");
    house.close().await;
}

/// The page's runs have no place in the chat, and nobody could stop them from there.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_stops_what_the_page_started_in_chats() {
    let house = House::open().await;
    let page = super::super::caller("page", "admin", quell_protocol::api::Scope::Admin);
    let ask = |session: &str| Submission {
        session: SessionKey::parse(session).unwrap(),
        text: "from the page".to_owned(),
        agent: None,
        idempotency_key: None,
        on_busy: OnBusy::Queue,
        timeout: None,
        stop_text: StopText::Literal,
        errand: None,
    };
    house.model.by_prompt(|_, _| Behaviour::silent_mid_stream("hm"));
    for (session, who, stop) in [("paper_room_root", "root", "/stop"), ("paper_room_ann", "root", "/stop all")] {
        let Submitted::New(run) = house.engine.submit(&page, ask(session)).await.unwrap() else { panic!("not new") };
        let cell = house.engine.live(&run.run_id).unwrap();
        cell.reached(Progress::Started).await;
        house.paper.say("ann", "/stop");
        house.paper.wait_for("the answer to who may not", |page| page.says("Nothing of yours is running here.")).await;
        assert!(cell.verdict().is_none(), "{session}: it is not ann's");
        house.paper.say(who, stop);
        cell.reached(Progress::Ended).await;
        assert!(matches!(cell.verdict(), Some(Verdict::Aborted { .. })), "{session}");
    }
    house.close().await;
}
