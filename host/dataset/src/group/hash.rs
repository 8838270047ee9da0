//! Hashes that are the same on every machine and in every release: the partition of a row determines the order of a
//! job's results.

/// Number of hash partitions. 512 write cursors and the cache lines that they point to fit the first-level cache and
/// the TLB; with a million groups a partition's hash table then has two thousand entries, which fit the second-level
/// cache.
pub(super) const PARTITIONS: usize = 512;

const SHIFT: u32 = 64 - PARTITIONS.trailing_zeros();

const A: u64 = 0x9e37_79b9_7f4a_7c15;
const B: u64 = 0xd6e8_feb8_6659_fd93;
const C: u64 = 0xa076_1d64_78bd_642f;

/// Multiplies and folds (wyhash, Wang Yi 2019).
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Returns the salt that makes the hashes of one file differ from those of another.
pub(super) fn salt(file: u32) -> u64 {
    u64::from(file).wrapping_mul(B) ^ C
}

/// Hashes a key of one word.
#[inline]
pub(super) fn hash_word(word: u64, salt: u64) -> u64 {
    fold(word ^ salt, A)
}

/// Hashes a key of bytes.
#[inline]
pub(super) fn hash_bytes(bytes: &[u8], salt: u64) -> u64 {
    let mut hash = salt;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
        hash = fold(hash ^ word, A);
    }
    let mut last = [0; 8];
    last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    fold(hash ^ u64::from_le_bytes(last), B ^ bytes.len() as u64)
}

/// Returns the partition of a hash: its high bits. Hash tables within a partition use [`remaining_bits`].
#[inline]
pub(super) fn partition(hash: u64) -> u16 {
    (hash >> SHIFT) as u16
}

/// Returns a hash without the bits that all keys of a partition share.
#[inline]
pub(super) fn remaining_bits(hash: u64) -> u64 {
    hash << (64 - SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_stable() {
        assert_eq!(hash_word(7, salt(0)), 0xd381_93c0_03bf_40e5);
        assert_eq!(hash_bytes(b"seven and more", salt(3)), 0x2827_8c2f_2fc0_4cca);
    }

    #[test]
    fn keys_in_a_row_spread() {
        for step in [1u64, 8, 256, 1 << 20, 1 << 32, 1 << 47] {
            let mut counts = [0u32; PARTITIONS];
            (0..51_200).for_each(|i: u64| counts[partition(hash_word(i.wrapping_mul(step), salt(0))) as usize] += 1);
            assert!(counts.iter().all(|c| (30..200).contains(c)), "step {step}: {counts:?}");
        }
    }
}
