//! Cron expressions: which times of the wall clock they name, and the next moment after another one in a time zone.
//!
//! An expression has five fields, minute, hour, day, month and weekday; a sixth in front of them is the second, and a
//! seventh behind them the year. The syntax of fields is in `parse.rs`.

mod parse;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp, ToSpan};

/// Years end here, so that the search for an expression that never fires ends, too.
const MAX_YEAR: i16 = 5000;
const END_OF_SEARCH: DateTime = DateTime::constant(MAX_YEAR, 12, 31, 23, 59, 59, 0);

/// A cron expression. Sets of numbers are bit masks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CronExpression {
    seconds: u64,
    minutes: u64,
    hours: u64,
    days: MonthDays,
    months: u64,
    weekdays: Weekdays,
    /// Whether a day has to satisfy both the field of days and that of weekdays, which neither is `*`.
    needs_both_days: bool,
    /// Every year if `None`.
    years: Option<BTreeSet<u16>>,
    /// Second, minute and hour are one number each: the expression names one time of a day.
    is_fixed_time: bool,
}

/// The field of the day of the month.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct MonthDays {
    is_star: bool,
    every: u64,
    /// `L`.
    last: bool,
    /// `LW`.
    last_workday: bool,
    /// `15W`: the day from Monday to Friday that is nearest to these days, in the same month.
    nearest_workday: u64,
}

/// The field of the weekday. Bit 0 is Sunday.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Weekdays {
    is_star: bool,
    every: u64,
    /// `5#2`: the second Friday of the month.
    nth: [u64; 5],
    /// `5L`: the last Friday of the month.
    last: u64,
}

impl CronExpression {
    /// The next time after `after`.
    ///
    /// Where clocks go forward, a fixed time that is skipped counts for the first moment after the gap; where they go
    /// back, it counts the first time. Other expressions count whenever the clock shows a time that they name.
    pub(super) fn next_after(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let whole_second = Timestamp::from_second(after.as_second()).ok()?;
        let start = whole_second.checked_add(SignedDuration::from_secs(1)).ok()?;
        if self.is_fixed_time {
            self.next_fixed_time(after, whole_second, zone)
        } else {
            self.next_shown_time(start, zone)
        }
    }

