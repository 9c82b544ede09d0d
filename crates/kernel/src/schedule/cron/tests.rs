//! Cron expressions: their syntax, the times that they name, and changes of the clock.

use jiff::civil::DateTime;
use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn expression(text: &str) -> CronExpression {
    CronExpression::parse(text).unwrap()
}

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).unwrap()
}

/// The next times on the wall clock.
fn next_local(text: &str, zone_name: &str, after: &str, count: usize) -> Vec<String> {
    let (expression, zone) = (expression(text), zone(zone_name));
    let after = zone.to_ambiguous_timestamp(after.parse::<DateTime>().unwrap()).compatible().unwrap();
    let next = |last: &Timestamp| expression.next_after(*last, &zone);
    let times = std::iter::successors(Some(after), next).skip(1).take(count);
    times.map(|time| time.to_zoned(zone.clone()).strftime("%a %F %T %Z").to_string()).collect()
}

#[rstest]
#[case::minutes("*/20 * * * *", &["Sun 2026-11-01 00:20:00 UTC", "Sun 2026-11-01 00:40:00 UTC", "Sun 2026-11-01 01:00:00 UTC"])]
#[case::list("5,50 4-5 * * *", &["Sun 2026-11-01 04:05:00 UTC", "Sun 2026-11-01 04:50:00 UTC", "Sun 2026-11-01 05:05:00 UTC"])]
#[case::range_with_step("0 8-18/5 * * *", &["Sun 2026-11-01 08:00:00 UTC", "Sun 2026-11-01 13:00:00 UTC", "Sun 2026-11-01 18:00:00 UTC", "Mon 2026-11-02 08:00:00 UTC"])]
#[case::seconds("*/40 59 23 * * *", &["Sun 2026-11-01 23:59:00 UTC", "Sun 2026-11-01 23:59:40 UTC", "Mon 2026-11-02 23:59:00 UTC"])]
#[case::years("0 0 12 1 1 * 2030-2040/5", &["Tue 2030-01-01 12:00:00 UTC", "Mon 2035-01-01 12:00:00 UTC", "Sun 2040-01-01 12:00:00 UTC"])]
#[case::workdays("0 9 * * mon-fri", &["Mon 2026-11-02 09:00:00 UTC"])]
#[case::weekend("0 9 * * SAT-SUN", &["Sun 2026-11-01 09:00:00 UTC", "Sat 2026-11-07 09:00:00 UTC"])]
#[case::sunday_0("0 9 * * 0", &["Sun 2026-11-01 09:00:00 UTC", "Sun 2026-11-08 09:00:00 UTC"])]
#[case::sunday_7("0 9 * * 7", &["Sun 2026-11-01 09:00:00 UTC", "Sun 2026-11-08 09:00:00 UTC"])]
#[case::months("0 0 1 Jan,jul *", &["Fri 2027-01-01 00:00:00 UTC", "Thu 2027-07-01 00:00:00 UTC"])]
#[case::leap_day("0 0 29 2 *", &["Tue 2028-02-29 00:00:00 UTC", "Sun 2032-02-29 00:00:00 UTC"])]
#[case::either_day("0 0 13 * fri", &["Fri 2026-11-06 00:00:00 UTC", "Fri 2026-11-13 00:00:00 UTC"])]
#[case::lone_last("0 9 * * fri,L", &["Fri 2026-11-06 09:00:00 UTC", "Fri 2026-11-13 09:00:00 UTC"])]
#[case::both_days("0 0 13 * +fri", &["Fri 2026-11-13 00:00:00 UTC", "Fri 2027-08-13 00:00:00 UTC"])]
#[case::question_mark("0 0 ? * 3", &["Wed 2026-11-04 00:00:00 UTC", "Wed 2026-11-11 00:00:00 UTC"])]
#[case::last_day("0 0 L 1,2,4 *", &["Sun 2027-01-31 00:00:00 UTC", "Sun 2027-02-28 00:00:00 UTC", "Fri 2027-04-30 00:00:00 UTC"])]
#[case::last_workday("0 0 LW 1,2,4 *", &["Fri 2027-01-29 00:00:00 UTC", "Fri 2027-02-26 00:00:00 UTC", "Fri 2027-04-30 00:00:00 UTC"])]
#[case::nearest_workday("0 0 15W * *", &["Mon 2026-11-16 00:00:00 UTC", "Tue 2026-12-15 00:00:00 UTC", "Fri 2027-01-15 00:00:00 UTC"])]
#[case::nearest_in_month("0 0 1W,31W * *", &["Mon 2026-11-02 00:00:00 UTC", "Tue 2026-12-01 00:00:00 UTC", "Thu 2026-12-31 00:00:00 UTC", "Fri 2027-01-01 00:00:00 UTC", "Fri 2027-01-29 00:00:00 UTC"])]
#[case::second_tuesday("0 0 * * tue#2", &["Tue 2026-11-10 00:00:00 UTC", "Tue 2026-12-08 00:00:00 UTC"])]
#[case::last_friday("0 0 * * friL", &["Fri 2026-11-27 00:00:00 UTC", "Fri 2026-12-25 00:00:00 UTC"])]
#[case::yearly("@yearly", &["Fri 2027-01-01 00:00:00 UTC", "Sat 2028-01-01 00:00:00 UTC"])]
#[case::monthly("@monthly", &["Tue 2026-12-01 00:00:00 UTC"])]
#[case::weekly("@weekly", &["Sun 2026-11-08 00:00:00 UTC"])]
#[case::daily(" @DAILY ", &["Mon 2026-11-02 00:00:00 UTC"])]
#[case::hourly("@hourly", &["Sun 2026-11-01 01:00:00 UTC"])]
#[case::never("0 0 30 2 *", &[])]
#[case::never_with_step("*/5 * 31 4,6,9,11 *", &[])]
#[case::over("0 0 0 1 1 * 2020", &[])]
fn expressions_name_these_times(#[case] text: &str, #[case] times: &[&str]) {
    assert_eq!(next_local(text, "UTC", "2026-11-01T00:00", times.len().max(1)), times);
}

