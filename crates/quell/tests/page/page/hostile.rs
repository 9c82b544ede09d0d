//! Hostile text from models, tools, names and keys is shown as it is and never executed.

use quell_testkit::browser::Key;

use super::{PageConfig, PageFixture};
use crate::prelude::*;

/// Each of these would set `window.__xss`, load something, or leave the page if the page let it.
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

const HOSTILE_NAME: &str = "<img src=x onerror=window.__xss=90>\u{202e}";

#[tokio::test(flavor = "multi_thread")]
async fn hostile_text_is_shown_and_never_run() {
    let id = "a<img src=x onerror=window.__xss=91>";
    let role = format!("role = {}", json!(HOSTILE_NAME));
    let config = PageConfig { others: &[(id, &role)], ..PageConfig::main("approvals = { shell = \"ask\" }") };
    let Some(fixture) = PageFixture::start_signed_in_with(&config).await else { return };
    let shell = fixture.eval(STRUCTURE_SCRIPT).await;

    // Written in pieces of 7 bytes, so that tags and escapes are split as in real streams.
    let all = CORPUS.join("\n\n");
    fixture.model.script(ScriptedStream::new().thinking(&all).text(&all).split_writes(7));
    fixture.open_session("<script>window.__xss=92</script>").await;
    // Typing it key by key would take too long.
    fixture.click("#message").await;
    fixture.cdp("Input.insertText", json!({"text": all})).await;
    fixture.press_key(Key::Enter).await;
    fixture.wait_send_mode("send").await;
    fixture.wait_text("article.turn[data-role=assistant] .markdown", "<script>window.__xss=1</script>").await;
    assert_inert(&fixture, "an answer").await;
    check_links_harmless(&fixture).await;
    check_calls_and_approvals(&fixture, &all).await;

    for route in [
        "#/runs",
        "#/agents",
        "#/approvals",
        "#/s/%3Cscript%3Ewindow.__xss%3D93%3C%2Fscript%3E",
        "#/r/<img src=x onerror=window.__xss=94>",
    ] {
        fixture.go_to(route).await;
        fixture.run_async_script("requestAnimationFrame(() => requestAnimationFrame(() => done(true)));", &[]).await;
        assert_inert(&fixture, route).await;
    }
    fixture.open_session("<script>window.__xss=92</script>").await;
    fixture.reload().await;
    fixture.wait_text("article.turn[data-role=assistant] .markdown", "<script>window.__xss=1</script>").await;
    assert_inert(&fixture, "a restored answer").await;
    assert_eq!(fixture.eval(STRUCTURE_SCRIPT).await, shell, "the structure of the page is unchanged");
    fixture.assert_no_page_errors(&["status of 404"]).await;
}

/// Counts the elements that must exist exactly once, whatever a text contains.
const STRUCTURE_SCRIPT: &str =
    "['body','turns','composer','send','message','hold','stop-all','stop-all-dialog','agents','sessions','toasts']
    .map((id) => `${id} ${document.querySelectorAll(`[id='${id}']`).length}`).join()";

/// Sends hostile text through calls, their arguments and output, approvals and errors.
async fn check_calls_and_approvals(fixture: &PageFixture, all: &str) {
    fixture.open_session("calls").await;
    let command = format!("cat <<'END'\n{}\nEND\n", all.replace('\u{1}', ""));
    let arguments = json!({"command": command});
    fixture.model.script(ScriptedResponse::tool_call("<b onclick=window.__xss=95>", "shell", &arguments));
    fixture.model.script(ScriptedResponse::tool_call("c2", HOSTILE_NAME, &json!({HOSTILE_NAME: all})));
    fixture.model.script(ScriptedResponse::status(400));
    fixture.send_message("call").await;
    fixture.wait_visible("[data-approval] .allow").await;
    assert_inert(fixture, "an approval").await;
    fixture.click("[data-approval] .allow").await;
    fixture.wait_for("document.querySelectorAll('details.call').length >= 2").await;
    fixture.run_script("document.querySelectorAll('details').forEach(details => { details.open = true; });", &[]).await;
    fixture.wait_text(".call-output", "<script>window.__xss=1</script>").await;
    fixture.wait_send_mode("send").await;
    assert_inert(fixture, "calls").await;
}

/// No script has run, nothing was loaded from elsewhere, and no text has become an element.
async fn assert_inert(fixture: &PageFixture, what: &str) {
    assert_eq!(fixture.eval("window.__xss ?? 'no script'").await, "no script", "in {what}");
    let foreign = "[...document.querySelectorAll('img,iframe,object,embed,base,meta[http-equiv],math,#turns form,#turns noscript,body link,body style,body script')]
        .map((e) => e.outerHTML.slice(0, 120)).filter((html) => !html.includes('/assets/'))";
    assert_eq!(fixture.eval(foreign).await, json!([]), "in {what}");
    let events = "[...document.querySelectorAll('*')].flatMap((e) => e.getAttributeNames().filter((name) => /^on|^style$|^srcdoc$/.test(name))
        .map((name) => `${e.tagName} ${name}=${e.getAttribute(name)}`)).filter((text) => /xss|evil/.test(text))";
    assert_eq!(fixture.eval(events).await, json!([]), "in {what}");
    let foreign = "performance.getEntriesByType('resource').map((e) => e.name).filter((name) => !name.startsWith(location.origin) && !name.startsWith('data:'))";
    assert_eq!(fixture.eval(foreign).await, json!([]), "loaded by {what}");
}

/// All links have web schemes, and clicking them runs no script.
async fn check_links_harmless(fixture: &PageFixture) {
    let links = "[...document.querySelectorAll('#turns a[href]')]";
    let other_schemes = format!("{links}.map((a) => a.protocol).filter((p) => !/^(https?|mailto):$/.test(p))");
    assert_eq!(fixture.eval(&other_schemes).await, json!([]));
    // Navigation is prevented: a script in a link would run at the click itself.
    let click = format!(
        "const stay = (event) => {{ if (event.target.closest('a')?.protocol.startsWith('http')) event.preventDefault(); }};
         addEventListener('click', stay); {links}.forEach((a) => a.click()); removeEventListener('click', stay);"
    );
    fixture.run_script(&click, &[]).await;
    assert_inert(fixture, "clicked links").await;
}
