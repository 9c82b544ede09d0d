//! The sanitiser with replies that nobody wrote: golden ones, cut, doubled and spliced. `fuzz/` runs the same check with
//! coverage.

#[path = "sanitise/holds.rs"]
mod holds;

const TABLES: [&str; 3] = [
    include_str!("../src/channel/sanitise/golden/protocol.txt"),
    include_str!("../src/channel/sanitise/golden/ordinary.txt"),
    include_str!("../src/channel/sanitise/golden/narration.txt"),
];
/// What mutations put in between.
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
/// How many replies are made.
const REPLIES: usize = 3000;
/// A reply made by mutations is not longer than this many bytes.
const LONGEST: usize = 600;

#[test]
fn what_holds_for_every_reply_holds_for_mutated_ones() {
    let seed = 0x5eed_0006;
    let rows: Vec<&str> = TABLES.iter().flat_map(|table| table.split("%%% ").skip(1)).collect();
    let mut dice = Dice(seed);
    for round in 0..REPLIES {
        let reply = mutated(&rows, &mut dice);
        if let Err(broken) = holds::check(&reply) {
            panic!("seed {seed:#x}, round {round}: {broken}\nthe reply: {reply:?}");
        }
    }
}

fn mutated(rows: &[&str], dice: &mut Dice) -> String {
    let mut reply = rows[dice.below(rows.len())].split_once('\n').unwrap_or_default().1.to_owned();
    for _ in 0..=dice.below(5) {
        let (from, to) = (dice.place(&reply), dice.place(&reply));
        let (from, to) = (from.min(to), from.max(to));
        match dice.below(5) {
            0 => reply.replace_range(from..to, ""),
            1 => {
                let doubled = reply[from..to].to_owned();
                reply.insert_str(from, &doubled);
            }
            2 => {
                let other = rows[dice.below(rows.len())];
                let at = dice.place(other);
                reply.insert_str(from, &other[at..]);
            }
            3 => reply.truncate(to),
            _ => reply.insert_str(from, PIECES[dice.below(PIECES.len())]),
        }
    }
    let mut end = reply.len().min(LONGEST);
    while !reply.is_char_boundary(end) {
        end -= 1;
    }
    reply.truncate(end);
    reply
}

/// SplitMix64: the same throws for the same seed, everywhere.
struct Dice(u64);

impl Dice {
    fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.throw() >> 33).unwrap_or(0) % end
    }

    /// A place between two characters.
    fn place(&mut self, text: &str) -> usize {
        let mut at = self.below(text.len() + 1);
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    }
}
