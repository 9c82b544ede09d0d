//! Pictures in what users say: for models that see and for those that do not, in both dialects, and what is shown of many.

use proptest::prelude::*;

use super::properties::{begins_with, without_request_to_go_on};
use super::*;
use crate::picture::{Picture, Unseen};
use crate::turn::VISION;
use crate::turn::sample::{Ended, Step, conversation};

fn png(name: &str) -> Picture {
    Picture::of(&[b"\x89PNG\r\n\x1a\n".as_slice(), name.as_bytes()].concat()).unwrap()
}

/// What was found: `/a` to `/c` are pictures, `/gone` is none.
fn found() -> Pictures {
    let mut pictures = Pictures::default();
    for source in ["/a", "/b", "/c"] {
        pictures.note(source.to_owned(), Ok(png(source)));
    }
    pictures.note("/gone".to_owned(), Err(Unseen::Gone));
    pictures
}

/// All of what is wanted is there.
fn all(turns: &[Arc<Turn>], draft: Option<&TurnDraft>) -> Pictures {
    let mut pictures = Pictures::default();
    wanted(turns, draft).into_iter().for_each(|source| pictures.note(source.clone(), Ok(png(&source))));
    pictures
}

fn views(turns: &[Arc<Turn>], draft: Option<&TurnDraft>, sight: Sight<'_>) -> [Vec<Value>; 2] {
    let prompt = Prompt { model: READER, system: "", turns, draft, preamble: None, sight };
    let (openai, anthropic) = (openai::messages(&prompt), anthropic::request(&prompt).messages);
    openai::check(&openai).unwrap();
    anthropic::check(&anthropic).unwrap();
    [openai, anthropic]
}

/// The content of the one message of a user who says this.
fn said(text: &str, sight: Sight<'_>) -> [Value; 2] {
    views(&[], Some(&draft("run-1", text)), sight).map(|messages| messages[0]["content"].clone())
}

fn ended(run: &str, text: &str, verdict: &Verdict) -> Arc<Turn> {
    Arc::new(seal(draft(run, text), verdict, PartialPolicy::Discard))
}

fn vision_failure() -> Verdict {
    Verdict::Failed { code: VISION.into(), message: "no pictures, please".into() }
}

#[rstest]
#[case::in_a_text("what is [IMAGE:/a] this?", "what is  this?")]
#[case::before_it("[IMAGE:/a] what is this?", "what is this?")]
#[case::alone("[IMAGE:/a]\n[IMAGE:data:image/png;base64,AA==]", "(a picture, which this model cannot see)")]
#[case::no_marker("what is [IMAGE:]? ", "what is [IMAGE:]? ")]
fn a_model_that_reads_text_gets_no_marker(#[case] text: &str, #[case] read: &str) {
    assert_eq!(said(text, Sight::Blind), [json!(read), json!([{"type": "text", "text": read}])]);
}

#[test]
fn a_model_that_sees_gets_pictures_where_they_stood() {
    let pictures = found();
    let (a, b) = (pictures_data("/a"), pictures_data("/b"));
    let [openai, anthropic] = said("look: [IMAGE:/a] and [IMAGE:/b]", Sight::Of(&pictures));
    let url = |data: &str| json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{data}")}});
    let text = |text: &str| json!({"type": "text", "text": text});
    assert_eq!(openai, json!([text("look:"), url(&a), text("and"), url(&b)]));
    let source =
        |data: &str| json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
    assert_eq!(anthropic, json!([text("look:"), source(&a), text("and"), source(&b)]));
}

fn pictures_data(source: &str) -> String {
    png(source).base64().to_owned()
}

#[test]
fn a_url_goes_to_the_provider_as_it_is() {
    let pictures = Pictures::default();
    let [openai, anthropic] = said("[IMAGE:https://host/x.png]", Sight::Of(&pictures));
    assert_eq!(openai, json!([{"type": "image_url", "image_url": {"url": "https://host/x.png"}}]));
    assert_eq!(anthropic, json!([{"type": "image", "source": {"type": "url", "url": "https://host/x.png"}}]));
}

