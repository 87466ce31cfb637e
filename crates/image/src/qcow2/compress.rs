//! Compressed clusters: raw deflate with a window of 4 KiB, or a Zstandard frame
//! (specification: Header, `compression_type`).

use std::ops::RangeInclusive;
use std::sync::Mutex;

use block::{Error, Result};
use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};
use serde::{Deserialize, Serialize};
use zstd::bulk::Compressor;
use zstd::stream::raw::{CParameter, Decoder as ZstdDecoder, Operation};

use crate::Encoder;

/// How an image compresses clusters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Compression {
    /// Raw deflate, without zlib's own header, its window 4 KiB.
    Zlib,
    /// One Zstandard frame a cluster.
    Zstd,
}

impl Compression {
    /// The name in options and facts.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
        }
    }
}

/// Window of deflate: readers, QEMU among them, keep no more (specification: Header, `compression_type` 0).
const DEFLATE_WINDOW_BITS: u8 = 12;
/// See docs/decisions/compression-level.md.
const DEFLATE_LEVEL: u32 = 6;
/// See docs/decisions/compression-level.md.
const ZSTD_LEVEL: i32 = 3;
/// For clusters of which the level's own tables would be larger than a processor's nearest cache: log2 of the
/// entries of its two tables. See docs/decisions/compression-level.md.
const ZSTD_TABLE_LOGS: (u32, u32) = (14, 15);
/// The clusters that this is for. The level takes small tables for smaller ones anyway; larger ones need large
/// tables.
const ZSTD_TABLE_CLUSTER_BYTES: RangeInclusive<usize> = (32 << 10)..=(128 << 10);

/// The encoder of `compression` for clusters of `cluster_bytes`.
pub(super) fn encoder(compression: Compression, cluster_bytes: usize) -> Box<dyn Encoder> {
    match compression {
        Compression::Zlib => Box::new(ZlibEncoder::new(cluster_bytes)),
        Compression::Zstd => Box::new(ZstdEncoder::new(cluster_bytes)),
    }
}

/// The most that a cluster may keep after compression. Less gain than a sixty-fourth is not worth the time that
/// each read would then take.
fn len_max(cluster_bytes: usize) -> usize {
    cluster_bytes - cluster_bytes / 64
}

struct ZlibEncoder {
    state: Compress,
    buffer: Vec<u8>,
}

impl ZlibEncoder {
    fn new(cluster_bytes: usize) -> Self {
        let level = flate2::Compression::new(DEFLATE_LEVEL);
        Self {
            state: Compress::new_with_window_bits(level, false, DEFLATE_WINDOW_BITS),
            // Room for what does not shrink, so that every stream ends: the reset of zlib-rs does not take back output that
            // was still pending.
            buffer: vec![0; cluster_bytes + cluster_bytes / 4 + 1024],
        }
    }
}

impl Encoder for ZlibEncoder {
    fn encode(&mut self, granule: &[u8]) -> Result<Option<Vec<u8>>> {
        self.state.reset();
        let status = self
            .state
            .compress(granule, &mut self.buffer, FlushCompress::Finish)
            .map_err(|error| Error::io("deflate", std::io::Error::other(error)))?;
        if status != Status::StreamEnd {
            return Err(Error::io("deflate", std::io::Error::other("did not end")));
        }
        let len = usize::try_from(self.state.total_out()).expect("within the buffer");
        Ok((len <= len_max(granule.len())).then(|| self.buffer[..len].to_vec()))
    }
}

struct ZstdEncoder {
    /// Made by the first call, because making it can fail.
    state: Option<Compressor<'static>>,
    buffer: Vec<u8>,
}

impl ZstdEncoder {
    fn new(cluster_bytes: usize) -> Self {
        Self { state: None, buffer: Vec::with_capacity(zstd::zstd_safe::compress_bound(cluster_bytes)) }
    }

    fn state(cluster_bytes: usize) -> std::io::Result<Compressor<'static>> {
        let mut state = Compressor::new(ZSTD_LEVEL)?;
        if ZSTD_TABLE_CLUSTER_BYTES.contains(&cluster_bytes) {
            let (chain_log, hash_log) = ZSTD_TABLE_LOGS;
            state.set_parameter(CParameter::ChainLog(chain_log))?;
            state.set_parameter(CParameter::HashLog(hash_log))?;
        }
        Ok(state)
    }
}

impl Encoder for ZstdEncoder {
    fn encode(&mut self, granule: &[u8]) -> Result<Option<Vec<u8>>> {
        let failed = |error| Error::io("zstd", error);
        let state = match &mut self.state {
            Some(state) => state,
            none => none.insert(Self::state(granule.len()).map_err(failed)?),
        };
        self.buffer.clear();
        let len = state.compress_to_buffer(granule, &mut self.buffer).map_err(failed)?;
        Ok((len <= len_max(granule.len())).then(|| self.buffer[..len].to_vec()))
    }
}

