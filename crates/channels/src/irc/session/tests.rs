//! Lines of a server and their effects.

use serde_json::json;

use super::super::registration::IrcRegistration;
use super::*;
use crate::irc::tests::irc_network;

fn test_account() -> IrcAccount {
    let keys = json!({"nick": "Quell", "join": ["#tea", "#Tea[2]"]});
    irc_network("irc.test:6697", keys, None).account
}

fn welcomed_session<'a>(account: &'a IrcAccount, nick: &str) -> IrcSession<'a> {
    let at = "2026-01-02T03:04:05.000Z".parse().ok();
    IrcSession::new(account, IrcWelcome { nick: nick.to_owned(), server_name: "irc.test".to_owned(), server_time: at })
}

fn handle_line(session: &mut IrcSession<'_>, line: &str) -> Option<IrcEffect> {
    session.handle_message(&IrcMessage::parse(line).unwrap())
}

fn parse_line(session: &mut IrcSession<'_>, line: &str) -> Option<InboundMessage> {
    match handle_line(session, line) {
        Some(IrcEffect::Receive(inbound)) => Some(inbound),
        None => None,
        other => panic!("{other:?}"),
    }
}

/// The line that is sent after a line of the server.
fn reply_to(session: &mut IrcSession<'_>, line: &str) -> String {
    match handle_line(session, line) {
        Some(IrcEffect::SendLine(line)) => String::from_utf8_lossy(line.bytes()).into_owned(),
        _ => String::new(),
    }
}

#[test]
fn a_line_in_a_room_is_for_whom_it_names() {
    let account = test_account();
    let mut session = welcomed_session(&account, "Quell");
    let line = parse_line(&mut session, ":Ann[]!a@h PRIVMSG #Tea :quell: what is it?").unwrap();
    assert_eq!((line.text.as_str(), line.is_addressed, line.is_group), ("what is it?", true, true));
    assert_eq!((line.sender.as_str(), line.sender_name.as_deref()), ("ann{}", Some("Ann[]")));
    assert_eq!(line.address, ChatAddress { target: "#tea".to_owned(), thread: None });
    let other = parse_line(&mut session, ":ann!a@h PRIVMSG #tea :stop").unwrap();
    assert_eq!((other.text.as_str(), other.is_addressed), ("stop", false));
    let quoted = parse_line(&mut session, ":ann!a@h PRIVMSG #tea :I asked Quell: nothing").unwrap();
    assert_eq!((quoted.text.as_str(), quoted.is_addressed), ("I asked Quell: nothing", false));
    let operators = parse_line(&mut session, ":ann!a@h PRIVMSG @#tea :Quell, hello").unwrap();
    assert_eq!((operators.address.target.as_str(), operators.is_addressed), ("@#tea", true));
}

#[test]
fn a_private_message_is_for_it_and_answered_to_its_sender() {
    let account = test_account();
    let mut session = welcomed_session(&account, "Quell");
    let line = parse_line(&mut session, "@account=ann :Ann!a@h PRIVMSG quell :hello: there").unwrap();
    assert_eq!((line.text.as_str(), line.is_addressed, line.is_group), ("hello: there", true, false));
    assert_eq!(line.address.target, "ann");
    assert_eq!((line.sender.as_str(), line.sender_name.as_deref()), ("ann", Some("Ann (account ann)")));
    assert_eq!(parse_line(&mut session, ":Ann!a@h PRIVMSG quell :Quell, stop").unwrap().text, "stop");
    assert_eq!(parse_line(&mut session, ":Ann!a@h PRIVMSG quell :\u{1}ACTION waits\u{1}").unwrap().text, "waits");
}

#[test]
fn messages_that_are_not_addressed_are_ignored() {
    let account = test_account();
    let mut session = welcomed_session(&account, "Quell");
    for line in [
        ":quell!q@h PRIVMSG #tea :my own words",
        ":ann!a@h NOTICE quell :I am a machine",
        ":ann!a@h NOTICE #tea :quell: so am I",
        ":irc.test PRIVMSG quell :a server",
        "PRIVMSG quell :nobody",
        ":ann!a@h PRIVMSG $$*.test :everybody",
        ":ann!a@h PRIVMSG bob :somebody else",
        ":ann!a@h PRIVMSG quell :\u{1}VERSION\u{1}",
        ":ann!a@h PRIVMSG quell :\u{2} \u{2}",
        ":ann!a@h PRIVMSG #tea :Quell:",
        ":ann!a@h PRIVMSG quell",
        ":ann!a@h PRIVMSG",
        ":ann!a@h PRIVMSG #tea\u{1b} :Quell: hello",
        "@time=2026-01-02T03:03:00.000Z :ann!a@h PRIVMSG quell :from before",
    ] {
        assert_eq!(parse_line(&mut session, line), None, "{line}");
    }
    let clocks_differ = "@time=2026-01-02T03:03:30.000Z :ann!a@h PRIVMSG quell :now";
    assert!(parse_line(&mut session, clocks_differ).is_some());
    assert!(parse_line(&mut session, "@time=yesterday :ann!a@h PRIVMSG quell :now").is_some());
}

