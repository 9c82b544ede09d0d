//! Every policy in every kind of session, as a table.

use quell_protocol::RunId;
use quell_protocol::api::OnBusy;
use rstest::rstest;

use super::{Admission, Busy, Refusal, admit};

/// How many may wait here.
const LIMIT: usize = 2;

fn active() -> RunId {
    RunId::parse("active").expect("a run id")
}

fn steer() -> Result<Admission, Refusal> {
    Ok(Admission::Steer { into: active() })
}

fn full() -> Result<Admission, Refusal> {
    Err(Refusal::QueueFull { waiting: LIMIT })
}

#[rstest]
// policy, whether a run is active, how many wait
#[case(OnBusy::Queue, false, 0, Ok(Admission::Queue))]
#[case(OnBusy::Queue, false, 1, Ok(Admission::Queue))]
#[case(OnBusy::Queue, false, 2, full())]
#[case(OnBusy::Queue, true, 0, Ok(Admission::Queue))]
#[case(OnBusy::Queue, true, 1, Ok(Admission::Queue))]
#[case(OnBusy::Queue, true, 2, full())]
#[case(OnBusy::Steer, false, 0, Ok(Admission::Queue))]
#[case(OnBusy::Steer, false, 1, Ok(Admission::Queue))]
#[case(OnBusy::Steer, false, 2, full())]
#[case(OnBusy::Steer, true, 0, steer())]
#[case(OnBusy::Steer, true, 1, steer())]
#[case(OnBusy::Steer, true, 2, full())]
#[case(OnBusy::Interrupt, false, 0, Ok(Admission::Interrupt))]
#[case(OnBusy::Interrupt, false, 1, Ok(Admission::Interrupt))]
#[case(OnBusy::Interrupt, false, 2, Ok(Admission::Interrupt))]
#[case(OnBusy::Interrupt, true, 0, Ok(Admission::Interrupt))]
#[case(OnBusy::Interrupt, true, 1, Ok(Admission::Interrupt))]
#[case(OnBusy::Interrupt, true, 2, Ok(Admission::Interrupt))]
#[case(OnBusy::Reject, false, 0, Ok(Admission::Queue))]
#[case(OnBusy::Reject, false, 1, Err(Refusal::Busy))]
#[case(OnBusy::Reject, false, 2, Err(Refusal::Busy))]
#[case(OnBusy::Reject, true, 0, Err(Refusal::Busy))]
#[case(OnBusy::Reject, true, 1, Err(Refusal::Busy))]
#[case(OnBusy::Reject, true, 2, Err(Refusal::Busy))]
fn a_policy_in_a_session(
    #[case] policy: OnBusy,
    #[case] is_active: bool,
    #[case] waiting: usize,
    #[case] wanted: Result<Admission, Refusal>,
) {
    let busy = Busy { active: is_active.then(active), takes: true, waiting, limit: LIMIT };
    assert_eq!(admit(policy, &busy), wanted);
}

#[rstest]
#[case(OnBusy::Queue, Admission::Queue)]
#[case(OnBusy::Steer, Admission::Queue)]
#[case(OnBusy::Interrupt, Admission::Interrupt)]
#[case(OnBusy::Reject, Admission::Queue)]
fn an_idle_session_takes_a_message_even_when_none_may_wait(#[case] policy: OnBusy, #[case] wanted: Admission) {
    let idle = Busy { active: None, takes: true, waiting: 0, limit: 0 };
    assert_eq!(admit(policy, &idle), Ok(wanted));
}

#[test]
fn where_none_may_wait_a_busy_session_takes_only_an_interrupt() {
    let busy = Busy { active: Some(active()), takes: true, waiting: 0, limit: 0 };
    for policy in [OnBusy::Queue, OnBusy::Steer] {
        assert_eq!(admit(policy, &busy), Err(Refusal::QueueFull { waiting: 0 }));
    }
    assert_eq!(admit(OnBusy::Interrupt, &busy), Ok(Admission::Interrupt));
}

#[test]
fn where_the_active_run_does_not_take_it_a_steering_message_waits_for_its_turn() {
    let busy = Busy { active: Some(active()), takes: false, waiting: 0, limit: LIMIT };
    assert_eq!(admit(OnBusy::Steer, &busy), Ok(Admission::Queue));
}

#[rstest]
#[case(Refusal::Held, "new runs are on hold; lift it with `quell hold off`")]
#[case(Refusal::QueueFull { waiting: 20 }, "20 messages already wait in this session, which is the limit; stop it or wait")]
fn a_refusal_says_what_to_do(#[case] refusal: Refusal, #[case] wanted: &str) {
    assert_eq!(refusal.to_string(), wanted);
}
