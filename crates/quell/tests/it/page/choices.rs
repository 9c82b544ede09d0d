//! What a person chooses stays chosen: the language, the colours.

use quell_testkit::browser::is_skipped;
use quell_testkit::model::Behaviour;
use serde_json::{Value, json};

use super::Scene;

const LANGUAGES: [&str; 3] = ["ko", "zh", "en"];

#[tokio::test(flavor = "multi_thread")]
async fn languages_and_colours_are_remembered() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    let browser = &scene.browser;
    scene.sign_in().await;
    let texts: Value = serde_json::from_str(include_str!("../../../../../web/texts.json")).unwrap();
    for language in LANGUAGES {
        choose(&scene, "#language", language).await;
        for round in ["at once", "after a reload"] {
            browser.until(&format!("document.documentElement.lang === '{language}'")).await;
            let title = texts["agents.title"][language].as_str().unwrap();
            browser.reads("#agents-title", title).await;
            browser.shown("[data-fact=connection][data-state=live]").await;
            assert_eq!(browser.value(UNTRANSLATED).await, json!([]), "{language} {round}");
            browser.reload().await;
        }
        the_stop_button_speaks(&scene, &texts, language).await;
    }
    browser.until("document.documentElement.dataset.theme").await;
    let before = browser.value("document.documentElement.dataset.theme").await;
    let other = if before == "light" { "dark" } else { "light" };
    browser.click("#theme").await;
    browser.until(&format!("document.documentElement.dataset.theme === '{other}'")).await;
    browser.reload().await;
    assert_eq!(browser.value("document.documentElement.dataset.theme").await, other, "before anything is painted");
    browser.shown("[data-fact=connection][data-state=live]").await;
    browser.assert_quiet(&[]).await;
}

/// Elements whose text is the key of a text.
const UNTRANSLATED: &str = "[...document.querySelectorAll('[data-text]')]
    .filter((e) => e.textContent.trim() === '' || e.textContent.trim() === e.dataset.text).map((e) => e.dataset.text)";

/// The words of row B8 in this language.
async fn the_stop_button_speaks(scene: &Scene, texts: &Value, language: &str) {
    let browser = &scene.browser;
    scene.model.script(Behaviour::SilentBeforeHeaders);
    scene.send(&format!("in {language}"), "go on").await;
    browser.shown("#agents .abort-btn").await;
    let title = browser.value("document.querySelector('#agents .abort-btn').title").await;
    assert_eq!(title, texts["agents.abort"][language]);
    browser.click("#agents .abort-btn").await;
    scene.toast("success", texts["agents.abort.done"][language].as_str().unwrap()).await;
    browser.gone("#agents .abort-btn").await;
}

async fn choose(scene: &Scene, list: &str, value: &str) {
    let choose = "const list = document.querySelector(arguments[0]); list.value = arguments[1];
        list.dispatchEvent(new Event('change', { bubbles: true }));";
    scene.browser.run(choose, &[json!(list), json!(value)]).await;
}
