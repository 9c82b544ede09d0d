//! Texts that would make a careless scanner work long. Work is counted, not timed.

use super::super::{Narration, Rules, finished, so_far, work};
use super::tools;

/// How often a byte may be looked at, for a draft and the whole reply together. Nothing needs more than 16.
const LOOKS: usize = 20;

/// Pieces that are repeated, and what is put behind them.
const WORST: &[(&str, &str)] = &[
    ("<tool_call>", ""),
    ("<tool_call>\n", ""),
    ("\n<tool_call>", "</tool_call>"),
    ("<tool_call>{", ""),
    ("<tool_call>{\"", ""),
    ("<tool_call>{\"a\":\"", "</tool_call>"),
    ("<tool_call>{\"name\":\"shell\",\"arguments\":\"", ""),
    ("\n<tool_call>{\"name\":1,x", ""),
    ("\n<tool_call>{\"name\":1,x", "</tool_call>"),
    ("<tool_call>[", "</tool_call>"),
    ("<tool_call><invoke name=\"a\">", ""),
    ("<function_calls><parameter=x></parameter>", ""),
    ("<invoke name=\"", ""),
    ("<invoke name=\"a\">", "</invoke>"),
    ("<function=shell>", ""),
    ("<tool>", ""),
    ("<tool>{", "</tool>"),
    ("<think>", ""),
    ("\n<think>.", "</think>"),
    ("\n<think> X", "</think>y"),
    ("x\n<think>\n", ""),
    ("\n<think>...", "</think>"),
    (" <tool_result>.", "</tool_result>"),
    (" <tool_result>a", " </tool_result>"),
    ("<tool_result>\n", ""),
    ("</tool_call>", ""),
    ("</", ""),
    ("<", ""),
    ("< ", ""),
    ("{", ""),
    ("[", ""),
    ("[\n", ""),
    ("{\n", ""),
    ("{\"a\":", ""),
    ("\n{\"a\":", ""),
    ("[{\"a\":", ""),
    ("\n[[[1]", ""),
    ("\n{\"name\":\"shell\",\"arguments\":", ""),
    ("\n{\"name\":\"shell\",\"arguments\":\"", ""),
    ("{\"name\":\"shell\",\"arguments\":{}} ", ""),
    ("\n{\"name\":\"shell\",\"arguments\":{},x", ""),
    ("\n{\"name\":\"shell\",\"arguments\":1}\n{\"result\":1}", ""),
    ("{}", ""),
    ("\n\"", ""),
    ("{\"\\", ""),
    ("```", ""),
    ("```\n", ""),
    ("\n```json\n{", ""),
    ("\n```json\n[\n", ""),
    ("````\n```\n", ""),
    ("\n```tool_call\n{\"name\":\"shell\",\"arguments\":", ""),
    ("\n~~~", ""),
    ("\n~~~ `", ""),
    ("`", ""),
    ("` ", ""),
    ("`a``b", ""),
    ("`<tool_call>", ""),
    ("\\`", ""),
    ("> ", ""),
    ("1. ", ""),
    ("- ", "```"),
    ("\n> 1. - ```json\n", ""),
    ("[Used tools: a]", ""),
    ("[Used tools: ", ""),
    ("\n[Used tools: a, ", "]"),
    (" ", "x"),
    ("\n", "x"),
    ("<tool_call> ", ""),
    ("Let me\n", ""),
    ("    {\n", ""),
    ("\t<tool_call>\n\n", ""),
    ("가나<think>다\n", ""),
    ("x", ""),
];

fn worst(size: usize) -> impl Iterator<Item = String> {
    // In front: text, so that nothing is judged as the whole of a reply, or nothing.
    const FRONTS: [&str; 2] = ["", "x\n\n"];
    WORST.iter().flat_map(move |(piece, end)| {
        FRONTS.iter().map(move |front| format!("{front}{}{end}", piece.repeat(size / piece.len())))
    })
}

#[test]
fn work_is_linear_in_the_length() {
    let tools = tools();
    worst(10_000).for_each(|text| hold_to_linear(&text, &Rules { tools: &tools, narration: Narration::Keep }));
    worst(10_000).for_each(|text| hold_to_linear(&text, &Rules { tools: &tools, narration: Narration::Drop }));
}

/// Longer ones take their time in a debug build, so only some of them: what grows faster than the text shows in any.
#[rstest::rstest]
#[case(100_000, 3)]
#[case(1_000_000, 21)]
fn work_is_linear_in_the_length_of_long_texts(#[case] size: usize, #[case] step: usize) {
    let tools = tools();
    for text in worst(size).step_by(step) {
        hold_to_linear(&text, &Rules { tools: &tools, narration: Narration::Keep });
    }
}

fn hold_to_linear(text: &str, rules: &Rules<'_>) {
    let work = work::of(|| {
        let _ = finished(text, rules);
        let _ = so_far(text, rules);
    });
    let beginning: String = text.chars().take(40).collect();
    assert!(work >= text.len(), "{beginning:?}: {work} is less than one look at {} bytes", text.len());
    assert!(work <= LOOKS * text.len(), "{beginning:?}: {} looks at each byte", work / text.len());
}
