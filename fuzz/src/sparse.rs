//! Inputs as sparse files. Needs nothing but the standard library, so that `pack.rs` can be built alone.

/// The most that an input unpacks to.
pub const UNPACKED_BYTES_MAX: usize = 96 << 20;
/// And if it is several devices.
pub const DEVICES_BYTES_MAX: usize = 256 << 20;
/// The unit in which inputs are packed.
pub const PAGE_BYTES: usize = 512;

/// Makes the sparse file that an input stands for: its length in pages (4 bytes, little-endian), then for each page
/// that is not zeros its index (4 bytes) and its bytes. What is cut off or lies past the end is left out.
pub fn unpack(data: &[u8]) -> Vec<u8> {
    unpack_within(data, UNPACKED_BYTES_MAX)
}

/// The same with a limit of its own.
pub fn unpack_within(data: &[u8], bytes_max: usize) -> Vec<u8> {
    let Some((len_pages, mut rest)) = data.split_first_chunk::<4>() else { return Vec::new() };
    let len_pages = (u32::from_le_bytes(*len_pages) as usize).min(bytes_max / PAGE_BYTES);
    let mut file = vec![0; len_pages * PAGE_BYTES];
    while let Some((index, after)) = rest.split_first_chunk::<4>() {
        let len = after.len().min(PAGE_BYTES);
        let (page, after) = after.split_at(len);
        let at = u32::from_le_bytes(*index) as usize;
        if at < len_pages {
            file[at * PAGE_BYTES..][..len].copy_from_slice(page);
        }
        rest = after;
    }
    file
}

/// The inverse of [`unpack`] for a file of whole pages; what lies past the limits is left out.
pub fn pack(file: &[u8]) -> Vec<u8> {
    let len_pages = file.len().div_ceil(PAGE_BYTES).min(DEVICES_BYTES_MAX / PAGE_BYTES);
    let mut data = u32::try_from(len_pages).unwrap_or(u32::MAX).to_le_bytes().to_vec();
    for (index, page) in (0u32..).zip(file.chunks(PAGE_BYTES).take(len_pages)) {
        if page.iter().any(|byte| *byte != 0) {
            data.extend_from_slice(&index.to_le_bytes());
            data.extend_from_slice(page);
        }
    }
    data
}