#[rstest]
#[case::gone("see [IMAGE:/gone]!", "see (a picture stood here; it cannot be read any more)!")]
#[case::not_looked_for("[IMAGE:/nobody]", "(a picture stood here; it is not shown any more)")]
#[case::no_marker("  as written \n", "  as written \n")]
#[case::blank(" \n", NO_TEXT)]
fn what_cannot_be_shown_is_a_word_in_its_place(#[case] text: &str, #[case] read: &str) {
    let pictures = found();
    let [openai, anthropic] = said(text, Sight::Of(&pictures));
    assert_eq!(openai, json!([{"type": "text", "text": read}]));
    assert_eq!(anthropic, openai, "text is spelled alike");
}

#[test]
fn the_words_of_the_run_stand_before_a_picture() {
    let (pictures, next) = (found(), draft("run-1", "[IMAGE:/a]"));
    let preamble = Some("Date: today");
    let prompt =
        Prompt { model: READER, system: "", turns: &[], draft: Some(&next), preamble, sight: Sight::Of(&pictures) };
    let content = &openai::messages(&prompt)[0]["content"];
    assert_eq!((&content[0]["text"], &content[1]["type"]), (&json!("Date: today"), &json!("image_url")));
}

/// Twenty at the most, the newest first; older ones give way by fives.
#[rstest]
#[case::all(20, 20)]
#[case::one_too_many(21, 16)]
#[case::four_more(25, 20)]
#[case::and_again(26, 16)]
#[case::a_hundred(100, 20)]
fn of_many_pictures_the_newest_are_shown(#[case] total: usize, #[case] shown_then: usize) {
    let text: String = (0..total).map(|number| format!("[IMAGE:/{number}]")).collect();
    let next = draft("run-1", &text);
    let newest: Vec<String> = (total - shown_then..total).map(|number| format!("/{number}")).collect();
    assert_eq!(wanted(&[], Some(&next)), newest);
    let pictures = all(&[], Some(&next));
    let [openai, anthropic] = views(&[], Some(&next), Sight::Of(&pictures));
    let count = |messages: &[Value], kind: &str| {
        messages[0]["content"].as_array().unwrap().iter().filter(|part| part["type"] == kind).count()
    };
    assert_eq!((count(&openai, "image_url"), count(&anthropic, "image")), (shown_then, shown_then));
    let bytes = pictures.bytes();
    assert_eq!(shown(&[], Some(&next), Sight::Of(&pictures)), Shown { count: shown_then, bytes });
    assert_eq!(shown(&[], Some(&next), Sight::Blind), Shown::default());
    let text = openai[0]["content"][0]["text"].as_str().unwrap_or_default();
    assert_eq!(text.matches("it is not shown any more").count(), total - shown_then);
}

#[test]
fn a_turn_whose_pictures_a_model_did_not_take_leaves_what_it_sees() {
    let turns =
        [ended("run-1", "first [IMAGE:/a]", &Verdict::Completed), ended("run-2", "bad [IMAGE:/b]", &vision_failure())];
    let note = turns[1].note().unwrap().to_owned();
    let next = draft("run-3", "and now?");
    assert_eq!(wanted(&turns, Some(&next)), ["/a"]);
    let pictures = all(&turns, Some(&next));
    let [openai, anthropic] = views(&turns, Some(&next), Sight::Of(&pictures));
    for messages in [openai, anthropic] {
        let told = Value::Array(messages).to_string();
        assert!(told.contains(&pictures_data("/a")) && told.contains(&note) && !told.contains("bad"), "{told}");
    }
    assert_eq!(turns[1].size(), 0);
    let kept = turns[1].items();
    assert_eq!(kept, [Item::User { text: "bad [IMAGE:/b]".into(), at: None }], "the record keeps it");
}

