//! `quell hold`: refuse new runs until lifted.

use quell_protocol::api::Hold;

use super::{Exit, VerbError};
use crate::link::Link;
use crate::term::{Io, Tone};
use crate::words::{ago, one_line};

/// Arguments of `quell hold`.
#[derive(Debug, clap::Args)]
#[command(after_help = "A hold survives a restart of the daemon. Runs that are active go on; queued ones wait.\n\n\
    Examples:\n  quell hold on --reason \"maintenance until 18:00\"\n  quell hold status\n  quell hold off")]
pub struct HoldArgs {
    #[command(subcommand)]
    what: Option<HoldVerb>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum HoldVerb {
    /// Refuse new runs
    On {
        /// Why, for those who are refused
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Take new runs again
    Off,
    /// Say whether new runs are refused (the default)
    Status,
}

pub(super) async fn run(link: &Link, args: HoldArgs, io: &mut Io) -> Result<Exit, VerbError> {
    let hold = match args.what {
        Some(HoldVerb::On { reason }) => link.set_hold(reason).await?,
        Some(HoldVerb::Off) => link.lift_hold().await?,
        Some(HoldVerb::Status) | None => link.hold().await?,
    };
    if args.json {
        io.screen.json(&hold)?;
    } else {
        let text = in_words(&hold, jiff::Timestamp::now());
        let tone = if hold.held { Tone::Waiting } else { Tone::Done };
        let text = io.screen.out().paint(tone, &text);
        io.screen.line(&text)?;
    }
    Ok(Exit::Done)
}

fn in_words(hold: &Hold, now: jiff::Timestamp) -> String {
    if !hold.held {
        return "hold is off: new runs are taken".into();
    }
    let mut text = "hold is on: new runs are refused".to_owned();
    if let Some(since) = &hold.since {
        text.push_str(&format!(" · since {}", ago(since, now)));
    }
    if let Some(by) = &hold.by {
        text.push_str(&format!(" · by {by}"));
    }
    if let Some(reason) = &hold.reason {
        text.push_str(&format!(" · reason: {}", one_line(reason, 200)));
    }
    text.push_str(" · lift it with `quell hold off`");
    text
}
