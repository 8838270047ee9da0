//! Compression of groups on links that are the bottleneck.

use super::TransferLimits;

/// Encoding of groups on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Codec {
    Raw = 0,
    Lz4 = 1,
    Zstd = 2,
}

/// Compression level of zstd: the fastest of its regular levels.
const ZSTD_LEVEL: i32 = 1;

/// Maximum compression ratio. Data that shrinks less is sent raw.
const SHRINKS_TO: f64 = 0.9;

/// Result of compressing a sample of the data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sample {
    pub(crate) codec: Codec,
    /// Compressed bytes per byte.
    pub(crate) ratio: f64,
    /// Input bytes a second.
    pub(crate) bytes_per_s: f64,
}

impl Codec {
    pub(crate) fn from_number(number: u8) -> Option<Codec> {
        [Codec::Raw, Codec::Lz4, Codec::Zstd].into_iter().find(|codec| *codec as u8 == number)
    }

    /// Compresses bytes; `None` if they do not shrink enough.
    pub(crate) fn compress(self, bytes: &[u8]) -> Option<Vec<u8>> {
        let compressed = match self {
            Codec::Raw => None,
            Codec::Lz4 => Some(lz4_flex::block::compress(bytes)),
            Codec::Zstd => zstd::bulk::compress(bytes, ZSTD_LEVEL).ok(),
        };
        compressed.filter(|compressed| (compressed.len() as f64) < bytes.len() as f64 * SHRINKS_TO)
    }

    /// Decompresses into `to`. Returns whether the output fills it exactly.
    pub(crate) fn decompress(self, from: &[u8], to: &mut [u8]) -> bool {
        let len = match self {
            Codec::Raw => None,
            Codec::Lz4 => lz4_flex::block::decompress_into(from, to).ok(),
            Codec::Zstd => zstd::bulk::decompress_to_buffer(from, to).ok(),
        };
        len == Some(to.len())
    }

    /// Compresses a sample and measures the time with `now`, in seconds.
    pub(crate) fn sample(self, bytes: &[u8], now: impl Fn() -> f64) -> Sample {
        let started = now();
        let left = self.compress(bytes).map_or(bytes.len(), |compressed| compressed.len());
        // A simulated clock does not advance meanwhile.
        let seconds = (now() - started).max(1e-9);
        let len = bytes.len().max(1) as f64;
        Sample { codec: self, ratio: left as f64 / len, bytes_per_s: len / seconds }
    }
}

/// Chooses the encoding with the highest throughput over a link with `goodput` bytes a second. Returns raw if the
/// goodput is unknown or so high that the processor is the bottleneck, or if no codec gains at least 10 %. Compression
/// overlaps with sending, so that the slower of both determines the throughput.
pub(crate) fn choose(goodput: u64, samples: &[Sample], limits: &TransferLimits) -> Codec {
    if goodput == 0 || goodput > limits.compress_below_bytes_per_s {
        return Codec::Raw;
    }
    let goodput = goodput as f64;
    let cost = |sample: &Sample| (1.0 / sample.bytes_per_s).max(sample.ratio / goodput);
    let best = samples.iter().min_by(|a, b| cost(a).total_cmp(&cost(b)));
    best.filter(|best| best.ratio < SHRINKS_TO && cost(best) < SHRINKS_TO / goodput)
        .map_or(Codec::Raw, |best| best.codec)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LZ4: Sample = lz4(0.5, 1e9);
    const ZSTD: Sample = zstd(0.3, 3e8);

    const fn lz4(ratio: f64, bytes_per_s: f64) -> Sample {
        Sample { codec: Codec::Lz4, ratio, bytes_per_s }
    }

    const fn zstd(ratio: f64, bytes_per_s: f64) -> Sample {
        Sample { codec: Codec::Zstd, ratio, bytes_per_s }
    }

    #[test]
    fn the_slower_of_link_and_compression_decides() {
        for (goodput, first, second, expected) in [
            (0, LZ4, ZSTD, Codec::Raw),
            (1_000_000, LZ4, ZSTD, Codec::Zstd),
            (90_000_000, LZ4, ZSTD, Codec::Zstd),
            // A faster link, where zstd is the bottleneck.
            (90_000_000, LZ4, zstd(0.3, 1e8), Codec::Lz4),
            (1_000_000_000, LZ4, ZSTD, Codec::Raw),
            // Incompressible data.
            (1_000_000, lz4(1.0, 1e9), zstd(0.97, 3e8), Codec::Raw),
            // Slow processors.
            (50_000_000, lz4(0.5, 5e7), zstd(0.3, 1e7), Codec::Raw),
        ] {
            let chosen = choose(goodput, &[first, second], &TransferLimits::default());
            assert_eq!(chosen, expected, "{goodput}");
        }
    }

    #[test]
    fn compressed_chunks_round_trip_within_their_bound() {
        let bytes: Vec<u8> = (0..100_000u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
        for codec in [Codec::Lz4, Codec::Zstd] {
            let compressed = codec.compress(&bytes).unwrap();
            let mut back = vec![0; bytes.len()];
            assert!(codec.decompress(&compressed, &mut back) && back == bytes);
            for len in [0, 1, bytes.len() - 1, bytes.len() + 1] {
                assert!(!codec.decompress(&compressed, &mut vec![0; len]), "{codec:?} into {len} bytes");
            }
            for cut in [0, 1, compressed.len() / 2, compressed.len() - 1] {
                assert!(!codec.decompress(&compressed[..cut], &mut back), "{codec:?} of {cut} bytes");
            }
            assert!(!codec.decompress(&[255; 1000], &mut back));
        }
        assert!(!Codec::Raw.decompress(&bytes, &mut bytes.clone()));
    }

    #[test]
    fn incompressible_chunks_are_sent_raw() {
        let mut noise = vec![0; 64 << 10];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        for codec in [Codec::Raw, Codec::Lz4, Codec::Zstd] {
            assert_eq!(codec.compress(&noise), None);
            assert_eq!(codec.sample(&noise, || 0.0).ratio, 1.0);
        }
    }
}
