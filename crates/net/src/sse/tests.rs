//! The decoder against the examples of the standard, and against every way to split its input.

use proptest::collection::vec;
use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn decoder() -> SseDecoder {
    SseDecoder::new(10_000, 10_000)
}

fn decode_chunks<'a>(
    mut decoder: SseDecoder,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<SseEvent>, Result<Option<SseEvent>, SseLimitError>) {
    let mut events = Vec::new();
    for mut chunk in chunks {
        loop {
            match decoder.next_event(&mut chunk) {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(oversize) => return (events, Err(oversize)),
            }
        }
        assert!(chunk.is_empty(), "the decoder left input behind");
    }
    (events, Ok(decoder.into_unfinished_event()))
}

fn decode_whole(text: &[u8]) -> Vec<(String, String)> {
    let (events, rest) = decode_chunks(decoder(), [text]);
    rest.expect("within the bounds");
    events.into_iter().map(|event| (event.name, event.data)).collect()
}

#[rstest]
#[case::one_line("data: a\n\n", &[("", "a")])]
#[case::several_lines("data: a\ndata: b\ndata\ndata:c\n\n", &[("", "a\nb\n\nc")])]
#[case::cr("data: a\r\rdata: b\r\r", &[("", "a"), ("", "b")])]
#[case::crlf("data: a\r\n\r\ndata: b\r\n\r\n", &[("", "a"), ("", "b")])]
#[case::mixed("data: a\r\n\ndata: b\n\r\n\rdata: c\r\n\r\n", &[("", "a"), ("", "b"), ("", "c")])]
#[case::names("event: x\ndata: a\n\ndata: b\n\n", &[("x", "a"), ("", "b")])]
#[case::a_name_alone_is_no_event("event: x\n\ndata: b\n\n", &[("", "b")])]
#[case::comments(": ping\n\n:\n\ndata: a\n: between\n\n", &[("", "a")])]
#[case::other_fields("id: 1\nretry: 5\nfoo: bar\ndata: a\n\n", &[("", "a")])]
#[case::empty_data("data\n\ndata:\n\n", &[("", ""), ("", "")])]
#[case::one_space_only("data:  a\n\ndata:b: c\n\n", &[("", " a"), ("", "b: c")])]
#[case::byte_order_mark("\u{feff}data: a\n\n\u{feff}data: b\n\n", &[("", "a")])]
#[case::cut_event("data: a\n\ndata: b\n", &[("", "a")])]
#[case::nothing("", &[])]
fn follows_the_standard(#[case] text: &str, #[case] events: &[(&str, &str)]) {
    let events: Vec<_> = events.iter().map(|(name, data)| ((*name).to_owned(), (*data).to_owned())).collect();
    assert_eq!(decode_whole(text.as_bytes()), events);
}

#[test]
fn a_broken_character_is_replaced_and_harms_nothing_else() {
    assert_eq!(decode_whole(b"data: \xFFa\n\n"), [(String::new(), "\u{fffd}a".to_owned())]);
}

#[test]
fn the_rest_is_what_was_under_way() {
    let rest = |text: &str| decode_chunks(decoder(), [text.as_bytes()]).1.expect("within the bounds");
    assert_eq!(rest("data: [DONE]").map(|event| event.data), Some("[DONE]".to_owned()));
    assert_eq!(rest("data: [DONE]\n").map(|event| event.data), Some("[DONE]".to_owned()));
    assert_eq!(rest("data: [DONE]\n\n"), None);
    assert_eq!(rest("event: x\n"), None);
}

#[test]
fn too_long_a_line_is_an_error_also_without_its_end() {
    let bounds = || SseDecoder::new(10, 100);
    assert_eq!(decode_chunks(bounds(), [&b"data: abcd\n\n"[..]]).0.len(), 1, "ten bytes are allowed");
    assert_eq!(decode_chunks(bounds(), [&b"data: abcde\n"[..]]).1, Err(SseLimitError::Line(10)));
    assert_eq!(decode_chunks(bounds(), [&b"data: "[..], b"abcd", b"e"]).1, Err(SseLimitError::Line(10)));
    assert_eq!(decode_chunks(bounds(), [&b":"[..], &[b'x'; 10]]).1, Err(SseLimitError::Line(10)), "comments count too");
}

#[test]
fn too_large_an_event_is_an_error_although_its_lines_are_short() {
    let bounds = || SseDecoder::new(10, 9);
    assert_eq!(decode_chunks(bounds(), [&b"data: abcd\ndata: efgh\n\n"[..]]).0.len(), 1, "nine bytes are allowed");
    assert_eq!(decode_chunks(bounds(), [&b"data: abcd\ndata: efgh\ndata\n\n"[..]]).1, Err(SseLimitError::Event(9)));
}

/// Streams of the significant pieces, so that CRs, LFs, marks and fields meet in every order.
fn stream_strategy() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        &b"data: "[..],
        b"data:",
        b"data",
        b"event: x",
        b": comment",
        b"id: 7",
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"a",
        "안녕".as_bytes(),
        b"\xFF",
        BYTE_ORDER_MARK,
        b"{\"k\": 1}",
    ]);
    vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

fn split_at<'a>(bytes: &'a [u8], at: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = at.iter().map(|index| index.index(bytes.len() + 1)).collect();
    places.sort_unstable();
    let mut chunks = Vec::new();
    let mut from = 0;
    for place in places {
        chunks.push(&bytes[from..place]);
        from = place;
    }
    chunks.push(&bytes[from..]);
    chunks
}

proptest! {
    #[test]
    fn any_chunking_gives_the_same_events(bytes in stream_strategy(), at in vec(any::<prop::sample::Index>(), 0..12)) {
        let expected = decode_chunks(decoder(), [&bytes[..]]);
        prop_assert_eq!(&decode_chunks(decoder(), split_at(&bytes, &at)), &expected);
        prop_assert_eq!(&decode_chunks(decoder(), bytes.chunks(1)), &expected);
    }

    #[test]
    fn any_chunking_meets_the_same_bound(bytes in stream_strategy(), at in vec(any::<prop::sample::Index>(), 0..12)) {
        let expected = decode_chunks(SseDecoder::new(12, 8), [&bytes[..]]);
        prop_assert_eq!(&decode_chunks(SseDecoder::new(12, 8), split_at(&bytes, &at)), &expected);
        prop_assert_eq!(&decode_chunks(SseDecoder::new(12, 8), bytes.chunks(1)), &expected);
    }

    #[test]
    fn written_events_are_read_back(events in vec(("[a-z]{0,8}", "[ -~안ü\n]{1,30}"), 0..8), ending in 0..3_usize) {
        let newline = ["\n", "\r", "\r\n"][ending];
        let mut text = String::new();
        for (name, data) in &events {
            if !name.is_empty() {
                text += &format!("event: {name}{newline}");
            }
            for line in data.split('\n') {
                text += &format!("data: {line}{newline}");
            }
            text += newline;
        }
        prop_assert_eq!(decode_whole(text.as_bytes()), events);
    }
}
