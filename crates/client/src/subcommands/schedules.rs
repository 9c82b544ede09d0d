//! `quell schedules`: list, show, add, pause, resume and remove schedules.

use quell_protocol::schedule::{MissedPolicy, ScheduleDelivery, SchedulePatch, ScheduleRequest, ScheduleView};
use quell_protocol::{AgentId, SessionKey};
use serde_json::json;

use super::table::CliTableCell;
use super::{Exit, SubcommandContext, SubcommandError, SubcommandResult};
use crate::daemon_client::DaemonClient;
use crate::term::{CommandIo, OutputStyle};
use crate::text_format::one_line;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "A schedule sends its text to a session whenever it is due. Each firing is a run that can be stopped.\n\n\
    Examples:\n  quell schedules\n  \
    quell schedules add --cron \"0 9 * * mon-fri\" --timezone Europe/Berlin \"What is new in the issues?\"\n  \
    quell schedules add --every 15m --session watch \"Is the site up?\"\n  \
    quell schedules add --at 2027-01-01T09:00 --deliver telegram:12345678 \"Happy new year!\"\n  \
    quell schedules pause 7f3a91c2d4e5\n  quell schedules remove 7f3a91c2d4e5"
)]
pub struct SchedulesArgs {
    #[command(subcommand)]
    what: Option<SchedulesSubcommand>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum SchedulesSubcommand {
    /// List the schedules (the default)
    List,
    /// Show a schedule
    Show(ScheduleIdArgs),
    /// Make a schedule
    Add(Box<AddScheduleArgs>),
    /// Let a schedule not fire
    Pause(ScheduleIdArgs),
    /// Let a paused schedule fire again
    Resume(ScheduleIdArgs),
    /// Delete a schedule; a run that it has started goes on
    Remove(ScheduleIdArgs),
}

#[derive(Debug, clap::Args)]
struct ScheduleIdArgs {
    /// The schedule's id
    #[arg(value_name = "ID")]
    id: String,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("timing").required(true).args(["cron", "every", "at"]))]
struct AddScheduleArgs {
    /// Fire at the times of a cron expression: minute, hour, day, month, weekday
    #[arg(long, value_name = "EXPRESSION")]
    cron: Option<String>,
    /// Fire again and again at this distance, such as 90s, 15m, 2h or 1d
    #[arg(long, value_name = "DISTANCE")]
    every: Option<String>,
    /// Fire once at this time, such as 2027-01-01T09:00
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// The time zone, such as Europe/Berlin; that of `[schedules]` if absent
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// The session of the runs; one of its own if absent
    #[arg(long, value_name = "KEY")]
    session: Option<SessionKey>,
    /// The agent that answers
    #[arg(long, value_name = "AGENT")]
    agent: Option<AgentId>,
    /// Also send the answers there: CHANNEL:PLACE
    #[arg(long, value_name = "CHANNEL:PLACE")]
    deliver: Option<String>,
    /// Firings that could not happen in time
    #[arg(long, value_name = "skip|once", value_parser = parse_missed)]
    missed: Option<MissedPolicy>,
    /// The message that each firing sends
    #[arg(value_name = "TEXT", required = true, trailing_var_arg = true)]
    text: Vec<String>,
}

fn parse_missed(text: &str) -> Result<MissedPolicy, String> {
    match text {
        "skip" => Ok(MissedPolicy::Skip),
        "once" => Ok(MissedPolicy::Once),
        other => Err(format!("{other:?} is neither `skip` nor `once`")),
    }
}

impl AddScheduleArgs {
    fn into_request(self) -> Result<ScheduleRequest, SubcommandError> {
        let delivery = self.deliver.map(|place| {
            let (channel, to) = place.split_once(':').ok_or_else(|| {
                SubcommandError::Usage("say where: CHANNEL:PLACE, such as telegram:12345678 or irc:#team".to_owned())
            })?;
            Ok::<_, SubcommandError>(ScheduleDelivery { channel: channel.to_owned(), to: to.to_owned() })
        });
        Ok(ScheduleRequest {
            cron: self.cron,
            every: self.every,
            at: self.at,
            timezone: self.timezone,
            session_key: self.session,
            text: self.text.join(" "),
            agent: self.agent,
            delivery: delivery.transpose()?,
            missed: self.missed,
        })
    }
}

