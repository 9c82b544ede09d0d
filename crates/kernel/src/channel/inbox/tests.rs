//! The inbox: order, fairness, bounds, collecting, and what a stop takes back.

use super::*;

fn letter(sender: &str, id: usize) -> Letter<()> {
    in_thread(sender, id, None)
}

fn in_thread(sender: &str, id: usize, thread: Option<&str>) -> Letter<()> {
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
    Letter { message, conversation, run, patience: Duration::ZERO, extra: () }
}

fn patient(sender: &str, id: usize, millis: u64) -> Letter<()> {
    Letter { patience: Duration::from_millis(millis), ..letter(sender, id) }
}

fn at(millis: u64) -> Moment {
    Moment(Duration::from_millis(millis))
}

fn inbox(waiting: usize, in_flight: usize) -> Inbox<()> {
    Inbox::new(InboxBounds { waiting, in_flight, remembered: 1000 })
}

fn texts(next: Next<()>) -> Vec<String> {
    match next {
        Next::Take(letters) => letters.into_iter().map(|letter| letter.message.id).collect(),
        Next::Wait(_) | Next::Nothing => Vec::new(),
    }
}

#[test]
fn letters_of_a_conversation_are_taken_in_order_and_one_at_a_time() {
    let mut inbox = inbox(10, 10);
    for id in 0..3 {
        assert_eq!(inbox.hear(letter("ann", id)), Heard::Taken);
    }
    let key = letter("ann", 0).conversation;
    for id in 0..3 {
        assert_eq!(texts(inbox.next(at(0))), [format!("ann-{id}")]);
        assert_eq!(inbox.next(at(0)), Next::Nothing, "one of the conversation is in flight");
        inbox.done(&key);
    }
    assert_eq!((inbox.next(at(0)), inbox.waiting()), (Next::Nothing, 0));
}

#[test]
fn threads_of_one_sender_do_not_wait_for_each_other() {
    let mut inbox = inbox(10, 10);
    for thread in ["1", "2"] {
        for id in 0..2 {
            inbox.hear(in_thread("ann", id + if thread == "2" { 10 } else { 0 }, Some(thread)));
        }
    }
    assert_eq!(texts(inbox.next(at(0))), ["ann-0"]);
    assert_eq!(texts(inbox.next(at(0))), ["ann-10"]);
    assert_eq!(inbox.next(at(0)), Next::Nothing);
}

#[test]
fn senders_take_turns_and_a_flood_gives_way_to_everybody_else() {
    let mut inbox = inbox(100, 1000);
    let mut refused = 0;
    for id in 0..10_000 {
        refused += usize::from(matches!(inbox.hear(letter("flood", id)), Heard::Crowded(_)));
        if id % 102 == 0 {
            let other = letter(&format!("other-{id}"), id);
            match inbox.hear(other) {
                Heard::Taken => {}
                Heard::Crowded(gone) => {
                    assert_eq!(gone.message.sender, "flood", "who floods gives way");
                    refused += 1;
                }
                Heard::Repeat => panic!("it is new"),
            }
        }
        assert!(inbox.waiting() <= 100);
    }
    assert_eq!(refused, 10_099 - 100);
    let mut served = HashSet::new();
    while let Next::Take(letters) = inbox.next(at(0)) {
        served.insert(letters[0].message.sender.clone());
        inbox.done(&letters[0].conversation);
    }
    assert_eq!(served.len(), 100, "the flood and all 99 others");
}

#[test]
fn no_more_than_so_many_are_in_flight() {
    let mut inbox = inbox(10, 2);
    for sender in ["ann", "bob", "eve"] {
        inbox.hear(letter(sender, 0));
    }
    assert_eq!(texts(inbox.next(at(0))), ["ann-0"]);
    assert_eq!(texts(inbox.next(at(0))), ["bob-0"]);
    assert_eq!(inbox.next(at(0)), Next::Nothing);
    inbox.done(&letter("ann", 0).conversation);
    assert_eq!(texts(inbox.next(at(0))), ["eve-0"]);
}

