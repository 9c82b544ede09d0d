//! What of a long page is seen, and that only that is rendered.

use crossterm::event::KeyCode;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::effects::{Answer, Effect, Input, Page};
use super::super::markdown;
use super::super::scene::{Scene, read};
use super::*;

/// A page of `n` messages of one row each, `m0` the oldest.
fn long(n: usize) -> Scene {
    let mut scene = Scene::new();
    let said = |at: usize| json!({"runId": format!("r{at}"), "role": "user", "text": format!("m{at}"), "at": "2026-03-01T11:00:00Z"});
    let items: Vec<Value> = (0..n).map(said).collect();
    let session = scene.chat.session().clone();
    let page = read(json!({"items": items}));
    scene.input(Input::Answer(Answer::History { session, which: Page::Newest, result: Ok(page) }));
    scene
}

fn seen(scene: &mut Scene) -> Vec<usize> {
    let shown = scene.screen(40, 24);
    shown.lines().filter_map(|line| line.strip_prefix("› m")?.parse().ok()).collect()
}

fn press(scene: &mut Scene, code: KeyCode) {
    for effect in scene.key(code) {
        if let Effect::Scroll(scroll) = effect {
            scene.painter.scroll(scroll);
        }
    }
}

#[test]
fn the_end_is_followed_until_somebody_looks_back() {
    let mut scene = long(5_000);
    assert_eq!(seen(&mut scene), (4_990..5_000).collect::<Vec<_>>());
    press(&mut scene, KeyCode::PageUp);
    let before = seen(&mut scene);
    assert!(before.contains(&4_985) && !before.contains(&4_999), "{before:?}");
    let id = scene.running("more");
    scene.text(&id, "an answer\n\nof several\n\nparagraphs");
    assert_eq!(seen(&mut scene), before, "nothing scrolls away under the eye");
    press(&mut scene, KeyCode::End);
    assert!(scene.screen(40, 24).contains("paragraphs"));
}

#[test]
fn of_a_long_page_only_what_is_seen_is_rendered() {
    let mut scene = long(5_000);
    seen(&mut scene);
    assert!(scene.painter.kept.len() < 30, "{} of 5000 were rendered", scene.painter.kept.len());
    assert!(!scene.painter.saw_top());
}

#[test]
fn the_oldest_row_is_reached_and_noticed() {
    let mut scene = long(60);
    for _ in 0..20 {
        press(&mut scene, KeyCode::PageUp);
        seen(&mut scene);
    }
    assert_eq!(seen(&mut scene).first(), Some(&0));
    assert!(scene.painter.saw_top());
}

#[test]
fn an_older_page_goes_above_without_moving_what_is_seen() {
    let mut scene = long(60);
    press(&mut scene, KeyCode::PageUp);
    let before = seen(&mut scene);
    let session = scene.chat.session().clone();
    let older = json!({"items": [{"runId": "x1", "role": "user", "text": "older", "at": "2026-03-01T10:00:00Z"}]});
    let which = Page::Before("7".into());
    scene.input(Input::Answer(Answer::History { session, which, result: Ok(read(older)) }));
    assert_eq!(seen(&mut scene), before);
}

#[test]
fn a_page_up_and_a_page_down_lead_back() {
    let mut scene = long(100);
    for _ in 0..3 {
        press(&mut scene, KeyCode::PageUp);
        seen(&mut scene);
    }
    let there = seen(&mut scene);
    press(&mut scene, KeyCode::PageUp);
    seen(&mut scene);
    press(&mut scene, KeyCode::PageDown);
    assert_eq!(seen(&mut scene), there);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    /// However an answer is cut into pieces, its end looks as if it had come at once.
    #[test]
    fn a_text_that_grows_ends_as_the_whole_text(
        pieces in proptest::collection::vec("[a-c ]{1,6}|\n|\n\n|```\n|\n- |\n# |\\*\\*", 1..20),
    ) {
        let mut prose = HashMap::new();
        let mut text = String::new();
        let mut rows = Vec::new();
        for piece in pieces {
            text.push_str(&piece);
            rows = grown(&mut prose, (EntryId(1), 0), &text, 20);
        }
        let shown = |rows: &[Line<'_>]| rows.iter().map(|row| row.to_string().trim().to_owned()).filter(|row| !row.is_empty()).collect::<Vec<_>>();
        prop_assert_eq!(shown(&rows), shown(&markdown::render(&text, 20)), "{:?}", text);
    }

    #[test]
    fn every_size_of_a_window_is_painted(columns in 1_u16..60, rows in 1_u16..30) {
        let mut scene = long(20);
        scene.type_in("한국어 text that is longer than the window is wide");
        let shown = scene.screen(columns, rows);
        prop_assert!(shown.lines().filter(|line| !line.starts_with("~ ")).all(|line| super::super::text::width(line) <= usize::from(columns)), "{}", shown);
    }
}
