//! Puts the pieces of parallel tool calls together. Servers differ: some number the calls and some do not, some send a call
//! at once and some letter by letter, some repeat the id and the name in every piece, and some number every call 0.

use super::RawCall;

/// One piece of one call, as it came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Fragment {
    /// The number of the call, where the server numbers.
    pub(super) index: Option<u64>,
    /// The id or a part of it; empty when none came.
    pub(super) id: String,
    /// The name or a part of it.
    pub(super) name: String,
    /// A part of the arguments.
    pub(super) arguments: String,
}

impl Fragment {
    pub(super) fn size(&self) -> usize {
        self.id.len() + self.name.len() + self.arguments.len()
    }
}

/// The calls so far, in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct Calls {
    growing: Vec<Growing>,
    /// Bytes of the call that grew last.
    grown: usize,
}

#[derive(Debug)]
struct Growing {
    index: Option<u64>,
    /// The place among the pieces that came together, which tells unnumbered calls of one message apart.
    place: usize,
    id: String,
    name: String,
    arguments: String,
}

impl Calls {
    /// Adds a piece to the call it belongs to, or begins a call with it and answers true.
    pub(super) fn add(&mut self, place: usize, fragment: Fragment) -> bool {
        let owner = match fragment.index {
            Some(index) => self.growing.iter_mut().rev().find(|call| call.index == Some(index)),
            None => self.growing.last_mut().filter(|call| place <= call.place),
        };
        match owner {
            Some(call) if !call.ends_before(&fragment) => {
                call.extend(&fragment);
                self.grown = call.size();
                false
            }
            _ => {
                let Fragment { index, id, name, arguments } = fragment;
                let call = Growing { index, place, id, name, arguments };
                self.grown = call.size();
                self.growing.push(call);
                true
            }
        }
    }

    /// Calls that have begun.
    pub(super) fn count(&self) -> usize {
        self.growing.len()
    }

    /// Bytes of the call that the last piece belongs to.
    pub(super) fn last_grown(&self) -> usize {
        self.grown
    }

    pub(super) fn chars(&self) -> u64 {
        let chars = |call: &Growing| call.name.chars().count() + call.arguments.chars().count();
        u64::try_from(self.growing.iter().map(chars).sum::<usize>()).unwrap_or(u64::MAX)
    }

    pub(super) fn finish(self) -> Vec<RawCall> {
        let finished = |call: Growing| RawCall {
            id: Some(call.id).filter(|id| !id.is_empty()),
            name: call.name,
            arguments: call.arguments,
        };
        self.growing.into_iter().map(finished).collect()
    }
}

impl Growing {
    fn size(&self) -> usize {
        self.id.len() + self.name.len() + self.arguments.len()
    }

    /// True when `fragment` begins another call although its number says otherwise, or it has none: it brings a name and
    /// another id (or none at all) after the arguments of this call began.
    fn ends_before(&self, fragment: &Fragment) -> bool {
        let begun = !self.arguments.is_empty();
        let other = if fragment.id.is_empty() {
            fragment.index.is_none() && !fragment.name.is_empty()
        } else {
            fragment.id != self.id
        };
        begun && other && !fragment.name.is_empty()
    }

    fn extend(&mut self, fragment: &Fragment) {
        // A piece that repeats what is known in full is a repetition; any other one is a continuation.
        if fragment.id != self.id {
            self.id.push_str(&fragment.id);
        }
        if fragment.name != self.name {
            self.name.push_str(&fragment.name);
        }
        self.arguments.push_str(&fragment.arguments);
    }
}

#[cfg(test)]
mod tests;
