//! Which tool calls of one message may run at the same time.
//!
//! Calls start in the order of the message. A concurrent call runs beside other concurrent ones. An exclusive call
//! waits until all calls before it have ended, and all calls after it wait for its end. So a call sees the effects of
//! every exclusive call before it, and of none after it.

/// Whether a call may run beside others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallConcurrency {
    /// The call does not change what other calls see, such as a read, a search or a sub-run.
    Concurrent,
    /// The call may change what other calls see.
    Exclusive,
}

/// The calls of one message, with the state of each. A call is named by its index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallBatch {
    calls: Vec<BatchedCall>,
    /// Most calls that run at the same time; at least 1.
    max_running: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BatchedCall {
    concurrency: CallConcurrency,
    state: BatchedCallState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchedCallState {
    Waiting,
    Running,
    Ended,
}

impl CallBatch {
    /// A limit of 0 counts as 1.
    pub fn new(calls: impl IntoIterator<Item = CallConcurrency>, max_running: usize) -> Self {
        let waiting = |concurrency| BatchedCall { concurrency, state: BatchedCallState::Waiting };
        Self { calls: calls.into_iter().map(waiting).collect(), max_running: max_running.max(1) }
    }

    /// Marks all calls that may start now as running, and returns them in order.
    pub fn start_due(&mut self) -> Vec<usize> {
        let mut running = self.calls.iter().filter(|call| call.state == BatchedCallState::Running).count();
        let mut started = Vec::new();
        let mut is_first_open = true;
        for (index, call) in self.calls.iter_mut().enumerate() {
            match (call.state, call.concurrency) {
                (BatchedCallState::Ended, _) => continue,
                (BatchedCallState::Running, CallConcurrency::Concurrent) => {}
                (BatchedCallState::Running, CallConcurrency::Exclusive) => break,
                (BatchedCallState::Waiting, CallConcurrency::Exclusive) if is_first_open => {
                    call.state = BatchedCallState::Running;
                    started.push(index);
                    break;
                }
                (BatchedCallState::Waiting, CallConcurrency::Exclusive) => break,
                (BatchedCallState::Waiting, CallConcurrency::Concurrent) => {
                    if running == self.max_running {
                        break;
                    }
                    call.state = BatchedCallState::Running;
                    running += 1;
                    started.push(index);
                }
            }
            is_first_open = false;
        }
        started
    }

    /// Marks a call as ended. A call that did not run is not changed.
    pub fn end_call(&mut self, index: usize) {
        if let Some(call) = self.calls.get_mut(index)
            && call.state == BatchedCallState::Running
        {
            call.state = BatchedCallState::Ended;
        }
    }
}

#[cfg(test)]
mod tests {
    use CallConcurrency::{Concurrent, Exclusive};
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::reads_together(&[Concurrent, Concurrent, Concurrent], &[0, 1, 2])]
    #[case::a_write_alone(&[Exclusive, Exclusive], &[0])]
    #[case::reads_after_a_write_wait(&[Exclusive, Concurrent], &[0])]
    #[case::a_write_waits_for_reads(&[Concurrent, Exclusive, Concurrent], &[0])]
    #[case::no_calls(&[], &[])]
    fn the_first_calls_are_those_before_a_barrier(#[case] calls: &[CallConcurrency], #[case] started: &[usize]) {
        assert_eq!(CallBatch::new(calls.iter().copied(), 8).start_due(), started);
    }

    #[test]
    fn a_call_that_ends_makes_place_for_the_next() {
        let mut batch = CallBatch::new([Concurrent; 3], 2);
        assert_eq!(batch.start_due(), [0, 1]);
        assert_eq!(batch.start_due(), [0; 0], "both places are taken");
        batch.end_call(1);
        assert_eq!(batch.start_due(), [2]);
    }

    #[test]
    fn a_write_starts_when_all_before_it_have_ended() {
        let mut batch = CallBatch::new([Concurrent, Concurrent, Exclusive, Concurrent], 8);
        assert_eq!(batch.start_due(), [0, 1]);
        batch.end_call(0);
        assert_eq!(batch.start_due(), [0; 0]);
        batch.end_call(1);
        assert_eq!(batch.start_due(), [2]);
        assert_eq!(batch.start_due(), [0; 0], "the last call waits for the write");
        batch.end_call(2);
        assert_eq!(batch.start_due(), [3]);
    }

    #[test]
    fn a_call_that_did_not_run_cannot_end() {
        let mut batch = CallBatch::new([Exclusive, Exclusive], 1);
        batch.end_call(1);
        batch.end_call(7);
        assert_eq!(batch.start_due(), [0]);
        assert_eq!(batch.start_due(), [0; 0], "the first call has not ended");
    }

    #[test]
    fn a_limit_of_zero_runs_one_call_at_a_time() {
        assert_eq!(CallBatch::new([Concurrent, Concurrent], 0).start_due(), [0]);
    }

    proptest! {
        /// Ends running calls in any order: each call starts once, in order, and an exclusive one runs alone.
        #[test]
        fn every_call_starts_once_and_an_exclusive_one_alone(
            kinds in prop::collection::vec(prop::bool::ANY, 0..12),
            max in 0_usize..5,
            picks in prop::collection::vec(any::<prop::sample::Index>(), 12),
        ) {
            let kinds: Vec<_> = kinds.into_iter().map(|alone| if alone { Exclusive } else { Concurrent }).collect();
            let mut batch = CallBatch::new(kinds.iter().copied(), max);
            let (mut running, mut started): (Vec<usize>, Vec<usize>) = Default::default();
            let mut picks = picks.into_iter();
            loop {
                let due = batch.start_due();
                started.extend(&due);
                running.extend(&due);
                prop_assert!(running.len() <= max.max(1));
                let has_exclusive = running.iter().any(|index| kinds[*index] == Exclusive);
                prop_assert!(!has_exclusive || running.len() == 1, "{running:?}");
                if running.is_empty() {
                    break;
                }
                let pick = picks.next().unwrap().index(running.len());
                batch.end_call(running.swap_remove(pick));
            }
            prop_assert_eq!(started, (0..kinds.len()).collect::<Vec<_>>());
        }
    }
}
