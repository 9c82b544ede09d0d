//! What holds for every reply, whoever wrote it. Used by a test with mutated replies and by the fuzz target.

use std::collections::BTreeSet;

use quell_kernel::channel::sanitise::{Narration, Rules, Why, finished, so_far};

/// How many beginnings of a reply are looked at as drafts.
const DRAFTS: usize = 6;

/// Checks a reply.
///
/// # Errors
/// What does not hold.
pub(crate) fn check(reply: &str) -> Result<(), String> {
    let tools: BTreeSet<String> = ["shell", "web_search", "write_file"].map(str::to_owned).into();
    for narration in [Narration::Keep, Narration::Drop] {
        check_with(reply, &Rules { tools: &tools, narration })?;
    }
    Ok(())
}

fn check_with(reply: &str, rules: &Rules<'_>) -> Result<(), String> {
    let last = finished(reply, rules);
    let holds = |is_so: bool, what: &str| if is_so { Ok(()) } else { Err(format!("{what}: {last:?}")) };
    holds(last.text.is_empty() == last.instead.is_some(), "an empty text has a reason, and no other has")?;
    holds(reply.trim().is_empty() == (last.instead == Some(Why::Nothing)), "a blank reply is called blank")?;
    holds(last.text.len() <= reply.len(), "nothing is added")?;
    holds(last.text == last.text.trim_end() && !last.text.starts_with('\n'), "no empty lines around it")?;
    let is_plain = !reply.contains(['<', '{', '[', '`', '~']) && rules.narration == Narration::Keep;
    holds(!is_plain || last.text.trim() == reply.trim(), "a text without any mark of protocol stays")?;
    let mut shown = String::new();
    for part in 1..=DRAFTS {
        let now = so_far(beginning(reply, part), rules);
        holds(now.starts_with(&shown), &format!("a draft showed {shown:?} and then {now:?}"))?;
        shown = now;
    }
    holds(last.text.starts_with(&shown), &format!("the last draft showed {shown:?}"))
}

fn beginning(reply: &str, part: usize) -> &str {
    let mut end = reply.len() * part / DRAFTS;
    while !reply.is_char_boundary(end) {
        end -= 1;
    }
    &reply[..end]
}
