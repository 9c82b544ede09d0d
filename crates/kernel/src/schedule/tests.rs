//! Times of schedules: expressions and distances, clock changes, limits, and what is missed.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn cron(expression: &str, zone: &str) -> ScheduleRequest {
    ScheduleRequest { cron: Some(expression.into()), timezone: Some(zone.into()), ..ScheduleRequest::default() }
}

fn every(interval: &str) -> ScheduleRequest {
    ScheduleRequest { every: Some(interval.into()), ..ScheduleRequest::default() }
}

fn at(time: &str, zone: &str) -> ScheduleRequest {
    ScheduleRequest { at: Some(time.into()), timezone: Some(zone.into()), ..ScheduleRequest::default() }
}

fn timing(request: &ScheduleRequest) -> ScheduleTiming {
    ScheduleTiming::parse(request, "UTC").unwrap()
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn next_times(timing: &ScheduleTiming, after: &str, count: usize) -> Vec<String> {
    let next = |last: &Timestamp| timing.next_after(*last, *last);
    std::iter::successors(Some(time(after)), next).skip(1).take(count).map(|next| next.to_string()).collect()
}

const MINUTE: ScheduleRate = ScheduleRate { min_interval: Duration::from_secs(60) };

#[test]
fn a_cron_expression_is_read_in_its_time_zone() {
    let berlin = timing(&cron("0 9 * * mon-fri", "Europe/Berlin"));
    assert_eq!(
        next_times(&berlin, "2026-11-27T06:00:00Z", 2),
        ["2026-11-27T08:00:00Z", "2026-11-30T08:00:00Z"],
        "a Friday and the next Monday"
    );
    assert_eq!(
        next_times(&timing(&cron("0 9 * * *", "Asia/Seoul")), "2026-11-27T06:00:00Z", 1),
        ["2026-11-28T00:00:00Z"]
    );
}

#[test]
fn a_time_in_the_skipped_hour_fires_once_after_it() {
    // Berlin, 29 March 2026: 02:00 becomes 03:00, at 01:00 UTC.
    let fixed = timing(&cron("30 2 * * *", "Europe/Berlin"));
    assert_eq!(next_times(&fixed, "2026-03-28T12:00:00Z", 2), ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]);
    let often = timing(&cron("*/30 * * * *", "Europe/Berlin"));
    assert_eq!(
        next_times(&often, "2026-03-29T00:29:00Z", 3),
        ["2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"]
    );
}

