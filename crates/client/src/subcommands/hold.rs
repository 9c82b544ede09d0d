//! `quell hold`: set, lift or show the hold on new runs.

use quell_protocol::api::Hold;

use super::{Exit, SubcommandContext, SubcommandResult};
use crate::daemon_client::DaemonClient;
use crate::term::{CommandIo, OutputStyle};
use crate::text_format::{one_line, relative_age};

#[derive(Debug, clap::Args)]
#[command(after_help = "A hold survives a restart of the daemon. Active runs continue; queued ones wait.\n\n\
    Examples:\n  quell hold on --reason \"maintenance until 18:00\"\n  quell hold status\n  quell hold off")]
pub struct HoldArgs {
    #[command(subcommand)]
    what: Option<HoldSubcommand>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum HoldSubcommand {
    /// Refuse new runs
    On {
        /// Reason, shown to callers whose runs are refused
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Accept new runs again
    Off,
    /// Show whether new runs are refused (the default)
    Status,
}

pub(super) async fn run(client: &DaemonClient, args: HoldArgs, io: &mut CommandIo) -> SubcommandResult {
    let cx = &mut SubcommandContext::new(client, io, args.json);
    let hold = match args.what {
        Some(HoldSubcommand::On { reason }) => client.set_hold(reason).await?,
        Some(HoldSubcommand::Off) => client.lift_hold().await?,
        Some(HoldSubcommand::Status) | None => client.get_hold().await?,
    };
    if !cx.print_json(&hold)? {
        let style = if hold.held { OutputStyle::Waiting } else { OutputStyle::Done };
        cx.print_styled(style, &hold_text(&hold, jiff::Timestamp::now()))?;
    }
    Ok(Exit::Done)
}

fn hold_text(hold: &Hold, now: jiff::Timestamp) -> String {
    if !hold.held {
        return "hold is off: new runs are taken".into();
    }
    let mut text = "hold is on: new runs are refused".to_owned();
    if let Some(since) = &hold.since {
        text.push_str(&format!(" · since {}", relative_age(since, now)));
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
