//! Table of every busy policy in every state of a session.

use quell_protocol::RunId;
use quell_protocol::api::OnBusy;
use rstest::rstest;

use super::{Admission, AdmissionError, SessionLoad, decide_admission};

const LIMIT: usize = 2;

fn active_run_id() -> RunId {
    RunId::parse("active").expect("a run id")
}

fn steer_admission() -> Result<Admission, AdmissionError> {
    Ok(Admission::Steer { into: active_run_id() })
}

fn queue_full_error() -> Result<Admission, AdmissionError> {
    Err(AdmissionError::QueueFull { waiting: LIMIT })
}

#[rstest]
// policy, whether a run is active, number of waiting messages
#[case(OnBusy::Queue, false, 0, Ok(Admission::Queue))]
#[case(OnBusy::Queue, false, 1, Ok(Admission::Queue))]
#[case(OnBusy::Queue, false, 2, queue_full_error())]
#[case(OnBusy::Queue, true, 0, Ok(Admission::Queue))]
#[case(OnBusy::Queue, true, 1, Ok(Admission::Queue))]
#[case(OnBusy::Queue, true, 2, queue_full_error())]
#[case(OnBusy::Steer, false, 0, Ok(Admission::Queue))]
#[case(OnBusy::Steer, false, 1, Ok(Admission::Queue))]
#[case(OnBusy::Steer, false, 2, queue_full_error())]
#[case(OnBusy::Steer, true, 0, steer_admission())]
#[case(OnBusy::Steer, true, 1, steer_admission())]
#[case(OnBusy::Steer, true, 2, queue_full_error())]
#[case(OnBusy::Interrupt, false, 0, Ok(Admission::Interrupt))]
#[case(OnBusy::Interrupt, false, 1, Ok(Admission::Interrupt))]
#[case(OnBusy::Interrupt, false, 2, Ok(Admission::Interrupt))]
#[case(OnBusy::Interrupt, true, 0, Ok(Admission::Interrupt))]
#[case(OnBusy::Interrupt, true, 1, Ok(Admission::Interrupt))]
#[case(OnBusy::Interrupt, true, 2, Ok(Admission::Interrupt))]
#[case(OnBusy::Reject, false, 0, Ok(Admission::Queue))]
#[case(OnBusy::Reject, false, 1, Err(AdmissionError::Busy))]
#[case(OnBusy::Reject, false, 2, Err(AdmissionError::Busy))]
#[case(OnBusy::Reject, true, 0, Err(AdmissionError::Busy))]
#[case(OnBusy::Reject, true, 1, Err(AdmissionError::Busy))]
#[case(OnBusy::Reject, true, 2, Err(AdmissionError::Busy))]
fn a_policy_in_a_session(
    #[case] policy: OnBusy,
    #[case] is_active: bool,
    #[case] waiting: usize,
    #[case] wanted: Result<Admission, AdmissionError>,
) {
    let load =
        SessionLoad { active_run: is_active.then(active_run_id), accepts_steering: true, waiting, queue_limit: LIMIT };
    assert_eq!(decide_admission(policy, &load), wanted);
}

#[rstest]
#[case(OnBusy::Queue, Admission::Queue)]
#[case(OnBusy::Steer, Admission::Queue)]
#[case(OnBusy::Interrupt, Admission::Interrupt)]
#[case(OnBusy::Reject, Admission::Queue)]
fn an_idle_session_takes_a_message_even_when_none_may_wait(#[case] policy: OnBusy, #[case] wanted: Admission) {
    let load = SessionLoad { active_run: None, accepts_steering: true, waiting: 0, queue_limit: 0 };
    assert_eq!(decide_admission(policy, &load), Ok(wanted));
}

#[test]
fn without_a_queue_a_busy_session_takes_only_an_interrupt() {
    let load = SessionLoad { active_run: Some(active_run_id()), accepts_steering: true, waiting: 0, queue_limit: 0 };
    for policy in [OnBusy::Queue, OnBusy::Steer] {
        assert_eq!(decide_admission(policy, &load), Err(AdmissionError::QueueFull { waiting: 0 }));
    }
    assert_eq!(decide_admission(OnBusy::Interrupt, &load), Ok(Admission::Interrupt));
}

#[test]
fn a_steering_message_queues_if_the_run_does_not_take_it() {
    let load =
        SessionLoad { active_run: Some(active_run_id()), accepts_steering: false, waiting: 0, queue_limit: LIMIT };
    assert_eq!(decide_admission(OnBusy::Steer, &load), Ok(Admission::Queue));
}

#[rstest]
#[case(AdmissionError::Held, "new runs are on hold; lift it with `quell hold off`")]
#[case(AdmissionError::QueueFull { waiting: 20 }, "20 messages already wait in this session, which is the limit; stop it or wait")]
fn a_refusal_says_what_to_do(#[case] refusal: AdmissionError, #[case] wanted: &str) {
    assert_eq!(refusal.to_string(), wanted);
}
