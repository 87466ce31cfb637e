//! Differencing VHDs, which no program here makes (Virtual Hard Disk Image Format Specification 1.0).

const SECTORS_A_BLOCK: usize = 4096;

/// Makes a checksum right: the sum of all bytes but its own, complemented.
pub fn seal(bytes: &mut [u8], checksum_at: usize) {
    bytes[checksum_at..checksum_at + 4].fill(0);
    let sum: u32 = bytes.iter().map(|byte| u32::from(*byte)).sum();
    bytes[checksum_at..checksum_at + 4].copy_from_slice(&(!sum).to_be_bytes());
}

/// A differencing disk of `parent`, made by hand from a dynamic VHD of the same size: of which block which sector lies here. Its locators name the
/// parent, by their codes. Returns the disk with what it shall read as.
pub fn differencing(
    parent: &[u8],
    parent_contents: &[u8],
    locators: &[(&[u8; 4], Vec<u8>)],
    is_here: impl Fn(usize, usize) -> bool,
) -> (Vec<u8>, Vec<u8>) {
    let mut file = parent[..512 + 1024].to_vec();
    file[60..64].copy_from_slice(&4u32.to_be_bytes());
    file[68..84].fill(0xc1);
    seal(&mut file[..512], 64);
    let block_count = parent_contents.len().div_ceil(SECTORS_A_BLOCK * 512);
    let header_at = 512;
    let name: Vec<u8> = "parent.vhd".encode_utf16().flat_map(u16::to_be_bytes).collect();
    file[header_at + 64..header_at + 64 + name.len()].copy_from_slice(&name);
    file[header_at + 40..header_at + 56].copy_from_slice(&parent[68..84]);
    file.resize(2048, 0xff);
    let mut places = Vec::new();
    for (_, name) in locators {
        places.push((file.len(), name.len()));
        file.extend(name);
        file.resize(file.len().next_multiple_of(512), 0);
    }
    for (index, ((code, _), (at, len))) in locators.iter().zip(places).enumerate() {
        let locator = header_at + 576 + index * 24;
        file[locator..locator + 4].copy_from_slice(*code);
        file[locator + 4..locator + 8].copy_from_slice(&512u32.to_be_bytes());
        file[locator + 8..locator + 12].copy_from_slice(&u32::try_from(len).unwrap().to_be_bytes());
        file[locator + 16..locator + 24].copy_from_slice(&(at as u64).to_be_bytes());
    }
    seal(&mut file[header_at..header_at + 1024], 36);
    let mut expected = parent_contents.to_vec();
    let has_some = |block: &usize| (0..SECTORS_A_BLOCK).any(|sector| is_here(*block, sector));
    for block in (0..block_count).filter(has_some) {
        let sector = u32::try_from(file.len() / 512).unwrap();
        file[1536 + block * 4..1540 + block * 4].copy_from_slice(&sector.to_be_bytes());
        let mut bitmap = vec![0u8; 512];
        let mut data = vec![0xeeu8; SECTORS_A_BLOCK * 512];
        for sector in (0..SECTORS_A_BLOCK).filter(|sector| is_here(block, *sector)) {
            bitmap[sector / 8] |= 0x80 >> (sector % 8);
            let value = u8::try_from((sector + block) % 255).unwrap();
            data[sector * 512..][..512].fill(value);
            let at = (block * SECTORS_A_BLOCK + sector) * 512;
            if let Some(expected) = expected.get_mut(at..at + 512) {
                expected.fill(value);
            }
        }
        file.extend(bitmap);
        file.extend(data);
    }
    let footer = file[..512].to_vec();
    file.extend(footer);
    (file, expected)
}
