//! A picture of a screen: from a portable pixmap, as QEMU writes it, to PNG.
//!
//! Sources: `ppm(5)`; the PNG specification (ISO/IEC 15948), sections 5 and 9 to 11.

use std::io::Write;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};

/// Larger screens than this are not QEMU's.
const SIDE_MAX: usize = 16384;
const SIGNATURE: &[u8; 8] = b"\x89PNG\r\n\x1a\n";

/// A pixmap as PNG; `None` if it is none with 8 bits for each of red, green and blue.
pub fn png_of_pixmap(pixmap: &[u8]) -> Option<Vec<u8>> {
    let (width, height, pixels) = parse(pixmap)?;
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::default());
    for row in pixels.chunks_exact(width * 3) {
        // Filter 0: the bytes as they are.
        packed.write_all(&[0]).ok()?;
        packed.write_all(row).ok()?;
    }
    let sides = [width, height].map(|side| u32::try_from(side).expect("was compared").to_be_bytes());
    // 8 bits a sample, colour type 2 (red, green, blue), the only methods, not interlaced.
    let header = [&sides[0][..], &sides[1], &[8, 2, 0, 0, 0]].concat();
    let chunks = [chunk(b"IHDR", &header), chunk(b"IDAT", &packed.finish().ok()?), chunk(b"IEND", &[])];
    Some([&SIGNATURE[..], &chunks.concat()].concat())
}

/// Width, height, and three bytes for each pixel.
fn parse(pixmap: &[u8]) -> Option<(usize, usize, &[u8])> {
    let mut rest = pixmap.strip_prefix(b"P6")?;
    let mut numbers = [0; 3];
    for number in &mut numbers {
        rest = rest.trim_ascii_start();
        let end = rest.iter().position(|byte| !byte.is_ascii_digit())?;
        *number = std::str::from_utf8(&rest[..end]).ok()?.parse::<usize>().ok()?;
        rest = &rest[end..];
    }
    let [width, height, depth] = numbers;
    let is_known = (1..=SIDE_MAX).contains(&width) && (1..=SIDE_MAX).contains(&height) && depth == 255;
    // One byte of white space stands before the pixels.
    let pixels = rest.get(1..)?;
    (is_known && pixels.len() == width * height * 3).then_some((width, height, pixels))
}

fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let mut sum = Crc::new();
    sum.update(kind);
    sum.update(data);
    let len = u32::try_from(data.len()).expect("a screen is smaller").to_be_bytes();
    [&len[..], kind, data, &sum.sum().to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::ZlibDecoder;

    use super::*;

    #[test]
    fn a_pixmap_becomes_the_same_pixels() {
        let png = png_of_pixmap(b"P6\n2 1\n255\nabcdef").unwrap();
        assert_eq!(&png[..16], b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR");
        assert_eq!(&png[16..29], [0, 0, 0, 2, 0, 0, 0, 1, 8, 2, 0, 0, 0]);
        let packed = &png[41..png.len() - 16];
        let mut row = Vec::new();
        ZlibDecoder::new(packed).read_to_end(&mut row).unwrap();
        assert_eq!(row, b"\0abcdef");
        // The checksum of an empty last chunk, as every PNG ends.
        assert_eq!(&png[png.len() - 12..], b"\0\0\0\0IEND\xaeB`\x82");
    }

    #[test]
    fn what_is_no_pixmap_is_none() {
        for wrong in [
            &b"P6\n2 1\n255\nabcde"[..],
            b"P5\n1 1\n255\na",
            b"P6\n0 0\n255\n",
            b"P6\n1 1\n256\nabc",
            b"P6 9",
        ] {
            assert_eq!(png_of_pixmap(wrong), None);
        }
        assert_eq!(png_of_pixmap(b"P6 99999999999999999999 1 255\nabc"), None);
    }
}
