//! Screenshots of the main views in light, in dark and on a phone, each checked with axe-core and for its layout.
//!
//! The screenshots go to `target/screenshots` for people to look at; no test compares them. WebDriver injects axe-core
//! past the page's content policy, and it changes nothing.

use quell_test_support::npm_packages::{self, NpmPackages};
use quell_testkit::browser::{Browser, Viewport, is_skipped};

use super::{PageConfig, PageFixture, screenshot_dir};
use crate::prelude::*;

struct ScreenshotReview {
    axe_source: String,
    findings: Vec<String>,
}

impl ScreenshotReview {
    async fn start() -> Option<Self> {
        if is_skipped() || npm_packages::is_skipped() {
            return None;
        }
        Some(Self { axe_source: axe_source().await, findings: Vec::new() })
    }

    /// Captures the current view: desktop and phone, each in light and dark.
    async fn capture_view(&mut self, fixture: &PageFixture, name: &str) {
        for (screen, place) in [(Viewport::DESKTOP, ""), (Viewport::PHONE, "-phone")] {
            fixture.set_viewport(screen).await;
            for scheme in ["light", "dark"] {
                fixture.set_color_scheme(scheme).await;
                fixture.wait_for(&format!("document.documentElement.dataset.theme === '{scheme}'")).await;
                fixture.screenshot(&screenshot_dir().join(format!("{name}{place}-{scheme}.png"))).await;
                // Findings that depend on the width show in light, those that depend on colours show on the desktop.
                if screen == Viewport::DESKTOP || scheme == "light" {
                    let found = accessibility_findings(fixture, &self.axe_source).await;
                    self.findings.extend(found.iter().map(|finding| format!("{name}{place} in {scheme}: {finding}")));
                }
            }
            self.check_layout(fixture, &format!("{name}{place}")).await;
        }
        fixture.set_viewport(Viewport::DESKTOP).await;
        fixture.set_color_scheme("light").await;
        fixture.wait_for("document.documentElement.dataset.theme === 'light'").await;
    }

    /// Nothing is cut off at the right, no parts of the header overlap, and controls are large enough for a finger on a
    /// phone.
    async fn check_layout(&mut self, fixture: &PageFixture, name: &str) {
        let mut checks = vec![
            ("content wider than its box", TOO_WIDE_SCRIPT),
            ("overlapping parts of the header", OVERLAPPING_SCRIPT),
        ];
        if name.ends_with("-phone") {
            checks.push(("too small for a finger", TOO_SMALL_SCRIPT));
        }
        for (what, check) in checks {
            let found = fixture.eval(check).await;
            self.findings.extend(found.as_array().unwrap().iter().map(|found| format!("{name}: {what}: {found}")));
        }
    }

    #[expect(clippy::print_stdout, reason = "shows where the screenshots are")]
    fn assert_no_findings(self) {
        println!("pictures in {}", screenshot_dir().display());
        assert!(self.findings.is_empty(), "{} findings:\n{}", self.findings.len(), self.findings.join("\n"));
    }
}

const AXE_PACKAGES: NpmPackages = NpmPackages {
    name: "page-axe",
    files: &[
        ("package.json", include_str!("axe/package.json")),
        ("package-lock.json", include_str!("axe/package-lock.json")),
    ],
};

/// The source of axe-core, installed as its lock file says.
async fn axe_source() -> String {
    let folder = npm_packages::install_packages(&AXE_PACKAGES).await;
    std::fs::read_to_string(folder.join("node_modules/axe-core/axe.min.js")).unwrap()
}

const RUN_SCRIPT: &str = "axe.run(document, { resultTypes: ['violations'], preload: false }).then((found) => {
  const rows = [];
  for (const { id, impact, help, nodes } of found.violations) {
    for (const node of nodes) rows.push({ id, impact, text: `${impact} ${id}: ${help}: ${node.html} ${node.failureSummary}` });
  }
  done({ rows, passes: found.passes.length });
}, (error) => done({ error: String(error.stack) }));";

