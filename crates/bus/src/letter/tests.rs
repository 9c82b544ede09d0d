//! Letters are accepted once, by their receiver alone, and only as they were written.

use proptest::prelude::*;

use super::*;

const OLD_KEY: &str = "the old key of the cluster, 32 or more characters";
const NEW_KEY: &str = "the new key of the cluster, 32 or more characters";

fn address(name: &str, epoch: u64) -> NodeAddress {
    NodeAddress { node: NodeName::parse(name).unwrap(), epoch }
}

fn secret(keys: &[&str]) -> ClusterSecret {
    ClusterSecret::parse(&keys.join("\n")).unwrap()
}

fn sealer(keys: &[&str], own: &NodeAddress) -> LetterSealer {
    LetterSealer::new(&secret(keys), LetterTransport::Nats, own.clone())
}

fn opener(keys: &[&str], own: &NodeAddress) -> LetterOpener {
    LetterOpener::new(&secret(keys), LetterTransport::Nats, own.clone())
}

/// Node `a` writes to node `b`.
fn pair() -> (LetterSealer, LetterOpener, NodeAddress) {
    let (a, b) = (address("a", 3), address("b", 8));
    (sealer(&[OLD_KEY], &a), opener(&[OLD_KEY], &b), b)
}

#[test]
fn a_letter_arrives_with_its_sender_and_payload() {
    let (mut a, mut b, to) = pair();
    for (sequence, payload) in [(1, &b"hello"[..]), (2, b"")] {
        let letter = a.seal(&to, payload).unwrap();
        assert!(letter.len() - payload.len() <= MAX_LETTER_OVERHEAD);
        let expected = OpenedLetter { from: address("a", 3), sequence, missed: 0, payload: payload.to_vec() };
        assert_eq!(b.open(&letter), Ok(expected));
    }
    let long = address(&"n".repeat(63), u64::MAX);
    let letter = sealer(&[OLD_KEY], &long).seal(&long, b"").unwrap();
    assert_eq!(letter.len(), MAX_LETTER_OVERHEAD);
    assert!(opener(&[OLD_KEY], &long).open(&letter).is_ok());
}

#[test]
fn a_letter_is_accepted_once_and_in_order() {
    let (mut a, mut b, to) = pair();
    let letters = [a.seal(&to, b"1").unwrap(), a.seal(&to, b"2").unwrap()];
    assert!(b.open(&letters[1]).is_ok());
    for (letter, sequence) in [(&letters[1], 2), (&letters[0], 1)] {
        assert_eq!(b.open(letter), Err(OpenError::Replayed { from: address("a", 3), sequence }));
    }
}

#[test]
fn lost_letters_are_counted() {
    let (mut a, mut b, to) = pair();
    let letters: Vec<_> = (0..7).map(|_| a.seal(&to, b"x").unwrap()).collect();
    let missed = [1, 2, 6].map(|index: usize| b.open(&letters[index]).unwrap().missed);
    assert_eq!(missed, [1, 0, 3]);
    // Letters to others do not count.
    a.seal(&address("c", 1), b"x").unwrap();
    assert_eq!(b.open(&a.seal(&to, b"x").unwrap()).unwrap().missed, 0);
}

#[test]
fn only_this_membership_is_the_receiver() {
    let (mut a, _, to) = pair();
    let letter = a.seal(&to, b"x").unwrap();
    for other in [address("c", 8), address("b", 7), address("b", 9)] {
        assert_eq!(opener(&[OLD_KEY], &other).open(&letter), Err(OpenError::WrongReceiver(to.clone())), "{other}");
    }
}

#[test]
fn a_higher_epoch_of_a_sender_replaces_the_lower_one() {
    let (mut first, mut b, to) = pair();
    let mut second = sealer(&[OLD_KEY], &address("a", 5));
    assert!(b.open(&first.seal(&to, b"x").unwrap()).is_ok());
    let late = first.seal(&to, b"x").unwrap();
    assert_eq!(b.open(&second.seal(&to, b"x").unwrap()).unwrap().missed, 0);
    assert_eq!(b.open(&late), Err(OpenError::SenderReplaced(address("a", 3))));
}

#[test]
fn a_replaced_receiver_gets_no_letters() {
    let (mut a, _, to) = pair();
    let newer = address("b", 9);
    a.seal(&to, b"x").unwrap();
    let mut b = opener(&[OLD_KEY], &newer);
    assert_eq!(b.open(&a.seal(&newer, b"x").unwrap()).unwrap().sequence, 1);
    assert_eq!(a.seal(&to, b"x"), Err(SealError::ReceiverReplaced { to, current: 9 }));
}

#[test]
fn forgotten_senders_cannot_be_replayed() {
    let to = address("b", 8);
    let mut b = LetterOpener { max_senders: 2, ..opener(&[OLD_KEY], &to) };
    let mut senders = [("x", 10), ("y", 11), ("z", 12)].map(|(name, epoch)| sealer(&[OLD_KEY], &address(name, epoch)));
    let letters = senders.each_mut().map(|sender| sender.seal(&to, b"x").unwrap());
    assert!(letters.iter().all(|letter| b.open(letter).is_ok()));
    assert_eq!(b.senders.len(), 2);
    assert_eq!(b.open(&letters[0]), Err(OpenError::SenderReplaced(address("x", 10))));
    assert!(matches!(b.open(&letters[1]), Err(OpenError::Replayed { .. })));
    assert!(b.open(&senders[1].seal(&to, b"x").unwrap()).is_ok(), "the others are remembered");
}