#[test]
fn a_message_counts_once_also_when_it_was_refused() {
    let mut inbox = inbox(1, 10);
    assert_eq!(inbox.hear(letter("ann", 0)), Heard::Taken);
    assert_eq!(inbox.hear(letter("ann", 0)), Heard::Repeat);
    assert!(matches!(inbox.hear(letter("ann", 1)), Heard::Crowded(_)));
    assert_eq!(inbox.hear(letter("ann", 1)), Heard::Repeat);
    for id in 2..2000 {
        inbox.hear(letter("ann", id));
    }
    assert!(!inbox.is_new("irc", "ann-1999") && inbox.is_new("irc", "ann-0"), "only so many are remembered");
    assert!(inbox.is_new("matrix", "ann-1999"), "ids are a channel's own");
}

#[test]
fn collected_letters_become_one_when_nothing_more_comes() {
    let mut inbox = inbox(10, 10);
    inbox.hear(patient("ann", 0, 100));
    assert_eq!(inbox.next(at(0)), Next::Wait(at(100)));
    inbox.hear(patient("ann", 1, 100));
    assert_eq!(inbox.next(at(60)), Next::Wait(at(160)), "the second one makes the first wait");
    assert_eq!(inbox.next(at(159)), Next::Wait(at(160)));
    assert_eq!(texts(inbox.next(at(160))), ["ann-0", "ann-1"]);
    // What comes while those are in flight waits for its own time.
    inbox.hear(patient("ann", 2, 100));
    assert_eq!(inbox.next(at(161)), Next::Nothing);
    inbox.done(&letter("ann", 0).conversation);
    assert_eq!(inbox.next(at(200)), Next::Wait(at(300)));
    assert_eq!(texts(inbox.next(at(300))), ["ann-2"]);
}

#[test]
fn a_command_does_not_overtake_what_is_being_collected() {
    let mut inbox = inbox(10, 10);
    inbox.hear(patient("ann", 0, 100));
    inbox.hear(letter("ann", 1));
    assert_eq!(texts(inbox.next(at(0))), ["ann-0"]);
    assert_eq!(inbox.next(at(0)), Next::Nothing);
    inbox.done(&letter("ann", 0).conversation);
    assert_eq!(texts(inbox.next(at(0))), ["ann-1"]);
    assert_eq!(inbox.waiting(), 0);
}

/// A bucket that belonged to a stopped turn swallowed the next message.
#[test]
fn a_stop_takes_back_what_waits_is_collected_and_is_in_flight_and_nothing_else() {
    let mut inbox = inbox(10, 10);
    inbox.hear(letter("ann", 0));
    assert_eq!(texts(inbox.next(at(0))), ["ann-0"]);
    inbox.hear(letter("ann", 1));
    for id in 2..4 {
        inbox.hear(in_thread("ann", id, Some("1")));
    }
    inbox.hear(patient("bob", 0, 100));
    assert_eq!(texts(inbox.next(at(0))), ["ann-2"]);
    assert_eq!(inbox.next(at(0)), Next::Wait(at(100)));
    let whose = letter("ann", 0).message.interruption_scope();
    let stopped = inbox.stop(|scope| *scope == whose);
    assert_eq!(stopped.letters.iter().map(|letter| letter.message.id.as_str()).collect::<Vec<_>>(), ["ann-1"]);
    assert_eq!(stopped.in_flight, [(letter("ann", 0).run, "ann".to_owned())]);
    let whose = letter("bob", 0).message.interruption_scope();
    assert_eq!(inbox.stop(|scope| *scope == whose).letters.len(), 1);
    inbox.hear(patient("bob", 1, 100));
    assert_eq!(inbox.next(at(500)), Next::Wait(at(600)), "the next message is collected anew");
    assert_eq!(texts(inbox.next(at(600))), ["bob-1"]);
    inbox.done(&in_thread("ann", 2, Some("1")).conversation);
    assert_eq!(texts(inbox.next(at(600))), ["ann-3"], "another scope goes on");
    assert_eq!(inbox.waiting(), 0);
}