#[test]
fn ids_are_the_servers_or_each_another() {
    let account = test_account();
    let (mut session, mut other) = (welcomed_session(&account, "Quell"), welcomed_session(&account, "Quell"));
    let id = |session: &mut IrcSession<'_>, tags: &str| {
        parse_line(session, &format!("{tags}:a!a@h PRIVMSG quell :x")).unwrap().id
    };
    assert_eq!(id(&mut session, "@msgid=abc "), "abc");
    let long = format!("@msgid={} ", "x".repeat(MAX_MESSAGE_ID_BYTES + 1));
    let strange = ["", "", &long, "@msgid= ", "@msgid=a\\nb "];
    let mut own: Vec<String> = strange.iter().map(|tags| id(&mut session, tags)).collect();
    own.push(id(&mut other, ""));
    assert!(own.iter().all(|id| id.len() < 50 && !id.contains('\n')), "{own:?}");
    let different: std::collections::BTreeSet<&String> = own.iter().collect();
    assert_eq!(different.len(), own.len(), "{own:?}");
}

#[test]
fn the_wished_nick_is_taken_when_it_is_free() {
    let account = test_account();
    let mut session = welcomed_session(&account, "Quell_");
    assert!(parse_line(&mut session, ":a!a@h PRIVMSG #tea :Quell: hello").is_some_and(|line| !line.is_addressed));
    assert!(parse_line(&mut session, ":a!a@h PRIVMSG #tea :Quell_: hello").is_some_and(|line| line.is_addressed));
    assert_eq!(reply_to(&mut session, ":ann!a@h QUIT :bye"), "");
    assert_eq!(reply_to(&mut session, ":quell!a@h QUIT :bye"), "NICK Quell\r\n");
    assert_eq!(reply_to(&mut session, ":quell!a@h NICK bob"), "NICK Quell\r\n");
    assert_eq!(session.reclaim_nick_line(), Some(OutgoingIrcLine::from_words(&["NICK", "Quell"])));
    handle_line(&mut session, ":Quell_!q@h NICK :Quell");
    assert_eq!(session.own_account(), OwnAccount { id: "quell".to_owned(), name: "Quell".to_owned() });
    assert_eq!(session.reclaim_nick_line(), None);
    assert!(parse_line(&mut session, ":a!a@h PRIVMSG #tea :Quell: hello").is_some_and(|line| line.is_addressed));
    assert_eq!(reply_to(&mut session, ":quell!a@h QUIT :ghost"), "");
}

#[test]
fn rooms_are_entered_and_what_keeps_it_out_is_known() {
    let account = test_account();
    let mut session = welcomed_session(&account, "Quell");
    assert_eq!(session.join_lines(), [OutgoingIrcLine::from_words(&["JOIN", "#tea,#Tea[2]"])]);
    let refusal = |session: &IrcSession<'_>, room: &str| session.send_limits().privmsg_lines(room, "hello").err();
    for number in ["403", "405", "471", "473", "474", "475", "476", "477"] {
        handle_line(&mut session, &format!(":s {number} Quell #TEA :Cannot join ({number})"));
        assert_eq!(refusal(&session, "#tea"), Some(format!("not in #tea: Cannot join ({number})")));
        handle_line(&mut session, ":quell!q@h JOIN :#tea");
        assert_eq!(refusal(&session, "#tea"), None);
    }
    handle_line(&mut session, ":s 403 Quell #other :No such channel");
    handle_line(&mut session, ":ann!a@h KICK #other quell :out");
    handle_line(&mut session, ":quell!q@h PART #other");
    assert_eq!(refusal(&session, "#other"), None, "somebody else's wish, not its own");
    handle_line(&mut session, ":ann!a@h KICK #tea quell :out\u{2} with you");
    assert_eq!(refusal(&session, "#tea"), Some("not in #tea: kicked by ann: out with you".to_owned()));
    assert_eq!(reply_to(&mut session, ":ann!a@h INVITE quell #Tea"), "JOIN #Tea\r\n");
    assert_eq!(reply_to(&mut session, ":ann!a@h INVITE quell #other"), "");
    handle_line(&mut session, ":Quell!q@h JOIN #tea * :Quell");
    assert_eq!(refusal(&session, "#tea"), None);
    handle_line(&mut session, ":quell!q@h PART #tea :removed");
    assert!(refusal(&session, "#tea").is_some());
}

