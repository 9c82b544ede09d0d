//! `quell page`: a one-time link that opens the web page signed in.

use super::{Exit, VerbError};
use crate::link::Link;
use crate::term::Io;

/// Arguments of `quell page`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The link signs one browser in, as the admin, within ten minutes. Whoever has another token can type it on the\n\
    page instead.\n\nExamples:\n  quell page\n  xdg-open \"$(quell page)\""
)]
pub struct PageArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(link: &Link, args: PageArgs, io: &mut Io) -> Result<Exit, VerbError> {
    let url = link.sign_in_link().await?;
    if args.json {
        io.screen.json(&serde_json::json!({ "url": url.as_str() }))?;
    } else {
        io.screen.line(url.as_str())?;
    }
    Ok(Exit::Done)
}