/// The next model does not see, or the provider has changed its mind: without this no later message would ever be answered.
#[test]
fn older_pictures_that_a_model_did_not_take_are_not_shown_again() {
    let turns = [
        ended("run-1", "first [IMAGE:/a]", &Verdict::Completed),
        ended("run-2", "no picture here", &vision_failure()),
        ended("run-3", "another [IMAGE:/b]", &Verdict::Completed),
    ];
    let next = draft("run-4", "and now?");
    assert_eq!(wanted(&turns, Some(&next)), ["/b"]);
    let pictures = all(&turns, Some(&next));
    let [openai, _] = views(&turns, Some(&next), Sight::Of(&pictures));
    let told = Value::Array(openai).to_string();
    assert!(told.contains("first (a picture stood here; it is not shown any more)"), "{told}");
    assert!(told.contains(&pictures_data("/b")) && !told.contains("no picture here"), "{told}");
}

#[test]
fn what_was_found_once_stays_as_it_was() {
    let mut pictures = found();
    pictures.note("/gone".to_owned(), Ok(png("/gone")));
    pictures.note("/a".to_owned(), Err(Unseen::Gone));
    let [openai, _] = said("[IMAGE:/a] [IMAGE:/gone]", Sight::Of(&pictures));
    assert_eq!(openai[0]["type"], "image_url");
    assert_eq!(openai[1]["text"], Unseen::Gone.words());
}

/// A turn in which a tool answered with these pictures.
fn shown_by_a_tool(pictures: &[&str]) -> TurnDraft {
    let mut draft = draft("run-1", "show me");
    let call = ToolCall::from_wire("c1", "test__picture", json!({}));
    let calls = draft.finish_message(AssistantMessage::new(Vec::new(), "", vec![call]));
    draft.begin_call(&calls[0].id);
    let pictures = pictures.iter().map(|&source| source.to_owned()).collect();
    draft.finish_call(&calls[0].id, CallResult { pictures, ..CallResult::new(CallEnd::Ok, "look") });
    draft
}

