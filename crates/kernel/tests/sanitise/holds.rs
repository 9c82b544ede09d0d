//! Invariants of the sanitiser, shared by the test with mutated replies and the fuzz target.

use std::collections::BTreeSet;

use quell_kernel::channel::sanitise::{
    EmptyReplyReason, NarrationPolicy, SanitiserRules, sanitise_partial_reply, sanitise_reply,
};

/// Number of prefixes of a reply that are checked as partial replies.
const DRAFTS: usize = 6;

/// Checks all invariants for a reply.
///
/// # Errors
/// The invariant that does not hold.
pub(crate) fn check(reply: &str) -> Result<(), String> {
    let tools: BTreeSet<String> = ["shell", "web_search", "write_file"].map(str::to_owned).into();
    for narration in [NarrationPolicy::Keep, NarrationPolicy::Drop] {
        check_with(reply, &SanitiserRules { tools: &tools, narration_policy: narration })?;
    }
    Ok(())
}

fn check_with(reply: &str, rules: &SanitiserRules<'_>) -> Result<(), String> {
    let last = sanitise_reply(reply, rules);
    let holds = |is_so: bool, what: &str| if is_so { Ok(()) } else { Err(format!("{what}: {last:?}")) };
    holds(last.text.is_empty() == last.empty_reason.is_some(), "an empty text has a reason, and no other has")?;
    holds(
        reply.trim().is_empty() == (last.empty_reason == Some(EmptyReplyReason::Blank)),
        "a blank reply is called blank",
    )?;
    holds(last.text.len() <= reply.len(), "nothing is added")?;
    holds(last.text == last.text.trim_end() && !last.text.starts_with('\n'), "no empty lines around it")?;
    let is_plain = !reply.contains(['<', '{', '[', '`', '~']) && rules.narration_policy == NarrationPolicy::Keep;
    holds(!is_plain || last.text.trim() == reply.trim(), "a text without any mark of protocol stays")?;
    if rules.narration_policy == NarrationPolicy::Drop {
        return Ok(());
    }
    let mut shown = String::new();
    for part in 1..=DRAFTS {
        let now = sanitise_partial_reply(reply_prefix(reply, part), rules.tools);
        holds(now.starts_with(&shown), &format!("a draft showed {shown:?} and then {now:?}"))?;
        shown = now;
    }
    holds(last.text.starts_with(&shown), &format!("the last draft showed {shown:?}"))
}

fn reply_prefix(reply: &str, part: usize) -> &str {
    &reply[..reply.floor_char_boundary(reply.len() * part / DRAFTS)]
}
