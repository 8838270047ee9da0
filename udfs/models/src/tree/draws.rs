use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

/// Random draws with the same results on 32-bit and 64-bit machines.
pub(crate) struct Draws(Xoshiro256PlusPlus);

impl Draws {
    /// The stream `index` of `seed`. It depends on these two only, so that the trees of a forest can be grown in any
    /// order.
    pub(crate) fn stream(seed: u64, index: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(mix(mix(seed).wrapping_add(index))))
    }

    /// Uniform in `0..bound`, by Lemire's multiplication without the rejection step: the bias is below 2⁻³² · `bound`.
    #[inline]
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        (((self.0.next_u64() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// Uniform in `[0, 1)` with 53 bits.
    #[inline]
    pub(crate) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014).
fn mix(state: u64) -> u64 {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}
