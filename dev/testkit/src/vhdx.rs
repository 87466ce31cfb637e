//! VHDX files taken apart, and differencing ones, which no program here makes (MS-VHDX: Virtual Hard Disk v2 File Format).

const MIB: usize = 1 << 20;

/// A number of 8 bytes.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// A number of 4 bytes.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// A number of 8 bytes that is an offset.
pub fn usize_at(bytes: &[u8], at: usize) -> usize {
    usize::try_from(u64_at(bytes, at)).unwrap()
}

/// Makes the CRC-32C of a structure right, which lies at its bytes 4 to 8.
pub fn seal(structure: &mut [u8]) {
    structure[4..8].fill(0);
    let sum = crc32c::crc32c(structure);
    structure[4..8].copy_from_slice(&sum.to_le_bytes());
}

/// Where the two headers lie.
pub const HEADERS: [usize; 2] = [64 << 10, 128 << 10];
/// Where the two region tables lie.
pub const REGION_TABLES: [usize; 2] = [192 << 10, 256 << 10];

/// Changes both headers, keeping each valid.
pub fn edit_headers(file: &mut [u8], edit: impl Fn(&mut [u8])) {
    for at in HEADERS {
        let header = &mut file[at..at + 4096];
        edit(header);
        seal(header);
    }
}

/// Where the region lies whose GUID begins so.
pub fn region(file: &[u8], guid_start: &[u8]) -> usize {
    let table = REGION_TABLES[0];
    (0..2)
        .map(|index| table + 16 + index * 32)
        .find(|entry| file[*entry..].starts_with(guid_start))
        .map(|entry| usize_at(file, entry + 16))
        .unwrap()
}

/// Where the block allocation table begins.
pub fn bat_at(file: &[u8]) -> usize {
    region(file, &[0x66, 0x77, 0xc2, 0x2d])
}

/// Where the metadata begins.
pub fn metadata_at(file: &[u8]) -> usize {
    region(file, &[0x06, 0xa2, 0x7c, 0x8b])
}

/// As names are stored.
fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

fn guid_text(bytes: &[u8]) -> String {
    format!("{{{}}}", uuid::Uuid::from_bytes_le(bytes.try_into().unwrap()))
}

/// The offset of a metadata item's data in the file, by the start of its GUID.
fn item_at(file: &[u8], guid_start: &[u8]) -> usize {
    let metadata = metadata_at(file);
    (0..6)
        .map(|index| metadata + 32 + index * 32)
        .find(|entry| file[*entry..].starts_with(guid_start))
        .map(|entry| metadata + usize::try_from(u32_at(file, entry + 16)).unwrap())
        .unwrap()
}

/// What a differencing disk is made of.
pub struct Child<'a> {
    /// A dynamic disk of the same size, with blocks of 1 MiB.
    pub like: &'a [u8],
    /// The parent's file, which may be the same.
    pub parent: &'a [u8],
    /// The name of that, in the same folder.
    pub parent_name: &'a str,
    /// Another one for each disk of a chain: its identity is made of it, and so are its contents.
    pub id: u8,
}

