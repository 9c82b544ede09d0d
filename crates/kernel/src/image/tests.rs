//! Tests of markers in texts and of image formats.

use proptest::prelude::*;
use rstest::rstest;

use super::MarkedText::Text;
use super::*;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\nrest";

#[rstest]
#[case::none("no [picture] here", &[Text("no [picture] here")])]
#[case::alone("[IMAGE:/a/b.png]", &[MarkedText::Image("/a/b.png")])]
#[case::around("see [IMAGE:/a] and [IMAGE: https://x/y ]!", &[Text("see "), MarkedText::Image("/a"), Text(" and "), MarkedText::Image("https://x/y"), Text("!")])]
#[case::side_by_side("[IMAGE:/a][IMAGE:/b]", &[MarkedText::Image("/a"), MarkedText::Image("/b")])]
#[case::naming_nothing("what is [IMAGE:] and [IMAGE: ]?", &[Text("what is [IMAGE:] and [IMAGE: ]?")])]
#[case::open("[IMAGE:/a and more", &[Text("[IMAGE:/a and more")])]
#[case::over_lines("[IMAGE:/a\n]", &[Text("[IMAGE:/a\n]")])]
#[case::open_before_another("[IMAGE:/a [IMAGE:/b]", &[Text("[IMAGE:/a "), MarkedText::Image("/b")])]
#[case::other_case("[image:/a]", &[Text("[image:/a]")])]
#[case::nothing("", &[])]
fn a_text_falls_into_pieces(#[case] text: &str, #[case] expected: &[MarkedText<'_>]) {
    assert_eq!(split_markers(text), expected);
}

#[rstest]
#[case("/a/b.png", ImageSource::File("/a/b.png"))]
#[case("data:image/png;base64,AA==", ImageSource::Data("data:image/png;base64,AA=="))]
#[case("https://host/x.png?a=b", ImageSource::Url("https://host/x.png?a=b"))]
#[case("https://host/x y", ImageSource::Unknown)]
#[case("https://", ImageSource::Unknown)]
#[case("http://host/x.png", ImageSource::Unknown)]
#[case("file:///etc/passwd", ImageSource::Unknown)]
#[case("b.png", ImageSource::Unknown)]
fn a_source_is_a_path_data_or_a_secure_url(#[case] text: &str, #[case] expected: ImageSource<'_>) {
    assert_eq!(ImageSource::parse(text), expected);
}

#[rstest]
#[case(PNG, Ok("image/png"))]
#[case(b"\xff\xd8\xff\xe0rest", Ok("image/jpeg"))]
#[case(b"GIF87a rest", Ok("image/gif"))]
#[case(b"GIF89a rest", Ok("image/gif"))]
#[case(b"RIFF\x10\0\0\0WEBPVP8 ", Ok("image/webp"))]
#[case(b"RIFF\x10\0\0\0WAVEfmt ", Err(ImageUnavailable::UnsupportedFormat))]
#[case(b"%PDF-1.7", Err(ImageUnavailable::UnsupportedFormat))]
#[case(b"<svg/>", Err(ImageUnavailable::UnsupportedFormat))]
#[case(b"", Err(ImageUnavailable::UnsupportedFormat))]
fn a_picture_is_what_begins_like_one(#[case] bytes: &[u8], #[case] expected: Result<&str, ImageUnavailable>) {
    assert_eq!(Image::from_bytes(bytes).map(|image| image.media_type()), expected);
}

#[test]
fn a_picture_may_be_as_large_as_providers_take_it() {
    let mut bytes = PNG.to_vec();
    bytes.resize(MAX_IMAGE_BYTES, 0);
    assert!(Image::from_bytes(&bytes).is_ok());
    let url = |bytes: &[u8]| format!("data:image/png;base64,{}", STANDARD.encode(bytes));
    assert!(Image::from_data_url(&url(&bytes)).is_ok());
    for more in [1, 4] {
        bytes.resize(MAX_IMAGE_BYTES + more, 0);
        assert_eq!(Image::from_bytes(&bytes), Err(ImageUnavailable::TooLarge), "{more}");
        assert_eq!(Image::from_data_url(&url(&bytes)), Err(ImageUnavailable::TooLarge), "{more}");
    }
}

#[rstest]
#[case::png("data:image/png;base64,iVBORw0KGgo=", Ok("image/png"))]
#[case::whatever_it_is_said_to_be("data:image/gif;base64,iVBORw0KGgo=", Ok("image/png"))]
#[case::text("data:text/plain;base64,aGVsbG8=", Err(ImageUnavailable::UnsupportedFormat))]
#[case::not_encoded("data:image/png,hello", Err(ImageUnavailable::UnsupportedFormat))]
#[case::broken("data:image/png;base64,iVBORw0KGgo", Err(ImageUnavailable::UnsupportedFormat))]
#[case::meaningless_bits("data:image/png;base64,iVBORw0KGgp=", Err(ImageUnavailable::UnsupportedFormat))]
#[case::padding_in_between("data:image/png;base64,iVBORw0KGgo=iVBORw0KGgo=", Err(ImageUnavailable::UnsupportedFormat))]
#[case::a_space("data:image/png;base64,iVBORw0K Ggo=", Err(ImageUnavailable::UnsupportedFormat))]
#[case::another_alphabet("data:image/png;base64,iVBORw0K-_-_", Err(ImageUnavailable::UnsupportedFormat))]
#[case::nothing("data:", Err(ImageUnavailable::UnsupportedFormat))]
fn a_data_url_holds_its_picture(#[case] url: &str, #[case] expected: Result<&str, ImageUnavailable>) {
    assert_eq!(Image::from_data_url(url).map(|image| image.media_type()), expected);
}

#[test]
fn a_picture_in_a_text_counts_as_a_picture_and_not_as_its_data() {
    assert_eq!(estimate_text_size("hello"), 5);
    assert_eq!(estimate_text_size("[IMAGE:/a]"), 10);
    assert_eq!(estimate_text_size(&format!("hello[IMAGE:data:{}]", "A".repeat(1_000_000))), 5 + MAX_MARKER_SIZE);
}

#[test]
fn no_print_holds_the_data() {
    let printed = format!("{:?}", Image::from_bytes(PNG).unwrap());
    assert_eq!(printed, "Image(image/png, 16 characters)");
}

proptest! {
    #[test]
    fn nothing_of_a_text_is_lost(text in "(\\[IMAGE:|\\]|\\[|\n|/a|ü| ){0,20}") {
        let whole: String = split_markers(&text).into_iter().map(|piece| match piece {
            Text(text) => text.to_owned(),
            MarkedText::Image(source) => format!("[IMAGE:{source}]"),
        }).collect();
        prop_assert_eq!(whole.replace(' ', ""), text.replace(' ', ""));
        prop_assert!(split_markers(&text).windows(2).all(|pair| !matches!(pair, [Text(_), Text(_)])));
    }
}

/// Each marker start is examined once. A search that scans the whole rest of the text for each of them, as a regular
/// expression does, would take too long here.
#[test]
fn a_long_text_of_openings_takes_no_longer_than_its_length() {
    for rest in ["", "\n]", "[IMAGE:/a]"] {
        let text = "[IMAGE:".repeat(500_000) + rest;
        assert_eq!(image_sources(&text).count(), usize::from(rest.len() > 2));
    }
}

#[test]
fn image_data_becomes_a_word_and_other_images_stay() {
    let text = "See [IMAGE:data:image/png;base64,iVBORw0KGgo=] and [IMAGE:/work/a.png].";
    assert_eq!(without_image_data(text), "See (a picture) and [IMAGE:/work/a.png].");
}
