//! Lines of a server and what they lead to.

use super::super::account::Proof;
use super::super::registration::Registration;
use super::*;
use crate::channels::wire::stream::Security;

fn account() -> Account {
    let rooms = vec!["#tea".to_owned(), "#Tea[2]".to_owned()];
    let (channel, host, nick) = ("chat".to_owned(), "irc.test".to_owned(), "Quell".to_owned());
    Account { channel, host, port: 6697, security: Security::Tls, nick, rooms, proof: Proof::Nothing }
}

fn welcomed<'a>(account: &'a Account, nick: &str) -> Live<'a> {
    let at = "2026-01-02T03:04:05.000Z".parse().ok();
    Live::new(account, Welcome { nick: nick.to_owned(), server: "irc.test".to_owned(), at })
}

fn take(live: &mut Live<'_>, line: &str) -> Vec<Effect> {
    live.take(&Message::parse(line).unwrap())
}

fn heard(live: &mut Live<'_>, line: &str) -> Option<Heard> {
    match <[Effect; 1]>::try_from(take(live, line)) {
        Ok([Effect::Hear(heard)]) => Some(heard),
        Ok(other) => panic!("{other:?}"),
        Err(none) if none.is_empty() => None,
        Err(other) => panic!("{other:?}"),
    }
}

fn said(effects: &[Effect]) -> String {
    let lines = effects.iter().filter_map(|effect| match effect {
        Effect::Say(line) => Some(String::from_utf8_lossy(line.bytes()).into_owned()),
        _ => None,
    });
    lines.collect()
}

#[test]
fn a_line_in_a_room_is_for_whom_it_names() {
    let account = account();
    let mut live = welcomed(&account, "Quell");
    let line = heard(&mut live, ":Ann[]!a@h PRIVMSG #Tea :quell: what is it?").unwrap();
    assert_eq!((line.text.as_str(), line.addressed, line.group), ("what is it?", true, true));
    assert_eq!((line.sender.as_str(), line.sender_name.as_deref()), ("ann{}", Some("Ann[]")));
    assert_eq!(line.place, Place { target: "#tea".to_owned(), thread: None });
    let other = heard(&mut live, ":ann!a@h PRIVMSG #tea :stop").unwrap();
    assert_eq!((other.text.as_str(), other.addressed), ("stop", false));
    let quoted = heard(&mut live, ":ann!a@h PRIVMSG #tea :I asked Quell: nothing").unwrap();
    assert_eq!((quoted.text.as_str(), quoted.addressed), ("I asked Quell: nothing", false));
    let operators = heard(&mut live, ":ann!a@h PRIVMSG @#tea :Quell, hello").unwrap();
    assert_eq!((operators.place.target.as_str(), operators.addressed), ("@#tea", true));
}

#[test]
fn a_private_message_is_for_it_and_answered_to_its_sender() {
    let account = account();
    let mut live = welcomed(&account, "Quell");
    let line = heard(&mut live, "@account=ann :Ann!a@h PRIVMSG quell :hello: there").unwrap();
    assert_eq!((line.text.as_str(), line.addressed, line.group), ("hello: there", true, false));
    assert_eq!(line.place.target, "ann");
    assert_eq!((line.sender.as_str(), line.sender_name.as_deref()), ("ann", Some("Ann (account ann)")));
    assert_eq!(heard(&mut live, ":Ann!a@h PRIVMSG quell :Quell, stop").unwrap().text, "stop");
    assert_eq!(heard(&mut live, ":Ann!a@h PRIVMSG quell :\u{1}ACTION waits\u{1}").unwrap().text, "waits");
}

#[test]
fn what_nobody_said_to_it_is_not_heard() {
    let account = account();
    let mut live = welcomed(&account, "Quell");
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
        assert_eq!(heard(&mut live, line), None, "{line}");
    }
    let clocks_differ = "@time=2026-01-02T03:03:30.000Z :ann!a@h PRIVMSG quell :now";
    assert!(heard(&mut live, clocks_differ).is_some());
    assert!(heard(&mut live, "@time=yesterday :ann!a@h PRIVMSG quell :now").is_some());
}

