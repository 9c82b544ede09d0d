//! Parse the fields of a cron expression.
//!
//! A field is `*` or a list of numbers, ranges (`1-5`) and steps (`*/15`, `10-50/20`), separated by commas. Months and
//! weekdays have names of three letters; Sunday is 0 or 7. `?` in the field of days or weekdays is `*`. Days may be `L`
//! (the last of the month), `LW` (its last workday) and `15W`; weekdays `5#2`, `5L` and, with `+` in front of the field,
//! only those that the field of days names, too. `@yearly`, `@monthly`, `@weekly`, `@daily` and `@hourly` stand for
//! expressions.

use super::{CronExpression, MAX_YEAR, MonthDays, Weekdays};

const NAMES: [(&str, &str); 20] = [
    // Before `sun`: a range ends with Sunday as the seventh day.
    ("-sun", "-7"),
    ("sun", "0"),
    ("mon", "1"),
    ("tue", "2"),
    ("wed", "3"),
    ("thu", "4"),
    ("fri", "5"),
    ("sat", "6"),
    ("jan", "1"),
    ("feb", "2"),
    ("mar", "3"),
    ("apr", "4"),
    ("may", "5"),
    ("jun", "6"),
    ("jul", "7"),
    ("aug", "8"),
    ("sep", "9"),
    ("oct", "10"),
    ("nov", "11"),
    ("dec", "12"),
];

/// Numbers of a field of times.
struct ParsedField {
    mask: u64,
    /// It is one number, and neither `*` nor a step.
    is_single: bool,
}

impl CronExpression {
    /// # Errors
    /// Says what is wrong, for people.
    pub(in crate::schedule) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim().to_lowercase();
        let expanded = expand_nickname(&text);
        let numbers = NAMES.iter().fold(expanded.to_owned(), |text, (name, number)| text.replace(name, number));
        let fields: Vec<&str> = numbers.split_whitespace().collect();
        if let Some(field) = fields.iter().find(|field| list_parts(field).next().is_none()) {
            return Err(format!("the field {field:?} has nothing in it; write * for every value"));
        }
        let (second, [minute, hour, day, month, weekday], year) = match *fields.as_slice() {
            [minute, hour, day, month, weekday] => ("0", [minute, hour, day, month, weekday], "*"),
            [second, minute, hour, day, month, weekday] => (second, [minute, hour, day, month, weekday], "*"),
            [second, minute, hour, day, month, weekday, year] => (second, [minute, hour, day, month, weekday], year),
            _ => return Err(format!("it has {} fields", fields.len())),
        };
        let [seconds, minutes] = [second, minute].map(|field| parse_times(field, 59));
        let (seconds, minutes, hours) = (seconds?, minutes?, parse_times(hour, 23)?);
        let (needs_both_days, weekday) = weekday.strip_prefix('+').map_or((false, weekday), |rest| (true, rest));
        Ok(Self {
            days: parse_days(&day.replace('?', "*"))?,
            months: parse_mask(month, 1, 12)?,
            weekdays: parse_weekdays(&weekday.replace('?', "*"))?,
            needs_both_days,
            years: if year == "*" {
                None
            } else {
                Some(parse_list(year, 1, MAX_YEAR.unsigned_abs())?.into_iter().collect())
            },
            is_fixed_time: seconds.is_single && minutes.is_single && hours.is_single,
            seconds: seconds.mask,
            minutes: minutes.mask,
            hours: hours.mask,
        })
    }
}

fn expand_nickname(text: &str) -> &str {
    match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => text,
    }
}

fn parse_times(field: &str, max: u16) -> Result<ParsedField, String> {
    let mask = parse_mask(field, 0, max)?;
    Ok(ParsedField { mask, is_single: mask.count_ones() == 1 && !field.contains(['*', '/']) })
}

fn parse_mask(field: &str, min: u16, max: u16) -> Result<u64, String> {
    Ok(to_mask(&parse_list(field, min, max)?))
}

fn parse_list(field: &str, min: u16, max: u16) -> Result<Vec<u16>, String> {
    let parts = list_parts(field).map(|part| parse_values(part, min, max));
    Ok(parts.collect::<Result<Vec<_>, _>>()?.concat())
}

fn parse_days(field: &str) -> Result<MonthDays, String> {
    let mut days = MonthDays { is_star: field == "*", ..MonthDays::default() };
    for part in list_parts(field) {
        match part {
            "l" => days.last = true,
            "lw" => days.last_workday = true,
            _ => match part.strip_suffix('w') {
                Some(day) => days.nearest_workday |= 1 << parse_number(day, 1, 31)?,
                None => days.every |= to_mask(&parse_values(part, 1, 31)?),
            },
        }
    }
    Ok(days)
}

fn parse_weekdays(field: &str) -> Result<Weekdays, String> {
    let mut weekdays = Weekdays { is_star: field == "*", ..Weekdays::default() };
    for part in list_parts(field) {
        // Some crons name no weekday by it.
        if part == "l" {
            continue;
        }
        let (values, nth) = match part.split_once('#') {
            Some((values, nth)) => (values, Some(nth)),
            None => part.strip_suffix('l').map_or((part, None), |day| (day, Some("l"))),
        };
        let mask = to_mask(&parse_values(values, 0, 7)?);
        // Sunday is 0 and 7.
        let mask = (mask | mask >> 7) & 0x7f;
        match nth {
            None => weekdays.every |= mask,
            Some("l") => weekdays.last |= mask,
            Some(nth) => {
                let week = usize::from(parse_number(nth, 1, 5)?) - 1;
                weekdays.nth.iter_mut().skip(week).take(1).for_each(|weekdays| *weekdays |= mask);
            }
        }
    }
    Ok(weekdays)
}

fn list_parts(field: &str) -> impl Iterator<Item = &str> {
    field.split(',').filter(|part| !part.is_empty())
}

/// The numbers of `5`, `1-5`, `*`, `*/2` or `1-5/2`.
fn parse_values(part: &str, min: u16, max: u16) -> Result<Vec<u16>, String> {
    let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
    let (first, last) = match range.split_once('-') {
        _ if range == "*" => (min, max),
        Some((first, last)) => (parse_number(first, min, max)?, parse_number(last, min, max)?),
        None if step.is_some() => return Err(format!("{part:?} has a step without a range; write */5 or 10-50/5")),
        None => (parse_number(range, min, max)?, parse_number(range, min, max)?),
    };
    if first > last {
        return Err(format!("the range {range:?} goes backwards"));
    }
    let step = step.map_or(Ok(1), |step| parse_number(step, 1, u16::MAX))?;
    Ok((first..=last).step_by(usize::from(step)).collect())
}

fn parse_number(text: &str, min: u16, max: u16) -> Result<u16, String> {
    let digits = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let number = digits.and_then(|text| text.parse().ok()).ok_or_else(|| format!("{text:?} is no number"))?;
    if (min..=max).contains(&number) { Ok(number) } else { Err(format!("{number} is not from {min} to {max}")) }
}

/// All numbers are below 64.
fn to_mask(numbers: &[u16]) -> u64 {
    numbers.iter().fold(0, |mask, number| mask | 1 << number)
}
