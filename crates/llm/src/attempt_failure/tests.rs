//! Classification of causes, and the texts of errors.

use super::*;

#[derive(Debug, thiserror::Error)]
#[error("outer")]
struct Outer(#[source] io::Error);

#[test]
fn a_failure_of_tls_is_found_however_deep_it_is() {
    let tls = || io::Error::other(rustls::Error::DecryptError);
    assert!(is_tls_error(&Outer(tls())));
    assert!(is_tls_error(&Outer(io::Error::other(Outer(tls())))));
    assert!(!is_tls_error(&Outer(io::Error::from(io::ErrorKind::ConnectionRefused))));
}

#[test]
fn every_text_says_what_happened_and_what_to_do() {
    let provider = || "p".to_owned();
    let rejected = ModelError::Rejected { provider: provider(), status: None, message: "m".into(), retryable: true };
    let unreachable =
        ModelError::Unreachable { provider: provider(), url: "http://h/v1".into(), cause: "connection refused".into() };
    let slow =
        ModelError::TimedOut { provider: provider(), timeout: ModelTimeout::Idle, after: Duration::from_secs(120) };
    let broken = ModelError::Truncated { provider: provider(), cause: "c".into() };
    let texts = [
        (rejected, "provider `p` refused: m; try again later"),
        (
            unreachable,
            "provider `p` cannot be reached at http://h/v1 (connection refused); check base_url and that the server runs",
        ),
        (
            slow,
            "provider `p` was too slow: no further part of the answer within 120s; raise idle_timeout_s if that is normal \
             for it",
        ),
        (broken, "the answer of provider `p` broke off (c); send the message again"),
    ];
    for (error, text) in texts {
        assert_eq!(error.to_string(), text);
    }
}
