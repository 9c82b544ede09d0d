//! `quell demo`: start a run with processes, stop it, print its receipt, and send the next message.
//!
//! It prints only the contents of its events and its receipt. The exit code is 0 only if the receipt names no
//! leftovers.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use quell_client::{receipt_chart, receipt_line};
use quell_engine::access::{Caller, RequestOrigin};
use quell_engine::agent::AgentConfig;
use quell_engine::engine::{Follower, RunFollow, RunWork, StopTextMode, Submission, SubmitOutcome};
use quell_engine::{Engine, EngineConfig};
use quell_kernel::StopLevel;
use quell_kernel::registry::{StopRequest, StopScope};
use quell_llm::demo::{DemoModel, DemoScript};
use quell_llm::{ProviderConfig, ProviderKind};
use quell_process::{Isolate, WardenExe};
use quell_protocol::SandboxMode;
use quell_protocol::api::{AccessLevel, Grants, HistoryMessage, OnBusy};
use quell_protocol::{AgentId, EventKind, Principal, Receipt, RunId, SessionKey, StopReason, Surface};

use crate::runtime::block_on;
use crate::telemetry;

/// Three processes that are hard to stop: a shell, a background job, and one in a session of its own that ignores
/// SIGTERM. The last one prints `ready` when its trap is set.
const PROCESS_TREE_SCRIPT: &str = "\
sleep 300 &
echo \"shell pid $$, background job pid $!\"
setsid sh -c 'trap \"\" TERM HUP INT; echo \"ready: pid $$ left the session and ignores SIGTERM\"; while :; do sleep 1; done' &
wait";

/// The user's first message, and the one after the stop.
const FIRST_MESSAGE: &str = "Start the two jobs and wait for them.";
const SECOND_MESSAGE: &str = "What happened to the jobs?";

/// Time limit for the demo's own processes.
const WAIT_LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Print the receipt as JSON and nothing else.
    #[arg(long)]
    json: bool,
    /// The command that the demo model runs; it has to print a line that begins with `ready`.
    #[arg(long, hide = true, default_value = PROCESS_TREE_SCRIPT)]
    command: String,
    /// Whether the command gets a PID namespace: `auto`, `pid` or `none`, as in the configuration of an agent.
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = parse_isolate)]
    isolate: Isolate,
    /// What the command may reach: read-only, workspace, off
    #[arg(long, value_name = "MODE", default_value = "workspace", value_parser = parse_sandbox)]
    sandbox: SandboxMode,
}

pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let home = std::env::temp_dir().join(format!("quell-demo-{}", std::process::id()));
    std::fs::create_dir_all(&home).with_context(|| format!("cannot create {}", home.display()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let tour_result = block_on(&runtime, run_tour(args, &home));
    runtime.shutdown_timeout(Duration::from_millis(100));
    // A directory that is left does no harm, and the tour's own error is more important.
    let _ = std::fs::remove_dir_all(&home);
    let receipt = tour_result?;
    Ok(if receipt.leftovers.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn parse_sandbox(word: &str) -> Result<SandboxMode, String> {
    let found = SandboxMode::ALL.into_iter().find(|mode| mode.as_str() == word);
    found.ok_or_else(|| format!("{word:?} is not one of read-only, workspace, off"))
}

fn parse_isolate(word: &str) -> Result<Isolate, String> {
    Isolate::from_word(word).ok_or_else(|| format!("{word:?} is not one of auto, pid, none"))
}

async fn run_tour(args: &DemoArgs, home: &Path) -> anyhow::Result<Receipt> {
    let model = DemoModel::start(DemoScript::Tour { command: args.command.clone() }).await?;
    let engine = Engine::start(engine_config(home, &model.base_url(), args)?).await?;
    let mut output = TourOutput::new(args.json);
    let shown = play_tour(&engine, &mut output).await;
    engine.shut_down().await;
    model.stop().await;
    let receipt = shown?;
    if args.json {
        writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&receipt)?)?;
    }
    Ok(receipt)
}

async fn play_tour(engine: &Engine, output: &mut TourOutput) -> anyhow::Result<Receipt> {
    let caller = Caller {
        principal: Principal::parse("you")?,
        scope: AccessLevel::Admin,
        grants: Grants::ALL,
        key: quell_kernel::api_key::ApiKey::default(),
        verified_person: false,
        surface: Surface::Cli,
        origin: RequestOrigin::internal(),
    };
    output.title("Quell: agents that you can stop")?;
    output.step(1, "A run starts. The model streams, then runs a command that is hard to stop.")?;
    output.line(&format!("  you    {FIRST_MESSAGE}"))?;
    let run = send_message(engine, &caller, FIRST_MESSAGE).await?;
    let mut follower = follow_run(engine, &run).await?;
    tokio::time::timeout(WAIT_LIMIT, print_until_ready(&mut follower, output))
        .await
        .context("the demo's processes did not start within 20 s; is `sh` with `setsid` installed?")??;

    output.step(2, "Stop.")?;
    let scope = StopScope::run(run.clone());
    let ask = StopRequest { level: StopLevel::Gentle, reason: StopReason::User, surface: Surface::Cli };
    let stop = engine.stop(&caller, &scope, &ask);
    for ticket in &stop.tickets {
        ticket.wait_settled().await;
    }
    let receipt = stop.tickets.first().and_then(|ticket| ticket.live_run().receipt());
    let receipt = receipt.context("the run has no receipt; this is a bug")?;
    output.line(&format!("  {}", receipt_line(&receipt)))?;

    output.step(3, "The receipt: everything the run held, and how each thing was given back.")?;
    output.lines(&receipt_chart(&receipt))?;

    output.step(4, "The next message works: the history is valid, and the model knows what happened.")?;
    output.line(&format!("  you    {SECOND_MESSAGE}"))?;
    let next = send_message(engine, &caller, SECOND_MESSAGE).await?;
    let mut follower = follow_run(engine, &next).await?;
    tokio::time::timeout(WAIT_LIMIT, print_until_ended(&mut follower, output))
        .await
        .context("the second answer did not end")??;
    output.line("\n  What the session's history holds now:")?;
    for message in engine.history_page(&demo_session()?, 10, None).await?.messages {
        output.line(&history_line(&message))?;
    }
    output.line("\nNext: `quell serve`, then `quell send \"hello\"` and `quell stop --all`. README.md shows how to add a model.")?;
    Ok(receipt)
}

fn demo_session() -> anyhow::Result<SessionKey> {
    Ok(SessionKey::parse("demo")?)
}

async fn send_message(engine: &Engine, caller: &Caller, text: &str) -> anyhow::Result<RunId> {
    let submission = Submission {
        session: demo_session()?,
        text: text.to_owned(),
        work: RunWork::default(),
        agent: None,
        idempotency_key: None,
        on_busy: OnBusy::Queue,
        timeout: None,
        stop_text_mode: StopTextMode::Literal,
        channel_origin: None,
    };
    match engine.submit(caller, submission).await? {
        SubmitOutcome::Accepted(answer) | SubmitOutcome::Duplicate(answer) => Ok(answer.run_id),
        SubmitOutcome::Stopped(_) => bail!("a message of the demo was taken for a stop; this is a bug"),
    }
}

async fn follow_run(engine: &Engine, run: &RunId) -> anyhow::Result<Follower> {
    match engine.follow_run(run, 0).await? {
        Some(RunFollow::Live(follower)) => Ok(follower),
        Some(RunFollow::Ended(_) | RunFollow::Remote(_)) | None => {
            bail!("the run of the demo was over before it could be followed")
        }
    }
}

/// Prints a run's events until its command reports that its processes are ready.
async fn print_until_ready(follower: &mut Follower, output: &mut TourOutput) -> anyhow::Result<()> {
    while let Some(event) = follower.next().await {
        output.event(&event.kind)?;
        match &event.kind {
            EventKind::ToolOutput { text, .. } if text.lines().any(|line| line.starts_with("ready")) => return Ok(()),
            EventKind::Ended { verdict, .. } => bail!("the run ended before it could be stopped: {verdict:?}"),
            _ => {}
        }
    }
    bail!("the run's events ended before it could be stopped")
}

async fn print_until_ended(follower: &mut Follower, output: &mut TourOutput) -> anyhow::Result<()> {
    while let Some(event) = follower.next().await {
        output.event(&event.kind)?;
    }
    output.end_text()
}

fn history_line(message: &HistoryMessage) -> String {
    let calls: Vec<String> = message.calls.iter().map(|call| format!("calls {}", call.tool)).collect();
    let text = message.text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text: String =
        if text.chars().count() > 100 { text.chars().take(97).chain("...".chars()).collect() } else { text };
    let partial = if message.partial { "(cut off) " } else { "" };
    format!("    {:<9}  {partial}{}", message.role, [text, calls.join(", ")].join(" ").trim())
}

fn engine_config(home: &Path, base_url: &str, args: &DemoArgs) -> anyhow::Result<EngineConfig> {
    let provider = ProviderConfig { base_url: Some(base_url.to_owned()), ..ProviderConfig::new(ProviderKind::DEMO) };
    let agent = AgentConfig { isolate: args.isolate, sandbox: Some(args.sandbox), ..AgentConfig::default() };
    Ok(EngineConfig {
        agents: BTreeMap::from([(AgentId::parse("main")?, agent)]),
        providers: BTreeMap::from([("demo".to_owned(), provider)]),
        environment: quell_process::base_environment(std::env::vars_os()),
        ..EngineConfig::new(home.join("data"), WardenExe::ThisProcess)
    })
}

/// The output for people. Bold only on a terminal with colours.
struct TourOutput {
    silent: bool,
    bold: bool,
    in_model_text: bool,
}

impl TourOutput {
    fn new(silent: bool) -> Self {
        Self { silent, bold: !telemetry::no_color() && std::io::stdout().is_terminal(), in_model_text: false }
    }

    fn title(&mut self, text: &str) -> anyhow::Result<()> {
        let text = self.bold_text(text);
        self.line(&text)
    }

    fn step(&mut self, number: u32, text: &str) -> anyhow::Result<()> {
        let text = self.bold_text(&format!("{number}  {text}"));
        self.line(&format!("\n{text}"))
    }

    fn lines(&mut self, lines: &[String]) -> anyhow::Result<()> {
        lines.iter().try_for_each(|line| self.line(&format!("  {line}")))
    }

    fn event(&mut self, kind: &EventKind) -> anyhow::Result<()> {
        match kind {
            EventKind::TextDelta { text } => {
                let lead = if self.in_model_text { "" } else { "  model  " };
                self.in_model_text = true;
                self.print(&format!("{lead}{text}"))
            }
            EventKind::ToolStarted { tool, .. } => self.line(&format!("  {tool}  starts")),
            EventKind::ToolOutput { text, .. } => {
                for line in text.lines() {
                    self.line(&format!("         {line}"))?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn end_text(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.in_model_text) { self.print("\n") } else { Ok(()) }
    }

    fn line(&mut self, text: &str) -> anyhow::Result<()> {
        self.end_text()?;
        self.print(&format!("{text}\n"))
    }

    fn print(&self, text: &str) -> anyhow::Result<()> {
        if self.silent {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    }

    fn bold_text(&self, text: &str) -> String {
        if self.bold { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}
