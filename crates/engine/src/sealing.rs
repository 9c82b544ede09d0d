//! Encrypt what the database holds for an owner, so that neither it nor its backups hold a secret in plain text.

use ring::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};

/// Encrypts a text for one owner: it cannot be decrypted for another. The nonce comes first.
///
/// # Errors
/// Why it cannot be encrypted.
pub(crate) fn seal_for(owner: &str, key: &LessSafeKey, plain: &[u8]) -> Result<Vec<u8>, String> {
    let mut nonce = [0; NONCE_LEN];
    getrandom::fill(&mut nonce).map_err(|error| format!("the system gives no random numbers: {error}"))?;
    let mut sealed = plain.to_vec();
    key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(owner), &mut sealed)
        .map_err(|_| "it is too long to be sealed".to_owned())?;
    Ok([nonce.as_slice(), &sealed].concat())
}

/// Decrypts what was encrypted for this owner; `None` with another key, for another owner, or if it is damaged.
pub(crate) fn open_for(owner: &str, key: &LessSafeKey, sealed: &[u8]) -> Option<Vec<u8>> {
    let (nonce, sealed) = sealed.split_at_checked(NONCE_LEN)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let mut plain = sealed.to_vec();
    let length = key.open_in_place(nonce, Aad::from(owner), &mut plain).ok()?.len();
    plain.truncate(length);
    Some(plain)
}
