//! Command line options of the soak.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) const USAGE: &str =
    "usage: cargo xtask soak [--minutes N] [--seed S] [--sessions 200] [--at-once 40] [--release]";

/// The role of this process.
pub(crate) enum SoakInvocation {
    Soak(SoakOptions),
    /// The scripted model, started by the driver.
    ModelServer,
}

#[derive(Debug)]
pub(crate) struct SoakOptions {
    pub(crate) time: Duration,
    /// Seed of all random numbers.
    pub(crate) seed: u64,
    pub(crate) sessions: usize,
    /// Sessions that are active at the same time.
    pub(crate) at_once: u32,
}

/// The argument that makes this program the model server.
pub(crate) const MODEL_SERVER: &str = "--model-server";

pub(crate) fn parse_options(args: impl Iterator<Item = String>) -> Result<SoakInvocation, String> {
    let mut options = SoakOptions { time: Duration::from_secs(120), seed: fresh_seed(), sessions: 200, at_once: 40 };
    // Cargo adds `--bench`.
    let mut args = args.filter(|arg| arg != "--bench");
    while let Some(arg) = args.next() {
        if arg == MODEL_SERVER {
            return Ok(SoakInvocation::ModelServer);
        }
        let (name, value) = match arg.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (arg, args.next()),
        };
        let value = value.ok_or_else(|| format!("{name} wants a value"))?;
        let wrong = |what: &str| format!("{name} is {value:?}; {what} is wanted");
        match name.as_str() {
            "--minutes" => options.time = parse_minutes(&value).ok_or_else(|| wrong("a number of minutes"))?,
            "--seed" => options.seed = value.parse().map_err(|_| wrong("a whole number"))?,
            "--sessions" => options.sessions = parse_positive(&value).ok_or_else(|| wrong("a number from 1"))?,
            "--at-once" => options.at_once = parse_positive(&value).ok_or_else(|| wrong("a number from 1"))?,
            _ => return Err(format!("there is no option {name:?}")),
        }
    }
    Ok(SoakInvocation::Soak(options))
}

fn parse_minutes(text: &str) -> Option<Duration> {
    let minutes: f64 = text.parse().ok()?;
    Duration::try_from_secs_f64(minutes * 60.0).ok().filter(|time| !time.is_zero())
}

fn parse_positive<T: std::str::FromStr + PartialEq + From<u8>>(text: &str) -> Option<T> {
    text.parse().ok().filter(|number| *number != T::from(0))
}

/// Differs each time; short, so that people can type it.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_secs() ^ u64::from(now.subsec_nanos())) % 1_000_000
}
