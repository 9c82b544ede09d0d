//! Scrolling, caching and incremental rendering of a long transcript.

use crossterm::event::KeyCode;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::effects::{ChatEffect, HistorySlice};
use crate::harness::ChatHarness;
use crate::markdown;

/// A transcript of `n` messages of one row each; `m0` is the oldest.
fn long(n: usize) -> ChatHarness {
    let mut scene = ChatHarness::new();
    let said = |at: usize| json!({"runId": format!("r{at}"), "role": "user", "text": format!("m{at}"), "at": "2026-03-01T11:00:00Z"});
    let items: Vec<Value> = (0..n).map(said).collect();
    scene.receive_history(HistorySlice::NewestPage, json!({"items": items}));
    scene
}

fn seen(scene: &mut ChatHarness) -> Vec<usize> {
    let shown = scene.screen_text(40, 24);
    shown.lines().filter_map(|line| line.strip_prefix("› m")?.parse().ok()).collect()
}

fn press(scene: &mut ChatHarness, code: KeyCode) {
    for effect in scene.press_key(code) {
        if let ChatEffect::Scroll(scroll) = effect {
            scene.renderer.queue_scroll(scroll);
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
    let id = scene.submit_running("more");
    scene.receive_text(&id, "an answer\n\nof several\n\nparagraphs");
    assert_eq!(seen(&mut scene), before, "nothing scrolls away under the eye");
    press(&mut scene, KeyCode::End);
    assert!(scene.screen_text(40, 24).contains("paragraphs"));
}

#[test]
fn of_a_long_page_only_what_is_seen_is_rendered() {
    let mut scene = long(5_000);
    seen(&mut scene);
    assert!(scene.renderer.cached_entries.len() < 30, "{} of 5000 were rendered", scene.renderer.cached_entries.len());
    assert!(!scene.renderer.showed_top());
}

#[test]
fn the_oldest_row_is_reached_and_noticed() {
    let mut scene = long(60);
    for _ in 0..20 {
        press(&mut scene, KeyCode::PageUp);
        seen(&mut scene);
    }
    assert_eq!(seen(&mut scene).first(), Some(&0));
    assert!(scene.renderer.showed_top());
}

#[test]
fn an_older_page_goes_above_without_moving_what_is_seen() {
    let mut scene = long(60);
    press(&mut scene, KeyCode::PageUp);
    let before = seen(&mut scene);
    let older = json!({"items": [{"runId": "x1", "role": "user", "text": "older", "at": "2026-03-01T10:00:00Z"}]});
    scene.receive_history(HistorySlice::PageBefore("7".into()), older);
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

    /// An answer streamed in any pieces ends with the same rows as the whole text.
    #[test]
    fn a_text_that_grows_ends_as_the_whole_text(
        pieces in proptest::collection::vec("[a-c ]{1,6}|\n|\n\n|```\n|\n- |\n# |\\*\\*", 1..20),
    ) {
        let mut prose = CachedProseRows::default();
        let mut text = String::new();
        let mut rows = Vec::new();
        for piece in pieces {
            text.push_str(&piece);
            rows = prose.render(&text, 20);
        }
        let shown = |rows: &[Line<'_>]| rows.iter().map(|row| row.to_string().trim().to_owned()).filter(|row| !row.is_empty()).collect::<Vec<_>>();
        prop_assert_eq!(shown(&rows), shown(&markdown::render(&text, 20)), "{:?}", text);
    }

    #[test]
    fn every_size_of_a_window_is_painted(columns in 1_u16..60, rows in 1_u16..30) {
        let mut scene = long(20);
        scene.type_text("한국어 text that is longer than the window is wide");
        let shown = scene.screen_text(columns, rows);
        prop_assert!(shown.lines().filter(|line| !line.starts_with("~ ")).all(|line| crate::text_layout::display_width(line) <= usize::from(columns)), "{}", shown);
    }
}
