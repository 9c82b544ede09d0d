//! Leases: which node of a cluster owns a session, and what the owner must do while its lease runs out.
//!
//! The database keeps one row for each session and compares times with its own clock only. A node measures with its
//! monotonic clock, from the moment at which it *sent* a renewal: the database received it later, so its lease ends
//! later, too. So no two clocks are ever compared, and a node may be minutes off.
//!
//! An owner that cannot renew ends everything before another node can take the lease ([`HeldLease::duty`]). If it
//! cannot do that either, because it hangs or is stopped, its wardens end their processes
//! ([`HeldLease::processes_end_at`]), and the database refuses its writes ([`LeaseRow::permits_write`]).

#[cfg(test)]
mod simulation;

use std::time::Duration;

use crate::Moment;

/// The number of an ownership; each one has a higher number than all before it.
pub type Epoch = u64;

/// Times that follow from the length of a lease (`lease_ms`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTiming {
    lease: Duration,
}

impl LeaseTiming {
    /// `lease` is the time after which a silent owner counts as dead.
    #[must_use]
    pub fn new(lease: Duration) -> Self {
        Self { lease }
    }

    #[must_use]
    pub fn lease(self) -> Duration {
        self.lease
    }

    /// Between two renewals: three may fail in a row before work has to end.
    #[must_use]
    pub fn renewal_interval(self) -> Duration {
        self.lease / 6
    }

    /// Work goes on for this long after the last confirmed renewal was sent.
    fn working_time(self) -> Duration {
        self.lease * 6 / 10
    }

    /// The processes of a silent owner live for this long after it. The rest of the lease is for a clock that runs slowly,
    /// and for the kernel to end them.
    fn process_time(self) -> Duration {
        self.lease * 8 / 10
    }
}

/// A lease as its owner knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLease {
    epoch: Epoch,
    /// When the last confirmed request was sent, by the owner's clock.
    confirmed: Moment,
    /// When the last request was sent.
    requested: Moment,
}

/// What the owner of a lease has to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseDuty {
    /// Nothing before this moment.
    WaitUntil(Moment),
    /// Ask the database for a renewal.
    Renew,
    /// Stop all work by force, and write nothing more with this epoch.
    EndEverything,
}

impl HeldLease {
    /// A lease that the database granted to a request sent at `sent`.
    #[must_use]
    pub fn granted(epoch: Epoch, sent: Moment) -> Self {
        Self { epoch, confirmed: sent, requested: sent }
    }

    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Notes that a renewal was sent.
    pub fn request_sent(&mut self, at: Moment) {
        self.requested = self.requested.max(at);
    }

    /// Notes that the renewal sent at `sent` was granted. Answers may arrive in any order. One that arrives when the time
    /// for work is over changes nothing: the work is ending.
    pub fn renewed(&mut self, sent: Moment, now: Moment, timing: LeaseTiming) {
        if self.permits_work(now, timing) {
            self.confirmed = self.confirmed.max(sent);
        }
    }

    /// When the owner ends its work, unless a renewal is confirmed before.
    #[must_use]
    pub fn work_ends_at(&self, timing: LeaseTiming) -> Moment {
        self.confirmed.plus(timing.working_time())
    }

    /// Whether the owner may begin or go on with anything. Checked before each write and each effect: a process that was
    /// paused finds out here.
    #[must_use]
    pub fn permits_work(&self, now: Moment, timing: LeaseTiming) -> bool {
        now < self.confirmed.plus(timing.working_time())
    }

    #[must_use]
    pub fn duty(&self, now: Moment, timing: LeaseTiming) -> LeaseDuty {
        if !self.permits_work(now, timing) {
            return LeaseDuty::EndEverything;
        }
        let renewal = self.requested.plus(timing.renewal_interval());
        if now >= renewal {
            return LeaseDuty::Renew;
        }
        LeaseDuty::WaitUntil(renewal.min(self.confirmed.plus(timing.working_time())))
    }

    /// When the lease ends at the earliest, unless a renewal is confirmed before.
    #[must_use]
    pub fn ends_at(&self, timing: LeaseTiming) -> Moment {
        self.confirmed.plus(timing.lease)
    }

    /// When the wardens end the processes of this session by themselves, unless they are given a later moment.
    #[must_use]
    pub fn processes_end_at(&self, timing: LeaseTiming) -> Moment {
        self.confirmed.plus(timing.process_time())
    }
}

/// The row of a session in the database. Times are those of the database's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRow<N> {
    pub owner: N,
    pub epoch: Epoch,
    pub expires_at: Moment,
}

/// The answer to a node that wants to own a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakeOutcome<N> {
    /// The row as it is now. In the same transaction the new owner settles what the last one has left: its runs, and the
    /// stops that wait.
    Taken(LeaseRow<N>),
    OwnedBy {
        owner: N,
        until: Moment,
    },
}

/// What the database knows besides the row when a renewal arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenewalTerms {
    pub timing: LeaseTiming,
    /// A stop of the session, or of a run in it, is stored and not settled.
    pub has_waiting_stop: bool,
}

