//! What a follower of a run has seen of its text, so that a snapshot adds only what it has missed.

/// The text of a run, as far as its follower has it.
#[derive(Debug, Default)]
pub struct StreamedAnswer {
    /// Of the steps before the current one.
    earlier: String,
    step: String,
}

/// What a snapshot adds to the text of a run.
#[derive(Debug, PartialEq, Eq)]
pub struct MissedText {
    /// The rest of the steps before the current one.
    pub earlier: String,
    /// The rest of the current step.
    pub step: String,
    /// Whether `step` is the beginning of a step.
    pub is_new_step: bool,
}

impl StreamedAnswer {
    pub fn begin_step(&mut self) {
        self.earlier.push_str(&self.step);
        self.step.clear();
    }

    pub fn push(&mut self, text: &str) {
        self.step.push_str(text);
    }

    /// The text of the steps before the current one.
    pub fn earlier(&self) -> &str {
        &self.earlier
    }

    /// The text of the current step.
    pub fn step(&self) -> &str {
        &self.step
    }

    /// Takes over the texts of a snapshot and returns what was missed. A snapshot that does not continue what is known,
    /// for example because the daemon was started again, is a new step.
    pub fn catch_up(&mut self, earlier: &str, step: &str) -> MissedText {
        let rest_of_step = step.strip_prefix(&self.step);
        let rest_of_earlier = earlier.strip_prefix(&self.earlier).and_then(|rest| rest.strip_prefix(&self.step));
        let missed = match (rest_of_step, rest_of_earlier) {
            (Some(rest), _) if earlier == self.earlier => MissedText::of_step(rest),
            (_, Some(rest)) => MissedText { earlier: rest.to_owned(), step: step.to_owned(), is_new_step: true },
            (Some(rest), None) => MissedText::of_step(rest),
            (None, None) => MissedText { earlier: String::new(), step: step.to_owned(), is_new_step: true },
        };
        (self.earlier, self.step) = (earlier.to_owned(), step.to_owned());
        missed
    }
}

impl MissedText {
    fn of_step(rest: &str) -> Self {
        Self { earlier: String::new(), step: rest.to_owned(), is_new_step: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missed(earlier: &str, step: &str, is_new_step: bool) -> MissedText {
        MissedText { earlier: earlier.to_owned(), step: step.to_owned(), is_new_step }
    }

    #[test]
    fn a_snapshot_adds_what_was_missed_across_steps() {
        let mut answer = StreamedAnswer::default();
        answer.begin_step();
        answer.push("one ");
        assert_eq!(answer.catch_up("", "one two "), missed("", "two ", false));
        assert_eq!(answer.catch_up("one two three ", "four"), missed("three ", "four", true));
        answer.begin_step();
        answer.push("five");
        assert_eq!(answer.catch_up("one two three four", "five six"), missed("", " six", false));
        // The step is complete, and the next one has no text yet.
        assert_eq!(answer.catch_up("one two three fourfive six", ""), missed("", "", true));
    }

    #[test]
    fn a_snapshot_without_the_earlier_steps_still_continues_the_current_one() {
        let mut answer = StreamedAnswer::default();
        answer.push("one ");
        answer.begin_step();
        answer.push("two ");
        assert_eq!(answer.catch_up("", "two three"), missed("", "three", false));
        assert_eq!(answer.catch_up("", "something else"), missed("", "something else", true));
    }
}
