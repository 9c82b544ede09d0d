//! Subjects of letters, and of the server's answers when nobody reads a letter.

use quell_protocol::NodeName;

use crate::NodeAddress;

/// Parts of letters, digits, `-` and `_`, separated by dots.
pub(super) fn is_prefix(prefix: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    prefix.len() <= 100 && prefix.split('.').all(|part| !part.is_empty() && part.chars().all(is_inner))
}

/// Letters to a node.
pub(super) fn letter_subject(prefix: &str, to: &NodeAddress) -> String {
    format!("{prefix}.node.{}.{}", to.node, to.epoch)
}

/// Answers to all letters from a node.
pub(super) fn reply_filter(prefix: &str, from: &NodeAddress) -> String {
    format!("{prefix}.reply.{}.{}.*.*", from.node, from.epoch)
}

/// Answers to letters from one node to another.
pub(super) fn reply_subject(prefix: &str, from: &NodeAddress, to: &NodeAddress) -> String {
    format!("{prefix}.reply.{}.{}.{}.{}", from.node, from.epoch, to.node, to.epoch)
}

/// The node to which the letter went that was answered on this subject.
pub(super) fn parse_reply_subject(subject: &str) -> Option<NodeAddress> {
    let mut parts = subject.rsplitn(3, '.');
    let epoch = parts.next()?.parse().ok()?;
    Some(NodeAddress { node: NodeName::parse(parts.next()?).ok()?, epoch })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receiver_of_a_letter_is_in_its_reply_subject() {
        let [a, b] = [("a", 3), ("node-b", u64::MAX)]
            .map(|(name, epoch)| NodeAddress { node: NodeName::parse(name).unwrap(), epoch });
        let subject = reply_subject("quell.test", &a, &b);
        assert_eq!(subject, format!("quell.test.reply.a.3.node-b.{}", u64::MAX));
        assert_eq!(parse_reply_subject(&subject), Some(b));
        assert_eq!(parse_reply_subject("quell.reply.a.3.b.x"), None);
        assert_eq!(parse_reply_subject("3"), None);
    }

    #[test]
    fn prefixes_cannot_contain_wildcards_or_empty_parts() {
        for good in ["quell", "a.b-c.D_1"] {
            assert!(is_prefix(good), "{good}");
        }
        for bad in ["", ".", "a.", "a..b", "a.*", ">", "a b", "ä"] {
            assert!(!is_prefix(bad), "{bad}");
        }
    }
}
