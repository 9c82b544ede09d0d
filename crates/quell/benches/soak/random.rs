//! Seeded random numbers, one stream for each session. The same seed gives the same plan, however fast the other
//! sessions are.

/// A stream of random numbers (splitmix64).
#[derive(Debug, Clone)]
pub(crate) struct SoakRandom(u64);

impl SoakRandom {
    /// Creates the stream with this number under this seed.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut mixed = Self(seed ^ stream.wrapping_mul(0xA076_1D64_78BD_642F));
        mixed.next();
        mixed
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, which must be above 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True once in `n` times on average.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of the values, with equal probability.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let at = usize::try_from(self.below(from.len() as u64)).unwrap_or(0);
        from[at]
    }

    /// Returns one of the values, with a probability by its weight.
    pub(crate) fn weighted<T: Copy>(&mut self, from: &[(u64, T)]) -> T {
        let mut at = self.below(from.iter().map(|(weight, _)| weight).sum());
        for (weight, value) in from {
            if at < *weight {
                return *value;
            }
            at -= weight;
        }
        from[0].1
    }
}