#[rstest]
#[case::empty("", "0 fields")]
#[case::four("* * * *", "4 fields")]
#[case::eight("* * * * * * * *", "8 fields")]
#[case::nickname("@often", "1 fields")]
#[case::minute("60 * * * *", "60 is not from 0 to 59")]
#[case::hour("0 24 * * *", "24 is not from 0 to 23")]
#[case::day("0 0 0 * *", "0 is not from 1 to 31")]
#[case::month("0 0 1 13 *", "13 is not from 1 to 12")]
#[case::weekday("0 0 * * 8", "8 is not from 0 to 7")]
#[case::year("0 0 0 1 1 * 5001", "5001 is not from 1 to 5000")]
#[case::backwards("0 0 * * fri-mon", "\"5-1\" goes backwards")]
#[case::step_0("*/0 * * * *", "0 is not from 1")]
#[case::step_of_a_number("5/10 * * * *", "without a range")]
#[case::word("0 0 * * someday", "is no number")]
#[case::sign("+5 * * * *", "is no number")]
#[case::nth("0 0 * * 5#6", "6 is not from 1 to 5")]
#[case::workday("0 0 32W * *", "32 is not from 1 to 31")]
#[case::empty_list(", * * * *", "has nothing in it")]
#[case::last_minute("L * * * *", "is no number")]
fn wrong_expressions_say_what_is_wrong(#[case] text: &str, #[case] words: &str) {
    let error = CronExpression::parse(text).unwrap_err();
    assert!(error.contains(words), "{error}");
}

