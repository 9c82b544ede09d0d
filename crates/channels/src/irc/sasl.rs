//! SASL PLAIN lines (RFC 4616, IRCv3 `sasl-3.1`).

use secrecy::{ExposeSecret, SecretString};

use super::message::OutgoingIrcLine;

/// IRCv3 `sasl-3.1`: a response is sent in chunks of this many bytes; a shorter chunk ends it.
const MAX_CHUNK_BYTES: usize = 400;

/// The lines that authenticate an account.
pub(super) fn plain_lines(account: &str, password: &SecretString) -> Vec<OutgoingIrcLine> {
    let response = encode_base64(format!("\0{account}\0{}", password.expose_secret()).as_bytes());
    // Base64 is ASCII, so every byte is a character boundary.
    let mut pieces: Vec<&str> = (0..response.len())
        .step_by(MAX_CHUNK_BYTES)
        .map(|at| &response[at..response.len().min(at + MAX_CHUNK_BYTES)])
        .collect();
    if pieces.last().is_none_or(|piece| piece.len() == MAX_CHUNK_BYTES) {
        pieces.push("+");
    }
    pieces.into_iter().map(|piece| OutgoingIrcLine::from_words(&["AUTHENTICATE", piece])).collect()
}

/// RFC 4648 4.
fn encode_base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for position in 0..4_usize {
            let digit = (bits >> (18 - 6 * position)) & 63;
            let letter = usize::try_from(digit).ok().and_then(|digit| ALPHABET.get(digit));
            text.push(if position > chunk.len() { '=' } else { letter.map_or('=', |letter| char::from(*letter)) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_its_standard() {
        let rows =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy"), ("\0\u{ff}", "AMO/")];
        for (text, encoded) in rows {
            assert_eq!(encode_base64(text.as_bytes()), encoded);
        }
    }

    #[test]
    fn a_long_proof_goes_in_pieces_and_ends_with_a_short_one() {
        let lines = |length: usize| -> Vec<usize> {
            let lines = plain_lines("me", &"x".repeat(length).into());
            lines.iter().map(|line| line.bytes().len() - "AUTHENTICATE \r\n".len()).collect()
        };
        // Three bytes make four letters, and `\0me\0` has four bytes.
        assert_eq!(lines(10), [20]);
        assert_eq!(lines(296), [400, 1], "a full piece is not the last one");
        assert_eq!(lines(297), [400, 4]);
        assert_eq!(lines(596), [400, 400, 1]);
    }
}
