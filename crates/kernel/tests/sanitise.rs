//! Runs the sanitiser on its worst cases, and its invariants on mutated replies: golden ones, cut, doubled and spliced.
//! `fuzz/` checks the same invariants with coverage.

#[path = "sanitise/holds.rs"]
mod holds;
#[path = "sanitise/worst_cases.rs"]
mod worst_cases;

const GOLDEN_TABLES: [&str; 3] = [
    include_str!("../src/channel/sanitise/golden/protocol.txt"),
    include_str!("../src/channel/sanitise/golden/ordinary.txt"),
    include_str!("../src/channel/sanitise/golden/narration.txt"),
];
/// Pieces that mutations insert.
const PIECES: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<tool_result>",
    "</tool_result>",
    "<invoke name=\"shell\">",
    "</invoke>",
    "<parameter=x>",
    "{\"name\": \"shell\"",
    "\"arguments\": {",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    ",",
    ":",
    "`",
    "``",
    "```",
    "```json\n",
    "```tool_call\n",
    "~~~\n",
    "\n",
    "\n\n",
    " ",
    "    ",
    "> ",
    "- ",
    "[Used tools: shell]",
    "[Tool results]",
    "Let me ",
    "한",
    "好",
    "<",
    "</",
    ">",
    "x",
];
const REPLIES: usize = 3000;
const MAX_REPLY_BYTES: usize = 600;

#[test]
fn the_rules_for_replies_hold_for_mutated_replies() {
    let seed = 0x5eed_0006;
    let rows: Vec<&str> = GOLDEN_TABLES.iter().flat_map(|table| table.split("%%% ").skip(1)).collect();
    let mut random = SplitMix64(seed);
    for round in 0..REPLIES {
        let reply = mutate_reply(&rows, &mut random);
        if let Err(broken) = holds::check(&reply) {
            panic!("seed {seed:#x}, round {round}: {broken}\nthe reply: {reply:?}");
        }
    }
}

fn mutate_reply(rows: &[&str], random: &mut SplitMix64) -> String {
    let mut reply = rows[random.below(rows.len())].split_once('\n').unwrap_or_default().1.to_owned();
    for _ in 0..=random.below(5) {
        let (from, to) = (random.char_boundary(&reply), random.char_boundary(&reply));
        let (from, to) = (from.min(to), from.max(to));
        match random.below(5) {
            0 => reply.replace_range(from..to, ""),
            1 => {
                let doubled = reply[from..to].to_owned();
                reply.insert_str(from, &doubled);
            }
            2 => {
                let other = rows[random.below(rows.len())];
                let at = random.char_boundary(other);
                reply.insert_str(from, &other[at..]);
            }
            3 => reply.truncate(to),
            _ => reply.insert_str(from, PIECES[random.below(PIECES.len())]),
        }
    }
    reply.truncate(reply.floor_char_boundary(MAX_REPLY_BYTES));
    reply
}

/// SplitMix64, a deterministic random number generator: the same numbers for the same seed on every machine.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next_u64() >> 33).unwrap_or(0) % end
    }

    /// A random offset between two characters.
    fn char_boundary(&mut self, text: &str) -> usize {
        text.floor_char_boundary(self.below(text.len() + 1))
    }
}
