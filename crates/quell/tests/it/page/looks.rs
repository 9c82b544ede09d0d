//! A picture of each main view in light, in dark and on a phone, and what axe-core finds in each of them.
//!
//! The pictures go to `target/screenshots`, for people to look at: nothing here compares them.

use quell_testkit::browser::{Scheme, Screen, is_skipped};
use quell_testkit::model::{Behaviour, Stream};
use serde_json::json;

use super::relay::Relay;
use super::{Plan, Scene, axe, pictures};

/// Takes pictures, and keeps what is wrong with the views on them.
struct Album {
    axe: String,
    found: Vec<String>,
}

impl Album {
    async fn open() -> Option<Self> {
        if is_skipped() || crate::node::is_skipped() {
            return None;
        }
        Some(Self { axe: axe::source().await, found: Vec::new() })
    }

    /// The view as it is now: wide in light and dark, on a phone in both.
    async fn view(&mut self, scene: &Scene, name: &str) {
        let browser = &scene.browser;
        for (screen, place) in [(Screen::WIDE, ""), (Screen::PHONE, "-phone")] {
            browser.screen(screen).await;
            for scheme in [Scheme::Light, Scheme::Dark] {
                browser.scheme(scheme).await;
                let word = scheme.word();
                browser.until(&format!("document.documentElement.dataset.theme === '{word}'")).await;
                browser.picture(&pictures().join(format!("{name}{place}-{word}.png"))).await;
                // What depends on the width is seen in light, what depends on the colours on the wide screen.
                if screen == Screen::WIDE || scheme == Scheme::Light {
                    let found = axe::findings(browser, &self.axe).await;
                    self.found.extend(found.iter().map(|finding| format!("{name}{place} in {word}: {finding}")));
                }
            }
            self.fits(scene, &format!("{name}{place}")).await;
        }
        browser.screen(Screen::WIDE).await;
        browser.scheme(Scheme::Light).await;
        browser.until("document.documentElement.dataset.theme === 'light'").await;
    }

    /// Nothing is cut off at the right, nothing of the header lies above another part of it, and what is touched is large
    /// enough for a finger.
    async fn fits(&mut self, scene: &Scene, name: &str) {
        let mut checks = vec![("wider than its place", TOO_WIDE), ("in each other's place", OVERLAPPING)];
        if name.ends_with("-phone") {
            checks.push(("too small for a finger", TOO_SMALL));
        }
        for (what, check) in checks {
            let found = scene.browser.value(check).await;
            self.found.extend(found.as_array().unwrap().iter().map(|found| format!("{name}: {what}: {found}")));
        }
    }

    #[expect(clippy::print_stdout, reason = "whoever runs it wants to look at them")]
    fn close(self) {
        println!("pictures in {}", pictures().display());
        assert!(self.found.is_empty(), "{} findings:\n{}", self.found.len(), self.found.join("\n"));
    }
}

/// Parts of the page whose content is wider than they are.
const TOO_WIDE: &str =
    "['html', '#header', '#rail', '#turns', '#composer', '#inspector', 'main > .view', '#stop-all-dialog']
    .flatMap((css) => [...document.querySelectorAll(css)].map((e) => [css, e]))
    .filter(([, e]) => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
    .map(([css, e]) => `${css}: ${e.scrollWidth} in ${e.clientWidth}`)";

/// Pairs of the header's parts that cover each other.
const OVERLAPPING: &str = "(() => {
  const parts = [...document.querySelectorAll('#header a, #header button, #header select, #header [data-fact]')]
    .filter((e) => e.checkVisibility({ visibilityProperty: true })).map((e) => [e, e.getBoundingClientRect()]);
  const name = (e) => e.id || e.dataset.fact || e.className;
  return parts.flatMap(([a, r], at) => parts.slice(at + 1)
    .filter(([b, s]) => !a.contains(b) && r.left < s.right - 1 && s.left < r.right - 1 && r.top < s.bottom - 1 && s.top < r.bottom - 1)
    .map(([b]) => `${name(a)} and ${name(b)}`));
})()";