/// The answer to a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RenewOutcome {
    Renewed,
    /// The lease goes on to its end as it was. The owner carries out the stop that waits; then it renews again.
    StopFirst,
    /// It is not the caller's any more: everything ends.
    Lost,
}

impl<N: Clone + PartialEq> LeaseRow<N> {
    /// What a transaction does that wants the lease for `node`. A node never takes over its own lease: it may be the
    /// next start after a crash, which does not know what the last one has left.
    #[must_use]
    pub fn take(row: Option<&Self>, node: N, now: Moment, timing: LeaseTiming) -> TakeOutcome<N> {
        match row {
            Some(row) if now < row.expires_at => {
                TakeOutcome::OwnedBy { owner: row.owner.clone(), until: row.expires_at }
            }
            _ => {
                let epoch = row.map_or(0, |row| row.epoch) + 1;
                TakeOutcome::Taken(Self { owner: node, epoch, expires_at: now.plus(timing.lease()) })
            }
        }
    }

    /// What a transaction does that renews the lease. A lease that has expired is not renewed, although nobody has taken
    /// it: its owner has ended everything. A lease with a stop that waits is not renewed either, so that the stop is
    /// settled within one lease even if its owner falls silent right after it has asked.
    pub fn renew(&mut self, node: &N, epoch: Epoch, now: Moment, terms: RenewalTerms) -> RenewOutcome {
        if self.owner != *node || self.epoch != epoch || now >= self.expires_at {
            return RenewOutcome::Lost;
        }
        if terms.has_waiting_stop {
            return RenewOutcome::StopFirst;
        }
        self.expires_at = self.expires_at.max(now.plus(terms.timing.lease()));
        RenewOutcome::Renewed
    }

    /// Whether a write of the owner with this epoch is accepted, checked in its transaction. The time does not count: as
    /// long as nobody has taken the lease, nobody else writes.
    #[must_use]
    pub fn permits_write(&self, epoch: Epoch) -> bool {
        self.epoch == epoch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: LeaseTiming = LeaseTiming { lease: Duration::from_millis(10_000) };

    fn at(ms: u64) -> Moment {
        Moment(Duration::from_millis(ms))
    }

    #[test]
    fn a_lease_is_renewed_in_time_and_given_up_before_it_expires() {
        let mut lease = HeldLease::granted(1, at(0));
        assert_eq!(lease.duty(at(0), TIMING), LeaseDuty::WaitUntil(at(1_666).plus(Duration::from_nanos(666_666))));
        assert_eq!(lease.duty(at(1_700), TIMING), LeaseDuty::Renew);
        lease.request_sent(at(1_700));
        assert!(matches!(lease.duty(at(1_700), TIMING), LeaseDuty::WaitUntil(_)));
        lease.renewed(at(1_700), at(1_800), TIMING);
        assert_eq!(lease.processes_end_at(TIMING), at(9_700));
        assert!(lease.permits_work(at(7_699), TIMING));
        assert_eq!(lease.duty(at(7_700), TIMING), LeaseDuty::EndEverything);
        // An answer that comes late gives nothing back.
        lease.renewed(at(7_000), at(7_700), TIMING);
        assert_eq!(lease.duty(at(7_700), TIMING), LeaseDuty::EndEverything);
    }

    #[test]
    fn an_older_answer_does_not_shorten_a_lease() {
        let mut lease = HeldLease::granted(1, at(0));
        lease.renewed(at(3_000), at(3_100), TIMING);
        lease.renewed(at(2_000), at(3_200), TIMING);
        assert!(lease.permits_work(at(8_999), TIMING));
    }

    #[test]
    fn a_row_has_one_owner_at_a_time() {
        let TakeOutcome::Taken(mut row) = LeaseRow::take(None, "a", at(0), TIMING) else { panic!("it is free") };
        assert_eq!((row.epoch, row.expires_at), (1, at(10_000)));
        assert_eq!(
            LeaseRow::take(Some(&row), "b", at(9_999), TIMING),
            TakeOutcome::OwnedBy { owner: "a", until: at(10_000) }
        );
        let terms = RenewalTerms { timing: TIMING, has_waiting_stop: false };
        let stop = RenewalTerms { has_waiting_stop: true, ..terms };
        assert_eq!(row.renew(&"a", 1, at(9_000), stop), RenewOutcome::StopFirst);
        assert_eq!(row.expires_at, at(10_000), "a stop is settled within the lease that it met");
        assert_eq!(row.renew(&"a", 1, at(9_999), terms), RenewOutcome::Renewed);
        assert_eq!(row.renew(&"b", 1, at(10_000), terms), RenewOutcome::Lost);
        let TakeOutcome::Taken(mut next) = LeaseRow::take(Some(&row), "b", at(19_999), TIMING) else {
            panic!("it has expired")
        };
        assert_eq!(next.epoch, 2);
        assert!(!next.permits_write(1) && next.permits_write(2));
        assert_eq!(next.renew(&"a", 1, at(19_999), terms), RenewOutcome::Lost);
        assert_eq!(row.renew(&"a", 1, at(19_999), terms), RenewOutcome::Lost, "nobody renews what has expired");
    }
}
