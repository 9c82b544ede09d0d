//! Assemble tool calls from the fragments that providers stream.
//!
//! Servers differ: some number the calls and some do not, some send a call at once and some letter by letter, some
//! repeat the id and the name in every fragment, and some number every call 0.

use super::RawCall;

/// One fragment of one call, as it came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ToolCallFragment {
    /// The number of the call, if the server numbers calls.
    pub(super) index: Option<u64>,
    /// The id or a part of it; empty when none came.
    pub(super) id: String,
    /// The name or a part of it.
    pub(super) name: String,
    pub(super) arguments: String,
}

impl ToolCallFragment {
    pub(super) fn size(&self) -> usize {
        self.id.len() + self.name.len() + self.arguments.len()
    }
}

/// The calls so far, in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct ToolCallAssembler {
    calls: Vec<PartialToolCall>,
    /// The size of the call that the last fragment belongs to.
    last_call_bytes: usize,
}

#[derive(Debug)]
struct PartialToolCall {
    index: Option<u64>,
    /// The position among the fragments that came together; it tells unnumbered calls of one message apart.
    position: usize,
    id: String,
    name: String,
    arguments: String,
}

impl ToolCallAssembler {
    /// Adds a fragment to its call, or begins a new call with it. Returns true for a new call.
    pub(super) fn add_fragment(&mut self, position: usize, fragment: ToolCallFragment) -> bool {
        let open_call = match fragment.index {
            Some(index) => self.calls.iter_mut().rev().find(|call| call.index == Some(index)),
            None => self.calls.last_mut().filter(|call| position <= call.position),
        };
        match open_call {
            Some(call) if !call.is_followed_by(&fragment) => {
                call.append_fragment(&fragment);
                self.last_call_bytes = call.size();
                false
            }
            _ => {
                let ToolCallFragment { index, id, name, arguments } = fragment;
                let call = PartialToolCall { index, position, id, name, arguments };
                self.last_call_bytes = call.size();
                self.calls.push(call);
                true
            }
        }
    }

    pub(super) fn call_count(&self) -> usize {
        self.calls.len()
    }

    /// True when the newest call with this number has arguments.
    pub(super) fn has_arguments(&self, index: u64) -> bool {
        self.calls.iter().rev().find(|call| call.index == Some(index)).is_some_and(|call| !call.arguments.is_empty())
    }

    /// The size of the call that the last fragment belongs to, in bytes.
    pub(super) fn last_call_bytes(&self) -> usize {
        self.last_call_bytes
    }

    pub(super) fn char_count(&self) -> u64 {
        let chars = |call: &PartialToolCall| call.name.chars().count() + call.arguments.chars().count();
        u64::try_from(self.calls.iter().map(chars).sum::<usize>()).unwrap_or(u64::MAX)
    }

    pub(super) fn into_calls(self) -> Vec<RawCall> {
        let finished = |call: PartialToolCall| RawCall {
            id: Some(call.id).filter(|id| !id.is_empty()),
            name: call.name,
            arguments: call.arguments,
        };
        self.calls.into_iter().map(finished).collect()
    }
}

impl PartialToolCall {
    fn size(&self) -> usize {
        self.id.len() + self.name.len() + self.arguments.len()
    }

    /// True when `fragment` begins another call although its number says otherwise, or it has no number: it brings a
    /// name and another id (or no id) after the arguments of this call began.
    fn is_followed_by(&self, fragment: &ToolCallFragment) -> bool {
        let begun = !self.arguments.is_empty();
        let other = if fragment.id.is_empty() {
            fragment.index.is_none() && !fragment.name.is_empty()
        } else {
            fragment.id != self.id
        };
        begun && other && !fragment.name.is_empty()
    }

    fn append_fragment(&mut self, fragment: &ToolCallFragment) {
        // A fragment that equals the known value is a repetition; any other one continues it.
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
