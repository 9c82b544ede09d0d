//! `quell channels`: list and test channels, send a text to one.

use jiff::Timestamp;
use quell_protocol::channel::{ChannelDelivery, ChannelHealth, ChannelRow, ChannelSend, ChannelTest, DeliveryState};
use serde::Serialize;

use super::send::read_message;
use super::table::CliTableCell;
use super::{CliOutputFormat, Exit, SubcommandContext, SubcommandResult};
use crate::daemon_client::DaemonClient;
use crate::term::{CommandIo, OutputStyle};
use crate::text_format::{age, one_line};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "A place is what the network calls a chat, a room or a person; the first colon separates it from the channel.\n\
    Exit code: 0 all tests passed or the text was delivered, 1 not, 3 no such channel, 4 no daemon.\n\n\
    Examples:\n  quell channels\n  quell channels test telegram\n  quell channels send telegram:12345678 \"the backup is done\"\n  \
    quell channels send 'matrix:!room:example.org' \"hello\"\n  uptime | quell channels send 'irc:#team' -"
)]
pub struct ChannelsArgs {
    #[command(subcommand)]
    what: Option<ChannelsSubcommand>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum ChannelsSubcommand {
    /// List the channels and their state (the default)
    List,
    /// Ask the network which account a channel uses; without a name for every channel
    Test {
        /// The channel's name in the configuration
        name: Option<String>,
    },
    /// Send a text to a chat through a channel; needs the admin token
    Send {
        /// The channel, a colon, and the network's name of the chat, room or person
        #[arg(value_name = "CHANNEL:PLACE")]
        to: String,
        /// The text, as Markdown; `-` reads it from standard input
        #[arg(required = true, value_name = "TEXT")]
        text: Vec<String>,
    },
}

pub(super) async fn run(client: &DaemonClient, args: ChannelsArgs, io: &mut CommandIo) -> SubcommandResult {
    let cx = &mut SubcommandContext::new(client, io, args.json);
    match args.what {
        None | Some(ChannelsSubcommand::List) => print_channels(cx).await,
        Some(ChannelsSubcommand::Test { name: Some(name) }) => test_channels(cx, vec![name]).await,
        Some(ChannelsSubcommand::Test { name: None }) => {
            let names: Vec<String> = client.list_channels().await?.into_iter().map(|row| row.name).collect();
            if names.is_empty() && cx.format == CliOutputFormat::Text {
                print_no_channels(cx)?;
            }
            test_channels(cx, names).await
        }
        Some(ChannelsSubcommand::Send { to, text }) => {
            let text = read_message(&text, cx.io)?;
            send_text_to_channel(cx, ChannelSend { to, text }).await
        }
    }
}

async fn print_channels(cx: &mut SubcommandContext<'_>) -> SubcommandResult {
    let rows = cx.client.list_channels().await?;
    if cx.print_json(&rows)? {
        return Ok(Exit::Done);
    }
    if rows.is_empty() {
        print_no_channels(cx)?;
        return Ok(Exit::Done);
    }
    let now = Timestamp::now();
    let cells: Vec<[CliTableCell; 8]> = rows.iter().map(|row| channel_row(row, now)).collect();
    let heads = ["NAME", "NETWORK", "STATE", "FOR", "ACCOUNT", "HEARD", "ANSWERED", "UNDELIVERED"];
    cx.print_rows(heads, &cells)?;
    for row in &rows {
        if let ChannelHealth::Lost(why) | ChannelHealth::Refused(why) = &row.health {
            cx.io.output.eprint_line(&format!("{}: {}", row.name, one_line(why, 400)))?;
        }
    }
    Ok(Exit::Done)
}

fn channel_row(row: &ChannelRow, now: Timestamp) -> [CliTableCell; 8] {
    [
        CliTableCell::truncated(&row.name, 64),
        CliTableCell::truncated(&row.kind, 12),
        health_cell(&row.health),
        CliTableCell::from(row.since.as_deref().and_then(|since| age(since, now)).unwrap_or_default()),
        CliTableCell::truncated(row.account.as_deref().unwrap_or_default(), 40),
        row.heard.to_string().into(),
        row.answered.to_string().into(),
        row.undelivered.to_string().into(),
    ]
}

fn health_cell(health: &ChannelHealth) -> CliTableCell {
    match health {
        ChannelHealth::Connecting => CliTableCell::styled(OutputStyle::Waiting, "◔ connecting".to_owned()),
        ChannelHealth::Connected => CliTableCell::styled(OutputStyle::Done, "● connected".to_owned()),
        ChannelHealth::Lost(_) => CliTableCell::styled(OutputStyle::Failure, "▲ lost, tries again".to_owned()),
        ChannelHealth::Refused(_) => CliTableCell::styled(OutputStyle::Failure, "▲ refused".to_owned()),
        ChannelHealth::Stopped => CliTableCell::styled(OutputStyle::Quiet, "■ stopped".to_owned()),
    }
}

/// One channel in the JSON output of `test`.
#[derive(Serialize)]
struct ChannelTestOutput<'a> {
    name: &'a str,
    #[serde(flatten)]
    test: &'a ChannelTest,
}

async fn test_channels(cx: &mut SubcommandContext<'_>, names: Vec<String>) -> SubcommandResult {
    let mut tests = Vec::new();
    for name in names {
        let test = cx.client.test_channel(&name).await?;
        if cx.format == CliOutputFormat::Text {
            let (tone, mark) = if test.ok { (OutputStyle::Done, "✓") } else { (OutputStyle::Failure, "▲") };
            let mark = cx.io.output.stdout().apply_style(tone, mark);
            cx.io.output.print_line(&format!("{mark} {}: {}", one_line(&name, 64), one_line(&test.detail, 400)))?;
        }
        tests.push((name, test));
    }
    let tested: Vec<ChannelTestOutput<'_>> =
        tests.iter().map(|(name, test)| ChannelTestOutput { name, test }).collect();
    cx.print_json(&tested)?;
    let all = tests.iter().all(|(_, test)| test.ok);
    Ok(if all { Exit::Done } else { Exit::Failed })
}

async fn send_text_to_channel(cx: &mut SubcommandContext<'_>, message: ChannelSend) -> SubcommandResult {
    let delivery = cx.client.send_to_channel(&message).await?;
    cx.print_value(&delivery, &delivery_text(&delivery))?;
    Ok(if delivery.delivery == DeliveryState::Delivered { Exit::Done } else { Exit::Failed })
}

fn delivery_text(delivery: &ChannelDelivery) -> String {
    let ChannelDelivery { sent, of, .. } = delivery;
    let head = match delivery.delivery {
        DeliveryState::Delivered if *of == 1 => "delivered".to_owned(),
        DeliveryState::Delivered => format!("delivered, in {of} messages"),
        DeliveryState::Partly => format!("only {sent} of {of} messages were delivered"),
        DeliveryState::Undelivered => "not delivered".to_owned(),
        DeliveryState::Unknown => {
            "it is not known whether it was delivered; look there before you send it again".to_owned()
        }
    };
    match &delivery.detail {
        Some(detail) => format!("{head}: {}", one_line(detail, 400)),
        None => head,
    }
}

fn print_no_channels(cx: &mut SubcommandContext<'_>) -> SubcommandResult<()> {
    cx.io.output.eprint_line("no channels: add one to quell.toml as [channels.NAME]; docs/channels.md says how")?;
    Ok(())
}
