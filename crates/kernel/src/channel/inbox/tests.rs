//! Tests of ordering, fairness, limits, debouncing and withdrawal.

use super::*;

fn inbox_message(sender: &str, id: usize) -> InboxMessage<()> {
    inbox_message_in_thread(sender, id, None)
}

fn inbox_message_in_thread(sender: &str, id: usize, thread: Option<&str>) -> InboxMessage<()> {
    let message = ChannelMessage {
        channel: "irc".to_owned(),
        id: format!("{sender}-{id}"),
        sender: sender.to_owned(),
        sender_name: None,
        reply_target: "#room".to_owned(),
        content: format!("{id}"),
        thread: thread.map(str::to_owned),
        scope_id: thread.map(str::to_owned),
        group: true,
        attachments: Vec::new(),
    };
    let conversation = SessionKey::parse(format!("irc_{sender}_{}", thread.unwrap_or("-"))).unwrap();
    let run = RunId::parse(message.id.clone()).unwrap();
    InboxMessage { message, conversation, run_id: run, debounce: Duration::ZERO, extra: () }
}

fn debounced_message(sender: &str, id: usize, millis: u64) -> InboxMessage<()> {
    InboxMessage { debounce: Duration::from_millis(millis), ..inbox_message(sender, id) }
}

fn at(millis: u64) -> Moment {
    Moment(Duration::from_millis(millis))
}

fn inbox(waiting: usize, in_flight: usize) -> Inbox<()> {
    Inbox::new(InboxLimits { waiting, in_flight, remembered: 1000 })
}

fn batch_message_ids(next: InboxPoll<()>) -> Vec<String> {
    match next {
        InboxPoll::Ready(messages) => messages.into_iter().map(|message| message.message.id).collect(),
        InboxPoll::WaitUntil(_) | InboxPoll::Idle => Vec::new(),
    }
}

#[test]
fn letters_of_a_conversation_are_taken_in_order_and_one_at_a_time() {
    let mut inbox = inbox(10, 10);
    for id in 0..3 {
        assert_eq!(inbox.push(inbox_message("ann", id)), InboxPushOutcome::Queued);
    }
    let key = inbox_message("ann", 0).conversation;
    for id in 0..3 {
        assert_eq!(batch_message_ids(inbox.poll(at(0))), [format!("ann-{id}")]);
        assert_eq!(inbox.poll(at(0)), InboxPoll::Idle, "a message of the conversation is in flight");
        inbox.finish(&key);
    }
    assert_eq!((inbox.poll(at(0)), inbox.waiting.len()), (InboxPoll::Idle, 0));
}

#[test]
fn threads_of_one_sender_do_not_wait_for_each_other() {
    let mut inbox = inbox(10, 10);
    for thread in ["1", "2"] {
        for id in 0..2 {
            inbox.push(inbox_message_in_thread("ann", id + if thread == "2" { 10 } else { 0 }, Some(thread)));
        }
    }
    assert_eq!(batch_message_ids(inbox.poll(at(0))), ["ann-0"]);
    assert_eq!(batch_message_ids(inbox.poll(at(0))), ["ann-10"]);
    assert_eq!(inbox.poll(at(0)), InboxPoll::Idle);
}

#[test]
fn senders_take_turns_and_a_flood_gives_way_to_everybody_else() {
    let mut inbox = inbox(100, 1000);
    let mut refused = 0;
    for id in 0..10_000 {
        refused += usize::from(matches!(inbox.push(inbox_message("flood", id)), InboxPushOutcome::Evicted(_)));
        if id % 102 == 0 {
            let other = inbox_message(&format!("other-{id}"), id);
            match inbox.push(other) {
                InboxPushOutcome::Queued => {}
                InboxPushOutcome::Evicted(gone) => {
                    assert_eq!(gone.message.sender, "flood", "a message of the flooding sender is evicted");
                    refused += 1;
                }
                InboxPushOutcome::Duplicate => panic!("it is no duplicate"),
            }
        }
        assert!(inbox.waiting.len() <= 100);
    }
    assert_eq!(refused, 10_099 - 100);
    let mut served = HashSet::new();
    while let InboxPoll::Ready(messages) = inbox.poll(at(0)) {
        served.insert(messages[0].message.sender.clone());
        inbox.finish(&messages[0].conversation);
    }
    assert_eq!(served.len(), 100, "the flood and all 99 others");
}

#[test]
fn no_more_than_so_many_are_in_flight() {
    let mut inbox = inbox(10, 2);
    for sender in ["ann", "bob", "eve"] {
        inbox.push(inbox_message(sender, 0));
    }
    assert_eq!(batch_message_ids(inbox.poll(at(0))), ["ann-0"]);
    assert_eq!(batch_message_ids(inbox.poll(at(0))), ["bob-0"]);
    assert_eq!(inbox.poll(at(0)), InboxPoll::Idle);
    inbox.finish(&inbox_message("ann", 0).conversation);
    assert_eq!(batch_message_ids(inbox.poll(at(0))), ["eve-0"]);
}

