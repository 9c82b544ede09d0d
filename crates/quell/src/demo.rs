//! The tour: one run with a small process tree, one stop, its receipt, and the next message. It prints only what its events
//! and its receipt hold, and exits 0 only if the receipt names no leftovers.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use quell_client::{receipt_line, receipt_picture};
use quell_engine::access::{Caller, Origin};
use quell_engine::agent::{AgentConfig, Limits};
use quell_engine::clock::Clock;
use quell_engine::dispatch::{Follow, Follower, Retention, SessionSettings, StopText, Submission, Submitted};
use quell_engine::hooks::HookSettings;
use quell_engine::llm::demo::{DemoModel, DemoScript};
use quell_engine::llm::{ProviderConfig, ProviderKind};
use quell_engine::memory::MemorySettings;
use quell_engine::proc::Isolate;
use quell_engine::proc::WardenExe;
use quell_engine::scope::Probe;
use quell_engine::tools::ToolSettings;
use quell_engine::{Engine, EngineConfig};
use quell_kernel::expiry::ExpiryLimits;
use quell_kernel::registry::{StopAsk, StopScope};
use quell_kernel::{Push, StopTimes};
use quell_protocol::api::{Grants, HistoryMessage, OnBusy, Scope};
use quell_protocol::{AgentId, EventKind, Principal, Receipt, RunId, SessionKey, StopReason, Surface};

use crate::telemetry;

/// Three processes that make stopping hard: a shell, a background job, and one in a session of its own that ignores SIGTERM. The
/// last one says `ready`, when its trap is set.
const TREE: &str = "\
sleep 300 &
echo \"shell pid $$, background job pid $!\"
setsid sh -c 'trap \"\" TERM HUP INT; echo \"ready: pid $$ left the session and ignores SIGTERM\"; while :; do sleep 1; done' &
wait";

/// What the tour says first and after the stop.
const FIRST: &str = "Start the two jobs and wait for them.";
const NEXT: &str = "What happened to the jobs?";

/// How long the tour waits for its own processes before it says that something is wrong.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Print the receipt as JSON and nothing else.
    #[arg(long)]
    json: bool,
    /// The command that the demo model runs; it has to print a line that begins with `ready`.
    #[arg(long, hide = true, default_value = TREE)]
    command: String,
    /// Whether the command gets a PID namespace: `auto`, `pid` or `none`, as in the configuration of an agent.
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = parse_isolate)]
    isolate: Isolate,
}

pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let home = std::env::temp_dir().join(format!("quell-demo-{}", std::process::id()));
    std::fs::create_dir_all(&home).with_context(|| format!("{} cannot be made", home.display()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let toured = runtime.block_on(tour(args, &home));
    runtime.shutdown_timeout(Duration::from_millis(100));
    // A directory that stays behind does no harm, and the tour's own error matters more.
    let _ = std::fs::remove_dir_all(&home);
    let receipt = toured?;
    Ok(if receipt.leftovers.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn parse_isolate(word: &str) -> Result<Isolate, String> {
    Isolate::from_word(word).ok_or_else(|| format!("{word:?} is none of auto, pid, none"))
}

async fn tour(args: &DemoArgs, home: &Path) -> anyhow::Result<Receipt> {
    let model = DemoModel::start(DemoScript::Tour { command: args.command.clone() }).await?;
    let engine = Engine::start(engine_config(home, &model.base_url(), args.isolate)?).await?;
    let mut page = Page::new(args.json);
    let shown = show(&engine, &mut page).await;
    engine.shut_down().await;
    model.stop().await;
    let receipt = shown?;
    if args.json {
        writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&receipt)?)?;
    }
    Ok(receipt)
}

async fn show(engine: &Engine, page: &mut Page) -> anyhow::Result<Receipt> {
    let caller = Caller {
        principal: Principal::parse("you")?,
        scope: Scope::Admin,
        grants: Grants::ALL,
        surface: Surface::Cli,
        origin: Origin::inside(),
    };
    page.title("Quell: agents that you can stop")?;
    page.step(1, "A run starts. The model streams, then runs a command that is hard to stop.")?;
    page.line(&format!("  you    {FIRST}"))?;
    let run = send(engine, &caller, FIRST).await?;
    let mut follower = follow(engine, &run).await?;
    tokio::time::timeout(PATIENCE, until_ready(&mut follower, page))
        .await
        .context("the demo's processes did not start within 20 s; is `sh` with `setsid` installed?")??;

    page.step(2, "Stop.")?;
    let scope = StopScope::Run { id: run.clone(), session: None };
    let ask = StopAsk { push: Push::Gentle, reason: StopReason::User, surface: Surface::Cli };
    let stop = engine.stop(&caller, &scope, &ask);
    for ticket in &stop.tickets {
        ticket.settled().await;
    }
    let receipt = stop.tickets.first().and_then(|ticket| ticket.cell().receipt());
    let receipt = receipt.context("the run has no receipt; this is a bug")?;
    page.line(&format!("  {}", receipt_line(&receipt)))?;

    page.step(3, "The receipt: everything the run held, and how each thing was given back.")?;
    page.block(&receipt_picture(&receipt))?;

    page.step(4, "The next message works: the history is valid, and the model knows what happened.")?;
    page.line(&format!("  you    {NEXT}"))?;
    let next = send(engine, &caller, NEXT).await?;
    let mut follower = follow(engine, &next).await?;
    tokio::time::timeout(PATIENCE, until_ended(&mut follower, page))
        .await
        .context("the second answer did not end")??;
    page.line("\n  What the session's history holds now:")?;
    for message in engine.history(&session()?, 10, None).await?.messages {
        page.line(&history_line(&message))?;
    }
    page.line("\nNext: `quell serve`, then `quell send \"hello\"` and `quell stop --all`. README.md shows how to add a model.")?;
    Ok(receipt)
}

fn session() -> anyhow::Result<SessionKey> {
    Ok(SessionKey::parse("demo")?)
}

async fn send(engine: &Engine, caller: &Caller, text: &str) -> anyhow::Result<RunId> {
    let submission = Submission {
        session: session()?,
        text: text.to_owned(),
        agent: None,
        idempotency_key: None,
        on_busy: OnBusy::Queue,
        timeout: None,
        stop_text: StopText::Literal,
        errand: None,
    };
    match engine.submit(caller, submission).await? {
        Submitted::New(answer) | Submitted::Repeat(answer) => Ok(answer.run_id),
        Submitted::Stopped(_) => bail!("a message of the demo was taken for a stop; this is a bug"),
    }
}

async fn follow(engine: &Engine, run: &RunId) -> anyhow::Result<Follower> {
    match engine.follow(run, 0).await? {
        Some(Follow::Live(follower)) => Ok(follower),
        Some(Follow::Over(_)) | None => bail!("the run of the demo was over before it could be followed"),
    }
}

/// Shows a run until its command says that its processes work.
async fn until_ready(follower: &mut Follower, page: &mut Page) -> anyhow::Result<()> {
    while let Some(event) = follower.next().await {
        page.event(&event.kind)?;
        match &event.kind {
            EventKind::ToolOutput { text, .. } if text.lines().any(|line| line.starts_with("ready")) => return Ok(()),
            EventKind::Ended { verdict, .. } => bail!("the run ended before it could be stopped: {verdict:?}"),
            _ => {}
        }
    }
    bail!("the run's events ended before it could be stopped")
}

async fn until_ended(follower: &mut Follower, page: &mut Page) -> anyhow::Result<()> {
    while let Some(event) = follower.next().await {
        page.event(&event.kind)?;
    }
    page.end_text()
}

fn history_line(message: &HistoryMessage) -> String {
    let calls: Vec<String> = message.calls.iter().map(|call| format!("calls {}", call.tool)).collect();
    let text = message.text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text: String =
        if text.chars().count() > 100 { text.chars().take(97).chain("...".chars()).collect() } else { text };
    let partial = if message.partial { "(cut off) " } else { "" };
    format!("    {:<9}  {partial}{}", message.role, [text, calls.join(", ")].join(" ").trim())
}

fn engine_config(home: &Path, base_url: &str, isolate: Isolate) -> anyhow::Result<EngineConfig> {
    let provider = ProviderConfig { base_url: Some(base_url.to_owned()), ..ProviderConfig::new(ProviderKind::Demo) };
    Ok(EngineConfig {
        clock: Clock::start(),
        data_dir: home.join("data"),
        work_dir: home.join("work"),
        token_file: home.join("data/token"),
        store_file: "quell.db".to_owned(),
        stop: StopTimes::default(),
        expiry: ExpiryLimits::default(),
        limits: Limits::default(),
        sessions: SessionSettings::default(),
        memory: MemorySettings::default(),
        retention: Retention::default(),
        agents: BTreeMap::from([(AgentId::parse("main")?, AgentConfig { isolate, ..AgentConfig::default() })]),
        providers: BTreeMap::from([("demo".to_owned(), provider)]),
        mcp: BTreeMap::new(),
        hooks: HookSettings::default(),
        lifecycle: Vec::new(),
        tools: ToolSettings::default(),
        environment: quell_engine::proc::base_environment(std::env::vars_os()),
        open_files: None,
        warden: WardenExe::ThisProcess,
        probe: Probe::default(),
    })
}

/// What the person sees. Bold only on a terminal that wants it.
struct Page {
    silent: bool,
    bold: bool,
    in_text: bool,
}

impl Page {
    fn new(silent: bool) -> Self {
        Self { silent, bold: !telemetry::no_color() && std::io::stdout().is_terminal(), in_text: false }
    }

    fn title(&mut self, text: &str) -> anyhow::Result<()> {
        let text = self.strong(text);
        self.line(&text)
    }

    fn step(&mut self, number: u32, text: &str) -> anyhow::Result<()> {
        let text = self.strong(&format!("{number}  {text}"));
        self.line(&format!("\n{text}"))
    }

    fn block(&mut self, lines: &[String]) -> anyhow::Result<()> {
        lines.iter().try_for_each(|line| self.line(&format!("  {line}")))
    }

    fn event(&mut self, kind: &EventKind) -> anyhow::Result<()> {
        match kind {
            EventKind::TextDelta { text } => {
                let lead = if self.in_text { "" } else { "  model  " };
                self.in_text = true;
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
        if std::mem::take(&mut self.in_text) { self.print("\n") } else { Ok(()) }
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

    fn strong(&self, text: &str) -> String {
        if self.bold { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}