#[test]
fn a_key_changes_without_an_interruption() {
    let (a, b) = (address("a", 3), address("b", 8));
    let steps: [&[&str]; 4] = [&[OLD_KEY], &[OLD_KEY, NEW_KEY], &[NEW_KEY, OLD_KEY], &[NEW_KEY]];
    let (mut sender, mut receiver) = (sealer(steps[0], &a), opener(steps[0], &b));
    // One node is at most one step ahead of the other.
    for (sending, receiving) in [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (2, 3), (3, 3)] {
        sender.replace_secret(&secret(steps[sending]));
        receiver.replace_secret(&secret(steps[receiving]));
        let opened = receiver.open(&sender.seal(&b, b"x").unwrap());
        assert_eq!(opened.map(|letter| letter.missed), Ok(0), "{sending} {receiving}");
    }
    let old = sealer(steps[0], &a).seal(&b, b"x").unwrap();
    assert_eq!(opener(steps[3], &b).open(&old), Err(OpenError::BadSignature));
}

#[test]
fn letters_of_another_transport_are_refused() {
    let (a, b) = (address("a", 3), address("b", 8));
    let letter = LetterSealer::new(&secret(&[OLD_KEY]), LetterTransport::Database, a).seal(&b, b"x").unwrap();
    assert_eq!(opener(&[OLD_KEY], &b).open(&letter), Err(OpenError::BadSignature));
}

#[test]
fn a_letter_of_another_version_is_named() {
    let (mut a, mut b, to) = pair();
    let mut letter = a.seal(&to, b"x").unwrap();
    letter[0] = 2;
    assert_eq!(b.open(&letter), Err(OpenError::UnknownVersion(2)));
}

#[test]
fn a_signed_letter_with_a_broken_head_is_refused() {
    let (_, mut b, to) = pair();
    let signing_key = &b.keys[0];
    let mut head = Vec::new();
    encoding::write_head(&mut head, signing_key.id, &address("a", 3), &to, 1);
    let broken: Vec<Vec<u8>> = (5..head.len()).map(|length| head[..length].to_vec()).collect();
    let signed = broken.into_iter().map(|head| [&head, hmac::sign(&signing_key.key, &head).as_ref()].concat());
    for letter in signed.collect::<Vec<_>>() {
        assert_eq!(b.open(&letter), Err(OpenError::Malformed), "{letter:?}");
    }
}

fn node() -> impl Strategy<Value = NodeAddress> {
    ("[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", any::<u64>()).prop_map(|(name, epoch)| address(&name, epoch))
}

proptest! {
    #[test]
    fn any_letter_is_read_as_it_was_written(from in node(), to in node(), payload: Vec<u8>) {
        let letter = sealer(&[OLD_KEY], &from).seal(&to, &payload).unwrap();
        let mut receiver = opener(&[NEW_KEY, OLD_KEY], &to);
        prop_assert_eq!(receiver.open(&letter), Ok(OpenedLetter { from, sequence: 1, missed: 0, payload }));
        prop_assert!(receiver.open(&letter).is_err());
        prop_assert_eq!(opener(&[NEW_KEY], &to).open(&letter), Err(OpenError::BadSignature));
    }

    #[test]
    fn any_changed_letter_is_refused(from in node(), to in node(), payload: Vec<u8>, extra in 1_usize..50) {
        let letter = sealer(&[OLD_KEY], &from).seal(&to, &payload).unwrap();
        let mut receiver = opener(&[OLD_KEY], &to);
        for bit in 0..letter.len() * 8 {
            let mut flipped = letter.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(receiver.open(&flipped).is_err(), "bit {}", bit);
        }
        for length in 0..letter.len() {
            prop_assert!(receiver.open(&letter[..length]).is_err(), "cut to {}", length);
            prop_assert!(receiver.open(&letter[letter.len() - length..]).is_err(), "last {}", length);
        }
        let longer = [&letter[..], &vec![0; extra]].concat();
        prop_assert!(receiver.open(&longer).is_err());
        prop_assert!(receiver.open(&letter).is_ok(), "no refused letter counts");
    }

    #[test]
    fn no_letter_is_accepted_twice_in_any_order(order in prop::collection::vec(0_usize..20, 0..60)) {
        let (mut sender, mut receiver, to) = pair();
        let letters: Vec<_> = (0..20).map(|_| sender.seal(&to, b"x").unwrap()).collect();
        let (mut accepted, mut missed) = (Vec::new(), 0);
        for index in order {
            if let Ok(opened) = receiver.open(&letters[index]) {
                accepted.push(opened.sequence);
                missed += opened.missed;
            }
        }
        prop_assert!(accepted.is_sorted_by(|a, b| a < b));
        prop_assert_eq!(missed + accepted.len() as u64, accepted.last().copied().unwrap_or(0));
    }

    #[test]
    fn random_bytes_are_no_letter(mut bytes: Vec<u8>) {
        let (_, mut receiver, _) = pair();
        prop_assert!(receiver.open(&bytes).is_err());
        if let Some(first) = bytes.first_mut() {
            *first = VERSION;
        }
        prop_assert!(receiver.open(&bytes).is_err());
    }
}