/// Decompresses clusters, from any thread; contexts are kept for the next one.
pub(super) struct Decompressor {
    compression: Compression,
    zstd: Mutex<Vec<ZstdDecoder<'static>>>,
}

/// Contexts kept: more threads than this make their own.
const CONTEXT_COUNT_MAX: usize = 8;

impl Decompressor {
    /// For an image of `compression`.
    pub(super) fn new(compression: Compression) -> Self {
        Self { compression, zstd: Mutex::default() }
    }

    /// Fills `cluster` from the beginning of `data`, which may hold more than the cluster's own data. Says why
    /// where it cannot.
    pub(super) fn decompress(&self, data: &[u8], cluster: &mut [u8]) -> Result<(), String> {
        match self.compression {
            Compression::Zlib => inflate(data, cluster),
            Compression::Zstd => self.zstd(data, cluster),
        }
    }

    fn zstd(&self, data: &[u8], cluster: &mut [u8]) -> Result<(), String> {
        let kept = self.zstd.lock().expect("no reader panicked").pop();
        let mut decoder = match kept {
            Some(decoder) => decoder,
            None => ZstdDecoder::new().map_err(|error| error.to_string())?,
        };
        let result = unzstd(&mut decoder, data, cluster);
        let mut kept = self.zstd.lock().expect("no reader panicked");
        if kept.len() < CONTEXT_COUNT_MAX {
            kept.push(decoder);
        }
        result
    }
}

fn inflate(data: &[u8], cluster: &mut [u8]) -> Result<(), String> {
    let mut state = Decompress::new(false);
    state.decompress(data, cluster, FlushDecompress::Finish).map_err(|error| error.to_string())?;
    check_len(usize::try_from(state.total_out()).unwrap_or(usize::MAX), cluster.len())
}

fn unzstd(decoder: &mut ZstdDecoder<'_>, data: &[u8], cluster: &mut [u8]) -> Result<(), String> {
    decoder.reinit().map_err(|error| error.to_string())?;
    let (mut read, mut written) = (0, 0);
    while written < cluster.len() {
        let step = decoder
            .run_on_buffers(&data[read..], &mut cluster[written..])
            .map_err(|error| error.to_string())?;
        read += step.bytes_read;
        written += step.bytes_written;
        let frame_ended = step.remaining == 0;
        if frame_ended || (step.bytes_read == 0 && step.bytes_written == 0) {
            break;
        }
    }
    check_len(written, cluster.len())
}

fn check_len(found: usize, expected: usize) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("ends after {found} bytes")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER_BYTES: usize = 65_536;

    fn text() -> Vec<u8> {
        (0..CLUSTER_BYTES).map(|at| b"a few words that repeat, "[at * 7 / 5 % 25]).collect()
    }

    #[test]
    fn what_is_encoded_is_decoded_whatever_follows() {
        for compression in [Compression::Zlib, Compression::Zstd] {
            let mut encoder = encoder(compression, CLUSTER_BYTES);
            let decompressor = Decompressor::new(compression);
            for _ in 0..3 {
                let mut encoded = encoder.encode(&text()).unwrap().unwrap();
                assert!(encoded.len() < CLUSTER_BYTES / 4);
                encoded.extend_from_slice(b"another cluster's data");
                let mut cluster = vec![0xa5; CLUSTER_BYTES];
                decompressor.decompress(&encoded, &mut cluster).unwrap();
                assert_eq!(cluster, text());
            }
        }
    }

    #[test]
    fn what_does_not_shrink_is_not_encoded() {
        let mut seed = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed.to_be_bytes()[0]
        })
        .take(CLUSTER_BYTES)
        .collect();
        for compression in [Compression::Zlib, Compression::Zstd] {
            let mut encoder = encoder(compression, CLUSTER_BYTES);
            assert_eq!(encoder.encode(&noise).unwrap(), None);
            assert!(encoder.encode(&text()).unwrap().is_some(), "the next one is not affected");
        }
    }

    #[test]
    fn data_cut_short_or_damaged_is_an_error() {
        for compression in [Compression::Zlib, Compression::Zstd] {
            let encoded = encoder(compression, CLUSTER_BYTES).encode(&text()).unwrap().unwrap();
            let decompressor = Decompressor::new(compression);
            let mut cluster = vec![0; CLUSTER_BYTES];
            for len in [0, 1, encoded.len() / 2, encoded.len() - 20] {
                assert!(decompressor.decompress(&encoded[..len], &mut cluster).is_err(), "{len} bytes");
            }
            assert!(decompressor.decompress(&[0xff; 4096], &mut cluster).is_err());
            decompressor.decompress(&encoded, &mut cluster).unwrap();
            assert_eq!(cluster, text());
        }
    }
}
