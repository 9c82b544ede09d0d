//! Message intake, replies and stops of chat channels, with an in-memory network.
//!
//! Engine and message flow run in this process, so that the flow is measured and not a network. The model server is
//! reached by real HTTP, and runs in this process, too.

mod fixture;
mod memory_network;
pub(crate) mod sanitiser;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use quell_engine::engine::EngineNotice;
use quell_llm::demo::{DemoModel, DemoScript};
use quell_protocol::event::EventKind;
use quell_testkit::model::{ScriptedModel, ScriptedResponse};

use self::fixture::{CHANNEL, ChannelsFixture};
use self::memory_network::NetworkEventKind;
use crate::concurrent_stops::{slow_stream, streaming_requests};
use crate::report::{BenchReport, FigureTarget, Quantile};
use crate::times::Times;

/// Messages in one second, and the number of their senders. Each sender has a conversation of their own.
const MESSAGES_PER_SECOND: usize = 5000;
const SENDERS: usize = 500;
/// Conversations with one message, which is answered.
const ANSWERED_CONVERSATIONS: usize = 4000;
/// Messages that the network delivers before it waits until they are in the database: the capacity of the inbox.
const BATCH: usize = 100;
/// Conversations with an active run, and how many of them are stopped one after the other.
const ACTIVE_CONVERSATIONS: usize = 1000;
const STOPS: usize = 100;
/// Messages of one sender in a second, and senders who stop their own runs meanwhile.
const FLOOD_MESSAGES_PER_SECOND: usize = 10_000;
const OTHER_SENDERS: usize = 100;
/// Limit of runs in flight where each conversation has a run.
const MAX_RUNS: usize = 4000;
const DEFAULT_IN_FLIGHT_RUNS: usize = 64;

/// Measures how many messages a second are accepted, and how soon each.
pub(crate) async fn measure_intake(report: &BenchReport) {
    let (silence, answer) = (ScriptedResponse::SilentBeforeHeaders, ScriptedResponse::text("Answered."));
    for (messages, name, response, has_target) in [
        (MESSAGES_PER_SECOND, "no run is answered", silence, true),
        (MESSAGES_PER_SECOND / 2, "the model answers at once", answer.clone(), true),
        // About as much as this process, with the model, can do. Messages beyond that are refused with a notice.
        (MESSAGES_PER_SECOND, "the model answers at once", answer, false),
    ] {
        measure_intake_of(report, (messages, name), response, has_target).await;
    }
}

/// Measures how many messages a second are answered.
pub(crate) async fn measure_answers(report: &BenchReport) {
    let model = ScriptedModel::start().await;
    model.respond_by_prompt(|_, _| ScriptedResponse::text("Answered."));
    measure_answers_of(report, "the model answers at once", model.base_url()).await;
    let demo = DemoModel::start(DemoScript::Chat).await.unwrap();
    measure_answers_of(report, "the demo model", demo.base_url()).await;
    demo.stop().await;
}

/// Measures how soon a stop from a chat acts and is answered.
pub(crate) async fn measure_stops(report: &BenchReport) {
    measure_stop_among_conversations(report).await;
    measure_stop_in_flood(report).await;
}

