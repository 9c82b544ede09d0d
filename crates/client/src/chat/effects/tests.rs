//! What a failure says about the daemon.

use quell_protocol::{ErrorCode, Problem};
use rstest::rstest;

use super::*;

#[rstest]
#[case(ErrorCode::ShuttingDown, FailureKind::Away)]
#[case(ErrorCode::StoreUnavailable, FailureKind::Away)]
#[case(ErrorCode::TooManyConnections, FailureKind::Away)]
#[case(ErrorCode::Held, FailureKind::Refused)]
#[case(ErrorCode::QueueFull, FailureKind::Refused)]
#[case(ErrorCode::SpendLimit, FailureKind::Refused)]
#[case(ErrorCode::Forbidden, FailureKind::Refused)]
#[case(ErrorCode::RunNotFound, FailureKind::NotFound)]
fn a_no_that_may_pass_is_not_a_no(#[case] code: ErrorCode, #[case] kind: FailureKind) {
    assert_eq!(Failure::from(LinkError::Refused(Problem::new(code, "why"))).kind, kind);
}

#[test]
fn a_broken_connection_is_nobody_who_answers() {
    let lost = LinkError::Lost { url: "http://localhost".into(), cause: "reset".into() };
    assert_eq!(Failure::from(lost), Failure { text: "reset".into(), kind: FailureKind::Away });
}
