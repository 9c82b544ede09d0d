//! Ways to stop a run in the sweep, and how each is carried out.

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SweepStopMode {
    Gentle,
    /// Without grace.
    Forced,
    /// By its owner over HTTP and by an admin over WebSocket, on two threads at the same time.
    TwoCallers,
    /// Gently, while the sender of the message and the caller of the stop have disconnected.
    CallerGone,
}

#[derive(Debug)]
pub(super) struct SweepStopAnswers(pub(super) Vec<(Caller, StopResult)>);

impl SweepStopAnswers {
    /// The callers whose stop aborted the run.
    pub(super) fn callers_that_stopped(&self, run: &RunId) -> Vec<&Caller> {
        self.0.iter().filter(|(_, stop)| stop.aborted.contains(run)).map(|(caller, _)| caller).collect()
    }
}

/// Stops the run, synchronously on the current thread.
pub(super) fn stop_run(engine: &Engine, run: &RunId, mode: SweepStopMode) -> SweepStopAnswers {
    let stop = |caller: Caller, level| {
        let ask = StopRequest { level, reason: StopReason::User, surface: caller.surface };
        let stop = engine.stop(&caller, &run_stop_scope(run), &ask);
        (caller, stop)
    };
    match mode {
        SweepStopMode::Gentle | SweepStopMode::CallerGone => SweepStopAnswers(vec![stop(alice(), StopLevel::Gentle)]),
        SweepStopMode::Forced => SweepStopAnswers(vec![stop(alice(), StopLevel::Forced)]),
        SweepStopMode::TwoCallers => {
            let start = Barrier::new(2);
            let stop_as = |caller| {
                start.wait();
                stop(caller, StopLevel::Gentle)
            };
            std::thread::scope(|threads| {
                let stops = [alice(), root()].map(|caller| threads.spawn(|| stop_as(caller)));
                SweepStopAnswers(stops.into_iter().map(|stop| stop.join().unwrap()).collect())
            })
        }
    }
}

/// Polls each ticket of the stop once and drops it, like a caller that disconnects while it waits.
pub(super) async fn poll_tickets_once(answers: &SweepStopAnswers) {
    for ticket in answers.0.iter().flat_map(|(_, stop)| &stop.tickets) {
        let mut waiting = pin!(ticket.wait_settled());
        // The result does not matter: the run may be settled already.
        let _ = poll!(waiting.as_mut());
    }
}