/// Controls that are shown and have less than 44 by 44 pixels. A link within text is text.
const TOO_SMALL: &str =
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
    let Some(mut album) = Album::open().await else { return };
    let scene = Scene::open().await;
    let browser = &scene.browser;
    browser.open(scene.daemon.url()).await;
    browser.shown("#sign-in").await;
    album.view(&scene, "sign-in").await;
    scene.sign_in().await;
    browser.shown("#message").await;
    album.view(&scene, "empty").await;

    scene.session("backup").await;
    let look = json!({"command": "printf 'lock held by rsync (pid 4242)\\nsince 02:14\\n'"});
    let thinking = Stream::new().thinking("A lock file is the usual suspect; look at who holds it.");
    scene.model.script(thinking.text("I look at the lock first.").tool_call("c1", "shell", &look));
    scene.model.script(Behaviour::text(ANSWER));
    scene.say(QUESTION).await;
    browser.reads("article.turn[data-role=assistant] td", "40 ms").await;
    scene.mode("send").await;
    album.view(&scene, "chat").await;
    scene.model.script(Stream::new().text("Removing the lock now. First I make sure that nobody").wait_for("never"));
    scene.say("Yes, remove it.").await;
    browser.reads("article.turn[data-role=assistant]", "make sure that nobody").await;
    scene.mode("stop").await;
    scene.say("And tell me when it is done.").await;
    browser.shown("#queue [data-run]").await;
    album.view(&scene, "chat-streaming").await;
    browser.click("#send").await;
    browser.reads("article.turn.stopped .receipt-line", "stopped in ").await;
    scene.mode("send").await;
    album.view(&scene, "chat-stopped").await;
    album.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inspector_looks_right_and_is_accessible() {
    let Some(mut album) = Album::open().await else { return };
    let limits = "[limits]\nsub_runs_per_run = 8\nmax_steps = 20\n";
    let scene = Scene::with(&Plan { tables: limits, ..Plan::default() }).await;
    let browser = &scene.browser;
    scene.sign_in().await;
    let tree = json!({"command": "setsid sleep 600 & cargo build --offline; sleep 600"});
    scene.model.script(Behaviour::tool_call("c1", "shell", &tree));
    let few = scene.send("few", "start something that has to be stopped").await;
    scene.go(&format!("#/r/{few}")).await;
    browser.shown(&format!("#inspector[data-run='{few}'] .timeline .bar[data-kind=process]")).await;
    album.view(&scene, "inspector-live").await;
    drop(scene.http.post(&format!("/api/runs/{few}/stop?wait=1"), &json!({})).await.expect_status(200));
    browser.shown("#inspector .timeline .line.settled").await;
    browser.until("document.querySelectorAll('#inspector table.ledger tbody tr').length >= 3").await;
    album.view(&scene, "inspector-3").await;

    let command = |n: u32| if n < 285 { format!("true {n}") } else { format!("sleep 600 # {n}") };
    let call = |all: Stream, n: u32| all.tool_call(format!("c{n}"), "shell", &json!({"command": command(n)}));
    // One answer may have 128 calls at the most.
    for first in [0, 100, 200] {
        scene.model.script((first..290.min(first + 100)).fold(Stream::new(), call));
    }
    let many = scene.send("many", "do very many things").await;
    at_work(&scene, &many, "sleep 600").await;
    drop(scene.http.post(&format!("/api/runs/{many}/stop?wait=1"), &json!({})).await.expect_status(200));
    scene.go(&format!("#/r/{many}")).await;
    browser.shown(&format!("#inspector[data-run='{many}'] .timeline .line.settled")).await;
    album.view(&scene, "inspector-300").await;
    album.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_else_looks_right_and_is_accessible() {
    let Some(mut album) = Album::open().await else { return };
    let others = [
        ("research", "parent = \"main\"\nrole = \"reads and compares\""),
        ("research/web", "parent = \"research\"\nrole = \"looks things up\""),
        ("writer", "parent = \"main\"\nrole = \"drafts\"\napprovals = { shell = \"ask\" }"),
        ("watcher", ""),
    ];
    let scene = Scene::with(&Plan { others: &others, ..Plan::default() }).await;
    let relay = Relay::before(scene.daemon.url()).await;
    let browser = &scene.browser;
    browser.open(&scene.link().replace(scene.daemon.url(), &relay.url)).await;
    browser.shown("[data-fact=connection][data-state=live]").await;
    work(&scene).await;
    scene.go("#/runs").await;
    browser.until("document.querySelectorAll('#runs tr[data-run]').length >= 3").await;
    browser.shown("#processes [data-process]").await;
    album.view(&scene, "everything").await;
    browser.click("#stop-all").await;
    browser.shown("#stop-all-dialog").await;
    album.view(&scene, "stop-all").await;
    browser.click("#stop-all-cancel").await;
    scene.go("#/approvals").await;
    browser.shown("#approvals [data-approval]").await;
    album.view(&scene, "approvals").await;

    for (agent, status) in [
        ("main", "waiting_llm"),
        ("research", "processing"),
        ("research/web", "stopping"),
        ("writer", "waiting_llm"),
        ("watcher", "idle"),
    ] {
        relay.status(agent, status);
    }
    scene.go("#/agents").await;
    browser.shown("#agents [data-agent='research/web'] .compute-status.stopping").await;
    album.view(&scene, "agents").await;
    scene.go("#/runs").await;
    browser.click("#hold").await;
    browser.shown("#hold[aria-checked=true]").await;
    album.view(&scene, "held").await;
    album.close();
}

/// Three runs in different phases, one that is over, one process in the background, one call that waits for a person.
async fn work(scene: &Scene) {
    let server = json!({"command": "echo listening on 8080; sleep 600", "background": true});
    scene.model.script(Behaviour::tool_call("c1", "shell", &server)).script(Behaviour::text("The server runs."));
    let over = scene.send("dev server", "start the server").await;
    scene.ended(&over).await;
    scene.model.script(Behaviour::silent_mid_stream("Reading the first of 40 pages"));
    scene.send("summary of the archive", "summarise everything").await;
    scene.model.request(2).resting().await;
    let copy = "sleep 600 # rsync -a /srv /mnt/backup";
    scene.model.script(Behaviour::tool_call("c1", "shell", &json!({"command": copy})));
    let backup = scene.send("nightly backup", "back everything up").await;
    at_work(scene, &backup, "rsync").await;
    scene.model.script(Behaviour::tool_call(
        "c1",
        "shell",
        &json!({"command": "git push --force origin main \u{202e}# siht\u{202c}"}),
    ));
    let ask = json!({"text": "publish it", "agent": "writer"});
    drop(scene.http.post("/api/sessions/release/runs", &ask).await.expect_status(202));
}

/// Waits until a run has begun a call whose arguments contain this.
async fn at_work(scene: &Scene, run: &str, arguments: &str) {
    let mut events = scene.http.events(run, 0).await;
    while !events.until("tool.started").await.data.to_string().contains(arguments) {}
}