#[test]
fn many_rooms_go_into_lines_that_fit() {
    let rooms = (0..100).map(|n| format!("#a-room-with-a-long-name-{n}")).collect();
    let account = IrcAccount { configured_rooms: rooms, ..test_account() };
    let lines = welcomed_session(&account, "Quell").join_lines();
    assert!(lines.len() > 1 && lines.iter().all(|line| line.bytes().len() <= 512), "{lines:?}");
    let all: Vec<u8> = lines.iter().flat_map(|line| line.bytes().to_vec()).collect();
    assert_eq!(String::from_utf8(all).unwrap().matches("#a-room").count(), 100);
}

#[test]
fn a_server_introduces_itself() {
    let account = test_account();
    let mut session = welcomed_session(&account, "Quell[x]");
    assert_eq!(session.own_account().id, "quell{x}");
    handle_line(&mut session, ":irc.test 005 Quell[x] CASEMAPPING=ascii NETWORK=Tea :are supported");
    assert_eq!(session.own_account(), OwnAccount { id: "quell[x]".to_owned(), name: "Quell[x]".to_owned() });
    assert_eq!(session.server_info().network.as_deref(), Some("Tea"));
    assert_eq!(handle_line(&mut session, ":irc.test 376 Quell[x] :End"), Some(IrcEffect::MotdEnded));
    assert_eq!(handle_line(&mut session, ":irc.test 422 Quell[x] :None"), Some(IrcEffect::MotdEnded));
    assert_eq!(reply_to(&mut session, "PING a b"), "PONG a :b\r\n");
    assert_eq!(reply_to(&mut session, "PING :two words"), "PONG :two words\r\n");
    assert_eq!(reply_to(&mut session, "PING"), "PONG :\r\n");
}

#[test]
fn the_network_ends_the_connection() {
    let account = test_account();
    let mut session = welcomed_session(&account, "Quell");
    let lost = |effect: Option<IrcEffect>| match effect {
        Some(IrcEffect::Disconnected(lost)) => lost,
        other => panic!("{other:?}"),
    };
    assert!(matches!(lost(handle_line(&mut session, "ERROR :Closing Link: Ping timeout")), ListenError::Connection(_)));
    assert!(matches!(lost(handle_line(&mut session, "ERROR :Closing Link: K-Lined")), ListenError::Refused(_)));
    assert!(matches!(lost(handle_line(&mut session, ":oper!o@h KILL quell :bye")), ListenError::Connection(_)));
    assert_eq!(handle_line(&mut session, ":oper!o@h KILL ann :bye"), None);
}

#[test]
fn no_line_is_too_strange() {
    const PARTS: &str = "@|:| |  |;|=|\\|!|,|#tea|Quell|ann!a@h|msgid=1|time=|PRIVMSG|NICK|KICK|JOIN|005|001|433|473|\
        INVITE|CASEMAPPING=|CHANTYPES=|\u{1}|\u{3}|1,|ACTION |안|\u{fffd}";
    let parts: Vec<&str> = PARTS.split('|').collect();
    let account = test_account();
    let (mut session, mut registration) = (welcomed_session(&account, "Quell"), IrcRegistration::new(&account));
    let (mut seed, mut taken) = (1_u64, 0_u32);
    for _ in 0..100_000 {
        let mut line = String::new();
        for _ in 0..8 {
            // Knuth's linear congruential generator: the same lines each time.
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            line.push_str(parts[usize::try_from(seed >> 33).unwrap() % parts.len()]);
        }
        if let Some(message) = IrcMessage::parse(&line) {
            taken += 1;
            let _ = (session.handle_message(&message), registration.handle_message(&message));
        }
    }
    assert!(taken > 10_000, "{taken} of the lines were lines");
}