#[rstest]
// Berlin, 29 March 2026: 02:00 becomes 03:00.
#[case::skipped("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", &["Sun 2026-03-29 03:00:00 CEST", "Mon 2026-03-30 02:30:00 CEST"])]
#[case::skipped_list("15,45 2 * * *", "Europe/Berlin", "2026-03-28T12:00", &["Mon 2026-03-30 02:15:00 CEST"])]
#[case::skipped_date("30 2 29 3 *", "Europe/Berlin", "2026-03-28T12:00", &["Sun 2026-03-29 03:00:00 CEST"])]
#[case::second_before("30 2 * * *", "Europe/Berlin", "2026-03-29T01:59:59", &["Sun 2026-03-29 03:00:00 CEST"])]
// Berlin, 25 October 2026: 03:00 becomes 02:00.
#[case::doubled("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", &["Sun 2026-10-25 02:30:00 CEST", "Mon 2026-10-26 02:30:00 CET"])]
#[case::doubled_step("*/30 2 * * *", "Europe/Berlin", "2026-10-25T02:00", &["Sun 2026-10-25 02:30:00 CEST", "Sun 2026-10-25 02:00:00 CET", "Sun 2026-10-25 02:30:00 CET", "Mon 2026-10-26 02:00:00 CET"])]
// Half an hour, on 5 April 2026.
#[case::half_an_hour("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00", &["Sun 2026-04-05 01:45:00 +11", "Mon 2026-04-06 01:45:00 +1030"])]
// Havana skips midnight on 8 March 2026.
#[case::midnight("0 0 * * *", "America/Havana", "2026-03-07T12:00", &["Sun 2026-03-08 01:00:00 CDT", "Mon 2026-03-09 00:00:00 CDT"])]
#[case::second_before_midnight("0 0 * * *", "America/Havana", "2026-03-07T23:59:59", &["Sun 2026-03-08 01:00:00 CDT"])]
// Apia had no 30 December 2011.
#[case::no_such_day("0 9 30 12 *", "Pacific/Apia", "2011-12-01T00:00", &["Sun 2012-12-30 09:00:00 +14"])]
fn clock_changes_move_fixed_times_and_repeat_others(
    #[case] text: &str,
    #[case] zone_name: &str,
    #[case] after: &str,
    #[case] times: &[&str],
) {
    assert_eq!(next_local(text, zone_name, after, times.len()), times);
}

/// A list that repeats its years costs no more for each day than one without repeats.
#[test]
fn repeated_years_are_one_year_each() {
    let text = format!("0 0 0 31 * +1#1 {}*", "1-2000,".repeat(26));
    assert_eq!(expression(&text).years.unwrap().len(), 5000);
}

#[test]
fn parts_of_a_second_are_not_lost() {
    let after = "2026-11-01T08:59:59.75Z".parse().unwrap();
    let next = expression("0 9 * * *").next_after(after, &TimeZone::UTC);
    assert_eq!(next, Some("2026-11-01T09:00:00Z".parse().unwrap()));
    assert_eq!(
        expression("0 9 * * *").next_after(next.unwrap(), &TimeZone::UTC).unwrap().to_string(),
        "2026-11-02T09:00:00Z"
    );
}

fn any_field(max: u16) -> impl Strategy<Value = String> {
    let range = (0..=max, 0..=max).prop_map(|(a, b)| (a.min(b), a.max(b)));
    prop_oneof![
        Just("*".to_owned()),
        (1..=max).prop_map(|step| format!("*/{step}")),
        range.clone().prop_map(|(first, last)| format!("{first}-{last}")),
        (range, 1..=max).prop_map(|((first, last), step)| format!("{first}-{last}/{step}")),
        prop::collection::vec(0..=max, 2..5)
            .prop_map(|list| { list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",") }),
    ]
}

proptest! {
    /// Near changes of the clock: the next time is the first minute at which the clock shows a named time.
    #[test]
    fn repeated_times_are_those_that_the_clock_shows(
        minute in any_field(59),
        hour in any_field(23),
        zone_name in prop::sample::select(vec!["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana"]),
        year in 2000_i64..2037,
        change in 0_usize..3,
        minutes_from_change in -1500_i64..1500,
    ) {
        let (text, zone) = (format!("{minute} {hour} * * *"), zone(zone_name));
        let expression = expression(&text);
        prop_assume!(!expression.is_fixed_time);
        let year_start = Timestamp::from_second((year - 1970) * 365 * 86_400).unwrap();
        let change = zone.following(year_start).nth(change).map_or(year_start, |change| change.timestamp());
        let after = change + SignedDuration::from_mins(minutes_from_change);
        let shows_named_time = |time: &Timestamp| {
            let shown = zone.to_datetime(*time);
            has_bit(expression.minutes, shown.minute()) && has_bit(expression.hours, shown.hour())
        };
        // Three days have every time of a day in each of these zones.
        let minutes = (1..3 * 24 * 60).map(|minutes| after + SignedDuration::from_mins(minutes));
        prop_assert_eq!(expression.next_after(after, &zone), minutes.into_iter().find(shows_named_time), "{} in {}", text, zone_name);
    }
}
