//! A checksum of the rows of a table that does not depend on their order.
//!
//! Databases return rows in different orders, and encode texts differently, so neither the order nor the stored bytes
//! can be compared.

use sha2::{Digest, Sha256};

use super::CopiedValue;

/// The number of rows, and the sum of the SHA-256 of each row as four numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TableChecksum {
    rows: u64,
    sums: [u64; 4],
}

impl TableChecksum {
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    pub(super) fn add(&mut self, row: &[CopiedValue]) {
        let mut hash = Sha256::new();
        for value in row {
            // The length keeps neighbouring values apart.
            match value {
                CopiedValue::Null => hash.update([0]),
                CopiedValue::Number(number) => {
                    hash.update([1]);
                    hash.update(number.to_le_bytes());
                }
                CopiedValue::Flag(flag) => hash.update([2, u8::from(*flag)]),
                CopiedValue::Text(text) => {
                    hash.update([3]);
                    hash.update((text.len() as u64).to_le_bytes());
                    hash.update(text);
                }
                CopiedValue::Bytes(bytes) => {
                    hash.update([4]);
                    hash.update((bytes.len() as u64).to_le_bytes());
                    hash.update(bytes);
                }
            }
        }
        self.rows += 1;
        for (sum, part) in self.sums.iter_mut().zip(hash.finalize().as_chunks().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*part));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum(rows: &[&[CopiedValue]]) -> TableChecksum {
        let mut sum = TableChecksum::default();
        rows.iter().for_each(|row| sum.add(row));
        sum
    }

    #[test]
    fn the_order_of_rows_does_not_count_and_each_value_does() {
        let text = |text: &str| CopiedValue::Text(text.to_owned());
        let (one, two) = ([text("a"), CopiedValue::Number(1)], [text("b"), CopiedValue::Null]);
        let expected = checksum(&[&one, &two]);
        assert_eq!(checksum(&[&two, &one]), expected);
        let others: [&[&[CopiedValue]]; 5] = [
            &[&one],
            &[&one, &one],
            &[&one, &[text("b"), text("")]],
            &[&one, &[text("b"), CopiedValue::Bytes(Vec::new())]],
            &[&[text("a"), CopiedValue::Null], &[text("b"), CopiedValue::Number(1)]],
        ];
        for other in others {
            assert_ne!(checksum(other), expected, "{other:?}");
        }
        assert_ne!(checksum(&[&[text("ab"), text("c")]]), checksum(&[&[text("a"), text("bc")]]));
    }
}