/// Measures from the time at which a message is due until `run.queued`: the run is then in the registry and in the
/// database.
async fn measure_intake_of(
    report: &BenchReport,
    (messages, name): (usize, &str),
    behaviour: ScriptedResponse,
    has_target: bool,
) {
    let model = ScriptedModel::start().await;
    model.respond_by_prompt(move |_, _| behaviour.clone());
    let mut fixture = ChannelsFixture::open(model.base_url(), DEFAULT_IN_FLIGHT_RUNS).await;
    let mut notices = fixture.engine.subscribe();
    let begun = Instant::now() + Duration::from_millis(100);
    let due = move |number: usize| begun + message_interval(messages) * u32::try_from(number).unwrap();
    let dues: HashMap<String, Instant> =
        (0..messages).map(|number| (run_id_of(&message_id(number)), due(number))).collect();
    let writer = fixture.writer.clone();
    let writing = std::thread::spawn(move || {
        for number in 0..messages {
            wait_until(due(number));
            writer.write_message(&message_id(number), &format!("sender-{}", number % SENDERS), "Is anybody there?");
        }
        writer.end_of_batch();
    });
    let mut times = Times::default();
    let mut add = |notice: &EngineNotice| {
        if let EngineNotice::Run(event) = notice
            && let EventKind::Queued { .. } = event.kind
        {
            times.add(Instant::now().saturating_duration_since(dues[event.run_id.as_str()]));
        }
    };
    let mut settled = false;
    while !settled {
        tokio::select! {
            notice = notices.next() => add(&notice.unwrap()),
            event = fixture.next_event() => settled = matches!(event.kind, NetworkEventKind::Settled),
        }
    }
    while let Some(notice) = notices.try_next().unwrap() {
        add(&notice);
    }
    writing.join().unwrap();
    let target = |most| if has_target { FigureTarget::AtMost(most) } else { FigureTarget::Free };
    let what = |part: &str| format!("{messages} messages/s, {name}: {part}");
    report.add_times(what("received -> run"), (&times, Quantile::P99), target(20.0), "");
    let refused = (to_f64(messages - times.len()), "");
    report.add(what("refused"), refused, target(0.0), "the inbox or a conversation was full");
    fixture.close().await;
}

/// Measures from the first message to the reaction that marks the last one as answered.
async fn measure_answers_of(report: &BenchReport, name: &str, base_url: String) {
    let mut fixture = ChannelsFixture::open(base_url, MAX_RUNS).await;
    let begun = Instant::now();
    write_conversations(&fixture, ANSWERED_CONVERSATIONS, "sender", |_| "Is anybody there?".to_owned());
    let (mut done, mut edits, mut last) = (0, 0, begun);
    while done < ANSWERED_CONVERSATIONS {
        let event = fixture.next_event().await;
        match event.kind {
            NetworkEventKind::Sign(sign) if sign == "✅" => (done, last) = (done + 1, event.at),
            NetworkEventKind::Sign(sign) => assert_eq!(sign, "👀", "a message was not answered"),
            NetworkEventKind::Edited => edits += 1,
            NetworkEventKind::Connected | NetworkEventKind::Settled | NetworkEventKind::Sent { .. } => {}
        }
    }
    let took = last.saturating_duration_since(begun).as_secs_f64();
    let note = format!("{ANSWERED_CONVERSATIONS} conversations in {took:.2} s, {edits} edits of drafts");
    let rate = (to_f64(ANSWERED_CONVERSATIONS) / took, "/s");
    report.add(format!("full runs, {name}"), rate, FigureTarget::AtLeast(500.0), note);
    fixture.close().await;
}

/// Measures stops from the chat while a thousand conversations stream.
async fn measure_stop_among_conversations(report: &BenchReport) {
    let model = ScriptedModel::start().await;
    model.respond_by_prompt(|_, _| slow_stream());
    let mut fixture = ChannelsFixture::open(model.base_url(), MAX_RUNS).await;
    write_conversations(&fixture, ACTIVE_CONVERSATIONS, "sender", |number| format!("marker:chat-{number}"));
    let requests = streaming_requests(&model, "chat-", ACTIVE_CONVERSATIONS).await;
    let (mut answered, mut closed) = <(Times, Times)>::default();
    for (number, request) in requests.iter().enumerate().take(STOPS) {
        let sender = format!("sender-{number}");
        let begun = Instant::now();
        fixture.writer.write_message(&format!("stop-{number}"), &sender, "/stop");
        answered
            .add(fixture.wait_for_text_to(&sender, "Stopping your request.").await.saturating_duration_since(begun));
        closed.add(request.wait_client_left().await.saturating_duration_since(begun));
    }
    let what = format!("{ACTIVE_CONVERSATIONS} conversations: /stop -> model socket closed");
    report.add_times(&what, (&closed, Quantile::Median), FigureTarget::AtMost(5.0), "");
    report.add_times(what, (&closed, Quantile::P99), FigureTarget::Free, "");
    let what = format!("{ACTIVE_CONVERSATIONS} conversations: /stop -> its answer");
    report.add_times(what, (&answered, Quantile::P99), FigureTarget::AtMost(100.0), "");
    fixture.close().await;
}

