//! Frames and texts, without a server.

use rstest::rstest;

use super::super::event_parser::{self, SocketModeFrame};
use super::super::text::{mentions_account, to_readable_text};
use super::*;

#[rstest]
#[case::plain("hello", "hello")]
#[case::escapes("a &lt; b &amp;&amp; c &gt; d", "a < b && c > d")]
#[case::escaped_escapes("&amp;lt;", "&lt;")]
#[case::own_mention_first("<@U0QUELL> hello", "hello")]
#[case::with_marks("<@U0QUELL>, <@U0QUELL|quell>: hello", "hello")]
#[case::own_mention_later("hello <@U0QUELL>!", "hello @U0QUELL!")]
#[case::others("<@U1> and <@U2|ben>", "@U1 and @ben")]
#[case::channel("see <#C1|general> and <#C2>", "see #general and #C2")]
#[case::special("<!here> <!subteam^S1|@team> <!date^1^{date}|today>", "@here @team today")]
#[case::link("<https://example.org/a?b=1&amp;c=2>", "https://example.org/a?b=1&c=2")]
#[case::typed_link("<https://example.org|example.org>", "https://example.org")]
#[case::mail("<mailto:a@example.org|a@example.org>", "mailto:a@example.org")]
#[case::labelled_link("<https://example.org|the page>", "the page (https://example.org)")]
#[case::half("a <b and <c\n> d <", "a <b and <c\n> d <")]
#[case::empty("<>", "")]
#[case::only_a_mention("<@U0QUELL>", "")]
#[case::several_lines("  one\n\ntwo  ", "one\n\ntwo")]
fn texts_are_read_as_people_see_them(#[case] written: &str, #[case] seen: &str) {
    assert_eq!(to_readable_text(written, BOT), seen);
}

#[test]
fn a_longer_id_is_another_person() {
    assert!(mentions_account("hi <@U0QUELL>", BOT) && mentions_account("<@U0QUELL|q>", BOT));
    assert!(
        !mentions_account("hi <@U0QUELLER>", BOT)
            && !mentions_account("U0QUELL", BOT)
            && !mentions_account("<@U0QUELL", BOT)
    );
    assert_eq!(to_readable_text("<@U0QUELLER> hi", BOT), "@U0QUELLER hi");
}

#[rstest]
#[case::hello(r#"{"type":"hello"}"#, SocketModeFrame::Hello)]
#[case::disconnect(r#"{"type":"disconnect","reason":"warning"}"#, SocketModeFrame::Disconnect { reason: "warning".to_owned() })]
#[case::an_event_called_hello(r#"{"type":"pong"}"#, SocketModeFrame::Other)]
#[case::no_json("hello", SocketModeFrame::Other)]
#[case::an_empty_id(r#"{"type":"events_api","envelope_id":""}"#, SocketModeFrame::Other)]
fn frames_are_read(#[case] text: &str, #[case] frame: SocketModeFrame) {
    assert_eq!(event_parser::parse_frame(text), frame);
}

#[rstest]
#[case("1503435956.000247", true)]
#[case("1503435956", false)]
#[case(".1", false)]
#[case("1.", false)]
#[case("1.2.3", false)]
#[case("command N1", false)]
#[case("1.000000000000000000000000000000000000000000000000000000000000000", false)]
fn timestamps_are_told_from_other_names(#[case] text: &str, #[case] is_valid: bool) {
    assert_eq!(event_parser::is_message_timestamp(text), is_valid);
}

#[test]
fn a_broadcast_of_a_thread_is_a_message() {
    let event = json!({
        "type": "message", "subtype": "thread_broadcast", "user": "U1", "channel": "C1", "ts": "2.1", "thread_ts": "1.1", "text": "x",
    });
    let frame = json!({"type": "events_api", "envelope_id": "e", "payload": {"event": event}}).to_string();
    let SocketModeFrame::Envelope(envelope) = event_parser::parse_frame(&frame) else { panic!("it is an envelope") };
    let account = OwnAccount { id: BOT.to_owned(), name: "quell".to_owned() };
    assert_eq!(envelope.parse_inbound(&account, false).unwrap().address, thread_address("C1", "1.1"));
}
