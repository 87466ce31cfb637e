//! The checksums of ext2/3/4 and of its journal, with the seeds that they use.

/// CRC-32C as ext4 chains it: the running value is neither inverted at the start nor at the end
/// (`ext4_chksum` of the kernel's `fs/ext4/ext4.h`).
pub(super) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// The seed of the first CRC of a chain.
pub(super) const SEED: u32 = !0;

/// CRC-16 (polynomial 0x8005, reflected) of group descriptors under `uninit_bg` (the kernel's `lib/crc16.c`).
pub(super) fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |crc, byte| {
        let mut crc = crc ^ u16::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { 0xa001 } else { 0 };
        }
        crc
    })
}

/// CRC-32 with the most significant bit first, of whole transactions under the journal's first kind of
/// checksum (the kernel's `crc32_be`).
pub(super) fn crc32_be(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, byte| {
        let [top, ..] = crc.to_be_bytes();
        (crc << 8) ^ CRC32_BE[usize::from(top ^ byte)]
    })
}

const CRC32_BE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0u32;
    while index < 256 {
        let mut crc = index << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc << 1) ^ if crc >> 31 == 1 { 0x04c1_1db7 } else { 0 };
            bit += 1;
        }
        table[index as usize] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_values_of_the_catalogue() {
        let text = b"123456789";
        assert_eq!(!crc32c(SEED, text), 0xe306_9283, "CRC-32/ISCSI");
        assert_eq!(crc16(0, text), 0xbb3d, "CRC-16/ARC");
        assert_eq!(crc16(0xffff, text), 0x4b37, "CRC-16/MODBUS");
        assert_eq!(crc32_be(!0, text), 0x0376_e6e7, "CRC-32/MPEG-2");
    }
}
