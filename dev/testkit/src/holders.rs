//! Metadata of what holds volumes, made by hand: the programs that make them want devices, kernels or hardware that a test has not.
//! `blkid` and `mdadm --examine` judge them.

/// What a holder writes onto a volume.
pub struct Planted {
    /// Which, and where: for messages.
    pub case: &'static str,
    /// What Leandisk calls it.
    pub name: &'static str,
    /// What `blkid` calls it; `None` if it, or an older one, does not know it.
    pub blkid: Option<&'static str>,
    /// Bytes with their places.
    pub patches: Vec<(u64, Vec<u8>)>,
    /// Whether it is looked for on whole disks alone.
    pub is_of_disks: bool,
    /// Whether a file system of ext survives it, in the bytes that count.
    pub spares_ext: bool,
}

impl Planted {
    fn new(
        case: &'static str,
        name: &'static str,
        blkid: Option<&'static str>,
        patches: Vec<(u64, Vec<u8>)>,
    ) -> Self {
        Self { case, name, blkid, patches, is_of_disks: false, spares_ext: true }
    }

    fn of_disks(self) -> Self {
        Self { is_of_disks: true, ..self }
    }

    fn over_ext(self) -> Self {
        Self { spares_ext: false, ..self }
    }

    /// Writes it into `volume`.
    pub fn plant(&self, volume: &mut [u8]) {
        for (at, bytes) in &self.patches {
            let at = usize::try_from(*at).unwrap();
            volume[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }
}

/// Every holder that is known, at each of its places on a volume of `len_bytes`, which is whole sectors and at least 8 MiB.
pub fn planted(len_bytes: u64) -> Vec<Planted> {
    let sector_from_end = |count: u64| len_bytes - count * 512;
    let near_end = (len_bytes - 8192) / 4096 * 4096;
    let in_last_area = len_bytes / 65_536 * 65_536 - 65_536;
    let raid = Some("linux_raid_member");
    let mut all = vec![
        Planted::new("md 1.0", "md-raid", raid, vec![(near_end, md_1(near_end))]),
        Planted::new("md 1.1", "md-raid", raid, vec![(0, md_1(0))]),
        Planted::new("md 1.2", "md-raid", raid, vec![(4096, md_1(4096))]).over_ext(),
        Planted::new("md 0.90", "md-raid", raid, vec![(in_last_area, md_0_90(1024, false))]),
        Planted::new("md 0.90, big-endian", "md-raid", raid, vec![(in_last_area, md_0_90(1024, true))]),
        Planted::new("LVM2", "lvm2", Some("LVM2_member"), vec![(512, lvm2(1))]),
        Planted::new("LVM1", "lvm1", Some("LVM1_member"), vec![(0, lvm1())]),
        Planted::new("LUKS1", "luks1", Some("crypto_LUKS"), vec![(0, luks(b"LUKS\xba\xbe", 1, 0))]),
        Planted::new("LUKS2", "luks2", Some("crypto_LUKS"), vec![(0, luks(b"LUKS\xba\xbe", 2, 0))]),
        Planted::new("LUKS2, second header", "luks2", None, vec![(16_384, luks(b"SKUL\xba\xbe", 2, 16_384))])
            .over_ext(),
        Planted::new("BitLocker", "bitlocker", None, vec![(0, b"\xeb\x58\x90-FVE-FS-".to_vec())]),
        Planted::new(
            "dm-integrity",
            "dm-integrity",
            Some("DM_integrity"),
            vec![(0, b"integrt\0\x04".to_vec())],
        ),
        Planted::new(
            "dm-verity",
            "dm-verity",
            Some("DM_verity_hash"),
            vec![(0, b"verity\0\0\x01\0\0\0".to_vec())],
        ),
        Planted::new("dm-snapshot", "dm-snapshot", Some("DM_snapshot_cow"), vec![(0, b"SnAp".to_vec())]),
        Planted::new("VDO", "vdo", Some("vdo"), vec![(0, b"dmvdo001".to_vec())]),
        Planted::new(
            "BlueStore",
            "bluestore",
            Some("ceph_bluestore"),
            vec![(0, b"bluestore block device\n".to_vec())],
        ),
        Planted::new("Oracle ASM", "oracleasm", None, vec![(32, b"ORCLDISKDATA01".to_vec())]),
        Planted::new(
            "VMFS volume",
            "vmfs",
            Some("VMFS_volume_member"),
            vec![(1 << 20, b"\x0d\xd0\x01\xc0".to_vec())],
        )
        .over_ext(),
        Planted::new("Storage Spaces", "storage-spaces", None, vec![(0, b"SPACEDB ".to_vec())]),
        Planted::new("LDM at the end", "ldm", None, vec![(sector_from_end(1), b"PRIVHEAD".to_vec())]),
        Planted::new("ZFS at the end", "zfs", None, vec![(len_bytes / 262_144 * 262_144 - 262_144, zfs())]),
        Planted::new("ZFS at the start", "zfs", None, vec![(0, zfs())]).over_ext(),
        Planted::new("bcache", "bcache", None, vec![(4096 + 24, BCACHE.to_vec())]).over_ext(),
        Planted::new("bcachefs", "bcachefs", None, vec![(4096 + 24, BCACHEFS.to_vec())]).over_ext(),
        Planted::new("Stratis", "stratis", Some("stratis"), vec![(512, stratis())]),
        Planted::new("DRBD 8", "drbd", Some("drbd"), vec![(len_bytes - 4096, drbd(0x8374_026b))]),
        Planted::new("DRBD 9", "drbd", Some("drbd"), vec![(len_bytes - 4096, drbd(0x8374_026d))]),
    ];
    for (case, count) in [("DDF", 1), ("DDF before the last sectors", 257)] {
        let patches = vec![
            (sector_from_end(count), ddf(sector_from_end(1000) / 512)),
            (sector_from_end(1000), DDF.to_vec()),
        ];
        all.push(Planted::new(case, "ddf-raid", Some("ddf_raid_member"), patches));
    }
    let firmware: [(&str, &str, &str, u64, Vec<u8>); 11] = [
        ("Intel", "isw-raid", "isw_raid_member", sector_from_end(2), isw()),
        ("LSI", "lsi-raid", "lsi_mega_raid_member", sector_from_end(1), b"$XIDE$".to_vec()),
        ("VIA", "via-raid", "via_raid_member", sector_from_end(1), via()),
        ("Silicon Image", "silicon-raid", "silicon_medley_raid_member", sector_from_end(1), silicon()),
        ("NVIDIA", "nvidia-raid", "nvidia_raid_member", sector_from_end(2), nvidia()),
        (
            "Promise",
            "promise-raid",
            "promise_fasttrack_raid_member",
            sector_from_end(63),
            b"Promise Technology, Inc.".to_vec(),
        ),
        (
            "Promise, other place",
            "promise-raid",
            "promise_fasttrack_raid_member",
            sector_from_end(3087),
            b"Promise Technology, Inc.".to_vec(),
        ),
        (
            "HighPoint 45x",
            "highpoint-raid",
            "hpt45x_raid_member",
            sector_from_end(11),
            b"\xf3\x16\x78\x5a".to_vec(),
        ),
        ("HighPoint 37x", "highpoint-raid", "hpt37x_raid_member", 4640, b"\xf0\x16\x78\x5a".to_vec()),
        ("Adaptec", "adaptec-raid", "adaptec_raid_member", sector_from_end(1), adaptec()),
        ("JMicron", "jmicron-raid", "jmicron_raid_member", sector_from_end(1), jmicron()),
    ];
    for (case, name, blkid, at, bytes) in firmware {
        let planted = Planted::new(case, name, Some(blkid), vec![(at, bytes)]).of_disks();
        all.push(if at == 4640 { planted.over_ext() } else { planted });
    }
    all
}

const BCACHE: &[u8; 16] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHEFS: &[u8; 16] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";
const DDF: &[u8; 4] = b"\xde\x11\xde\x11";

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

/// Sum of 32-bit words in the byte order of `word`, folded as md does it.
fn md_sum(bytes: &[u8], word: fn([u8; 4]) -> u32) -> u32 {
    let sum: u64 = bytes.chunks_exact(4).map(|part| u64::from(word(part.try_into().unwrap()))).sum();
    u32::try_from(sum & 0xffff_ffff).unwrap().wrapping_add(u32::try_from(sum >> 32).unwrap())
}

/// A superblock of md, version 1, at byte `at`: half of a mirror.
pub fn md_1(at: u64) -> Vec<u8> {
    let mut superblock = vec![0; 260];
    put(&mut superblock, 0, &0xa92b_4efcu32.to_le_bytes());
    put(&mut superblock, 4, &1u32.to_le_bytes());
    put(&mut superblock, 16, b"0123456789abcdef");
    put(&mut superblock, 32, b"host:7");
    put(&mut superblock, 72, &1u32.to_le_bytes());
    put(&mut superblock, 80, &2048u64.to_le_bytes());
    put(&mut superblock, 92, &2u32.to_le_bytes());
    put(&mut superblock, 136, &2048u64.to_le_bytes());
    put(&mut superblock, 144, &(at / 512).to_le_bytes());
    put(&mut superblock, 220, &2u32.to_le_bytes());
    put(&mut superblock, 256, &[0, 0, 1, 0]);
    let sum = md_sum(&superblock, u32::from_le_bytes);
    put(&mut superblock, 216, &sum.to_le_bytes());
    superblock
}

/// A superblock of md, version 0.90, of a member of so many KiB.
pub fn md_0_90(member_kib: u32, is_big_endian: bool) -> Vec<u8> {
    let bytes = |word: u32| if is_big_endian { word.to_be_bytes() } else { word.to_le_bytes() };
    let word = if is_big_endian { u32::from_be_bytes } else { u32::from_le_bytes };
    let mut superblock = vec![0; 4096];
    let fields = [(0, 0xa92b_4efc), (8, 90), (20, 0x3031_3233), (28, 1), (32, member_kib), (36, 2), (40, 2)];
    let uuid = [(52, 0x3435_3637), (56, 0x3839_6162), (60, 0x6364_6566)];
    for (at, value) in fields.into_iter().chain(uuid) {
        put(&mut superblock, at, &bytes(value));
    }
    let sum = md_sum(&superblock, word);
    put(&mut superblock, 152, &bytes(sum));
    superblock
}

/// An anchor of DDF whose primary header lies in sector `primary`.
pub fn ddf(primary: u64) -> Vec<u8> {
    let mut anchor = vec![0xff; 512];
    put(&mut anchor, 0, DDF);
    put(&mut anchor, 8, b"TESTTEST0123456789abcdef");
    put(&mut anchor, 32, b"01.02.00");
    put(&mut anchor, 96, &primary.to_be_bytes());
    let sum = !crc32(&anchor, 0xffff_ffff);
    put(&mut anchor, 4, &sum.to_be_bytes());
    anchor
}

/// The CRC of Ethernet, its register as it stands.
fn crc32(bytes: &[u8], start: u32) -> u32 {
    crc(bytes, start, 0xedb8_8320)
}

/// A CRC by its reversed polynomial.
fn crc(bytes: &[u8], start: u32, polynomial: u32) -> u32 {
    bytes.iter().fold(start, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (polynomial & (crc & 1).wrapping_neg()))
    })
}

