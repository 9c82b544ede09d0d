//! What comes from models, tools, names and keys is hostile text: shown as it is, and never run.

use quell_testkit::browser::{Key, is_skipped};
use quell_testkit::model::{Behaviour, Stream};
use serde_json::json;

use super::{Plan, Scene};

/// Each would set `window.__xss`, load something, or leave the page, where a page lets it.
const CORPUS: &[&str] = &[
    "<script>window.__xss=1</script>",
    "<ScRiPt >window.__xss=2</sCrIpT >",
    "<img src=x onerror=\"window.__xss=3\">",
    "<svg onload=window.__xss=4><animate onbegin=window.__xss=4 attributeName=x dur=1s>",
    "<svg><script href=\"data:text/javascript,window.__xss=5\" /></svg>",
    "<iframe srcdoc=\"<script>parent.__xss=6</script>\"></iframe>",
    "<details open ontoggle=window.__xss=7><summary>x</summary></details>",
    "<a href=\"javascript:window.__xss=8\">click</a>",
    "[click](javascript:window.__xss=9)",
    "[click](JaVaScRiPt:window.__xss=10)",
    "[click](java\tscript:window.__xss=11)",
    "[click](&#106;avascript:window.__xss=12)",
    "[click](\u{1}javascript:window.__xss=13)",
    "[click](data:text/html,<script>opener.__xss=14</script>)",
    "[click](vbscript:window.__xss=15)",
    "![x](x\" onerror=\"window.__xss=16)",
    "![x](https://evil.example/track.png)",
    "[x]: javascript:window.__xss=17\n\n[click][x]",
    "<javascript:window.__xss=18>",
    "[click](https://example.org/\"onmouseover=\"window.__xss=19)",
    "```html\n</code></pre><script>window.__xss=20</script>\n```",
    "```\"><img src=x onerror=window.__xss=21>\ncode\n```",
    "`</code><img src=x onerror=window.__xss=22>`",
    "| <img src=x onerror=window.__xss=23> |\n|---|\n| <b onmouseover=window.__xss=23>x</b> |",
    "<style>@import 'https://evil.example/x.css'; * { display: none !important }</style>",
    "<link rel=stylesheet href=https://evil.example/x.css><meta http-equiv=refresh content=\"0;url=https://evil.example\">",
    "<base href=https://evil.example/><form action=https://evil.example><button>x</button></form>",
    "{{constructor.constructor('window.__xss=24')()}} ${window.__xss=25} #{window.__xss=26} <%= window.__xss=27 %>",
    "\u{1b}[31mred\u{1b}[0m \u{1b}]8;;javascript:window.__xss=28\u{7}link\u{1b}]8;;\u{7} \u{1b}[2J",
    "\u{202e}gnp.exe\u{202c} \u{2066}hidden\u{2069} \u{200b}zero\u{feff}width",
    "</textarea><script>window.__xss=29</script><textarea>",
    "</title></style></script><script>window.__xss=30</script>",
    "<math><mtext></mtext><mglyph><style><img src=x onerror=window.__xss=31></style></mglyph></math>",
    "<noscript><p title=\"</noscript><img src=x onerror=window.__xss=32>\"></noscript>",
    "<object data=javascript:window.__xss=33></object><embed src=javascript:window.__xss=34>",
    "__proto__ constructor <img id=body name=body> <form id=turns><input name=attributes></form>",
    "<p id=composer><p id=send data-mode=force><dialog id=stop-all-dialog open>",
];

/// A name that is none.
const NAME: &str = "<img src=x onerror=window.__xss=90>\u{202e}";

#[tokio::test(flavor = "multi_thread")]
async fn hostile_text_is_shown_and_never_run() {
    if is_skipped() {
        return;
    }
    let id = "a<img src=x onerror=window.__xss=91>";
    let role = format!("role = {}", json!(NAME));
    let plan = Plan { main: "approvals = { shell = \"ask\" }", others: &[(id, &role)], ..Plan::default() };
    let scene = Scene::with(&plan).await;
    let browser = &scene.browser;
    scene.sign_in().await;
    let shell = browser.value(STRUCTURE).await;

    // Split within tags and escapes, as streams are.
    let all = CORPUS.join("\n\n");
    let stream = Stream::new().thinking(&all).text(&all).chunked(7);
    scene.model.script(stream);
    scene.session("<script>window.__xss=92</script>").await;
    paste(&scene, &all).await;
    scene.mode("send").await;
    browser.reads("article.turn[data-role=assistant] .markdown", "<script>window.__xss=1</script>").await;
    inert(&scene, "an answer").await;
    every_link_is_harmless(&scene).await;
    in_calls_and_approvals(&scene, &all).await;

    for route in [
        "#/runs",
        "#/agents",
        "#/approvals",
        "#/s/%3Cscript%3Ewindow.__xss%3D93%3C%2Fscript%3E",
        "#/r/<img src=x onerror=window.__xss=94>",
    ] {
        scene.go(route).await;
        browser.run_until_done("requestAnimationFrame(() => requestAnimationFrame(() => done(true)));", &[]).await;
        inert(&scene, route).await;
    }
    scene.session("<script>window.__xss=92</script>").await;
    browser.reload().await;
    browser.reads("article.turn[data-role=assistant] .markdown", "<script>window.__xss=1</script>").await;
    inert(&scene, "a restored answer").await;
    assert_eq!(browser.value(STRUCTURE).await, shell, "the frame of the page is as it was");
    browser.assert_quiet(&["status of 404"]).await;
}

