//! Command line options of the soak.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use clap::Parser;
use quell_testkit::seed::fresh_seed;

/// Random runs and stops on the real binary, all checked.
#[derive(Debug, Parser)]
pub(crate) struct SoakOptions {
    #[arg(long = "minutes", default_value = "2", value_parser = parse_minutes)]
    pub(crate) time: Duration,
    /// Seed of all random numbers; without it, another each time.
    #[arg(long, default_value_t = fresh_seed())]
    pub(crate) seed: u64,
    #[arg(long, default_value = "200")]
    pub(crate) sessions: NonZeroUsize,
    /// Sessions that are active at the same time.
    #[arg(long, default_value = "40")]
    pub(crate) at_once: NonZeroU32,
    /// Daemons on one PostgreSQL database, with a NATS server; 1 is a daemon with SQLite.
    #[arg(long, default_value = "1")]
    pub(crate) nodes: NonZeroUsize,
    /// Added by Cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

fn parse_minutes(text: &str) -> Result<Duration, &'static str> {
    let time = text.parse().ok().and_then(|minutes: f64| Duration::try_from_secs_f64(minutes * 60.0).ok());
    time.filter(|time| !time.is_zero()).ok_or("a number of minutes is wanted")
}