/// A signature block, its checksum that of iSCSI.
fn stratis() -> Vec<u8> {
    let mut block = vec![0; 512];
    put(&mut block, 4, b"!Stra0tis\x86\xff\x02^\x41rh");
    let sum = !crc(&block[4..], 0xffff_ffff, 0x82f6_3b78);
    put(&mut block, 0, &sum.to_le_bytes());
    block
}

fn lvm2(sector: u64) -> Vec<u8> {
    let mut label = vec![0; 512];
    put(&mut label, 0, b"LABELONE");
    put(&mut label, 8, &sector.to_le_bytes());
    put(&mut label, 20, &32u32.to_le_bytes());
    put(&mut label, 24, b"LVM2 001");
    put(&mut label, 32, b"0123456789abcdefghijklmnopqrstuv");
    let sum = crc32(&label[20..], 0xf597_a6cf);
    put(&mut label, 16, &sum.to_le_bytes());
    label
}

fn lvm1() -> Vec<u8> {
    let mut header = vec![0; 512];
    put(&mut header, 0, b"HM\x01\0");
    put(&mut header, 44, b"0123456789abcdefghijklmnopqrstuv");
    header
}

fn luks(magic: &[u8], version: u16, at: u64) -> Vec<u8> {
    let mut header = vec![0; 512];
    put(&mut header, 0, magic);
    put(&mut header, 6, &version.to_be_bytes());
    put(&mut header, 168, b"00112233-4455-6677-8899-aabbccddeeff");
    put(&mut header, 256, &at.to_be_bytes());
    header
}

