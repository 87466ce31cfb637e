//! Bitmaps of blocks (of clusters, under bigalloc) and of inodes.

use std::sync::Arc;

use block::{Error, ReadAt, Result, read_vec};
use extent::Volume;

use super::corrupt::Corrupt;
use super::group::{Group, bitmap_checksum_holds};
use super::superblock::{GroupNumber, Superblock};

/// The bits of one group: set is used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Bits {
    words: Vec<u64>,
    len: u32,
}

const WORD_BITS: u32 = u64::BITS;

impl Bits {
    /// `len` bits, all clear.
    pub(super) fn clear(len: u32) -> Self {
        Self { words: vec![0; index(len.div_ceil(WORD_BITS))], len }
    }

    /// The first `len` bits of `bytes`, least significant first.
    pub(super) fn from_bytes(bytes: &[u8], len: u32) -> Self {
        let mut bits = Self::clear(len);
        for (word, chunk) in bits.words.iter_mut().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(padded);
        }
        if !len.is_multiple_of(WORD_BITS)
            && let Some(last) = bits.words.last_mut()
        {
            *last &= (1 << (len % WORD_BITS)) - 1;
        }
        bits
    }

    /// As a block on the disk; the bits past the last are set.
    pub(super) fn to_block(&self, block_bytes: u32) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(index(block_bytes), 0);
        set_range(&mut bytes, self.len, block_bytes * 8, true);
        bytes
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn get(&self, bit: u32) -> bool {
        self.words[index(bit / WORD_BITS)] >> (bit % WORD_BITS) & 1 == 1
    }

    pub(super) fn count_set(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// The first bit from `from` on, below `end`, that is `set`; `end` if there is none.
    pub(super) fn next(&self, from: u32, end: u32, set: bool) -> u32 {
        let end = end.min(self.len);
        let mut at = from;
        while at < end {
            let word = self.words[index(at / WORD_BITS)];
            let rest = (if set { word } else { !word }) >> (at % WORD_BITS);
            if rest != 0 {
                return (at + rest.trailing_zeros()).min(end);
            }
            at = (at / WORD_BITS + 1) * WORD_BITS;
        }
        end
    }

    /// Sets the bits from `from` up to, not including, `end`; those past the last are left out.
    pub(super) fn set(&mut self, from: u32, end: u32) {
        let end = end.min(self.len);
        let mut at = from;
        while at < end {
            let word_end = ((at / WORD_BITS + 1) * WORD_BITS).min(end);
            let mask = (u64::MAX >> (WORD_BITS - (word_end - at))) << (at % WORD_BITS);
            self.words[index(at / WORD_BITS)] |= mask;
            at = word_end;
        }
    }
}

/// Sets or clears the bits of `bytes` from `from` up to, not including, `end`; answers whether all of them were the other
/// way. All of them lie within.
pub(super) fn set_range(bytes: &mut [u8], from: u32, end: u32, set: bool) -> bool {
    let mut all_changed = true;
    let mut at = from;
    while at < end {
        let byte_end = ((at / 8 + 1) * 8).min(end);
        let mask = (0xff >> (8 - (byte_end - at))) << (at % 8);
        let mask = u8::try_from(mask).expect("a mask of a byte");
        let byte = &mut bytes[index(at / 8)];
        all_changed &= *byte & mask == if set { 0 } else { mask };
        *byte = if set { *byte | mask } else { *byte & !mask };
        at = byte_end;
    }
    all_changed
}

fn index(word: u32) -> usize {
    usize::try_from(word).expect("a bitmap fits in memory")
}

/// The block that holds a group's block bitmap, the checksum verified; of a group whose bitmap was never written, what is
/// to be written there.
pub(super) fn block_of(
    source: &dyn ReadAt<Volume>,
    superblock: &Superblock,
    number: GroupNumber,
    group: &Group,
) -> Result<Vec<u8>> {
    if group.block_uninit {
        return Ok(uninitialised(superblock, number, group).to_block(superblock.block_bytes));
    }
    let at = superblock.offset_of(group.block_bitmap);
    let bytes = read_vec(source, at, superblock.block_bytes.into(), "ext block bitmap")?;
    let len = index(superblock.clusters_per_group / 8);
    if !bitmap_checksum_holds(superblock, &bytes[..len], group.block_bitmap_checksum) {
        return Err(wrong_checksum(number).at(at));
    }
    Ok(bytes)
}

fn wrong_checksum(number: GroupNumber) -> Error {
    Error::corrupt(Corrupt::BlockBitmapChecksum { group: number })
}

