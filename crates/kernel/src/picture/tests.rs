//! Markers in texts, and what counts as a picture.

use proptest::prelude::*;
use rstest::rstest;

use super::Piece::{Picture as Marked, Text};
use super::*;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\nrest";

#[rstest]
#[case::none("no [picture] here", &[Text("no [picture] here")])]
#[case::alone("[IMAGE:/a/b.png]", &[Marked("/a/b.png")])]
#[case::around("see [IMAGE:/a] and [IMAGE: https://x/y ]!", &[Text("see "), Marked("/a"), Text(" and "), Marked("https://x/y"), Text("!")])]
#[case::side_by_side("[IMAGE:/a][IMAGE:/b]", &[Marked("/a"), Marked("/b")])]
#[case::naming_nothing("what is [IMAGE:] and [IMAGE: ]?", &[Text("what is [IMAGE:] and [IMAGE: ]?")])]
#[case::open("[IMAGE:/a and more", &[Text("[IMAGE:/a and more")])]
#[case::over_lines("[IMAGE:/a\n]", &[Text("[IMAGE:/a\n]")])]
#[case::open_before_another("[IMAGE:/a [IMAGE:/b]", &[Text("[IMAGE:/a "), Marked("/b")])]
#[case::other_case("[image:/a]", &[Text("[image:/a]")])]
#[case::nothing("", &[])]
fn a_text_falls_into_pieces(#[case] text: &str, #[case] expected: &[Piece<'_>]) {
    assert_eq!(pieces(text), expected);
}

#[rstest]
#[case("/a/b.png", Source::File("/a/b.png"))]
#[case("data:image/png;base64,AA==", Source::Data("data:image/png;base64,AA=="))]
#[case("https://host/x.png?a=b", Source::Url("https://host/x.png?a=b"))]
#[case("https://host/x y", Source::Unknown)]
#[case("https://", Source::Unknown)]
#[case("http://host/x.png", Source::Unknown)]
#[case("file:///etc/passwd", Source::Unknown)]
#[case("b.png", Source::Unknown)]
fn a_source_is_a_path_data_or_a_secure_url(#[case] text: &str, #[case] expected: Source<'_>) {
    assert_eq!(Source::of(text), expected);
}

#[rstest]
#[case(PNG, Ok("image/png"))]
#[case(b"\xff\xd8\xff\xe0rest", Ok("image/jpeg"))]
#[case(b"GIF87a rest", Ok("image/gif"))]
#[case(b"GIF89a rest", Ok("image/gif"))]
#[case(b"RIFF\x10\0\0\0WEBPVP8 ", Ok("image/webp"))]
#[case(b"RIFF\x10\0\0\0WAVEfmt ", Err(Unseen::NoPicture))]
#[case(b"%PDF-1.7", Err(Unseen::NoPicture))]
#[case(b"<svg/>", Err(Unseen::NoPicture))]
#[case(b"", Err(Unseen::NoPicture))]
fn a_picture_is_what_begins_like_one(#[case] bytes: &[u8], #[case] expected: Result<&str, Unseen>) {
    assert_eq!(Picture::of(bytes).map(|picture| picture.media_type()), expected);
}

#[test]
fn a_picture_may_be_as_large_as_providers_take_it() {
    let mut bytes = PNG.to_vec();
    bytes.resize(LARGEST, 0);
    assert!(Picture::of(&bytes).is_ok());
    let url = |bytes: &[u8]| format!("data:image/png;base64,{}", base64::encode(bytes));
    assert!(Picture::of_data_url(&url(&bytes)).is_ok());
    for more in [1, 4] {
        bytes.resize(LARGEST + more, 0);
        assert_eq!(Picture::of(&bytes), Err(Unseen::TooLarge), "{more}");
        assert_eq!(Picture::of_data_url(&url(&bytes)), Err(Unseen::TooLarge), "{more}");
    }
}

#[rstest]
#[case::png("data:image/png;base64,iVBORw0KGgo=", Ok("image/png"))]
#[case::whatever_it_is_said_to_be("data:image/gif;base64,iVBORw0KGgo=", Ok("image/png"))]
#[case::text("data:text/plain;base64,aGVsbG8=", Err(Unseen::NoPicture))]
#[case::not_encoded("data:image/png,hello", Err(Unseen::NoPicture))]
#[case::broken("data:image/png;base64,iVBORw0KGgo", Err(Unseen::NoPicture))]
#[case::nothing("data:", Err(Unseen::NoPicture))]
fn a_data_url_holds_its_picture(#[case] url: &str, #[case] expected: Result<&str, Unseen>) {
    assert_eq!(Picture::of_data_url(url).map(|picture| picture.media_type()), expected);
}

#[test]
fn a_picture_in_a_text_counts_as_a_picture_and_not_as_its_data() {
    assert_eq!(weight("hello"), 5);
    assert_eq!(weight("[IMAGE:/a]"), 10);
    assert_eq!(weight(&format!("hello[IMAGE:data:{}]", "A".repeat(1_000_000))), 5 + WEIGHT);
}

#[test]
fn no_print_holds_the_data() {
    let printed = format!("{:?}", Picture::of(PNG).unwrap());
    assert_eq!(printed, "Picture(image/png, 16 signs)");
}

proptest! {
    #[test]
    fn nothing_of_a_text_is_lost(text in "(\\[IMAGE:|\\]|\\[|\n|/a|ü| ){0,20}") {
        let whole: String = pieces(&text).into_iter().map(|piece| match piece {
            Text(text) => text.to_owned(),
            Marked(source) => format!("[IMAGE:{source}]"),
        }).collect();
        prop_assert_eq!(whole.replace(' ', ""), text.replace(' ', ""));
        prop_assert!(pieces(&text).windows(2).all(|pair| !matches!(pair, [Text(_), Text(_)])));
    }
}

/// Each opening is looked at once, whatever follows it: one that looked for its end through the whole text, as a regular
/// expression does, would not come to an end here.
#[test]
fn a_long_text_of_openings_takes_no_longer_than_its_length() {
    for rest in ["", "\n]", "[IMAGE:/a]"] {
        let text = "[IMAGE:".repeat(500_000) + rest;
        assert_eq!(sources(&text).count(), usize::from(rest.len() > 2));
    }
}