#[test]
fn a_message_counts_once_also_when_it_was_refused() {
    let mut inbox = inbox(1, 10);
    assert_eq!(inbox.push(inbox_message("ann", 0)), InboxPushOutcome::Queued);
    assert_eq!(inbox.push(inbox_message("ann", 0)), InboxPushOutcome::Duplicate);
    assert!(matches!(inbox.push(inbox_message("ann", 1)), InboxPushOutcome::Evicted(_)));
    assert_eq!(inbox.push(inbox_message("ann", 1)), InboxPushOutcome::Duplicate);
    for id in 2..2000 {
        inbox.push(inbox_message("ann", id));
    }
    assert!(
        !inbox.record_message_id("irc", "ann-1999") && inbox.record_message_id("irc", "ann-0"),
        "only `remembered` ids are kept"
    );
    assert!(inbox.record_message_id("matrix", "ann-1999"), "ids are unique within a channel only");
}

#[test]
fn collected_letters_become_one_when_nothing_more_comes() {
    let mut inbox = inbox(10, 10);
    inbox.push(debounced_message("ann", 0, 100));
    assert_eq!(inbox.poll(at(0)), InboxPoll::WaitUntil(at(100)));
    inbox.push(debounced_message("ann", 1, 100));
    assert_eq!(inbox.poll(at(60)), InboxPoll::WaitUntil(at(160)), "the second message delays the first");
    assert_eq!(inbox.poll(at(159)), InboxPoll::WaitUntil(at(160)));
    assert_eq!(batch_message_ids(inbox.poll(at(160))), ["ann-0", "ann-1"]);
    // A message that arrives while those are in flight has a debounce time of its own.
    inbox.push(debounced_message("ann", 2, 100));
    assert_eq!(inbox.poll(at(161)), InboxPoll::Idle);
    inbox.finish(&inbox_message("ann", 0).conversation);
    assert_eq!(inbox.poll(at(200)), InboxPoll::WaitUntil(at(300)));
    assert_eq!(batch_message_ids(inbox.poll(at(300))), ["ann-2"]);
}

#[test]
fn a_command_does_not_overtake_what_is_being_collected() {
    let mut inbox = inbox(10, 10);
    inbox.push(debounced_message("ann", 0, 100));
    inbox.push(inbox_message("ann", 1));
    assert_eq!(batch_message_ids(inbox.poll(at(0))), ["ann-0"]);
    assert_eq!(inbox.poll(at(0)), InboxPoll::Idle);
    inbox.finish(&inbox_message("ann", 0).conversation);
    assert_eq!(batch_message_ids(inbox.poll(at(0))), ["ann-1"]);
    assert_eq!(inbox.waiting.len(), 0);
}

/// The bucket of a stopped turn used to swallow the next message.
#[test]
fn a_stop_takes_back_what_waits_is_collected_and_is_in_flight_and_nothing_else() {
    let mut inbox = inbox(10, 10);
    inbox.push(inbox_message("ann", 0));
    assert_eq!(batch_message_ids(inbox.poll(at(0))), ["ann-0"]);
    inbox.push(inbox_message("ann", 1));
    for id in 2..4 {
        inbox.push(inbox_message_in_thread("ann", id, Some("1")));
    }
    inbox.push(debounced_message("bob", 0, 100));
    assert_eq!(batch_message_ids(inbox.poll(at(0))), ["ann-2"]);
    assert_eq!(inbox.poll(at(0)), InboxPoll::WaitUntil(at(100)));
    let ann_scope = inbox_message("ann", 0).message.interruption_scope();
    let stopped = inbox.stop(|scope| *scope == ann_scope);
    assert_eq!(stopped.messages.iter().map(|message| message.message.id.as_str()).collect::<Vec<_>>(), ["ann-1"]);
    assert_eq!(stopped.in_flight, [(inbox_message("ann", 0).run_id, "ann".to_owned())]);
    let bob_scope = inbox_message("bob", 0).message.interruption_scope();
    assert_eq!(inbox.stop(|scope| *scope == bob_scope).messages.len(), 1);
    inbox.push(debounced_message("bob", 1, 100));
    assert_eq!(inbox.poll(at(500)), InboxPoll::WaitUntil(at(600)), "the next message starts a new bucket");
    assert_eq!(batch_message_ids(inbox.poll(at(600))), ["bob-1"]);
    inbox.finish(&inbox_message_in_thread("ann", 2, Some("1")).conversation);
    assert_eq!(batch_message_ids(inbox.poll(at(600))), ["ann-3"], "another scope is not stopped");
    assert_eq!(inbox.waiting.len(), 0);
}

#[test]
fn the_inbox_is_drained_when_no_message_waits_or_is_in_work() {
    let mut inbox = inbox(10, 10);
    inbox.push(inbox_message("ann", 0));
    let mark = inbox.last_seq();
    assert!(!inbox.is_drained_up_to("irc", mark) && inbox.is_drained_up_to("matrix", mark));
    inbox.poll(at(0));
    assert!(!inbox.is_drained_up_to("irc", mark));
    inbox.push(inbox_message("bob", 0));
    inbox.finish(&inbox_message("ann", 0).conversation);
    assert!(inbox.is_drained_up_to("irc", mark), "a later message does not count");
    assert!(!inbox.is_drained_up_to("irc", inbox.last_seq()));
}