#[test]
fn ids_are_the_servers_or_each_another() {
    let account = account();
    let (mut live, mut other) = (welcomed(&account, "Quell"), welcomed(&account, "Quell"));
    let id = |live: &mut Live<'_>, tags: &str| heard(live, &format!("{tags}:a!a@h PRIVMSG quell :x")).unwrap().id;
    assert_eq!(id(&mut live, "@msgid=abc "), "abc");
    let long = format!("@msgid={} ", "x".repeat(LONGEST_ID + 1));
    let strange = ["", "", &long, "@msgid= ", "@msgid=a\\nb "];
    let mut own: Vec<String> = strange.iter().map(|tags| id(&mut live, tags)).collect();
    own.push(id(&mut other, ""));
    assert!(own.iter().all(|id| id.len() < 50 && !id.contains('\n')), "{own:?}");
    let different: std::collections::BTreeSet<&String> = own.iter().collect();
    assert_eq!(different.len(), own.len(), "{own:?}");
}

#[test]
fn the_wished_nick_is_taken_when_it_is_free() {
    let account = account();
    let mut live = welcomed(&account, "Quell_");
    assert!(heard(&mut live, ":a!a@h PRIVMSG #tea :Quell: hello").is_some_and(|line| !line.addressed));
    assert!(heard(&mut live, ":a!a@h PRIVMSG #tea :Quell_: hello").is_some_and(|line| line.addressed));
    assert_eq!(said(&take(&mut live, ":ann!a@h QUIT :bye")), "");
    assert_eq!(said(&take(&mut live, ":quell!a@h QUIT :bye")), "NICK Quell\r\n");
    assert_eq!(said(&take(&mut live, ":quell!a@h NICK bob")), "NICK Quell\r\n");
    assert_eq!(live.quiet(), Some(Line::of(&["NICK", "Quell"])));
    let effects = take(&mut live, ":Quell_!q@h NICK :Quell");
    assert_eq!(effects[0], Effect::Called(Own { id: "quell".to_owned(), name: "Quell".to_owned() }));
    assert_eq!(live.quiet(), None);
    assert!(heard(&mut live, ":a!a@h PRIVMSG #tea :Quell: hello").is_some_and(|line| line.addressed));
    assert_eq!(said(&take(&mut live, ":quell!a@h QUIT :ghost")), "");
}

#[test]
fn rooms_are_entered_and_what_keeps_it_out_is_known() {
    let account = account();
    let mut live = welcomed(&account, "Quell");
    assert_eq!(live.begin(), [Line::of(&["JOIN", "#tea,#Tea[2]"])]);
    let refusal = |live: &Live<'_>, room: &str| live.reach().lines(room, "hello").err();
    for number in ["403", "405", "471", "473", "474", "475", "476", "477"] {
        take(&mut live, &format!(":s {number} Quell #TEA :Cannot join ({number})"));
        assert_eq!(refusal(&live, "#tea"), Some(format!("not in #tea: Cannot join ({number})")));
        take(&mut live, ":quell!q@h JOIN :#tea");
        assert_eq!(refusal(&live, "#tea"), None);
    }
    take(&mut live, ":s 403 Quell #other :No such channel");
    take(&mut live, ":ann!a@h KICK #other quell :out");
    take(&mut live, ":quell!q@h PART #other");
    assert_eq!(refusal(&live, "#other"), None, "somebody else's wish, not its own");
    take(&mut live, ":ann!a@h KICK #tea quell :out\u{2} with you");
    assert_eq!(refusal(&live, "#tea"), Some("not in #tea: kicked by ann: out with you".to_owned()));
    assert_eq!(said(&take(&mut live, ":ann!a@h INVITE quell #Tea")), "JOIN #Tea\r\n");
    assert_eq!(said(&take(&mut live, ":ann!a@h INVITE quell #other")), "");
    take(&mut live, ":Quell!q@h JOIN #tea * :Quell");
    assert_eq!(refusal(&live, "#tea"), None);
    take(&mut live, ":quell!q@h PART #tea :removed");
    assert!(refusal(&live, "#tea").is_some());
}