/// The serious and critical findings as text. Fails when axe has checked almost nothing.
async fn accessibility_findings(browser: &Browser, source: &str) -> Vec<String> {
    if browser.eval("typeof window.axe").await == "undefined" {
        browser.run_script(source, &[]).await;
    }
    let found = browser.run_async_script(RUN_SCRIPT, &[]).await;
    assert!(found["passes"].as_u64().is_some_and(|passes| passes > 5), "axe has looked at nothing: {found}");
    let severe = |row: &&Value| matches!(row["impact"].as_str(), Some("serious" | "critical"));
    let rows = found["rows"].as_array().unwrap().iter().filter(severe);
    rows.map(|row| row["text"].as_str().unwrap_or_default().to_owned()).collect()
}

const TOO_WIDE_SCRIPT: &str =
    "['html', '#header', '#rail', '#turns', '#composer', '#inspector', 'main > .view', '#stop-all-dialog']
    .flatMap((css) => [...document.querySelectorAll(css)].map((e) => [css, e]))
    .filter(([, e]) => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
    .map(([css, e]) => `${css}: ${e.scrollWidth} in ${e.clientWidth}`)";

const OVERLAPPING_SCRIPT: &str = "(() => {
  const parts = [...document.querySelectorAll('#header a, #header button, #header select, #header [data-fact]')]
    .filter((e) => e.checkVisibility({ visibilityProperty: true })).map((e) => [e, e.getBoundingClientRect()]);
  const name = (e) => e.id || e.dataset.fact || e.className;
  return parts.flatMap(([a, r], at) => parts.slice(at + 1)
    .filter(([b, s]) => !a.contains(b) && r.left < s.right - 1 && s.left < r.right - 1 && r.top < s.bottom - 1 && s.top < r.bottom - 1)
    .map(([b]) => `${name(a)} and ${name(b)}`));
})()";

/// Visible controls smaller than 44 by 44 pixels. Links within text are exempt.
const TOO_SMALL_SCRIPT: &str =
    "[...document.querySelectorAll('button, select, summary, input, textarea, nav a, [role=switch]')]
    .filter((e) => e.checkVisibility({ visibilityProperty: true, opacityProperty: true }))
    .filter((e) => !e.closest('.unseen') && !e.matches('input[type=checkbox]'))
    .map((e) => [e, e.getBoundingClientRect()])
    .filter(([, r]) => r.width > 0 && r.right > 0 && r.left < innerWidth && (r.width < 43.5 || r.height < 43.5))
    .map(([e, r]) => `${Math.round(r.width)}x${Math.round(r.height)} ${e.outerHTML.slice(0, 100)}`)";

const QUESTION: &str = "The nightly backup is late again. Please find out why, and stop whatever is in its way.";

const ANSWER: &str = "The backup waits for a lock that `rsync` has held since 02:14. Two things are worth knowing:\n\n\
    1. **The lock is stale.** Its owner, pid 4242, ended at 02:31.\n\
    2. The retry pauses for an *hour*, so nobody noticed.\n\n\
    ```sh\nrm /run/backup.lock\nsystemctl start backup.service\n```\n\n\
    | step | took |\n|---|---|\n| find the lock | 2.1 s |\n| compare owners | 40 ms |\n\nShall I remove the lock?";

#[tokio::test(flavor = "multi_thread")]
async fn the_chat_looks_right_and_is_accessible() {
    let Some(mut review) = ScreenshotReview::start().await else { return };
    let Some(fixture) = PageFixture::start_with(&PageConfig::default()).await else { return };
    fixture.open(fixture.daemon.url()).await;
    fixture.wait_visible("#sign-in").await;
    review.capture_view(&fixture, "sign-in").await;
    fixture.sign_in().await;
    fixture.wait_visible("#message").await;
    review.capture_view(&fixture, "empty").await;

    fixture.open_session("backup").await;
    let command = json!({"command": "printf 'lock held by rsync (pid 4242)\\nsince 02:14\\n'"});
    let thinking = ScriptedStream::new().thinking("A lock file is the usual suspect; look at who holds it.");
    fixture.model.script(thinking.text("I look at the lock first.").tool_call("c1", "shell", &command));
    fixture.model.script(ScriptedResponse::text(ANSWER));
    fixture.send_message(QUESTION).await;
    fixture.wait_text("article.turn[data-role=assistant] td", "40 ms").await;
    fixture.wait_send_mode("send").await;
    review.capture_view(&fixture, "chat").await;
    fixture.model.script(
        ScriptedStream::new().text("Removing the lock now. First I make sure that nobody").wait_for_gate("never"),
    );
    fixture.send_message("Yes, remove it.").await;
    fixture.wait_text("article.turn[data-role=assistant]", "make sure that nobody").await;
    fixture.wait_send_mode("stop").await;
    fixture.send_message("And tell me when it is done.").await;
    fixture.wait_visible("#queue [data-run]").await;
    review.capture_view(&fixture, "chat-streaming").await;
    fixture.click_until_text("#send", "article.turn.stopped .receipt-line", "stopped in ").await;
    fixture.wait_send_mode("send").await;
    review.capture_view(&fixture, "chat-stopped").await;
    review.assert_no_findings();
}