/// A label: its list of names and values, as far as it is looked at.
fn zfs() -> Vec<u8> {
    let mut label = vec![0; 262_144];
    let mut list = vec![1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    list.extend(b"\0\0\0\x28\0\0\0\x28\0\0\0\x04name\0\0\0\x09\0\0\0\x01\0\0\0\x04tank");
    list.extend(b"\0\0\0\x30\0\0\0\x30\0\0\0\x09pool_guid\0\0\0\0\0\0\x08\0\0\0\x01");
    list.extend(4711u64.to_be_bytes());
    put(&mut label, 16 << 10, &list);
    label
}

fn drbd(magic: u32) -> Vec<u8> {
    let mut metadata = vec![0; 4096];
    put(&mut metadata, 0, &2048u64.to_be_bytes());
    put(&mut metadata, 40, &0x1234_5678_9abc_def0u64.to_be_bytes());
    put(&mut metadata, 48, &0x1234_5678_9abc_def0u64.to_be_bytes());
    put(&mut metadata, 60, &magic.to_be_bytes());
    put(&mut metadata, 80, &4096u32.to_be_bytes());
    metadata
}

fn isw() -> Vec<u8> {
    let mut anchor = vec![0; 512];
    put(&mut anchor, 0, b"Intel Raid ISM Cfg Sig. 1.3.00");
    put(&mut anchor, 36, &512u32.to_le_bytes());
    put(&mut anchor, 40, &0x1234_5678u32.to_le_bytes());
    anchor[56] = 2;
    let words = anchor.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
    let sum = words.fold(0, u32::wrapping_add);
    put(&mut anchor, 32, &sum.to_le_bytes());
    anchor
}

fn via() -> Vec<u8> {
    let mut sector = vec![0; 512];
    put(&mut sector, 0, &[0x55, 0xaa, 1, 3]);
    sector[50] = sector[..50].iter().fold(0, |sum, byte| sum.wrapping_add(*byte));
    sector
}

fn sum_u16(bytes: &[u8]) -> u16 {
    bytes.chunks_exact(2).fold(0, |sum, word| sum.wrapping_add(u16::from_le_bytes([word[0], word[1]])))
}

fn silicon() -> Vec<u8> {
    let mut sector = vec![0; 512];
    put(&mut sector, 0x60, &0x2f00_0000u32.to_le_bytes());
    let sum = sum_u16(&sector).wrapping_neg();
    put(&mut sector, 0x13e, &sum.to_le_bytes());
    sector
}

fn nvidia() -> Vec<u8> {
    let mut sector = vec![0; 120];
    put(&mut sector, 0, b"NVIDIA  ");
    put(&mut sector, 8, &30u32.to_le_bytes());
    put(&mut sector, 16, &100u16.to_le_bytes());
    let words = sector.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
    let sum = words.fold(0, u32::wrapping_add).wrapping_neg();
    put(&mut sector, 12, &sum.to_le_bytes());
    sector
}

fn adaptec() -> Vec<u8> {
    let mut sector = vec![0; 512];
    put(&mut sector, 0, &[0x37, 0xfc, 0x4d, 0x1e]);
    put(&mut sector, 256, b"DPTM");
    sector
}

fn jmicron() -> Vec<u8> {
    let mut sector = vec![0; 128];
    put(&mut sector, 0, b"JM\x01\x02");
    let sum = sum_u16(&sector).wrapping_neg();
    put(&mut sector, 4, &sum.to_le_bytes());
    sector
}
