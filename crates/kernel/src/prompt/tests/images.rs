//! Tests of images in both formats, for models with and without vision, and of the limit per request.

use proptest::prelude::*;

use super::properties::{begins_with, without_continue_message};
use super::*;
use crate::image::{Image, ImageUnavailable};
use crate::turn::CODE_VISION;
use crate::turn::samples::{DraftStep, SealedStory, conversation, turns};

fn png(name: &str) -> Image {
    Image::from_bytes(&[b"\x89PNG\r\n\x1a\n".as_slice(), name.as_bytes()].concat()).unwrap()
}

/// `/a` to `/c` are images, `/gone` is unreadable.
fn found_images() -> ImageSet {
    let mut pictures = ImageSet::default();
    for source in ["/a", "/b", "/c"] {
        pictures.insert_if_absent(source.to_owned(), Ok(png(source)));
    }
    pictures.insert_if_absent("/gone".to_owned(), Err(ImageUnavailable::Unreadable));
    pictures
}

fn all_wanted_images(turns: &[Arc<Turn>], draft: Option<&TurnDraft>) -> ImageSet {
    let mut pictures = ImageSet::default();
    wanted_image_sources(turns, draft)
        .into_iter()
        .for_each(|source| pictures.insert_if_absent(source.clone(), Ok(png(&source))));
    pictures
}

fn user_content(text: &str, vision: Vision<'_>) -> [Value; 2] {
    render_both(&Prompt { vision, ..prompt(&[], Some(&draft("run-1", text))) })
        .map(|messages| messages[0]["content"].clone())
}

fn sealed_turn(run: &str, text: &str, verdict: &Verdict) -> Arc<Turn> {
    Arc::new(seal(draft(run, text), verdict, PartialPolicy::Discard))
}

fn vision_failure() -> Verdict {
    Verdict::Failed { code: CODE_VISION.into(), message: "no pictures, please".into() }
}

#[rstest]
#[case::in_a_text("what is [IMAGE:/a] this?", "what is  this?")]
#[case::before_it("[IMAGE:/a] what is this?", "what is this?")]
#[case::alone("[IMAGE:/a]\n[IMAGE:data:image/png;base64,AA==]", "(a picture, which this model cannot see)")]
#[case::no_marker("what is [IMAGE:]? ", "what is [IMAGE:]? ")]
fn a_model_that_reads_text_gets_no_marker(#[case] text: &str, #[case] read: &str) {
    assert_eq!(user_content(text, Vision::TextOnly), [json!(read), json!([{"type": "text", "text": read}])]);
}

#[test]
fn a_model_that_sees_gets_pictures_where_they_stood() {
    let pictures = found_images();
    let (a, b) = (image_data("/a"), image_data("/b"));
    let [openai, anthropic] = user_content("look: [IMAGE:/a] and [IMAGE:/b]", Vision::Images(&pictures));
    let url = |data: &str| json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{data}")}});
    let text = |text: &str| json!({"type": "text", "text": text});
    assert_eq!(openai, json!([text("look:"), url(&a), text("and"), url(&b)]));
    let source =
        |data: &str| json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
    assert_eq!(anthropic, json!([text("look:"), source(&a), text("and"), source(&b)]));
}

fn image_data(source: &str) -> String {
    png(source).base64().to_owned()
}

#[test]
fn a_url_goes_to_the_provider_as_it_is() {
    let pictures = ImageSet::default();
    let [openai, anthropic] = user_content("[IMAGE:https://host/x.png]", Vision::Images(&pictures));
    assert_eq!(openai, json!([{"type": "image_url", "image_url": {"url": "https://host/x.png"}}]));
    assert_eq!(anthropic, json!([{"type": "image", "source": {"type": "url", "url": "https://host/x.png"}}]));
}

#[rstest]
#[case::gone("see [IMAGE:/gone]!", "see (a picture stood here; it cannot be read any more)!")]
#[case::not_looked_for("[IMAGE:/nobody]", "(a picture stood here; it is not shown any more)")]
#[case::no_marker("  as written \n", "  as written \n")]
#[case::blank(" \n", EMPTY_TEXT)]
fn an_image_that_cannot_be_shown_leaves_a_placeholder(#[case] text: &str, #[case] read: &str) {
    let pictures = found_images();
    let [openai, anthropic] = user_content(text, Vision::Images(&pictures));
    assert_eq!(openai, json!([{"type": "text", "text": read}]));
    assert_eq!(anthropic, openai, "text looks the same in both formats");
}