/// A differencing disk, made by hand: each block in the state that `state` says (0 not here, 2 zeros, 6 here, 7 here in part), and of those
/// that are here in part the sectors for which `is_here` says so, by block and sector. Returns it with what it shall read as.
pub fn differencing(
    child: &Child<'_>,
    parent_contents: &[u8],
    sector_bytes: usize,
    state: impl Fn(usize) -> u64,
    is_here: impl Fn(usize, usize) -> bool,
) -> (Vec<u8>, Vec<u8>) {
    let Child { like, parent, parent_name, id } = child;
    let mut file = like.to_vec();
    let parent_id = guid_text(&parent[HEADERS[1] + 32..HEADERS[1] + 48]);
    edit_headers(&mut file, |header| header[32..48].fill(*id));
    let parameters = item_at(&file, &[0x37, 0x67, 0xa1, 0xca]);
    file[parameters + 4] |= 2;
    add_locator(
        &mut file,
        &[
            ("parent_linkage", &parent_id),
            ("absolute_win32_path", &format!("\\\\?\\C:\\vm\\old\\{parent_name}")),
            (
                "volume_path",
                &format!("\\\\?\\Volume{{b04aefb7-d19e-4a81-b789-25b8e9445913}}\\vm\\old\\{parent_name}"),
            ),
            ("relative_path", &format!(".\\{parent_name}")),
        ],
    );
    let bat = bat_at(&file);
    let ratio = (1 << 23) * sector_bytes / MIB;
    let mut expected = parent_contents.to_vec();
    let bitmap_at = file.len();
    file.resize(bitmap_at + MIB, 0);
    file[bat + ratio * 8..bat + ratio * 8 + 8].copy_from_slice(&(bitmap_at as u64 | 6).to_le_bytes());
    let sectors_a_block = MIB / sector_bytes;
    for block in 0..parent_contents.len().div_ceil(MIB) {
        let at = file.len();
        let mut data = vec![0xee; MIB];
        let state = state(block);
        let range = block * MIB..((block + 1) * MIB).min(expected.len());
        let old = &mut expected[range];
        match state {
            7 => {
                for sector in (0..sectors_a_block).filter(|sector| is_here(block, *sector)) {
                    let bit = block * sectors_a_block + sector;
                    file[bitmap_at + bit / 8] |= 1 << (bit % 8);
                    let range = sector * sector_bytes..(sector + 1) * sector_bytes;
                    let value = u8::try_from((sector + usize::from(*id)) % 250 + 1).unwrap();
                    data[range.clone()].fill(value);
                    if let Some(old) = old.get_mut(range) {
                        old.fill(value);
                    }
                }
            }
            6 => {
                data.fill(0x66);
                old.fill(0x66);
            }
            0 => {}
            _ => old.fill(0),
        }
        let entry = if state == 0 { 0 } else { at as u64 | state };
        file[bat + block * 8..bat + block * 8 + 8].copy_from_slice(&entry.to_le_bytes());
        if state == 6 || state == 7 {
            file.extend(data);
        }
    }
    (file, expected)
}

/// Adds the parent locator to the metadata.
fn add_locator(file: &mut [u8], pairs: &[(&str, &str)]) {
    let mut item = uuid::uuid!("b04aefb7-d19e-4a81-b789-25b8e9445913").to_bytes_le().to_vec();
    item.extend([0, 0]);
    item.extend(u16::try_from(pairs.len()).unwrap().to_le_bytes());
    let mut texts = Vec::new();
    let base = 20 + pairs.len() * 12;
    for (key, value) in pairs {
        let (key, value) = (utf16(key), utf16(value));
        item.extend(u32::try_from(base + texts.len()).unwrap().to_le_bytes());
        item.extend(u32::try_from(base + texts.len() + key.len()).unwrap().to_le_bytes());
        item.extend(u16::try_from(key.len()).unwrap().to_le_bytes());
        item.extend(u16::try_from(value.len()).unwrap().to_le_bytes());
        texts.extend(key);
        texts.extend(value);
    }
    item.extend(texts);
    let metadata = metadata_at(file);
    let count = file[metadata + 10];
    file[metadata + 10] += 1;
    let entry = metadata + 32 + usize::from(count) * 32;
    let id = uuid::uuid!("a8d35f2d-b30b-454d-abf7-d3d84834ab0c").to_bytes_le();
    file[entry..entry + 16].copy_from_slice(&id);
    let offset = 0x20_000;
    file[entry + 16..entry + 20].copy_from_slice(&u32::try_from(offset).unwrap().to_le_bytes());
    file[entry + 20..entry + 24].copy_from_slice(&u32::try_from(item.len()).unwrap().to_le_bytes());
    file[entry + 24..entry + 28].copy_from_slice(&4u32.to_le_bytes());
    file[metadata + offset..metadata + offset + item.len()].copy_from_slice(&item);
}
