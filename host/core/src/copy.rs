//! Copies to and from memory that another process reads or writes.
//!
//! The C library copies larger pieces with the processor's string instruction. On AMD (Zen 4, glibc 2.36) the
//! instruction is slow when the other side of the copy is in another core's cache: reading what a process on another
//! core wrote takes 190 µs a MiB, writing where that process has read 120 to 200 µs. A loop over vectors reads in 80
//! µs, and non-temporal stores write in 40 µs. On Intel (a Xeon with 2 MiB of L2 a core) the instruction also writes in
//! 40 µs, and non-temporal stores in 77 µs. Non-temporal stores serve there only for pieces that no cache holds: 64 MiB
//! take 5.4 ms with them and 8.8 ms with the instruction.

/// Minimum size in bytes for the copies of this module. Shorter pieces are mostly in this core's cache as well.
#[cfg(target_arch = "x86_64")]
const BYTES_MIN: usize = 32 << 10;

/// Copies `len` bytes that another core is going to read, past this core's caches where that is faster.
///
/// # Safety
/// The contract of [`std::ptr::copy_nonoverlapping`].
#[inline]
pub unsafe fn copy_to_shared(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= BYTES_MIN && len >= *x86::STREAM_BYTES_MIN {
        // SAFETY: the caller upholds the contract; every x86-64 processor has SSE2.
        return unsafe { x86::stream(from, to, len) };
    }
    // SAFETY: the caller upholds the contract.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// Copies `len` bytes that another core has written.
///
/// # Safety
/// The contract of [`std::ptr::copy_nonoverlapping`].
#[inline]
pub unsafe fn copy_from_shared(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= BYTES_MIN && is_x86_feature_detected!("avx") {
        // SAFETY: the caller upholds the contract, and the processor has AVX.
        return unsafe { x86::by_vectors(from, to, len) };
    }
    // SAFETY: the caller upholds the contract.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __cpuid, __m128i, __m256i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128, _mm256_loadu_si256,
        _mm256_storeu_si256,
    };
    use std::ptr::copy_nonoverlapping;
    use std::sync::LazyLock;
    use std::sync::atomic::{Ordering, compiler_fence};

    const LINE_BYTES: usize = 64;

    /// Minimum size in bytes of a piece that is written past the caches.
    pub(super) static STREAM_BYTES_MIN: LazyLock<usize> = LazyLock::new(|| {
        let leaf = __cpuid(0);
        let is_amd = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD";
        if is_amd { super::BYTES_MIN } else { 4 << 20 }
    });

    /// # Safety
    /// The contract of [`copy_nonoverlapping`].
    pub(super) unsafe fn stream(from: *const u8, to: *mut u8, len: usize) {
        let head = to.align_offset(LINE_BYTES).min(len);
        let lines = (len - head) / LINE_BYTES;
        let rest = head + lines * LINE_BYTES;
        // SAFETY: all accesses are in bounds; the lines of `to` are aligned.
        unsafe {
            copy_nonoverlapping(from, to, head);
            for line in 0..lines {
                let at = head + line * LINE_BYTES;
                let (from, to) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
                for i in 0..LINE_BYTES / size_of::<__m128i>() {
                    _mm_stream_si128(to.add(i), _mm_loadu_si128(from.add(i)));
                }
            }
            // Orders the non-temporal stores before later stores.
            _mm_sfence();
            copy_nonoverlapping(from.add(rest), to.add(rest), len - rest);
        }
    }

    /// # Safety
    /// The contract of [`copy_nonoverlapping`], and a processor with AVX.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn by_vectors(from: *const u8, to: *mut u8, len: usize) {
        let lines = len / LINE_BYTES;
        // SAFETY: all accesses are in bounds.
        unsafe {
            for line in 0..lines {
                let at = line * LINE_BYTES;
                let (from, to) = (from.add(at).cast::<__m256i>(), to.add(at).cast::<__m256i>());
                let (first, second) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
                _mm256_storeu_si256(to, first);
                _mm256_storeu_si256(to.add(1), second);
                // Keeps the compiler from replacing the loop with a call of the C library's copy.
                compiler_fence(Ordering::SeqCst);
            }
            let rest = lines * LINE_BYTES;
            copy_nonoverlapping(from.add(rest), to.add(rest), len - rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_are_copied_and_no_others() {
        let from: Vec<u8> = (0..70_000u32).map(|i| (i % 251) as u8).collect();
        type Copy = unsafe fn(*const u8, *mut u8, usize);
        let mut ways: Vec<Copy> = vec![copy_to_shared, copy_from_shared];
        #[cfg(target_arch = "x86_64")]
        ways.push(x86::stream);
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx") {
            ways.push(x86::by_vectors);
        }
        for copy in ways {
            for len in [0, 1, 63, 64, 4096, 32_767, 32_768, 32_769, 32_832, 50_001, 65_536] {
                for (skip, offset) in [(0, 0), (0, 1), (1, 0), (3, 15), (7, 63), (64, 64), (8, 32)] {
                    let mut to = vec![0xff; len + 200];
                    // SAFETY: both buffers hold the bytes that are copied.
                    unsafe { copy(from.as_ptr().add(skip), to.as_mut_ptr().add(offset), len) };
                    assert_eq!(to[offset..offset + len], from[skip..skip + len], "{len} bytes at {offset}");
                    let around = to[..offset].iter().chain(&to[offset + len..]);
                    assert!(around.into_iter().all(|byte| *byte == 0xff), "{len} bytes at {offset}");
                }
            }
        }
    }
}