#[test]
fn the_words_of_the_run_stand_before_a_picture() {
    let (pictures, next) = (found_images(), draft("run-1", "[IMAGE:/a]"));
    let run_context = Some("Date: today");
    let prompt = Prompt { run_context, vision: Vision::Images(&pictures), ..prompt(&[], Some(&next)) };
    let content = &openai::build_messages(&prompt)[0]["content"];
    assert_eq!((&content[0]["text"], &content[1]["type"]), (&json!("Date: today"), &json!("image_url")));
}

/// At most the newest 20 images are shown; older ones are hidden five at a time.
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
    assert_eq!(wanted_image_sources(&[], Some(&next)), newest);
    let pictures = all_wanted_images(&[], Some(&next));
    let [openai, anthropic] = render_both(&Prompt { vision: Vision::Images(&pictures), ..prompt(&[], Some(&next)) });
    let count = |messages: &[Value], kind: &str| {
        messages[0]["content"].as_array().unwrap().iter().filter(|part| part["type"] == kind).count()
    };
    assert_eq!((count(&openai, "image_url"), count(&anthropic, "image")), (shown_then, shown_then));
    let bytes = pictures.base64_bytes();
    assert_eq!(image_usage(&[], Some(&next), Vision::Images(&pictures)), ImageUsage { count: shown_then, bytes });
    assert_eq!(image_usage(&[], Some(&next), Vision::TextOnly), ImageUsage::default());
    let text = openai[0]["content"][0]["text"].as_str().unwrap_or_default();
    assert_eq!(text.matches("it is not shown any more").count(), total - shown_then);
}

#[test]
fn a_turn_whose_pictures_a_model_did_not_take_leaves_what_it_sees() {
    let turns = [
        sealed_turn("run-1", "first [IMAGE:/a]", &Verdict::Completed),
        sealed_turn("run-2", "bad [IMAGE:/b]", &vision_failure()),
    ];
    let note = turns[1].note().unwrap().to_owned();
    let next = draft("run-3", "and now?");
    assert_eq!(wanted_image_sources(&turns, Some(&next)), ["/a"]);
    let pictures = all_wanted_images(&turns, Some(&next));
    let [openai, anthropic] = render_both(&Prompt { vision: Vision::Images(&pictures), ..prompt(&turns, Some(&next)) });
    for messages in [openai, anthropic] {
        let rendered = Value::Array(messages).to_string();
        assert!(
            rendered.contains(&image_data("/a")) && rendered.contains(&note) && !rendered.contains("bad"),
            "{rendered}"
        );
    }
    assert_eq!(turns[1].size(), 0);
    let kept = turns[1].items();
    assert_eq!(kept, [TurnItem::User { text: "bad [IMAGE:/b]".into(), at: None }], "the turn keeps it");
}

/// The next model may lack vision, or the provider may refuse images now. Otherwise every later message would fail.
#[test]
fn older_pictures_that_a_model_did_not_take_are_not_shown_again() {
    let turns = [
        sealed_turn("run-1", "first [IMAGE:/a]", &Verdict::Completed),
        sealed_turn("run-2", "no picture here", &vision_failure()),
        sealed_turn("run-3", "another [IMAGE:/b]", &Verdict::Completed),
    ];
    let next = draft("run-4", "and now?");
    assert_eq!(wanted_image_sources(&turns, Some(&next)), ["/b"]);
    let pictures = all_wanted_images(&turns, Some(&next));
    let [openai, _] = render_both(&Prompt { vision: Vision::Images(&pictures), ..prompt(&turns, Some(&next)) });
    let rendered = Value::Array(openai).to_string();
    assert!(rendered.contains("first (a picture stood here; it is not shown any more)"), "{rendered}");
    assert!(rendered.contains(&image_data("/b")) && !rendered.contains("no picture here"), "{rendered}");
}

#[test]
fn an_image_that_was_read_once_does_not_change() {
    let mut pictures = found_images();
    pictures.insert_if_absent("/gone".to_owned(), Ok(png("/gone")));
    pictures.insert_if_absent("/a".to_owned(), Err(ImageUnavailable::Unreadable));
    let [openai, _] = user_content("[IMAGE:/a] [IMAGE:/gone]", Vision::Images(&pictures));
    assert_eq!(openai[0]["type"], "image_url");
    assert_eq!(openai[1]["text"], ImageUnavailable::Unreadable.placeholder());
}

