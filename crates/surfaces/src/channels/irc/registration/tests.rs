//! The conversation before the welcome, line by line.

use super::*;
use crate::channels::wire::stream::Security;

fn account(proof: Proof) -> Account {
    let (channel, host, nick) = ("chat".to_owned(), "irc.test".to_owned(), "quell".to_owned());
    Account { channel, host, port: 6697, security: Security::Tls, nick, rooms: Vec::new(), proof }
}

fn with_sasl() -> Account {
    account(Proof::Sasl { account: "me".to_owned(), password: "secret".into() })
}

/// Tells it lines, and returns what it says to the last of them.
fn after(account: &Account, lines: &[&str]) -> Progress {
    let mut registration = Registration::new(account);
    let mut progress = Progress::Say(registration.begin());
    for line in lines {
        progress = registration.take(&Message::parse(line).unwrap());
    }
    progress
}

fn said(account: &Account, lines: &[&str]) -> String {
    match after(account, lines) {
        Progress::Say(lines) => lines.iter().map(|line| String::from_utf8_lossy(line.bytes()).into_owned()).collect(),
        other => panic!("{other:?}"),
    }
}

fn refusal(account: &Account, lines: &[&str]) -> String {
    match after(account, lines) {
        Progress::Lost(Lost::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn it_says_who_it_is() {
    let begin = "CAP LS 302\r\nNICK quell\r\nUSER quell 0 * :Quell, a gateway for agents\r\n";
    assert_eq!(said(&account(Proof::Nothing), &[]), begin);
    let password = account(Proof::Password("two words".into()));
    assert!(said(&password, &[]).starts_with("CAP LS 302\r\nPASS :two words\r\nNICK"));
    assert_eq!(said(&with_sasl(), &[]), begin, "the password of an account is no password of the server");
}

#[test]
fn it_asks_for_what_it_wants_of_what_is_offered() {
    let plain = account(Proof::Nothing);
    let rows: &[(&[&str], &str)] = &[
        (&["CAP * LS :"], "CAP END\r\n"),
        (&["CAP * LS :multi-prefix echo-message batch"], "CAP END\r\n"),
        (&["CAP * LS :server-time message-tags=1 sasl"], "CAP REQ :message-tags server-time\r\n"),
        (&["CAP * LS * :server-time x"], ""),
        (&["CAP * LS * :server-time", "CAP * LS :account-tag"], "CAP REQ :server-time account-tag\r\n"),
        (&["CAP * ACK :server-time "], "CAP END\r\n"),
        (&["CAP * NAK :server-time"], "CAP END\r\n"),
        (&["CAP * NEW :server-time"], ""),
        (&[":s 421 * CAP :Unknown command"], ""),
    ];
    for (lines, expected) in rows {
        assert_eq!(said(&plain, lines), *expected, "{lines:?}");
    }
}

#[test]
fn an_account_is_proven() {
    let offer = "CAP * LS :sasl=EXTERNAL,PLAIN server-time";
    assert_eq!(said(&with_sasl(), &[offer]), "CAP REQ :server-time sasl\r\n");
    assert_eq!(said(&with_sasl(), &["CAP * LS :sasl"]), "CAP REQ :sasl\r\n");
    let acknowledged = "CAP * ACK :server-time sasl";
    assert_eq!(said(&with_sasl(), &[offer, acknowledged]), "AUTHENTICATE PLAIN\r\n");
    let proof = said(&with_sasl(), &[offer, acknowledged, "AUTHENTICATE +"]);
    assert_eq!(proof, "AUTHENTICATE AG1lAHNlY3JldA==\r\n");
    assert_eq!(said(&with_sasl(), &[offer, acknowledged, "AUTHENTICATE +", ":s 903 * :yes"]), "CAP END\r\n");
}

#[test]
fn a_proof_goes_to_nobody_who_was_not_asked() {
    assert_eq!(said(&with_sasl(), &["AUTHENTICATE +"]), "AUTHENTICATE *\r\n");
    assert_eq!(said(&account(Proof::Nothing), &["AUTHENTICATE +"]), "AUTHENTICATE *\r\n");
}

#[test]
fn an_account_that_cannot_be_proven_is_refused_in_the_servers_words() {
    let rows: &[(&[&str], &str)] = &[
        (&["CAP * LS :server-time"], "no SASL PLAIN"),
        (&["CAP * LS :sasl=EXTERNAL,PLAINER"], "no SASL PLAIN"),
        (&["CAP * NAK :sasl"], "no SASL"),
        (&[":s 421 * CAP :Unknown command", ":s 001 quell :welcome"], "no SASL PLAIN"),
        (&["CAP * ACK :sasl", ":s 904 * :wrong\u{7} password"], "the account was refused: wrong password"),
        (&["CAP * ACK :sasl", ":s 908 * EXTERNAL :are available"], "the account was refused"),
        (&["CAP * ACK :sasl", ":s 001 quell :welcome"], "no SASL PLAIN"),
    ];
    for (lines, expected) in rows {
        let why = refusal(&with_sasl(), lines);
        assert!(why.contains(expected), "{lines:?}: {why}");
    }
}

#[test]
fn a_server_may_refuse() {
    let plain = account(Proof::Nothing);
    assert!(refusal(&plain, &[":s 464 * :Password incorrect"]).contains("Password incorrect"));
    assert!(refusal(&plain, &["ERROR :Access denied: Bad password?"]).contains("Bad password"));
    assert!(refusal(&plain, &["ERROR :Closing link: (a@b) [K-Lined]"]).contains("K-Lined"));
    assert!(refusal(&plain, &[":s 432 * quell :Erroneous nickname"]).contains("Erroneous"));
    assert_eq!(
        after(&plain, &["ERROR :Server is full"]),
        Progress::Lost(Lost::Connection("the server closed the connection: Server is full".to_owned()))
    );
}

#[test]
fn a_nick_that_is_taken_is_varied() {
    let plain = account(Proof::Nothing);
    let taken = ":s 433 * x :in use";
    let nicks: Vec<String> = (1..=8).map(|times| said(&plain, &vec![taken; times])).collect();
    let expected = ["quell_", "quell__", "quell___", "quel_", "que_1", "que_2", "que_3", "que_4"];
    assert_eq!(nicks, expected.map(|nick| format!("NICK {nick}\r\n")));
    assert!(matches!(after(&plain, &[taken; 9]), Progress::Lost(Lost::Connection(_))));
    assert_eq!(said(&plain, &[taken, ":s 432 * quell_ :too long"]), "NICK quell__\r\n");
    assert_eq!(variant("é", 4).unwrap(), "é_");
}

#[test]
fn the_welcome_names_the_nick() {
    let progress = after(&account(Proof::Nothing), &["@time=2026-01-02T03:04:05.000Z :irc.test 001 que :welcome"]);
    let at = "2026-01-02T03:04:05Z".parse().ok();
    let expected = Welcome { nick: "que".to_owned(), server: "irc.test".to_owned(), at };
    assert_eq!(progress, Progress::Welcome(expected));
    for line in [":irc.test 001 * :welcome", ":irc.test 001", ":irc.test 001 a\u{1b}b :welcome"] {
        let nameless = after(&account(Proof::Nothing), &[line]);
        assert!(matches!(nameless, Progress::Lost(Lost::Connection(_))), "{line:?}");
    }
}
