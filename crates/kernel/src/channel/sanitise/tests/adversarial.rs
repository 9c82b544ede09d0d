//! Worst-case inputs, with counted (not timed) work.

use super::super::{NarrationPolicy, SanitiserRules, sanitise_partial_reply, sanitise_reply, work_counter};
use super::tools;

/// Maximum reads per byte, for the partial and the complete reply together. The worst case needs 16.
const MAX_READS_PER_BYTE: usize = 20;

/// Pieces that are repeated, and the end that is appended once.
const WORST_CASES: &[(&str, &str)] = &[
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

fn worst_case_texts(size: usize) -> impl Iterator<Item = String> {
    // With text in front, no piece is the whole reply.
    const FRONTS: [&str; 2] = ["", "x\n\n"];
    WORST_CASES.iter().flat_map(move |(piece, end)| {
        FRONTS.iter().map(move |front| format!("{front}{}{end}", piece.repeat(size / piece.len())))
    })
}

#[test]
fn work_is_linear_in_the_length() {
    let tools = tools();
    worst_case_texts(10_000).for_each(|text| {
        assert_linear_work(&text, &SanitiserRules { tools: &tools, narration_policy: NarrationPolicy::Keep })
    });
    worst_case_texts(10_000).for_each(|text| {
        assert_linear_work(&text, &SanitiserRules { tools: &tools, narration_policy: NarrationPolicy::Drop })
    });
}

/// Only some cases: long texts are slow in a debug build, and faster growth than linear shows in any of them.
#[rstest::rstest]
#[case(100_000, 3)]
#[case(1_000_000, 21)]
fn work_is_linear_in_the_length_of_long_texts(#[case] size: usize, #[case] step: usize) {
    let tools = tools();
    for text in worst_case_texts(size).step_by(step) {
        assert_linear_work(&text, &SanitiserRules { tools: &tools, narration_policy: NarrationPolicy::Keep });
    }
}

fn assert_linear_work(text: &str, rules: &SanitiserRules<'_>) {
    let work = work_counter::count_bytes_during(|| {
        let _ = sanitise_reply(text, rules);
        let _ = sanitise_partial_reply(text, rules.tools);
    });
    let beginning: String = text.chars().take(40).collect();
    assert!(work >= text.len(), "{beginning:?}: {work} is less than one read of {} bytes", text.len());
    assert!(work <= MAX_READS_PER_BYTE * text.len(), "{beginning:?}: {} reads of each byte", work / text.len());
}
