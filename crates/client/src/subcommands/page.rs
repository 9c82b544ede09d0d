//! `quell page`: print a one-time sign-in link for the web page.

use super::{Exit, SubcommandContext, SubcommandResult};
use crate::daemon_client::DaemonClient;
use crate::term::CommandIo;

#[derive(Debug, clap::Args)]
#[command(after_help = "The link signs one browser in, as the admin, within ten minutes. With another\n\
    token, type the token on the page instead.\n\nExamples:\n  quell page\n  xdg-open \"$(quell page)\"")]
pub struct PageArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(client: &DaemonClient, args: PageArgs, io: &mut CommandIo) -> SubcommandResult {
    let url = client.sign_in_link().await?;
    let value = serde_json::json!({ "url": url.as_str() });
    SubcommandContext::new(client, io, args.json).print_value(&value, url.as_str())?;
    Ok(Exit::Done)
}
