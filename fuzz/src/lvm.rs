//! Physical volumes of LVM2, whose checksums are right whatever their text says.

use block::{Memory, ReadAt};
use extent::Volume;
use volume::lvm::Log;

use super::accept;

/// Where the metadata area lies.
const AREA_AT: usize = 4096;

/// Reads `data` as the text of a volume group, and as a physical volume as it is.
pub fn lvm(data: &[u8]) {
    for volume in [with_label(data), data.to_vec()] {
        let memory = Memory::new(volume);
        let source: &dyn ReadAt<Volume> = &memory;
        let Some(group) = accept(volume::lvm::read(source)).and_then(|physical| physical.group) else {
            continue;
        };
        let mut areas: Vec<_> = group.areas().filter(|area| area.count > 0).collect();
        areas.sort_unstable();
        for area in &areas {
            let member = &group.members[area.member];
            assert!(area.first + area.count <= member.extent_count, "within the physical volume");
            assert!(group.span_of(*area).end().get() <= member.len_bytes, "within the physical volume");
        }
        for pair in areas.windows(2) {
            let is_apart = pair[0].member != pair[1].member || pair[0].first + pair[0].count <= pair[1].first;
            assert!(is_apart, "no extent has two owners");
        }
        assert!(group.free_bytes() <= group.size_bytes());
    }
    in_sync(data);
}

/// Reads `data` as what a mirror of 64 MiB is said to be in sync by.
fn in_sync(data: &[u8]) {
    let memory = Memory::new(data.to_vec());
    let shared = Log::Shared { place: Vec::new(), region_bytes: 1 << 20 };
    for (log, count) in [(Log::OfLegs(Vec::new()), 2), (shared, 1)] {
        let contents: Vec<&dyn ReadAt<Volume>> = (0..count).map(|_| &memory as _).collect();
        let doubt = accept(volume::lvm::doubt(&log, &contents, 64 << 20));
        // Two legs that both say that they are the same one contradict each other.
        assert!(count == 1 || doubt.is_none_or(|doubt| doubt.is_some()), "of two legs each is another");
    }
}

fn with_label(text: &[u8]) -> Vec<u8> {
    let area_bytes = (512 + text.len() as u64).max(1024);
    let mut volume = vec![0; AREA_AT];
    volume[512..520].copy_from_slice(b"LABELONE");
    volume[520] = 1;
    volume[532] = 32;
    volume[536..544].copy_from_slice(b"LVM2 001");
    volume[544..576].copy_from_slice(b"0123456789abcdefghijklmnopqrstuv");
    volume[576..584].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    // An area for data up to the end, and one for metadata.
    volume[584..592].copy_from_slice(&(1_u64 << 20).to_le_bytes());
    volume[616..624].copy_from_slice(&(AREA_AT as u64).to_le_bytes());
    volume[624..632].copy_from_slice(&area_bytes.to_le_bytes());
    let sum = checksum(&volume[532..1024]);
    volume[528..532].copy_from_slice(&sum.to_le_bytes());
    let mut header = vec![0; 512];
    header[4..20].copy_from_slice(b"\x20LVM2\x20x[5A%r0N*>");
    header[20] = 1;
    header[24..32].copy_from_slice(&(AREA_AT as u64).to_le_bytes());
    header[32..40].copy_from_slice(&area_bytes.to_le_bytes());
    header[40..48].copy_from_slice(&512_u64.to_le_bytes());
    header[48..56].copy_from_slice(&(text.len() as u64).to_le_bytes());
    header[56..60].copy_from_slice(&checksum(text).to_le_bytes());
    let sum = checksum(&header[4..]);
    header[..4].copy_from_slice(&sum.to_le_bytes());
    volume.extend(header);
    volume.extend(text);
    volume.resize(AREA_AT + area_bytes as usize, 0);
    volume
}

fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0xf597_a6cf, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 * (sum & 1)))
    })
}
