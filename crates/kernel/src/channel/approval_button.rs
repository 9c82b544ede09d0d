//! Data of the buttons below a message that shows a waiting call. The network returns it with each press, but a client
//! of the network may send any text in its place.

use quell_protocol::approval::{ApprovalAnswer, Decision};

/// A UUID has 36 characters. With the word before it, the data has at most 64 bytes, the least of all networks
/// (Telegram: `callback_data`; Discord: `custom_id`, 100 characters; Slack: `value`, 2000).
const MAX_ID_BYTES: usize = 48;

/// A button that answers an approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalButton {
    pub choice: ButtonChoice,
    pub approval_id: String,
}

/// The answer that a button gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ButtonChoice {
    AllowOnce,
    /// Allow later calls of the same tool in the same session, too.
    AllowInSession,
    Deny,
}

/// The choices with their words in the data of a button.
const CHOICE_WORDS: [(ButtonChoice, &str); 3] =
    [(ButtonChoice::AllowOnce, "approve"), (ButtonChoice::AllowInSession, "session"), (ButtonChoice::Deny, "deny")];

impl ButtonChoice {
    #[must_use]
    pub fn answer(self) -> ApprovalAnswer {
        match self {
            Self::AllowOnce => Decision::Allow.into(),
            Self::AllowInSession => ApprovalAnswer::for_session(),
            Self::Deny => ApprovalAnswer::denial(None),
        }
    }
}

impl ApprovalButton {
    /// The data that a network keeps with the button, such as `approve:0193...`.
    #[must_use]
    pub fn to_data(&self) -> String {
        let word = CHOICE_WORDS.iter().find(|(choice, _)| *choice == self.choice).map_or("", |(_, word)| word);
        format!("{word}:{}", self.approval_id)
    }

    /// Parses the data of a press; `None` if it is of no button that Quell makes.
    #[must_use]
    pub fn parse(data: &str) -> Option<Self> {
        let (word, id) = data.split_once(':')?;
        let (choice, _) = *CHOICE_WORDS.iter().find(|(_, known)| *known == word)?;
        let is_id = (1..=MAX_ID_BYTES).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_id.then(|| Self { choice, approval_id: id.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn the_data_of_a_button_is_short_and_parses_back() {
        for (choice, _) in CHOICE_WORDS {
            let button = ApprovalButton { choice, approval_id: "01989a5e-5f3b-7c11-9a55-0d2c6c1f7b1a".to_owned() };
            let data = button.to_data();
            assert!(data.len() <= 64, "{data}");
            assert_eq!(ApprovalButton::parse(&data), Some(button));
        }
    }

    #[rstest]
    #[case::nothing("")]
    #[case::no_id("approve:")]
    #[case::other_word("allow:01989a5e")]
    #[case::capitals("Approve:01989a5e")]
    #[case::more("approve:01989a5e:approve")]
    #[case::spaces("approve: 01989a5e")]
    #[case::control("approve:01989a5e\n")]
    #[case::long(&format!("deny:{}", "a".repeat(49)))]
    fn any_other_data_is_of_no_button(#[case] data: &str) {
        assert_eq!(ApprovalButton::parse(data), None);
    }
}
