//! Parse `Retry-After` and `retry-after-ms` (RFC 9110, 10.2.3).

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};

/// The finer header of OpenAI and Azure, in milliseconds.
const RETRY_AFTER_MS: &str = "retry-after-ms";

/// The delay that these headers ask for. A date is relative to the server's `Date` header if there is one, otherwise to
/// `now`.
pub(super) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    if let Some(ms) = header_text(headers, RETRY_AFTER_MS).and_then(parse_non_negative) {
        return Duration::try_from_secs_f64(ms / 1000.0).ok();
    }
    let value = header_text(headers, RETRY_AFTER.as_str())?;
    if let Some(seconds) = parse_non_negative(value) {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let until = parse_http_date(value)?;
    let now = header_text(headers, DATE.as_str()).and_then(parse_http_date).unwrap_or(now);
    // A time that has passed means no delay.
    Some(Duration::try_from(until.duration_since(now)).unwrap_or_default())
}

fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

fn parse_non_negative(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

/// The current form of an HTTP date is also a date of RFC 2822.
fn parse_http_date(text: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::seconds(&[("retry-after", "7")], Some(7000))]
    #[case::now(&[("retry-after", "0")], Some(0))]
    #[case::parts_of_seconds(&[("retry-after", "0.25")], Some(250))]
    #[case::milliseconds_win(&[("retry-after", "7"), ("retry-after-ms", "1500")], Some(1500))]
    #[case::date(&[("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT")], Some(10_000))]
    #[case::past_date(&[("retry-after", "Sun, 06 Nov 1994 08:49:07 GMT")], Some(0))]
    #[case::the_servers_clock_wins(
        &[("retry-after", "Sun, 06 Nov 1994 09:00:05 GMT"), ("date", "Sun, 06 Nov 1994 09:00:00 GMT")],
        Some(5000)
    )]
    #[case::negative(&[("retry-after", "-1")], None)]
    #[case::endless(&[("retry-after", "inf")], None)]
    #[case::too_large(&[("retry-after", "1e300")], None)]
    #[case::words(&[("retry-after", "soon")], None)]
    #[case::none(&[], None)]
    fn reads_every_form(#[case] headers: &[(&'static str, &'static str)], #[case] ms: Option<u64>) {
        let now: Timestamp = "1994-11-06T08:49:37Z".parse().unwrap();
        let headers = headers.iter().map(|(name, value)| {
            (reqwest::header::HeaderName::from_static(name), reqwest::header::HeaderValue::from_static(value))
        });
        assert_eq!(retry_after(&headers.collect(), now), ms.map(Duration::from_millis));
    }
}