#[test]
fn collected_messages_count_for_the_limit_and_are_evicted() {
    let mut inbox = inbox(5, 10);
    for id in 0..5 {
        assert_eq!(inbox.push(debounced_message("ann", id, 100)), InboxPushOutcome::Queued);
    }
    assert_eq!(inbox.poll(at(0)), InboxPoll::WaitUntil(at(100)), "all of them are in the bucket");
    assert!(!inbox.is_drained_up_to("irc", inbox.last_seq()), "debounced messages are not drained");
    match inbox.push(inbox_message("bob", 0)) {
        InboxPushOutcome::Evicted(gone) => assert_eq!(gone.message.id, "ann-4"),
        other => panic!("{other:?}"),
    }
    assert_eq!(batch_message_ids(inbox.poll(at(0))), ["bob-0"]);
    assert_eq!(batch_message_ids(inbox.poll(at(100))), ["ann-0", "ann-1", "ann-2", "ann-3"]);
    assert_eq!(inbox.waiting.len(), 0);
}

#[test]
fn a_sender_who_keeps_writing_is_answered_in_between() {
    let mut inbox = inbox(100, 10);
    let mut answered = Vec::new();
    for id in 0..20 {
        inbox.push(debounced_message("ann", id, 100));
        let now = at(u64::try_from(id).unwrap() * 90);
        let taken = batch_message_ids(inbox.poll(now));
        if !taken.is_empty() {
            inbox.finish(&inbox_message("ann", 0).conversation);
            answered.push(taken.len());
        }
    }
    assert!(answered.len() >= 2 && answered.iter().all(|count| *count <= 7), "{answered:?}");
}

/// A stop used to count `/new` as withdrawn though it was executed; later no stop found it.
#[test]
fn a_command_in_flight_is_told_of_a_stop_and_none_of_what_it_takes_back() {
    let mut inbox = inbox(10, 10);
    let mut command = inbox_message("ann", 1);
    command.message.content = "/new".to_owned();
    let scope = command.message.interruption_scope();
    assert_eq!(inbox.push(command), InboxPushOutcome::Queued);
    assert_eq!(batch_message_ids(inbox.poll(at(0))), ["ann-1"]);
    let nothing = InboxWithdrawal { messages: Vec::new(), in_flight: Vec::new(), commands: Vec::new() };
    let other = inbox_message("bob", 1).message.interruption_scope();
    assert_eq!(inbox.stop(|scope| *scope == other), nothing);
    assert_eq!(inbox.stop(|other| *other == scope), InboxWithdrawal { commands: vec![()], ..nothing.clone() });
    assert!(!inbox.is_drained_up_to("irc", inbox.last_seq()), "it is still in flight");
    inbox.finish(&inbox_message("ann", 1).conversation);
    assert_eq!(inbox.stop(|other| *other == scope), nothing);
}

#[test]
fn a_command_becomes_a_run_unless_a_stop_came_first() {
    let mut inbox = inbox(10, 10);
    let command = inbox_message("ann", 1);
    let (key, run, scope) =
        (command.conversation.clone(), command.run_id.clone(), command.message.interruption_scope());
    let take = |inbox: &mut Inbox<()>, id: usize| {
        let mut command = inbox_message("ann", id);
        command.message.content = "/prompt notes daily".to_owned();
        assert_eq!(inbox.push(command), InboxPushOutcome::Queued);
        assert_eq!(batch_message_ids(inbox.poll(at(0))).len(), 1);
    };
    assert!(!inbox.continue_as_run(&key, &run), "nothing is in flight");
    take(&mut inbox, 1);
    assert!(inbox.continue_as_run(&key, &run));
    let withdrawal = inbox.stop(|other| *other == scope);
    assert_eq!((withdrawal.in_flight, withdrawal.commands), (vec![(run.clone(), "ann".to_owned())], Vec::new()));
    inbox.finish(&key);
    take(&mut inbox, 2);
    assert_eq!(inbox.stop(|other| *other == scope).commands, [()]);
    assert!(!inbox.continue_as_run(&key, &run), "the stop came first");
}

/// A stop of the second scope used to miss the messages that were merged into the first.
#[test]
fn letters_of_two_scopes_do_not_become_one() {
    let mut inbox = inbox(10, 10);
    for (id, scope) in [(1, "a"), (2, "a"), (3, "b")] {
        let mut message = inbox_message("ann", id);
        message.debounce = Duration::from_millis(100);
        message.message.scope_id = Some(scope.to_owned());
        assert_eq!(inbox.push(message), InboxPushOutcome::Queued);
    }
    let key = inbox_message("ann", 0).conversation;
    assert_eq!(batch_message_ids(inbox.poll(at(0))), ["ann-1", "ann-2"], "a change of scope ends the batch");
    inbox.finish(&key);
    assert_eq!(inbox.poll(at(0)), InboxPoll::WaitUntil(at(100)));
    assert_eq!(batch_message_ids(inbox.poll(at(100))), ["ann-3"]);
}