/// Sends a text that nobody would type key by key.
async fn paste(scene: &Scene, text: &str) {
    scene.browser.click("#message").await;
    scene.browser.cdp("Input.insertText", json!({"text": text})).await;
    scene.browser.press(Key::Enter).await;
}

/// What a page must have once, and must not be given by anybody else.
const STRUCTURE: &str =
    "['body','turns','composer','send','message','hold','stop-all','stop-all-dialog','agents','sessions','toasts']
    .map((id) => `${id} ${document.querySelectorAll(`[id='${id}']`).length}`).join()";

/// Calls of tools, their arguments and output, approvals, errors.
async fn in_calls_and_approvals(scene: &Scene, all: &str) {
    let browser = &scene.browser;
    scene.session("calls").await;
    let command = format!("cat <<'END'\n{}\nEND\n", all.replace('\u{1}', ""));
    scene.model.script(Behaviour::tool_call("<b onclick=window.__xss=95>", "shell", &json!({"command": command})));
    scene.model.script(Behaviour::tool_call("c2", NAME, &json!({NAME: all})));
    scene.model.script(Behaviour::status(400));
    scene.say("call").await;
    browser.shown("[data-approval] .allow").await;
    inert(scene, "an approval").await;
    browser.click("[data-approval] .allow").await;
    browser.until("document.querySelectorAll('details.call').length >= 2").await;
    browser.run("document.querySelectorAll('details').forEach(details => { details.open = true; });", &[]).await;
    browser.reads(".call-output", "<script>window.__xss=1</script>").await;
    scene.mode("send").await;
    inert(scene, "calls").await;
}

/// Nothing has run, nothing has been loaded, and no element has come out of a text.
async fn inert(scene: &Scene, what: &str) {
    let browser = &scene.browser;
    assert_eq!(
        browser.value("typeof window.__xss").await,
        "undefined",
        "in {what}: script {}",
        browser.value("window.__xss").await
    );
    let foreign = "[...document.querySelectorAll('img,iframe,object,embed,base,meta[http-equiv],math,#turns form,#turns noscript,body link,body style,body script')]
        .map((e) => e.outerHTML.slice(0, 120)).filter((html) => !html.includes('/assets/'))";
    assert_eq!(browser.value(foreign).await, json!([]), "in {what}");
    let events = "[...document.querySelectorAll('*')].flatMap((e) => e.getAttributeNames().filter((name) => /^on|^style$|^srcdoc$/.test(name))
        .map((name) => `${e.tagName} ${name}=${e.getAttribute(name)}`)).filter((text) => /xss|evil/.test(text))";
    assert_eq!(browser.value(events).await, json!([]), "in {what}");
    let foreign = "performance.getEntriesByType('resource').map((e) => e.name).filter((name) => !name.startsWith(location.origin) && !name.startsWith('data:'))";
    assert_eq!(browser.value(foreign).await, json!([]), "loaded by {what}");
}

/// Every link leads to the web, and clicking on all of them runs nothing.
async fn every_link_is_harmless(scene: &Scene) {
    let browser = &scene.browser;
    let links = "[...document.querySelectorAll('#turns a[href]')]";
    let schemes =
        browser.value(&format!("{links}.map((a) => a.protocol).filter((p) => !/^(https?|mailto):$/.test(p))")).await;
    assert_eq!(schemes, json!([]));
    // Without going anywhere: what a link would run, it runs on the click.
    let click = format!(
        "const stay = (event) => {{ if (event.target.closest('a')?.protocol.startsWith('http')) event.preventDefault(); }};
         addEventListener('click', stay); {links}.forEach((a) => a.click()); removeEventListener('click', stay);"
    );
    browser.run(&click, &[]).await;
    inert(scene, "clicked links").await;
}