/// A draft with a tool result that has these images.
fn draft_with_tool_images(pictures: &[&str]) -> TurnDraft {
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
    let (pictures, draft) = (found_images(), draft_with_tool_images(&["/a", "/gone"]));
    let [openai, anthropic] = render_both(&Prompt { vision: Vision::Images(&pictures), ..prompt(&[], Some(&draft)) });
    assert_eq!(openai[2]["content"], "look");
    let data = image_data("/a");
    let url = format!("data:image/png;base64,{data}");
    let says = json!([
        {"type": "text", "text": "[The pictures in the results of the tools above, in their order:]"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": ImageUnavailable::Unreadable.placeholder()},
    ]);
    assert_eq!((&openai[3]["role"], &openai[3]["content"]), (&json!("user"), &says));
    let source = json!({"type": "base64", "media_type": "image/png", "data": data});
    let says = json!([
        {"type": "text", "text": "look"},
        {"type": "image", "source": source},
        {"type": "text", "text": ImageUnavailable::Unreadable.placeholder()},
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
        let [openai, anthropic] = render_both(&prompt(&[], Some(&draft_with_tool_images(sources))));
        assert_eq!((&openai[2]["content"], openai.len()), (&json!(says), 3));
        assert_eq!(anthropic[2]["content"][0]["content"], says);
    }
}

#[test]
fn pictures_of_results_give_way_like_those_of_users() {
    let sources: Vec<String> = (0..=MAX_REQUEST_IMAGES).map(|nth| format!("/{nth}")).collect();
    let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
    let draft = draft_with_tool_images(&sources);
    let pictures = all_wanted_images(&[], Some(&draft));
    let wanted = wanted_image_sources(&[], Some(&draft));
    assert_eq!((wanted.len(), wanted[0].as_str()), (MAX_REQUEST_IMAGES - 4, "/5"), "five are hidden at once");
    let [_, anthropic] = render_both(&Prompt { vision: Vision::Images(&pictures), ..prompt(&[], Some(&draft)) });
    let parts = anthropic[2]["content"][0]["content"].as_array().unwrap();
    assert_eq!(parts.iter().filter(|part| part["type"] == "image").count(), MAX_REQUEST_IMAGES - 4);
    assert_eq!(image_usage(&[], Some(&draft), Vision::Images(&pictures)).count, MAX_REQUEST_IMAGES - 4);
}

/// Histories in which every other text, and every other result, has a picture.
fn conversation_with_images() -> impl Strategy<Value = Vec<SealedStory>> {
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
                    DraftStep::User(text) => mark(text, number + step),
                    DraftStep::Finish(_, result) if step.is_multiple_of(2) => {
                        result.pictures = vec![["/a", "/gone", "/b"][step % 3].to_owned()];
                    }
                    _ => {}
                }
            }
        }
        conversation
    })
}

proptest! {
    #[test]
    fn any_conversation_with_pictures_is_valid_for_who_sees_and_for_who_does_not(conversation in conversation_with_images()) {
        let (turns, next, pictures) = (turns(&conversation), draft("run-next", "[IMAGE:/c]"), found_images());
        for vision in [Vision::TextOnly, Vision::Images(&pictures)] {
            render_both(&Prompt { vision, ..prompt(&turns, Some(&next)) });
        }
        let blind = render_both(&prompt(&turns, Some(&next))).map(Value::Array).map(|messages| messages.to_string());
        prop_assert!(blind.iter().all(|rendered| !rendered.contains("[IMAGE:")));
    }

    #[test]
    fn earlier_turns_keep_their_pictures_byte_for_byte(mut conversation in conversation_with_images()) {
        // Another test covers refused images.
        conversation.retain(|end| !matches!(&end.verdict, Verdict::Failed { code, .. } if code == CODE_VISION));
        let (turns, pictures) = (turns(&conversation), found_images());
        let total: usize = turns.iter().flat_map(|turn| turn.image_sources()).count();
        prop_assume!(total <= MAX_REQUEST_IMAGES);
        for count in 0..turns.len() {
            let [openai, anthropic] = render_both_unchecked(&turns[..count], &pictures);
            let [later_openai, later_anthropic] = render_both_unchecked(&turns[..=count], &pictures);
            prop_assert!(begins_with(&later_openai, &openai), "{later_openai:#?} does not begin with {openai:#?}");
            prop_assert!(begins_with(&later_anthropic, &anthropic), "{later_anthropic:#?} does not begin with {anthropic:#?}");
        }
    }
}

/// Skips the check of a whole request, because these histories end anywhere.
fn render_both_unchecked(turns: &[Arc<Turn>], images: &ImageSet) -> [Vec<Value>; 2] {
    let prompt = Prompt { vision: Vision::Images(images), ..prompt(turns, None) };
    [openai::build_messages(&prompt), without_continue_message(anthropic::build_request(&prompt).messages)]
}
