//! Map errors of requests to kinds of failures.

use quell_protocol::{ErrorCode, Problem};
use rstest::rstest;

use super::*;

#[rstest]
#[case(ErrorCode::ShuttingDown, DaemonFailureKind::Unreachable)]
#[case(ErrorCode::StoreUnavailable, DaemonFailureKind::Unreachable)]
#[case(ErrorCode::TooManyConnections, DaemonFailureKind::Unreachable)]
#[case(ErrorCode::Held, DaemonFailureKind::Refused)]
#[case(ErrorCode::QueueFull, DaemonFailureKind::Refused)]
#[case(ErrorCode::SpendLimit, DaemonFailureKind::Refused)]
#[case(ErrorCode::Forbidden, DaemonFailureKind::Refused)]
#[case(ErrorCode::RunNotFound, DaemonFailureKind::NotFound)]
fn a_no_that_may_pass_is_not_a_no(#[case] code: ErrorCode, #[case] kind: DaemonFailureKind) {
    assert_eq!(DaemonFailure::from(ClientError::Refused(Problem::new(code, "why"))).kind, kind);
}

#[test]
fn a_broken_connection_is_nobody_who_answers() {
    let lost = ClientError::ConnectionLost { url: "http://localhost".into(), cause: "reset".into() };
    assert_eq!(DaemonFailure::from(lost), DaemonFailure { text: "reset".into(), kind: DaemonFailureKind::Unreachable });
}
