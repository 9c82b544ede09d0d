//! Base64 encoder and strict decoder (RFC 4648, section 4: the alphabet with `+` and `/`, with padding).

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// Fills the last group of four characters.
const PAD: char = '=';

pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or_default());
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let character = || ALPHABET.get(usize::try_from(group >> (18 - 6 * at) & 63).unwrap_or_default());
            let filled = usize::try_from(at).is_ok_and(|at| at <= chunk.len());
            text.push(character().filter(|_| filled).map_or(PAD, |character| char::from(*character)));
        }
    }
    text
}

/// Decodes text that an encoder can have written; none for any other text.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let characters = text.trim_end_matches(PAD);
    if text.len() - characters.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(characters.len() / 4 * 3 + 2);
    for chunk in characters.as_bytes().chunks(4) {
        let mut group = 0;
        for character in chunk {
            group = group << 6 | decode_character(*character)?;
        }
        let missing = 4 - u32::try_from(chunk.len()).ok()?;
        let [_, three @ ..] = (group << (6 * missing)).to_be_bytes();
        let (filled, rest) = three.split_at_checked(chunk.len() - 1)?;
        // The bits beyond the last byte must be zero: no encoder writes anything else.
        if rest.iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend_from_slice(filled);
    }
    Some(bytes)
}

fn decode_character(character: u8) -> Option<u32> {
    Some(u32::from(match character {
        b'A'..=b'Z' => character - b'A',
        b'a'..=b'z' => character - b'a' + 26,
        b'0'..=b'9' => character - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    /// The test vectors of RFC 4648, section 10.
    #[rstest]
    #[case("", "")]
    #[case("f", "Zg==")]
    #[case("fo", "Zm8=")]
    #[case("foo", "Zm9v")]
    #[case("foob", "Zm9vYg==")]
    #[case("fooba", "Zm9vYmE=")]
    #[case("foobar", "Zm9vYmFy")]
    fn the_vectors_of_the_standard(#[case] plain: &str, #[case] encoded: &str) {
        assert_eq!(encode(plain.as_bytes()), encoded);
        assert_eq!(decode(encoded).as_deref(), Some(plain.as_bytes()));
    }

    #[rstest]
    #[case::short("Zg=")]
    #[case::no_padding("Zg")]
    #[case::padding_alone("====")]
    #[case::padding_in_between("Zg==Zg==")]
    #[case::one_sign_in_a_group("Zm9vY===")]
    #[case::another_alphabet("-_-_")]
    #[case::a_space("Zm9 ")]
    #[case::bits_that_mean_nothing("Zh==")]
    #[case::no_ascii("Zm9ü")]
    fn invalid_base64_is_refused(#[case] text: &str) {
        assert_eq!(decode(text), None);
    }

    proptest! {
        #[test]
        fn encoded_bytes_decode_to_themselves(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
    }
}