#[test]
fn a_time_in_the_doubled_hour_fires_in_the_first() {
    // Berlin, 25 October 2026: 03:00 becomes 02:00, at 01:00 UTC.
    let fixed = timing(&cron("30 2 * * *", "Europe/Berlin"));
    assert_eq!(next_times(&fixed, "2026-10-24T12:00:00Z", 2), ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
    let often = timing(&cron("30 * * * *", "Europe/Berlin"));
    assert_eq!(
        next_times(&often, "2026-10-25T00:00:00Z", 3),
        ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"]
    );
}

#[test]
fn a_local_time_becomes_one_moment() {
    let first =
        |text, zone| timing(&at(text, zone)).next_after(time("2026-01-01T00:00:00Z"), time("2026-01-01T00:00:00Z"));
    assert_eq!(first("2026-12-24T18:00", "Europe/Berlin"), Some(time("2026-12-24T17:00:00Z")));
    assert_eq!(first("2026-12-24T18:00:00+09:00", "Europe/Berlin"), Some(time("2026-12-24T09:00:00Z")));
    assert_eq!(
        first("2026-03-29T02:30", "Europe/Berlin"),
        Some(time("2026-03-29T01:30:00Z")),
        "skipped: an hour later"
    );
    assert_eq!(first("2026-10-25T02:30", "Europe/Berlin"), Some(time("2026-10-25T00:30:00Z")), "doubled: the first");
}

#[rstest]
#[case::nothing(ScheduleRequest::default(), "one of `cron`, `every` and `at`")]
#[case::two(ScheduleRequest { every: Some("1h".into()), ..cron("* * * * *", "UTC") }, "one of `cron`, `every` and `at`")]
#[case::no_cron(cron("every day", "UTC"), "the cron expression \"every day\" is wrong")]
#[case::minute_60(cron("60 * * * *", "UTC"), "the cron expression")]
#[case::no_zone(cron("0 9 * * *", "Mars/Base"), "no time zone \"Mars/Base\"")]
#[case::no_unit(every("15"), "the distance \"15\"")]
#[case::zero(every("0m"), "the distance \"0m\"")]
#[case::negative(every("-5m"), "the distance \"-5m\"")]
#[case::long(every("99999999999999999d"), "the distance")]
#[case::century(every("40000d"), "ten years")]
#[case::no_time(at("tomorrow", "UTC"), "the time \"tomorrow\"")]
fn wrong_times_are_refused_with_an_example(#[case] request: ScheduleRequest, #[case] words: &str) {
    let error = ScheduleTiming::parse(&request, "UTC").unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
}

#[rstest]
#[case::past(at("2026-01-01T00:00:00Z", "UTC"), "in the past")]
#[case::far(at("2066-01-01T00:00:00Z", "UTC"), "ten years")]
#[case::never(cron("0 0 30 2 *", "UTC"), "never fires")]
#[case::often(every("59s"), "every 59 s, and 60 s are the least")]
#[case::seconds(cron("*/10 * * * * *", "UTC"), "every 10 s")]
#[case::pairs(cron("0,20 0 9 * * *", "UTC"), "every 20 s")]
fn limits_are_checked_when_a_schedule_is_made(#[case] request: ScheduleRequest, #[case] words: &str) {
    let error = timing(&request).first_after(time("2026-11-27T06:00:00Z"), MINUTE).unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
}

#[test]
fn distances_are_counted_from_a_whole_second() {
    let first = timing(&every("15m")).first_after(time("2026-11-27T06:00:00.642075372Z"), MINUTE).unwrap();
    assert_eq!(first, time("2026-11-27T06:15:00Z"));
}

#[test]
fn what_is_on_time_fires_and_what_is_late_follows_the_policy() {
    let (quarter, due) = (timing(&every("15m")), time("2026-11-27T06:00:00Z"));
    let decide = |now: &str, policy| decide_due(&quarter, due, time(now), policy);
    let next = |text: &str| Some(time(text));
    for policy in [MissedPolicy::Skip, MissedPolicy::Once] {
        assert_eq!(decide("2026-11-27T05:59:59Z", policy), DueDecision::Wait);
        let fire = DueDecision::Fire { due, missed: 0, next: next("2026-11-27T06:15:00Z") };
        assert_eq!(decide("2026-11-27T06:00:00Z", policy), fire);
        assert_eq!(decide("2026-11-27T06:01:00Z", policy), fire);
    }
    // An hour and a bit later: 06:00, 06:15, 06:30, 06:45, 07:00 have passed.
    let later = "2026-11-27T07:02:00Z";
    let next = next("2026-11-27T07:15:00Z");
    assert_eq!(decide(later, MissedPolicy::Skip), DueDecision::Skip { missed: 5, next });
    assert_eq!(decide(later, MissedPolicy::Once), DueDecision::Fire { due, missed: 4, next });
}

#[test]
fn a_single_time_is_over_once_it_was_due() {
    let request = at("2026-11-27T06:00:00Z", "UTC");
    let (single, due) = (timing(&request), time("2026-11-27T06:00:00Z"));
    assert_eq!(default_missed_policy(&request), MissedPolicy::Once);
    assert_eq!(default_missed_policy(&every("1h")), MissedPolicy::Skip);
    let a_day_later = time("2026-11-28T06:00:00Z");
    assert_eq!(
        decide_due(&single, due, a_day_later, MissedPolicy::Once),
        DueDecision::Fire { due, missed: 0, next: None }
    );
    assert_eq!(decide_due(&single, due, a_day_later, MissedPolicy::Skip), DueDecision::Skip { missed: 1, next: None });
}

#[test]
fn a_long_absence_is_counted_without_counting_forever() {
    let (minute, due) = (timing(&every("60s")), time("2016-01-01T00:00:00Z"));
    let decision = decide_due(&minute, due, time("2026-01-01T00:00:30Z"), MissedPolicy::Skip);
    assert_eq!(decision, DueDecision::Skip { missed: 1001, next: Some(time("2026-01-01T00:01:00Z")) });
}

fn any_timing() -> impl Strategy<Value = ScheduleTiming> {
    let zones =
        prop::sample::select(vec!["UTC", "Europe/Berlin", "America/New_York", "Asia/Seoul", "Australia/Lord_Howe"]);
    let crons = prop::sample::select(vec!["30 2 * * *", "*/7 * * * *", "0 */3 * * *", "15 1,2,3 * * sun", "0 9 1 * *"]);
    prop_oneof![
        (crons, zones).prop_map(|(expression, zone)| timing(&cron(expression, zone))),
        (60_u32..1_000_000).prop_map(|seconds| timing(&every(&format!("{seconds}s")))),
    ]
}

proptest! {
    /// However often one asks, and whatever the clock does, no firing comes twice, and none lies in the past.
    #[test]
    fn firings_move_forward_and_come_once(
        timing in any_timing(),
        start in 1_700_000_000_i64..1_900_000_000,
        jumps in prop::collection::vec(-100_000_i64..200_000, 1..40),
    ) {
        let mut now = start;
        let mut next_at = timing.next_after(Timestamp::from_second(start).unwrap(), Timestamp::from_second(start).unwrap()).unwrap();
        let mut last_fired: Option<Timestamp> = None;
        for jump in jumps {
            now += jump;
            let moment = Timestamp::from_second(now).unwrap();
            match decide_due(&timing, next_at, moment, MissedPolicy::Once) {
                DueDecision::Wait => prop_assert!(next_at > moment),
                DueDecision::Fire { due, next, .. } => {
                    prop_assert!(due <= moment);
                    prop_assert!(last_fired.is_none_or(|last| due > last), "{due} fired twice");
                    last_fired = Some(due);
                    next_at = next.unwrap();
                    prop_assert!(next_at > moment);
                }
                DueDecision::Skip { .. } => prop_assert!(false, "the policy makes up for missed firings"),
            }
        }
    }
}

#[test]
fn of_a_stop_and_a_resumption_the_later_one_stands() {
    assert!(stop_outlasts_resumption(3, 0), "it was never resumed");
    assert!(stop_outlasts_resumption(3, 2), "it was resumed before the stop");
    assert!(stop_outlasts_resumption(3, 3), "the stop has seen the resumption");
    assert!(!stop_outlasts_resumption(3, 4), "it was resumed after the stop");
}