    fn next_fixed_time(&self, after: Timestamp, whole_second: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        // On the wall clock: the next real second may lie behind a gap that skips a named time.
        let mut from = zone.to_datetime(whole_second).checked_add(1.second()).ok()?;
        loop {
            let named = self.next_civil(from, END_OF_SEARCH)?;
            let fires_at = match zone.to_ambiguous_timestamp(named).offset() {
                AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
                    offset.to_timestamp(named).ok()?
                }
                AmbiguousOffset::Gap { after: offset, .. } => {
                    zone.following(offset.to_timestamp(named).ok()?).next()?.timestamp()
                }
            };
            if fires_at > after && self.names_date(zone.to_datetime(fires_at).date()) {
                return Some(fires_at);
            }
            from = named.checked_add(1.second()).ok()?;
        }
    }

    /// The first moment from `start` on at which the clock shows a named time. Between two changes of the clock it runs
    /// evenly, so they are searched one by one.
    fn next_shown_time(&self, mut start: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        loop {
            let offset = zone.to_offset(start);
            let change = zone.following(start).next().map_or(Timestamp::MAX, |change| change.timestamp());
            let until = offset.to_datetime(change).min(END_OF_SEARCH);
            if let Some(named) = self.next_civil(offset.to_datetime(start), until) {
                return offset.to_timestamp(named).ok();
            }
            if until == END_OF_SEARCH {
                return None;
            }
            start = change;
        }
    }

    /// The first named time of the wall clock in a range without its end.
    fn next_civil(&self, from: DateTime, until: DateTime) -> Option<DateTime> {
        let (mut date, mut earliest) = (from.date(), from.time());
        while date <= until.date() {
            if self.names_date(date)
                && let Some(time) = self.next_time(earliest)
            {
                return Some(date.to_datetime(time)).filter(|named| *named < until);
            }
            date = if !self.names_year(date.year()) {
                Date::new(date.year().checked_add(1)?, 1, 1).ok()?
            } else if !has_bit(self.months, date.month()) {
                date.first_of_month().checked_add(1.month()).ok()?
            } else {
                date.tomorrow().ok()?
            };
            earliest = Time::midnight();
        }
        None
    }

    fn next_time(&self, earliest: Time) -> Option<Time> {
        let mut hour = next_bit(self.hours, earliest.hour())?;
        if hour == earliest.hour() {
            if let Some((minute, second)) = self.next_minute(earliest.minute(), earliest.second()) {
                return Time::new(hour, minute, second, 0).ok();
            }
            hour = next_bit(self.hours, hour + 1)?;
        }
        let (minute, second) = self.next_minute(0, 0)?;
        Time::new(hour, minute, second, 0).ok()
    }

    /// The first minute and second of an hour from these on.
    fn next_minute(&self, minute: i8, second: i8) -> Option<(i8, i8)> {
        let found = next_bit(self.minutes, minute)?;
        if found == minute
            && let Some(second) = next_bit(self.seconds, second)
        {
            return Some((minute, second));
        }
        let later = if found == minute { next_bit(self.minutes, minute + 1)? } else { found };
        Some((later, next_bit(self.seconds, 0)?))
    }

    fn names_year(&self, year: i16) -> bool {
        let named = |years: &BTreeSet<u16>| u16::try_from(year).is_ok_and(|year| years.contains(&year));
        self.years.as_ref().is_none_or(named)
    }

    fn names_date(&self, date: Date) -> bool {
        let names_day = || match (self.days.is_star, self.weekdays.is_star) {
            (true, true) => true,
            (false, true) => self.days.contains(date),
            (true, false) => self.weekdays.contains(date),
            (false, false) if self.needs_both_days => self.days.contains(date) && self.weekdays.contains(date),
            (false, false) => self.days.contains(date) || self.weekdays.contains(date),
        };
        has_bit(self.months, date.month()) && self.names_year(date.year()) && names_day()
    }
}

impl MonthDays {
    fn contains(&self, date: Date) -> bool {
        let last = date.last_of_month();
        has_bit(self.every, date.day())
            || (self.last && date == last)
            || (self.last_workday && nearest_workday(last) == date)
            // A weekend moves a day by two at most.
            || (date.day() - 2..=date.day() + 2)
                .filter(|day| (1..=last.day()).contains(day) && has_bit(self.nearest_workday, *day))
                .any(|day| Date::new(date.year(), date.month(), day).is_ok_and(|wanted| nearest_workday(wanted) == date))
    }
}

/// Saturday counts for the Friday before it and Sunday for the Monday after it, unless that is in another month.
fn nearest_workday(date: Date) -> Date {
    let days = match date.weekday() {
        Weekday::Saturday if date.day() == 1 => 2,
        Weekday::Saturday => -1,
        Weekday::Sunday if date == date.last_of_month() => -2,
        Weekday::Sunday => 1,
        Weekday::Monday | Weekday::Tuesday | Weekday::Wednesday | Weekday::Thursday | Weekday::Friday => 0,
    };
    date.saturating_add(days.days())
}

impl Weekdays {
    fn contains(&self, date: Date) -> bool {
        let weekday = date.weekday().to_sunday_zero_offset();
        let week_of_month = usize::try_from((date.day() - 1) / 7).unwrap_or_default();
        has_bit(self.every, weekday)
            || self.nth.get(week_of_month).is_some_and(|weekdays| has_bit(*weekdays, weekday))
            || (has_bit(self.last, weekday) && date.day() + 7 > date.days_in_month())
    }
}

fn has_bit(mask: u64, number: i8) -> bool {
    next_bit(mask, number) == Some(number)
}

/// The smallest number of a set from this one on.
fn next_bit(mask: u64, from: i8) -> Option<i8> {
    let rest = mask.checked_shr(u32::try_from(from).ok()?)?;
    if rest == 0 { None } else { from.checked_add(i8::try_from(rest.trailing_zeros()).ok()?) }
}