#[test]
fn pictures_of_a_result_stand_in_it_or_behind_it() {
    let (pictures, draft) = (found(), shown_by_a_tool(&["/a", "/gone"]));
    let [openai, anthropic] = views(&[], Some(&draft), Sight::Of(&pictures));
    assert_eq!(openai[2]["content"], "look");
    let data = pictures_data("/a");
    let url = format!("data:image/png;base64,{data}");
    let says = json!([
        {"type": "text", "text": "[The pictures in the results of the tools above, in their order:]"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": Unseen::Gone.words()},
    ]);
    assert_eq!((&openai[3]["role"], &openai[3]["content"]), (&json!("user"), &says));
    let source = json!({"type": "base64", "media_type": "image/png", "data": data});
    let says = json!([
        {"type": "text", "text": "look"},
        {"type": "image", "source": source},
        {"type": "text", "text": Unseen::Gone.words()},
    ]);
    assert_eq!(
        (&anthropic[2]["content"][0]["type"], &anthropic[2]["content"][0]["content"]),
        (&json!("tool_result"), &says)
    );
}

#[test]
fn a_model_that_reads_text_is_told_of_the_pictures_of_a_result() {
    for (sources, says) in [
        (&["/a"][..], "look\n(a picture, which this model cannot see)"),
        (&["/a", "/b"], "look\n(2 pictures, which this model cannot see)"),
    ] {
        let [openai, anthropic] = views(&[], Some(&shown_by_a_tool(sources)), Sight::Blind);
        assert_eq!((&openai[2]["content"], openai.len()), (&json!(says), 3));
        assert_eq!(anthropic[2]["content"][0]["content"], says);
    }
}

#[test]
fn pictures_of_results_give_way_like_those_of_users() {
    let sources: Vec<String> = (0..=MOST_PICTURES).map(|nth| format!("/{nth}")).collect();
    let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
    let draft = shown_by_a_tool(&sources);
    let pictures = all(&[], Some(&draft));
    let wanted = wanted(&[], Some(&draft));
    assert_eq!((wanted.len(), wanted[0].as_str()), (MOST_PICTURES - 4, "/5"), "five give way at once");
    let [_, anthropic] = views(&[], Some(&draft), Sight::Of(&pictures));
    let parts = anthropic[2]["content"][0]["content"].as_array().unwrap();
    assert_eq!(parts.iter().filter(|part| part["type"] == "image").count(), MOST_PICTURES - 4);
    assert_eq!(shown(&[], Some(&draft), Sight::Of(&pictures)).count, MOST_PICTURES - 4);
}

/// Histories in which every other text, and every other result, has a picture.
fn pictured() -> impl Strategy<Value = Vec<Ended>> {
    let mark = |text: &mut String, number: usize| {
        if number.is_multiple_of(2) {
            text.push_str(["[IMAGE:/a]", "[IMAGE:/gone] [IMAGE:/b]", " [IMAGE:https://x/y]"][number % 3]);
        }
    };
    conversation().prop_map(move |mut conversation| {
        for (number, end) in conversation.iter_mut().enumerate() {
            mark(&mut end.story.user, number);
            for (step, what) in end.story.steps.iter_mut().enumerate() {
                match what {
                    Step::User(text) => mark(text, number + step),
                    Step::Finish(_, result) if step.is_multiple_of(2) => {
                        result.pictures = vec![["/a", "/gone", "/b"][step % 3].to_owned()];
                    }
                    _ => {}
                }
            }
        }
        conversation
    })
}

fn turns(conversation: &[Ended]) -> Vec<Arc<Turn>> {
    let turn = |(nth, end): (usize, &Ended)| Arc::new(end.turn(&format!("run-{nth}")));
    conversation.iter().enumerate().map(turn).collect()
}

proptest! {
    #[test]
    fn any_conversation_with_pictures_is_valid_for_who_sees_and_for_who_does_not(conversation in pictured()) {
        let (turns, next, pictures) = (turns(&conversation), draft("run-next", "[IMAGE:/c]"), found());
        for sight in [Sight::Blind, Sight::Of(&pictures)] {
            views(&turns, Some(&next), sight);
        }
        let blind = views(&turns, Some(&next), Sight::Blind).map(Value::Array).map(|messages| messages.to_string());
        prop_assert!(blind.iter().all(|told| !told.contains("[IMAGE:")));
    }

    #[test]
    fn earlier_turns_keep_their_pictures_byte_for_byte(mut conversation in pictured()) {
        // What makes older pictures leave is another test's.
        conversation.retain(|end| !matches!(&end.verdict, Verdict::Failed { code, .. } if code == VISION));
        let (turns, pictures) = (turns(&conversation), found());
        let total: usize = turns.iter().flat_map(|turn| turn.pictures()).count();
        prop_assume!(total <= MOST_PICTURES);
        for count in 0..turns.len() {
            let [openai, anthropic] = views_without_end(&turns[..count], &pictures);
            let [later_openai, later_anthropic] = views_without_end(&turns[..=count], &pictures);
            prop_assert!(begins_with(&later_openai, &openai), "{later_openai:#?} does not begin with {openai:#?}");
            prop_assert!(begins_with(&later_anthropic, &anthropic), "{later_anthropic:#?} does not begin with {anthropic:#?}");
        }
    }
}

/// Without the check of a whole request: these end anywhere.
fn views_without_end(turns: &[Arc<Turn>], pictures: &Pictures) -> [Vec<Value>; 2] {
    let prompt = Prompt { model: READER, system: "", turns, draft: None, preamble: None, sight: Sight::Of(pictures) };
    [openai::messages(&prompt), without_request_to_go_on(anthropic::request(&prompt).messages)]
}