#[test]
fn what_was_heard_is_settled_when_none_of_it_waits_or_flies() {
    let mut inbox = inbox(10, 10);
    inbox.hear(letter("ann", 0));
    let mark = inbox.mark();
    assert!(!inbox.is_settled("irc", mark) && inbox.is_settled("matrix", mark));
    inbox.next(at(0));
    assert!(!inbox.is_settled("irc", mark));
    inbox.hear(letter("bob", 0));
    inbox.done(&letter("ann", 0).conversation);
    assert!(inbox.is_settled("irc", mark), "what came later is not waited for");
    assert!(!inbox.is_settled("irc", inbox.mark()));
}

#[test]
fn what_is_collected_weighs_and_gives_way_too() {
    let mut inbox = inbox(5, 10);
    for id in 0..5 {
        assert_eq!(inbox.hear(patient("ann", id, 100)), Heard::Taken);
    }
    assert_eq!(inbox.next(at(0)), Next::Wait(at(100)), "all of them stand in the bucket");
    assert!(!inbox.is_settled("irc", inbox.mark()), "what is collected is not settled");
    match inbox.hear(letter("bob", 0)) {
        Heard::Crowded(gone) => assert_eq!(gone.message.id, "ann-4"),
        other => panic!("{other:?}"),
    }
    assert_eq!(texts(inbox.next(at(0))), ["bob-0"]);
    assert_eq!(texts(inbox.next(at(100))), ["ann-0", "ann-1", "ann-2", "ann-3"]);
    assert_eq!(inbox.waiting(), 0);
}

#[test]
fn who_keeps_writing_is_answered_in_between() {
    let mut inbox = inbox(100, 10);
    let mut answered = Vec::new();
    for id in 0..20 {
        inbox.hear(patient("ann", id, 100));
        let now = at(u64::try_from(id).unwrap() * 90);
        let taken = texts(inbox.next(now));
        if !taken.is_empty() {
            inbox.done(&letter("ann", 0).conversation);
            answered.push(taken.len());
        }
    }
    assert!(answered.len() >= 2 && answered.iter().all(|count| *count <= 7), "{answered:?}");
}

/// `/new` was counted as a message that will not be answered, and was obeyed; then no stop found it.
#[test]
fn a_command_in_flight_is_told_of_a_stop_and_none_of_what_it_takes_back() {
    let mut inbox = inbox(10, 10);
    let mut command = letter("ann", 1);
    command.message.content = "/new".to_owned();
    let scope = command.message.interruption_scope();
    assert_eq!(inbox.hear(command), Heard::Taken);
    assert_eq!(texts(inbox.next(at(0))), ["ann-1"]);
    let nothing = Withdrawn { letters: Vec::new(), in_flight: Vec::new(), commands: Vec::new() };
    let other = letter("bob", 1).message.interruption_scope();
    assert_eq!(inbox.stop(|scope| *scope == other), nothing);
    assert_eq!(inbox.stop(|other| *other == scope), Withdrawn { commands: vec![()], ..nothing.clone() });
    assert!(!inbox.is_settled("irc", inbox.mark()), "it is in flight still");
    inbox.done(&letter("ann", 1).conversation);
    assert_eq!(inbox.stop(|other| *other == scope), nothing);
}

/// A stop in the second one did not find what had been asked for there.
#[test]
fn letters_of_two_scopes_do_not_become_one() {
    let mut inbox = inbox(10, 10);
    for (id, scope) in [(1, "a"), (2, "a"), (3, "b")] {
        let mut letter = letter("ann", id);
        letter.patience = Duration::from_millis(100);
        letter.message.scope_id = Some(scope.to_owned());
        assert_eq!(inbox.hear(letter), Heard::Taken);
    }
    let key = letter("ann", 0).conversation;
    assert_eq!(texts(inbox.next(at(0))), ["ann-1", "ann-2"], "the change of scope ends the collecting");
    inbox.done(&key);
    assert_eq!(inbox.next(at(0)), Next::Wait(at(100)));
    assert_eq!(texts(inbox.next(at(100))), ["ann-3"]);
}