#[test]
fn many_rooms_go_into_lines_that_fit() {
    let rooms = (0..100).map(|n| format!("#a-room-with-a-long-name-{n}")).collect();
    let account = Account { rooms, ..account() };
    let lines = welcomed(&account, "Quell").begin();
    assert!(lines.len() > 1 && lines.iter().all(|line| line.bytes().len() <= 512), "{lines:?}");
    let all: Vec<u8> = lines.iter().flat_map(|line| line.bytes().to_vec()).collect();
    assert_eq!(String::from_utf8(all).unwrap().matches("#a-room").count(), 100);
}

#[test]
fn a_server_introduces_itself() {
    let account = account();
    let mut live = welcomed(&account, "Quell[x]");
    assert_eq!(live.own().id, "quell{x}");
    let effects = take(&mut live, ":irc.test 005 Quell[x] CASEMAPPING=ascii NETWORK=Tea :are supported");
    assert_eq!(effects[0], Effect::Called(Own { id: "quell[x]".to_owned(), name: "Quell[x]".to_owned() }));
    assert_eq!(live.server().network.as_deref(), Some("Tea"));
    assert_eq!(take(&mut live, ":irc.test 376 Quell[x] :End"), [Effect::Introduced]);
    assert_eq!(take(&mut live, ":irc.test 422 Quell[x] :None"), [Effect::Introduced]);
    assert_eq!(said(&take(&mut live, "PING a b")), "PONG a :b\r\n");
    assert_eq!(said(&take(&mut live, "PING :two words")), "PONG :two words\r\n");
    assert_eq!(said(&take(&mut live, "PING")), "PONG :\r\n");
}

#[test]
fn the_network_ends_the_connection() {
    let account = account();
    let mut live = welcomed(&account, "Quell");
    let lost = |effects: Vec<Effect>| match <[Effect; 1]>::try_from(effects) {
        Ok([Effect::Lost(lost)]) => lost,
        other => panic!("{other:?}"),
    };
    assert!(matches!(lost(take(&mut live, "ERROR :Closing Link: Ping timeout")), Lost::Connection(_)));
    assert!(matches!(lost(take(&mut live, "ERROR :Closing Link: K-Lined")), Lost::Refused(_)));
    assert!(matches!(lost(take(&mut live, ":oper!o@h KILL quell :bye")), Lost::Connection(_)));
    assert_eq!(take(&mut live, ":oper!o@h KILL ann :bye"), []);
}

#[test]
fn no_line_is_too_strange() {
    const PARTS: &[&str] = &[
        "@",
        ":",
        " ",
        "  ",
        ";",
        "=",
        "\\",
        "!",
        ",",
        "#tea",
        "Quell",
        "ann!a@h",
        "msgid=1",
        "time=",
        "PRIVMSG",
        "NICK",
        "KICK",
        "JOIN",
        "005",
        "001",
        "433",
        "473",
        "INVITE",
        "CASEMAPPING=",
        "CHANTYPES=",
        "\u{1}",
        "\u{3}",
        "1,",
        "ACTION ",
        "안",
        "\u{fffd}",
    ];
    let account = account();
    let (mut live, mut registration) = (welcomed(&account, "Quell"), Registration::new(&account));
    let (mut seed, mut taken) = (1_u64, 0_u32);
    for _ in 0..100_000 {
        let mut line = String::new();
        for _ in 0..8 {
            // Knuth's linear congruential generator: the same lines each time.
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            line.push_str(PARTS[usize::try_from(seed >> 33).unwrap() % PARTS.len()]);
        }
        if let Some(message) = Message::parse(&line) {
            taken += 1;
            let _ = (live.take(&message), registration.take(&message));
        }
    }
    assert!(taken > 10_000, "{taken} of the lines were lines");
}
