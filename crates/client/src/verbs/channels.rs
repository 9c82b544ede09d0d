//! `quell channels`: how the chat networks fare, whether one works, and a word in one of them.

use jiff::Timestamp;
use quell_protocol::channel::{ChannelDelivery, ChannelHealth, ChannelRow, ChannelSend, ChannelTest, DeliveryState};
use serde::Serialize;

use super::send::message;
use super::table::{Cell, lay_out};
use super::{Exit, Format, VerbError};
use crate::link::Link;
use crate::term::{Io, Tone};
use crate::words::{age, one_line};

/// Arguments of `quell channels`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A place is what the network calls a chat, a room or a person; the first colon parts it from the channel.\n\
    Exit code: 0 all is well or it was delivered, 1 not, 3 no such channel, 4 no daemon.\n\n\
    Examples:\n  quell channels\n  quell channels test telegram\n  quell channels send telegram:12345678 \"the backup is done\"\n  \
    quell channels send 'matrix:!room:example.org' \"hello\"\n  uptime | quell channels send 'irc:#team' -"
)]
pub struct ChannelsArgs {
    #[command(subcommand)]
    what: Option<ChannelsVerb>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum ChannelsVerb {
    /// List the channels and how they fare (the default)
    List,
    /// Ask the network who the account is: of one channel, or of all
    Test {
        /// The channel, as it is configured
        name: Option<String>,
    },
    /// Say something in a chat in the name of a channel; needs the admin token
    Send {
        /// Where: the channel, a colon, and the network's name of the chat, the room or the person
        #[arg(value_name = "CHANNEL:PLACE")]
        to: String,
        /// What, as Markdown; `-` reads it from the input
        #[arg(required = true, value_name = "TEXT")]
        text: Vec<String>,
    },
}

pub(super) async fn run(link: &Link, args: ChannelsArgs, io: &mut Io) -> Result<Exit, VerbError> {
    let format = Format::from(args.json);
    match args.what {
        None | Some(ChannelsVerb::List) => list(link, format, io).await,
        Some(ChannelsVerb::Test { name: Some(name) }) => test(link, vec![name], format, io).await,
        Some(ChannelsVerb::Test { name: None }) => {
            let names: Vec<String> = link.channels().await?.into_iter().map(|row| row.name).collect();
            if names.is_empty() && format == Format::Words {
                nothing(io)?;
            }
            test(link, names, format, io).await
        }
        Some(ChannelsVerb::Send { to, text }) => {
            let text = message(&text, io)?;
            send(link, ChannelSend { to, text }, format, io).await
        }
    }
}

async fn list(link: &Link, format: Format, io: &mut Io) -> Result<Exit, VerbError> {
    let rows = link.channels().await?;
    if format == Format::Json {
        io.screen.json(&rows)?;
        return Ok(Exit::Done);
    }
    if rows.is_empty() {
        nothing(io)?;
        return Ok(Exit::Done);
    }
    let now = Timestamp::now();
    let cells: Vec<[Cell; 8]> = rows.iter().map(|row| cells(row, now)).collect();
    let heads = ["NAME", "NETWORK", "STATE", "FOR", "ACCOUNT", "HEARD", "ANSWERED", "UNDELIVERED"];
    for line in lay_out(io.screen.out(), heads, &cells) {
        io.screen.line(&line)?;
    }
    for row in &rows {
        if let ChannelHealth::Lost(why) | ChannelHealth::Refused(why) = &row.health {
            io.screen.remark(&format!("{}: {}", row.name, one_line(why, 400)))?;
        }
    }
    Ok(Exit::Done)
}

fn cells(row: &ChannelRow, now: Timestamp) -> [Cell; 8] {
    [
        Cell::cut(&row.name, 64),
        Cell::cut(&row.kind, 12),
        state(&row.health),
        Cell::from(row.since.as_deref().and_then(|since| age(since, now)).unwrap_or_default()),
        Cell::cut(row.account.as_deref().unwrap_or_default(), 40),
        row.heard.to_string().into(),
        row.answered.to_string().into(),
        row.undelivered.to_string().into(),
    ]
}

fn state(health: &ChannelHealth) -> Cell {
    match health {
        ChannelHealth::Connecting => Cell::toned(Tone::Waiting, "◔ connecting".to_owned()),
        ChannelHealth::Connected => Cell::toned(Tone::Done, "● connected".to_owned()),
        ChannelHealth::Lost(_) => Cell::toned(Tone::Failure, "▲ lost, tries again".to_owned()),
        ChannelHealth::Refused(_) => Cell::toned(Tone::Failure, "▲ refused".to_owned()),
        ChannelHealth::Stopped => Cell::toned(Tone::Quiet, "■ stopped".to_owned()),
    }
}

/// What a program reads of a test.
#[derive(Serialize)]
struct Tested<'a> {
    name: &'a str,
    #[serde(flatten)]
    test: &'a ChannelTest,
}

async fn test(link: &Link, names: Vec<String>, format: Format, io: &mut Io) -> Result<Exit, VerbError> {
    let mut tests = Vec::new();
    for name in names {
        let test = link.test_channel(&name).await?;
        if format == Format::Words {
            let (tone, mark) = if test.ok { (Tone::Done, "✓") } else { (Tone::Failure, "▲") };
            let mark = io.screen.out().paint(tone, mark);
            io.screen.line(&format!("{mark} {}: {}", one_line(&name, 64), one_line(&test.detail, 400)))?;
        }
        tests.push((name, test));
    }
    if format == Format::Json {
        let tested: Vec<Tested<'_>> = tests.iter().map(|(name, test)| Tested { name, test }).collect();
        io.screen.json(&tested)?;
    }
    let all = tests.iter().all(|(_, test)| test.ok);
    Ok(if all { Exit::Done } else { Exit::Failed })
}

async fn send(link: &Link, said: ChannelSend, format: Format, io: &mut Io) -> Result<Exit, VerbError> {
    let delivery = link.send_to_channel(&said).await?;
    match format {
        Format::Json => io.screen.json(&delivery)?,
        Format::Words => io.screen.line(&outcome(&delivery))?,
    }
    Ok(if delivery.delivery == DeliveryState::Delivered { Exit::Done } else { Exit::Failed })
}

fn outcome(delivery: &ChannelDelivery) -> String {
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

fn nothing(io: &mut Io) -> Result<(), VerbError> {
    io.screen.remark("no channels: add one to quell.toml as [channels.NAME]; docs/channels.md says how")?;
    Ok(())
}
