//! The tools `cron_add`, `cron_list` and `cron_remove`: schedules of the person for whom the run works.

use quell_protocol::schedule::{ScheduleDelivery, ScheduleRequest, ScheduleView};
use quell_scope::{Cancelled, Point};
use quell_tools::{ToolArguments, ToolOutput};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{AgentLoop, RunTool};

#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CronAddArgs {
    /// The message that each firing sends to you.
    text: String,
    /// A cron expression: minute, hour, day, month, weekday. Give one of `cron`, `every` and `at`.
    #[serde(default)]
    cron: Option<String>,
    /// A distance from now, such as 15m, 2h or 1d.
    #[serde(default)]
    every: Option<String>,
    /// One time, such as 2027-01-01T09:00.
    #[serde(default)]
    at: Option<String>,
    /// The IANA name of the time zone, such as Europe/Berlin.
    #[serde(default)]
    timezone: Option<String>,
    /// The chat that gets the answers; take it from the context of the message.
    #[serde(default)]
    delivery: Option<CronDelivery>,
}

#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CronDelivery {
    channel: String,
    to: String,
}

impl ToolArguments for CronAddArgs {
    const NAME: &'static str = "cron_add";
    const ABOUT: &'static str = "Makes a schedule: you get its text as a message whenever it is due, in a conversation of its own. \
         A stop of this run pauses it.";
    const EXAMPLE: &'static str =
        r#"{"text": "Say what is new in the issues.", "cron": "0 9 * * mon-fri", "timezone": "Europe/Berlin"}"#;
}

impl RunTool for CronAddArgs {
    async fn call(self, run: &AgentLoop<'_>) -> Result<ToolOutput, Cancelled> {
        let of_run = run.writer.run();
        // Its rights are smaller than those of the agent, and those of a schedule would not be.
        if of_run.parent.is_some() {
            return Ok(ToolOutput::error("A sub-run makes no schedules. Ask the agent that started it.".to_owned()));
        }
        let request = ScheduleRequest {
            cron: self.cron,
            every: self.every,
            at: self.at,
            timezone: self.timezone,
            session_key: None,
            text: self.text,
            agent: Some(run.agent.id.clone()),
            delivery: self.delivery.map(|CronDelivery { channel, to }| ScheduleDelivery { channel, to }),
            missed: None,
        };
        let created = run.scope.race(Point::Schedules, run.control.create_schedule(request)).await?;
        Ok(match created {
            Ok(view) => ToolOutput::ok(format!("The schedule is made. {}", describe_schedule(&view))),
            Err(error) => ToolOutput::error(format!("The schedule was not made: {error}.")),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CronListArgs {}

impl ToolArguments for CronListArgs {
    const NAME: &'static str = "cron_list";
    const ABOUT: &'static str = "Lists the schedules of the person for whom you work.";
    const EXAMPLE: &'static str = "{}";
}

impl RunTool for CronListArgs {
    async fn call(self, run: &AgentLoop<'_>) -> Result<ToolOutput, Cancelled> {
        let principal = &run.writer.run().principal;
        let records = match run.scope.race(Point::Schedules, run.services.schedules.reload()).await? {
            Ok(records) => records,
            Err(error) => return Ok(ToolOutput::error(format!("The schedules could not be read: {error}."))),
        };
        let own = records.iter().map(|record| &record.view).filter(|view| view.created_by == *principal);
        let lines: Vec<String> = own.map(describe_schedule).collect();
        Ok(ToolOutput::ok(if lines.is_empty() { "There are no schedules.".to_owned() } else { lines.join("\n") }))
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CronRemoveArgs {
    /// The schedule's id, as `cron_list` shows it.
    id: String,
}

impl ToolArguments for CronRemoveArgs {
    const NAME: &'static str = "cron_remove";
    const ABOUT: &'static str = "Deletes a schedule of the person for whom you work.";
    const EXAMPLE: &'static str = r#"{"id": "7f3a91c2d4e5"}"#;
}

impl RunTool for CronRemoveArgs {
    async fn call(self, run: &AgentLoop<'_>) -> Result<ToolOutput, Cancelled> {
        if run.writer.run().parent.is_some() {
            return Ok(ToolOutput::error("A sub-run removes no schedules. Ask the agent that started it.".to_owned()));
        }
        let principal = &run.writer.run().principal;
        let remove = async {
            // waits: raced below, together with the deletion.
            let found = run.services.schedules.read(&self.id).await?;
            if found.is_none_or(|(record, _)| record.view.created_by != *principal) {
                return Ok(false);
            }
            // waits: the same race.
            run.services.schedules.delete(&self.id).await
        };
        Ok(match run.scope.race(Point::Schedules, remove).await? {
            Ok(true) => ToolOutput::ok(format!("The schedule {} is deleted.", self.id)),
            Ok(false) => ToolOutput::error(format!("There is no schedule {:?}; cron_list lists them.", self.id)),
            Err(error) => ToolOutput::error(format!("The schedule was not deleted: {error}.")),
        })
    }
}

fn describe_schedule(view: &ScheduleView) -> String {
    let when = [&view.cron, &view.every, &view.at].into_iter().flatten().next().map_or("", String::as_str);
    let next = match (&view.paused, &view.next_at) {
        (Some(pause), _) => format!("paused: {}", pause.reason),
        (None, Some(next)) => format!("next at {next}"),
        (None, None) => "over".to_owned(),
    };
    format!("{}: {when} ({}), {next}: {}", view.id, view.timezone, view.text)
}
