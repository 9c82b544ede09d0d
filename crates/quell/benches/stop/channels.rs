//! Chat networks: an engine with the message flow in this process and a network in memory, so that the flow is measured and not
//! a network. The model stays behind real HTTP, in this process too.

#[path = "channels/house.rs"]
mod house;
#[path = "channels/network.rs"]
mod network;
#[path = "channels/sanitiser.rs"]
mod sanitiser;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use quell_engine::dispatch::Notice;
use quell_engine::llm::demo::{DemoModel, DemoScript};
use quell_protocol::event::EventKind;
use quell_testkit::model::{Behaviour, ScriptedModel};

use self::house::{CHANNEL, House};
use self::network::What;
use crate::many::{named, slow_stream};
use crate::report::{Report, Target};
use crate::times::Times;

/// Messages that come in one second, from so many people, each in a conversation of their own.
const MESSAGES: usize = 5000;
const SENDERS: usize = 500;
/// Conversations whose only message is answered.
const ANSWERED: usize = 4000;
/// Messages that a network hands over before it waits until they are in the database: as many as the inbox holds.
const BATCH: usize = 100;
/// Conversations at work at the same time, and how many of them are stopped one after the other.
const AT_WORK: usize = 1000;
const STOPS: usize = 100;
/// Messages of one sender in a second, and people who stop their own runs meanwhile.
const FLOOD: usize = 10_000;
const OTHERS: usize = 100;
/// Runs at work at the same time, where they are to be as many as there are conversations.
const ROOM: usize = 4000;
/// The usual number of runs at work (`in_flight_runs`).
const USUAL: usize = 64;

/// How many messages are taken in a second, and how soon each.
pub(crate) async fn take(report: &mut Report) {
    let answers = Behaviour::text("Answered.");
    take_with(report, (MESSAGES, "no run is answered"), Behaviour::SilentBeforeHeaders, Judged::Yes).await;
    take_with(report, (MESSAGES / 2, "the model answers at once"), answers.clone(), Judged::Yes).await;
    // About as many as all of this process, the model included, can do: what is over is refused and said to be.
    take_with(report, (MESSAGES, "the model answers at once"), answers, Judged::No).await;
}

/// How many messages are answered in a second.
pub(crate) async fn answer(report: &mut Report) {
    let model = ScriptedModel::start().await;
    model.by_prompt(|_, _| Behaviour::text("Answered."));
    answer_with(report, "the model answers at once", model.base_url()).await;
    let demo = DemoModel::start(DemoScript::Chat).await.unwrap();
    answer_with(report, "the demo model", demo.base_url()).await;
    demo.stop().await;
}

/// How soon a stop from a chat acts and is answered.
pub(crate) async fn stop(report: &mut Report) {
    stop_one_of_many(report).await;
    stop_in_a_flood(report).await;
}

/// What the sanitiser costs.
pub(crate) fn sanitise(report: &mut Report) {
    sanitiser::measure(report);
}

/// Whether a load is one that has to be borne.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judged {
    Yes,
    No,
}

/// From the moment at which a message is due to `run.queued`: then it is decided what becomes of it, the run is in the registry and
/// in the database.
async fn take_with(report: &mut Report, (messages, name): (usize, &str), behaviour: Behaviour, judged: Judged) {
    let model = ScriptedModel::start().await;
    model.by_prompt(move |_, _| behaviour.clone());
    let mut house = House::open(model.base_url(), USUAL).await;
    let mut notices = house.engine.subscribe();
    let begun = Instant::now() + Duration::from_millis(100);
    let due = move |number: usize| begun + pace(messages) * u32::try_from(number).unwrap();
    let dues: HashMap<String, Instant> = (0..messages).map(|number| (run_of(&id(number)), due(number))).collect();
    let wire = house.wire.clone();
    let writing = std::thread::spawn(move || {
        for number in 0..messages {
            wait_until(due(number));
            wire.say(&id(number), &format!("sender-{}", number % SENDERS), "Is anybody there?");
        }
        wire.end_of_batch();
    });
    let mut times = Times::default();
    let mut add = |notice: &Notice| {
        if let Notice::Run(event) = notice
            && let EventKind::Queued { .. } = event.kind
        {
            times.add(Instant::now().saturating_duration_since(dues[event.run_id.as_str()]));
        }
    };
    let mut settled = false;
    while !settled {
        tokio::select! {
            notice = notices.next() => add(&notice.unwrap()),
            told = house.next() => settled = matches!(told.what, What::Settled),
        }
    }
    while let Some(notice) = notices.take().unwrap() {
        add(&notice);
    }
    writing.join().unwrap();
    let note = format!("median {:.2}, max {:.2}, n {}", times.median(), times.max(), times.len());
    let refused = (count(messages - times.len()), "the inbox or a conversation was full".to_owned());
    let what = |part: &str| format!("{messages} messages/s, {name}: {part}");
    match judged {
        Judged::Yes => {
            report.target(&what("received -> run, p99"), times.p99(), Target(20.0, "ms"), note);
            report.target(&what("refused"), refused.0, Target(0.0, ""), refused.1);
        }
        Judged::No => {
            report.figure(&what("received -> run, p99"), times.p99(), note);
            report.measure(&what("refused"), (refused.0, ""), refused.1);
        }
    }
    house.close().await;
}