#[tokio::test(flavor = "multi_thread")]
async fn diffs_and_plans_look_right_and_are_accessible() {
    let Some(mut review) = ScreenshotReview::start().await else { return };
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    let before = "# Adds two numbers.\nsum=$(($1 - $2))\necho \"$sum\"\n";
    let plan = json!([
        {"text": "Read the program and its test", "status": "completed"},
        {"text": "Mend the sign", "status": "in_progress"},
        {"text": "Run the test", "status": "pending"},
    ]);
    let work = ScriptedStream::new()
        .text("The program subtracts. I mend it.")
        .tool_call("c1", "todo", &json!({"items": plan}))
        .tool_call("c2", "write_file", &json!({"path": "add.sh", "content": before}));
    let edit = json!({"path": "add.sh", "old": "$1 - $2", "new": "$1 + $2"});
    fixture.model.script(work).script(ScriptedResponse::tool_call("c3", "edit_file", &edit));
    fixture.model.script(ScriptedResponse::text("Mended."));
    fixture.send_message("The test of add.sh fails. Mend it.").await;
    fixture.wait_text("article.turn[data-role=assistant] .markdown", "Mended.").await;
    fixture.eval("document.querySelectorAll('details.call').forEach((call) => { call.open = true; })").await;
    fixture.wait_text("details.call .diff-added", "+sum=$(($1 + $2))").await;
    review.capture_view(&fixture, "diff").await;
    review.assert_no_findings();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inspector_looks_right_and_is_accessible() {
    let Some(mut review) = ScreenshotReview::start().await else { return };
    let limits = "[limits]\nsub_runs_per_run = 8\nmax_steps = 20\n";
    let Some(fixture) = PageFixture::start_signed_in_with(&PageConfig::tables(limits)).await else { return };
    fixture.model.script(shell_call("setsid sleep 600 & cargo build --offline; sleep 600"));
    let few = fixture.http.send_message("few", "start something that has to be stopped").await;
    fixture.go_to(&format!("#/r/{few}")).await;
    fixture.wait_visible(&format!("#inspector[data-run='{few}'] .timeline .bar[data-kind=process]")).await;
    review.capture_view(&fixture, "inspector-live").await;
    fixture.http.stop_run(&few).await;
    fixture.wait_visible("#inspector .timeline .line.settled").await;
    fixture.wait_for("document.querySelectorAll('#inspector table.ledger tbody tr').length >= 3").await;
    review.capture_view(&fixture, "inspector-3").await;

    let command = |n: u32| if n < 285 { format!("true {n}") } else { format!("sleep 600 # {n}") };
    let call = |all: ScriptedStream, n: u32| all.tool_call(format!("c{n}"), "shell", &json!({"command": command(n)}));
    // One answer may have at most 128 calls.
    for first in [0, 100, 200] {
        fixture.model.script((first..290.min(first + 100)).fold(ScriptedStream::new(), call));
    }
    let many = fixture.http.send_message("many", "do very many things").await;
    wait_call_started(&fixture, &many, "sleep 600").await;
    fixture.http.stop_run(&many).await;
    fixture.go_to(&format!("#/r/{many}")).await;
    fixture.wait_visible(&format!("#inspector[data-run='{many}'] .timeline .line.settled")).await;
    review.capture_view(&fixture, "inspector-300").await;
    review.assert_no_findings();
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_else_looks_right_and_is_accessible() {
    let Some(mut review) = ScreenshotReview::start().await else { return };
    let others = [
        ("research", "parent = \"main\"\nrole = \"reads and compares\""),
        ("research/web", "parent = \"research\"\nrole = \"looks things up\""),
        ("writer", "parent = \"main\"\nrole = \"drafts\"\napprovals = { shell = \"ask\" }"),
        ("watcher", ""),
    ];
    let config = PageConfig { others: &others, ..PageConfig::default() };
    let Some((fixture, proxy)) = PageFixture::start_behind_proxy(&config).await else { return };
    start_sample_runs(&fixture).await;
    create_sample_schedules(&fixture).await;
    fixture.go_to("#/runs").await;
    fixture.wait_for("document.querySelectorAll('#schedules [data-schedule]').length === 3").await;
    fixture.wait_for("document.querySelectorAll('#runs tr[data-run]').length >= 3").await;
    fixture.wait_visible("#processes [data-process]").await;
    review.capture_view(&fixture, "everything").await;
    fixture.click_until_visible("#stop-all", "#stop-all-dialog").await;
    review.capture_view(&fixture, "stop-all").await;
    fixture.click("#stop-all-cancel").await;
    fixture.go_to("#/approvals").await;
    fixture.wait_visible("#approvals [data-approval]").await;
    review.capture_view(&fixture, "approvals").await;

    for (agent, status) in [
        ("main", "waiting_llm"),
        ("research", "processing"),
        ("research/web", "stopping"),
        ("writer", "waiting_llm"),
        ("watcher", "idle"),
    ] {
        proxy.set_agent_status(agent, status);
    }
    fixture.go_to("#/agents").await;
    fixture.wait_visible("#agents [data-agent='research/web'] .compute-status.stopping").await;
    review.capture_view(&fixture, "agents").await;
    fixture.go_to("#/runs").await;
    fixture.click_until_visible("#hold", "#hold[aria-checked=true]").await;
    review.capture_view(&fixture, "held").await;
    review.assert_no_findings();
}

/// Starts three runs in different phases, one finished run with a background process, and one call that waits for an
/// approval.
async fn start_sample_runs(fixture: &PageFixture) {
    fixture.model.script(background_call("echo listening on 8080; sleep 600"));
    fixture.model.script(ScriptedResponse::text("The server runs."));
    let over = fixture.http.send_message("dev server", "start the server").await;
    fixture.http.wait_ended(&over).await;
    fixture.model.script(ScriptedResponse::silent_mid_stream("Reading the first of 40 pages"));
    fixture.http.send_message("summary of the archive", "summarise everything").await;
    fixture.model.request_at(2).wait_paused().await;
    fixture.model.script(shell_call("sleep 600 # rsync -a /srv /mnt/backup"));
    let backup = fixture.http.send_message("nightly backup", "back everything up").await;
    wait_call_started(fixture, &backup, "rsync").await;
    fixture.model.script(shell_call("git push --force origin main \u{202e}# siht\u{202c}"));
    let ask = json!({"text": "publish it", "agent": "writer"});
    drop(fixture.http.post_run("release", &ask).await.expect_status(202));
}

/// Creates a schedule of each form; the one by distance is paused.
async fn create_sample_schedules(fixture: &PageFixture) {
    let in_ninety_days = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(90 * 24);
    let forms = [
        json!({"cron": "30 2 * * mon-fri", "timezone": "Europe/Berlin", "text": "Check last night's backup."}),
        json!({"every": "6h", "text": "Look for new releases of the tools that we use, and write what changed."}),
        json!({"at": in_ninety_days.to_string(), "text": "Wish everybody a happy new year."}),
    ];
    for mut form in forms {
        form["sessionKey"] = "watch".into();
        let made = fixture.http.post("/api/schedules", &form).await.expect_status(201);
        if !made["every"].is_null() {
            let path = format!("/api/schedules/{}", made["id"].as_str().unwrap());
            fixture.http.patch(&path, &json!({"paused": true})).await.expect_status(200);
        }
    }
}

/// Waits until a run has started a call whose arguments contain this text.
async fn wait_call_started(fixture: &PageFixture, run: &str, arguments: &str) {
    let mut events = fixture.http.run_events(run, 0).await;
    while !events.wait_for("tool.started").await.data.to_string().contains(arguments) {}
}