/// Measures stops of senders whose runs stream while one sender floods the channel, and at the end the flooder's own
/// stop.
async fn measure_stop_in_flood(report: &BenchReport) {
    let model = ScriptedModel::start().await;
    model.respond_by_prompt(|_, _| slow_stream());
    let mut fixture = ChannelsFixture::open(model.base_url(), MAX_RUNS).await;
    write_conversations(&fixture, OTHER_SENDERS, "other", |number| format!("marker:other-{number}"));
    streaming_requests(&model, "other-", OTHER_SENDERS).await;
    let begun = Instant::now() + Duration::from_millis(100);
    let due = move |number: usize| begun + message_interval(FLOOD_MESSAGES_PER_SECOND) * u32::try_from(number).unwrap();
    let writer = fixture.writer.clone();
    let writing = std::thread::spawn(move || {
        for number in 0..FLOOD_MESSAGES_PER_SECOND {
            wait_until(due(number));
            writer.write_message(&format!("flood-{number}"), "flooder", "And another thing.");
            if let Some(other) = stop_after_message(number) {
                writer.write_message(&format!("stop-{other}"), &format!("other-{other}"), "/stop");
            }
        }
        writer.write_message("stop-flooder", "flooder", "/stop");
    });
    let due_of: HashMap<String, Instant> = (0..FLOOD_MESSAGES_PER_SECOND)
        .filter_map(|number| Some((format!("chat-other-{}", stop_after_message(number)?), due(number))))
        .collect();
    let mut times = Times::default();
    while times.len() < OTHER_SENDERS {
        let event = fixture.next_event().await;
        if let NetworkEventKind::Sent { place, text } = event.kind
            && text.contains("Stopping your request.")
            && let Some(due) = due_of.get(&place.target)
        {
            times.add(event.at.saturating_duration_since(*due));
        }
    }
    let own = fixture
        .wait_for_text_to("flooder", "Stopping")
        .await
        .saturating_duration_since(due(FLOOD_MESSAGES_PER_SECOND - 1));
    writing.join().unwrap();
    let what = format!("{FLOOD_MESSAGES_PER_SECOND} messages/s of one sender: another's /stop");
    report.add_times(what, (&times, Quantile::P99), FigureTarget::AtMost(100.0), "");
    let what = format!("{FLOOD_MESSAGES_PER_SECOND} messages/s of one sender: its own /stop");
    report.add(what, (own.as_secs_f64() * 1000.0, "ms"), FigureTarget::AtMost(100.0), "of 1");
    fixture.close().await;
}

/// Writes one message in each of so many conversations, in batches.
fn write_conversations(fixture: &ChannelsFixture, count: usize, sender: &str, text: impl Fn(usize) -> String) {
    for number in 0..count {
        fixture.writer.write_message(&message_id(number), &format!("{sender}-{number}"), &text(number));
        if number % BATCH == BATCH - 1 {
            fixture.writer.end_of_batch();
        }
    }
}

/// Returns the sender who sends a stop after this message of the flood.
fn stop_after_message(number: usize) -> Option<usize> {
    let every = FLOOD_MESSAGES_PER_SECOND / OTHER_SENDERS;
    (number % every == every - 1).then_some(number / every)
}

/// The interval for this many messages a second.
fn message_interval(messages: usize) -> Duration {
    Duration::from_secs(1) / u32::try_from(messages).unwrap()
}

fn wait_until(moment: Instant) {
    std::thread::sleep(moment.saturating_duration_since(Instant::now()));
}

fn message_id(number: usize) -> String {
    format!("m{number}")
}

/// Returns the id of a message's run, which the flow derives from the channel and the message's id.
fn run_id_of(id: &str) -> String {
    let hash = ring::digest::digest(&ring::digest::SHA256, id.as_bytes());
    let hash: String = hash.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{CHANNEL}:{hash}")
}

#[expect(clippy::cast_precision_loss, reason = "a count of messages")]
fn to_f64(count: usize) -> f64 {
    count as f64
}
