//! Compression of text files.

use std::io::{self, BufRead, Read};

/// Maximum memory for decompressing `.xz`: its dictionary takes 64 MiB at the highest level.
const XZ_MEMORY_BYTES_MAX: u64 = 128 << 20;

/// Binary logarithm of the maximum window of a `.zst` file: 128 MiB.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// Compression of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in super::super) enum Compression {
    Gzip,
    Zstd,
    Bzip2,
    Xz,
}

impl Compression {
    /// Returns the compression that an extension names.
    pub(in super::super) fn from_extension(extension: &str) -> Option<Compression> {
        match extension {
            "gz" | "gzip" => Some(Compression::Gzip),
            "zst" | "zstd" => Some(Compression::Zstd),
            "bz2" => Some(Compression::Bzip2),
            "xz" => Some(Compression::Xz),
            _ => None,
        }
    }

    /// Returns a reader that decompresses `from`.
    pub(super) fn reader(self, from: impl BufRead + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
        Ok(match self {
            Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(from)),
            Compression::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(from)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                Box::new(decoder)
            }
            Compression::Bzip2 => Box::new(bzip2::bufread::MultiBzDecoder::new(from)),
            Compression::Xz => {
                let flags = liblzma::stream::CONCATENATED;
                let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY_BYTES_MAX, flags)?;
                Box::new(liblzma::bufread::XzDecoder::new_stream(from, stream))
            }
        })
    }
}
