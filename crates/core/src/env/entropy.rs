//! Where randomness comes from.

use std::fmt;

/// Where randomness comes from.
///
/// An implementation must keep this: a fork depends on the seed and the name alone, not on how much was
/// drawn before. So a part that draws once more leaves every other part as it was.
pub trait Entropy: Send + Sync + fmt::Debug {
    /// The next 64 random bits.
    fn next_u64(&mut self) -> u64;

    /// A stream of its own for the part called `name`.
    fn fork(&self, name: &str) -> Box<dyn Entropy>;
}

impl dyn Entropy + '_ {
    /// A number from 0 up to but excluding `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // Multiply-and-shift: the bias is below 2^-64 × bound, far less than anything here can see.
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(u64::MAX)
    }

    /// A number from 0 up to but excluding 1.
    pub fn unit(&mut self) -> f64 {
        // 53 bits are what a double can tell apart.
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
        let bits = (self.next_u64() >> 11) as f64;
        bits / 9_007_199_254_740_992.0
    }
}

/// A seeded stream of random numbers: xoshiro256++.
///
/// It is written out here and not taken from a crate. The numbers that follow a seed are part of what a
/// printed seed promises: the same run tomorrow, on any version.
///
/// ```
/// use tidegate_core::env::{Entropy, Stream};
/// let mut one = Stream::new(7);
/// let mut two = Stream::new(7);
/// assert_eq!(one.next_u64(), two.next_u64());
/// assert_eq!(one.fork("logger").next_u64(), two.fork("logger").next_u64());
/// assert_ne!(one.fork("logger").next_u64(), one.fork("queue").next_u64());
/// ```
#[derive(Clone)]
pub struct Stream {
    /// The seed of forks; drawing does not change it.
    seed: [u64; 2],
    state: [u64; 4],
}

impl Stream {
    /// The stream that follows from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::from_words([seed, 0])
    }

    /// The stream that follows from 128 bits, as the operating system gives them.
    #[must_use]
    pub fn from_words(seed: [u64; 2]) -> Self {
        let mut walk = seed[0];
        let mut state = [0; 4];
        for (i, word) in state.iter_mut().enumerate() {
            *word = split_mix(&mut walk) ^ if i % 2 == 1 { seed[1] } else { 0 };
        }
        // The all-zero state is the one that xoshiro never leaves.
        if state == [0; 4] {
            state[0] = 1;
        }
        Self { seed, state }
    }

    /// A copy of the stream of the part called `name`, see [`Entropy::fork`].
    #[must_use]
    pub fn stream(&self, name: &str) -> Self {
        // FNV-1a over the name, then mixed with both halves of the seed.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
        });
        let mut low = self.seed[0] ^ hash;
        let mut high = self.seed[1] ^ hash.rotate_left(32);
        Self::from_words([split_mix(&mut low), split_mix(&mut high)])
    }
}

impl Entropy for Stream {
    fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    fn fork(&self, name: &str) -> Box<dyn Entropy> {
        Box::new(self.stream(name))
    }
}

impl fmt::Debug for Stream {
    // The state stays out of logs: whoever knows it knows every id to come.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_seed_never_change() {
        let mut stream = Stream::new(42);
        let first: Vec<u64> = (0..3).map(|_| stream.next_u64()).collect();
        assert_eq!(
            first,
            [
                0xd076_4d4f_4476_689f,
                0x519e_4174_576f_3791,
                0xfbe0_7cfb_0c24_ed8c
            ]
        );
    }

    #[test]
    fn a_fork_does_not_depend_on_what_was_drawn_before() {
        let mut drawn = Stream::new(1);
        drawn.next_u64();
        assert_eq!(
            drawn.fork("a").next_u64(),
            Stream::new(1).fork("a").next_u64()
        );
    }

    #[test]
    fn below_and_unit_stay_in_their_range() {
        let mut stream = Stream::new(3);
        let entropy: &mut dyn Entropy = &mut stream;
        for bound in [1, 2, 3, 10, u64::MAX] {
            for _ in 0..200 {
                assert!(entropy.below(bound) < bound);
            }
        }
        assert_eq!(entropy.below(0), 0);
        for _ in 0..1000 {
            assert!((0.0..1.0).contains(&entropy.unit()));
        }
    }
}