/// The used clusters of a group, the checksum verified; of a group whose bitmap was never written, computed
/// as the kernel's `ext4_init_block_bitmap` does.
pub(super) fn read_blocks(
    source: &dyn ReadAt<Volume>,
    superblock: &Superblock,
    number: GroupNumber,
    group: &Group,
) -> Result<Arc<Bits>> {
    if group.block_uninit {
        return Ok(Arc::new(uninitialised(superblock, number, group)));
    }
    let at = superblock.offset_of(group.block_bitmap);
    let bytes = read_vec(source, at, u64::from(superblock.clusters_per_group / 8), "ext block bitmap")?;
    if !bitmap_checksum_holds(superblock, &bytes, group.block_bitmap_checksum) {
        return Err(wrong_checksum(number).at(at));
    }
    Ok(Arc::new(Bits::from_bytes(&bytes, superblock.group_clusters(number))))
}

fn uninitialised(superblock: &Superblock, number: GroupNumber, group: &Group) -> Bits {
    let mut bits = Bits::clear(superblock.group_clusters(number));
    let start = superblock.group_start(number);
    let end = start + u64::from(superblock.group_blocks(number));
    let base = (superblock.base_start(number), u64::from(superblock.base_blocks(number)));
    let table = (group.inode_table, u64::from(superblock.inode_table_blocks()));
    for (first, count) in [base, (group.block_bitmap, 1), (group.inode_bitmap, 1), table] {
        let (from, to) = (first.max(start), (first + count).min(end));
        if from < to {
            let bit = |block: u64| u32::try_from(block - start).expect("within the group");
            let ratio = superblock.cluster_blocks;
            bits.set(bit(from) / ratio, bit(to).div_ceil(ratio));
        }
    }
    bits
}

/// The used inodes of a group, the checksum verified.
pub(super) fn read_inodes(
    source: &dyn ReadAt<Volume>,
    superblock: &Superblock,
    number: GroupNumber,
    group: &Group,
) -> Result<Bits> {
    if group.inode_uninit {
        return Ok(Bits::clear(superblock.inodes_per_group));
    }
    let at = superblock.offset_of(group.inode_bitmap);
    let bytes = read_vec(source, at, u64::from(superblock.inodes_per_group / 8), "ext inode bitmap")?;
    if !bitmap_checksum_holds(superblock, &bytes, group.inode_bitmap_checksum) {
        return Err(Error::corrupt(Corrupt::InodeBitmapChecksum { group: number }).at(at));
    }
    Ok(Bits::from_bytes(&bytes, superblock.inodes_per_group))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_a_list_of_flags(
            len in 1..300u32,
            spans in prop::collection::vec((0..300u32, 0..300u32), 0..6),
            from in 0..300u32,
            end in 0..300u32,
        ) {
            let mut bits = Bits::clear(len);
            let mut naive = vec![false; len as usize];
            for (start, end) in spans {
                bits.set(start, end);
                naive.iter_mut().take(end as usize).skip(start as usize).for_each(|flag| *flag = true);
            }
            prop_assert_eq!(bits.count_set() as usize, naive.iter().filter(|flag| **flag).count());
            for set in [false, true] {
                let end = end.min(len);
                let expected = (from..end).find(|bit| naive[*bit as usize] == set).unwrap_or(end);
                prop_assert_eq!(bits.next(from, end, set), expected);
            }
            for bit in 0..len {
                prop_assert_eq!(bits.get(bit), naive[bit as usize]);
            }
        }
    }

    proptest! {
        #[test]
        fn ranges_of_bytes_equal_a_list_of_flags(
            spans in prop::collection::vec((0..200u32, 0..60u32, any::<bool>()), 0..8),
        ) {
            let mut bytes = [0; 33];
            let mut naive = [false; 33 * 8];
            for (from, len, set) in spans {
                let range = from as usize..(from + len) as usize;
                let expected = naive[range.clone()].iter().all(|flag| *flag != set);
                prop_assert_eq!(set_range(&mut bytes, from, from + len, set), expected);
                naive[range].fill(set);
            }
            let bits = Bits::from_bytes(&bytes, 33 * 8);
            for (bit, flag) in (0..).zip(naive) {
                prop_assert_eq!(bits.get(bit), flag);
            }
            prop_assert_eq!(&bits.to_block(64)[..33], &bytes);
            prop_assert_eq!(&bits.to_block(64)[33..], &[0xff; 31]);
        }
    }

    #[test]
    fn bits_past_the_length_are_dropped() {
        let bits = Bits::from_bytes(&[0xff; 16], 70);
        assert_eq!((bits.count_set(), bits.next(0, 100, false)), (70, 70));
    }
}