/// From the first message to the sign on the last one that it is answered.
async fn answer_with(report: &mut Report, name: &str, base_url: String) {
    let mut house = House::open(base_url, ROOM).await;
    let begun = Instant::now();
    for number in 0..ANSWERED {
        house.wire.say(&id(number), &format!("sender-{number}"), "Is anybody there?");
        if number % BATCH == BATCH - 1 {
            house.wire.end_of_batch();
        }
    }
    let (mut done, mut edits, mut last) = (0, 0, begun);
    while done < ANSWERED {
        let told = house.next().await;
        match told.what {
            What::Sign(sign) if sign == "✅" => (done, last) = (done + 1, told.at),
            What::Sign(sign) => assert_eq!(sign, "👀", "a message was not answered"),
            What::Edited => edits += 1,
            What::Connected | What::Settled | What::Sent { .. } => {}
        }
    }
    let took = last.saturating_duration_since(begun).as_secs_f64();
    let note = format!("{ANSWERED} conversations in {took:.2} s, {edits} edits of drafts");
    report.at_least(&format!("full runs, {name}"), count(ANSWERED) / took, Target(500.0, "/s"), note);
    house.close().await;
}

/// Stops from the chat while a thousand conversations stream.
async fn stop_one_of_many(report: &mut Report) {
    let model = ScriptedModel::start().await;
    model.by_prompt(|_, _| slow_stream());
    let mut house = House::open(model.base_url(), ROOM).await;
    for number in 0..AT_WORK {
        house.wire.say(&id(number), &format!("sender-{number}"), &format!("marker:chat-{number}"));
        if number % BATCH == BATCH - 1 {
            house.wire.end_of_batch();
        }
    }
    let requests = named(&model, "chat-", AT_WORK).await;
    let (mut answered, mut closed) = <(Times, Times)>::default();
    for (number, request) in requests.iter().enumerate().take(STOPS) {
        let sender = format!("sender-{number}");
        let begun = Instant::now();
        house.wire.say(&format!("stop-{number}"), &sender, "/stop");
        answered.add(house.said_to(&sender, "Stopping your request.").await.saturating_duration_since(begun));
        closed.add(request.client_left().await.saturating_duration_since(begun));
    }
    let note = |times: &Times| format!("median {:.2}, max {:.2}, n {}", times.median(), times.max(), times.len());
    let what = format!("{AT_WORK} conversations: /stop -> model socket closed");
    report.target(&format!("{what}, median"), closed.median(), Target(5.0, "ms"), note(&closed));
    report.figure(&format!("{what}, p99"), closed.p99(), String::new());
    let what = format!("{AT_WORK} conversations: /stop -> its answer, p99");
    report.target(&what, answered.p99(), Target(100.0, "ms"), note(&answered));
    house.close().await;
}

/// Stops of people whose runs stream, while one sender floods the channel, and at last that sender's own.
async fn stop_in_a_flood(report: &mut Report) {
    let model = ScriptedModel::start().await;
    model.by_prompt(|_, _| slow_stream());
    let mut house = House::open(model.base_url(), ROOM).await;
    for number in 0..OTHERS {
        house.wire.say(&id(number), &format!("other-{number}"), &format!("marker:other-{number}"));
    }
    house.wire.end_of_batch();
    named(&model, "other-", OTHERS).await;
    let begun = Instant::now() + Duration::from_millis(100);
    let due = move |number: usize| begun + pace(FLOOD) * u32::try_from(number).unwrap();
    let wire = house.wire.clone();
    let writing = std::thread::spawn(move || {
        for number in 0..FLOOD {
            wait_until(due(number));
            wire.say(&format!("flood-{number}"), "flooder", "And another thing.");
            if let Some(other) = stop_behind(number) {
                wire.say(&format!("stop-{other}"), &format!("other-{other}"), "/stop");
            }
        }
        wire.say("stop-flooder", "flooder", "/stop");
    });
    let due_of: HashMap<String, Instant> =
        (0..FLOOD).filter_map(|number| Some((format!("chat-other-{}", stop_behind(number)?), due(number)))).collect();
    let mut times = Times::default();
    while times.len() < OTHERS {
        let told = house.next().await;
        if let What::Sent { place, text } = told.what
            && text.contains("Stopping your request.")
            && let Some(due) = due_of.get(&place.target)
        {
            times.add(told.at.saturating_duration_since(*due));
        }
    }
    let own = house.said_to("flooder", "Stopping").await.saturating_duration_since(due(FLOOD - 1));
    writing.join().unwrap();
    let note = format!("median {:.2}, max {:.2}, n {}", times.median(), times.max(), times.len());
    let what = format!("{FLOOD} messages/s of one sender: another's /stop, p99");
    report.target(&what, times.p99(), Target(100.0, "ms"), note);
    let what = format!("{FLOOD} messages/s of one sender: its own /stop");
    report.target(&what, own.as_secs_f64() * 1000.0, Target(100.0, "ms"), "n 1".to_owned());
    house.close().await;
}

/// Who stops behind this message of the flood.
fn stop_behind(number: usize) -> Option<usize> {
    let every = FLOOD / OTHERS;
    (number % every == every - 1).then_some(number / every)
}

/// The pause between two of so many in a second.
fn pace(messages: usize) -> Duration {
    Duration::from_secs(1) / u32::try_from(messages).unwrap()
}

fn wait_until(moment: Instant) {
    std::thread::sleep(moment.saturating_duration_since(Instant::now()));
}

fn id(number: usize) -> String {
    format!("m{number}")
}

/// The run that a message becomes, whose id the flow makes of the channel and the message's id.
fn run_of(id: &str) -> String {
    let hash = ring::digest::digest(&ring::digest::SHA256, id.as_bytes());
    let hash: String = hash.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{CHANNEL}:{hash}")
}

#[expect(clippy::cast_precision_loss, reason = "a count of messages")]
fn count(count: usize) -> f64 {
    count as f64
}