pub(super) async fn run(client: &DaemonClient, args: SchedulesArgs, io: &mut CommandIo) -> SubcommandResult {
    let cx = &mut SubcommandContext::new(client, io, args.json);
    match args.what {
        Some(SchedulesSubcommand::Show(ScheduleIdArgs { id })) => {
            let view = cx.client.find_schedule(&id).await?;
            print_schedule(cx, &view)
        }
        Some(SchedulesSubcommand::Add(args)) => {
            let view = cx.client.create_schedule(&args.into_request()?).await?;
            print_schedule(cx, &view)
        }
        Some(SchedulesSubcommand::Pause(ScheduleIdArgs { id })) => set_paused(cx, &id, ScheduleChange::Pause).await,
        Some(SchedulesSubcommand::Resume(ScheduleIdArgs { id })) => set_paused(cx, &id, ScheduleChange::Resume).await,
        Some(SchedulesSubcommand::Remove(ScheduleIdArgs { id })) => {
            cx.client.delete_schedule(&id).await?;
            cx.print_value(
                &json!({"id": id, "removed": true}),
                &format!("the schedule {} is removed", one_line(&id, 100)),
            )?;
            Ok(Exit::Done)
        }
        Some(SchedulesSubcommand::List) | None => print_schedules(cx).await,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScheduleChange {
    Pause,
    Resume,
}

async fn set_paused(cx: &mut SubcommandContext<'_>, id: &str, change: ScheduleChange) -> SubcommandResult {
    let paused = Some(change == ScheduleChange::Pause);
    let view = cx.client.patch_schedule(id, &SchedulePatch { paused, ..SchedulePatch::default() }).await?;
    print_schedule(cx, &view)
}

async fn print_schedules(cx: &mut SubcommandContext<'_>) -> SubcommandResult {
    let rows = cx.client.list_schedules().await?;
    let heads = ["ID", "WHEN", "NEXT", "FIRED", "MISSED", "SESSION", "TEXT"];
    let cells = |view: &ScheduleView| {
        [
            CliTableCell::truncated(&view.id, 40),
            CliTableCell::truncated(&timing_text(view), 40),
            next_cell(view),
            view.fired.to_string().into(),
            (view.missed_count + view.skipped_count).to_string().into(),
            CliTableCell::truncated(view.session_key.as_str(), 40),
            CliTableCell::truncated(&view.text, 60),
        ]
    };
    cx.print_table(&rows, heads, cells, "there are no schedules; `quell schedules add --help` shows how to make one")
}

fn next_cell(view: &ScheduleView) -> CliTableCell {
    match (&view.paused, &view.next_at) {
        (Some(_), _) => CliTableCell::styled(OutputStyle::Waiting, "paused".to_owned()),
        (None, Some(next)) => CliTableCell::truncated(next, 30),
        (None, None) => "over".to_owned().into(),
    }
}

fn timing_text(view: &ScheduleView) -> String {
    match (&view.cron, &view.every, &view.at) {
        (Some(cron), _, _) => format!("{cron} ({})", view.timezone),
        (_, Some(every), _) => format!("every {every}"),
        (_, _, at) => format!("at {}", at.as_deref().unwrap_or("-")),
    }
}

fn print_schedule(cx: &mut SubcommandContext<'_>, view: &ScheduleView) -> SubcommandResult {
    if cx.print_json(view)? {
        return Ok(Exit::Done);
    }
    let next = match (&view.paused, &view.next_at) {
        (Some(pause), _) => format!("paused by {}: {}", pause.by, one_line(&pause.reason, 200)),
        (None, Some(next)) => next.clone(),
        (None, None) => "over".to_owned(),
    };
    let mut lines = vec![
        format!("id       {}", one_line(&view.id, 100)),
        format!("when     {}", one_line(&timing_text(view), 250)),
        format!("next     {}", one_line(&next, 300)),
        format!("session  {}", one_line(view.session_key.as_str(), 520)),
        format!("text     {}", one_line(&view.text, 500)),
        format!("fired    {}, missed {}, skipped {}", view.fired, view.missed_count, view.skipped_count),
    ];
    lines.extend(
        view.delivery.iter().map(|to| format!("sends to {}", one_line(&format!("{}:{}", to.channel, to.to), 600))),
    );
    lines.extend(view.last_run.iter().map(|run| format!("last run {run}")));
    lines.extend(view.problem.iter().map(|why| format!("problem  {}", one_line(why, 300))));
    for line in lines {
        cx.io.output.print_line(&line)?;
    }
    Ok(Exit::Done)
}
