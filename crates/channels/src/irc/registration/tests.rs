//! The lines until the welcome.

use serde_json::json;

use super::*;
use crate::irc::tests::irc_network;

fn test_account(token: Option<&str>) -> IrcAccount {
    irc_network("irc.test:6697", json!({}), token).account
}

fn sasl_account() -> IrcAccount {
    irc_network("irc.test:6697", json!({"sasl_account": "me"}), Some("secret")).account
}

/// Feeds the lines to a registration and returns the last step.
fn step_after(account: &IrcAccount, lines: &[&str]) -> RegistrationStep {
    let mut registration = IrcRegistration::new(account);
    let mut progress = RegistrationStep::SendLines(registration.initial_lines());
    for line in lines {
        progress = registration.handle_message(&IrcMessage::parse(line).unwrap());
    }
    progress
}

fn sent_lines(account: &IrcAccount, lines: &[&str]) -> String {
    match step_after(account, lines) {
        RegistrationStep::SendLines(lines) => {
            lines.iter().map(|line| String::from_utf8_lossy(line.bytes()).into_owned()).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn refusal_reason(account: &IrcAccount, lines: &[&str]) -> String {
    match step_after(account, lines) {
        RegistrationStep::Failed(ListenError::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn it_says_who_it_is() {
    let begin = "CAP LS 302\r\nNICK quell\r\nUSER quell 0 * :Quell, a gateway for agents\r\n";
    assert_eq!(sent_lines(&test_account(None), &[]), begin);
    let password = test_account(Some("two words"));
    assert!(sent_lines(&password, &[]).starts_with("CAP LS 302\r\nPASS :two words\r\nNICK"));
    assert_eq!(sent_lines(&sasl_account(), &[]), begin, "the password of an account is no password of the server");
}

#[test]
fn it_asks_for_what_it_wants_of_what_is_offered() {
    let plain = test_account(None);
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
        assert_eq!(sent_lines(&plain, lines), *expected, "{lines:?}");
    }
}

#[test]
fn an_account_is_proven() {
    let offer = "CAP * LS :sasl=EXTERNAL,PLAIN server-time";
    assert_eq!(sent_lines(&sasl_account(), &[offer]), "CAP REQ :server-time sasl\r\n");
    assert_eq!(sent_lines(&sasl_account(), &["CAP * LS :sasl"]), "CAP REQ :sasl\r\n");
    let acknowledged = "CAP * ACK :server-time sasl";
    assert_eq!(sent_lines(&sasl_account(), &[offer, acknowledged]), "AUTHENTICATE PLAIN\r\n");
    let response = sent_lines(&sasl_account(), &[offer, acknowledged, "AUTHENTICATE +"]);
    assert_eq!(response, "AUTHENTICATE AG1lAHNlY3JldA==\r\n");
    assert_eq!(sent_lines(&sasl_account(), &[offer, acknowledged, "AUTHENTICATE +", ":s 903 * :yes"]), "CAP END\r\n");
}

#[test]
fn a_long_proof_goes_in_pieces_and_ends_with_a_short_one() {
    let lines = |length: usize| -> Vec<usize> {
        let lines = sasl_plain_lines("me", &"x".repeat(length).into());
        lines.iter().map(|line| line.bytes().len() - "AUTHENTICATE \r\n".len()).collect()
    };
    // Three bytes make four letters, and `\0me\0` has four bytes.
    assert_eq!(lines(10), [20]);
    assert_eq!(lines(296), [400, 1], "a full piece is not the last one");
    assert_eq!(lines(297), [400, 4]);
    assert_eq!(lines(596), [400, 400, 1]);
}

#[test]
fn a_proof_goes_to_nobody_who_was_not_asked() {
    assert_eq!(sent_lines(&sasl_account(), &["AUTHENTICATE +"]), "AUTHENTICATE *\r\n");
    assert_eq!(sent_lines(&test_account(None), &["AUTHENTICATE +"]), "AUTHENTICATE *\r\n");
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
        let why = refusal_reason(&sasl_account(), lines);
        assert!(why.contains(expected), "{lines:?}: {why}");
    }
}

#[test]
fn a_server_may_refuse() {
    let plain = test_account(None);
    assert!(refusal_reason(&plain, &[":s 464 * :Password incorrect"]).contains("Password incorrect"));
    assert!(refusal_reason(&plain, &["ERROR :Access denied: Bad password?"]).contains("Bad password"));
    assert!(refusal_reason(&plain, &["ERROR :Closing link: (a@b) [K-Lined]"]).contains("K-Lined"));
    assert!(refusal_reason(&plain, &[":s 432 * quell :Erroneous nickname"]).contains("Erroneous"));
    assert_eq!(
        step_after(&plain, &["ERROR :Server is full"]),
        RegistrationStep::Failed(ListenError::Connection(
            "the server closed the connection: Server is full".to_owned()
        ))
    );
}

#[test]
fn a_nick_that_is_taken_is_varied() {
    let plain = test_account(None);
    let taken = ":s 433 * x :in use";
    let nicks: Vec<String> = (1..=8).map(|times| sent_lines(&plain, &vec![taken; times])).collect();
    let expected = ["quell_", "quell__", "quell___", "quel_", "que_1", "que_2", "que_3", "que_4"];
    assert_eq!(nicks, expected.map(|nick| format!("NICK {nick}\r\n")));
    assert!(matches!(step_after(&plain, &[taken; 9]), RegistrationStep::Failed(ListenError::Connection(_))));
    assert_eq!(sent_lines(&plain, &[taken, ":s 432 * quell_ :too long"]), "NICK quell__\r\n");
    assert_eq!(nick_variant("é", 4).unwrap(), "é_");
}

#[test]
fn the_welcome_names_the_nick() {
    let progress = step_after(&test_account(None), &["@time=2026-01-02T03:04:05.000Z :irc.test 001 que :welcome"]);
    let at = "2026-01-02T03:04:05Z".parse().ok();
    let expected = IrcWelcome { nick: "que".to_owned(), server_name: "irc.test".to_owned(), server_time: at };
    assert_eq!(progress, RegistrationStep::Welcome(expected));
    for line in [":irc.test 001 * :welcome", ":irc.test 001", ":irc.test 001 a\u{1b}b :welcome"] {
        let nameless = step_after(&test_account(None), &[line]);
        assert!(matches!(nameless, RegistrationStep::Failed(ListenError::Connection(_))), "{line:?}");
    }
}
