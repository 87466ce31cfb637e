//! What types of partitions are called.

use uuid::Uuid;

/// MBR types in words. Source: the list that `sfdisk --list-types` prints; the more common ones.
pub(crate) fn mbr_kind(kind: u8) -> String {
    match kind {
        0x01 => "FAT12",
        0x04 | 0x06 | 0x0e => "FAT16",
        0x07 => "NTFS or exFAT",
        0x0b | 0x0c => "FAT32",
        0x11 | 0x14 | 0x16 | 0x1b | 0x1c | 0x1e => "hidden FAT",
        0x12 => "vendor diagnostics",
        0x17 => "hidden NTFS",
        0x27 => "Windows recovery",
        0x42 => "Windows dynamic disk",
        0x82 => "Linux swap",
        0x83 => "Linux",
        0x86 | 0x87 => "NTFS volume set",
        0x88 => "Linux plain text",
        0x8e => "Linux LVM",
        0xa5 => "FreeBSD",
        0xa6 => "OpenBSD",
        0xa8 => "macOS UFS",
        0xa9 => "NetBSD",
        0xab => "macOS boot",
        0xac => "Apple RAID",
        0xaf => "HFS or HFS+",
        0xbf => "Solaris",
        0xda => "no file system",
        0xea => "Linux extended boot",
        0xeb => "BeOS",
        0xee => "GPT protective",
        0xef => "EFI system",
        0xfb => "VMware VMFS",
        0xfc => "VMware swap",
        0xfd => "Linux RAID",
        other => return format!("0x{other:02x}"),
    }
    .into()
}

/// Whether the type says that the partition is a part of something else. What it holds then has no file system of its own; one that
/// shows in it is a leftover, or one half of a mirror. mdadm(8) recommends 0xda for arrays.
pub(crate) fn mbr_is_member(kind: u8) -> bool {
    matches!(kind, 0x42 | 0x86 | 0x87 | 0x8e | 0xac | 0xbf | 0xda | 0xfb | 0xfc | 0xfd)
}

/// Types of Windows' logical disk manager: the database and the data.
pub(crate) const GPT_LDM: [&str; 2] =
    ["5808C8AA-7E8F-42E0-85D2-E1E90434CFB3", "AF9B60A0-1431-4F62-BC68-3311714A69AD"];

/// Types that say what [`mbr_is_member`] asks. Sources as below; Ceph's `ceph_volume/util/constants.py` for its own.
const GPT_MEMBERS: &[(&str, &str)] = &[
    ("A19D880F-05FC-4D3B-A006-743F0F84911E", "Linux RAID"),
    ("E6D6D379-F507-44C2-A23C-238F2A3DF928", "Linux LVM"),
    ("CA7D7CCB-63ED-4C53-861C-1742536059CC", "LUKS"),
    ("7FFEC5C9-2D00-49B7-8941-3EA10A5586B7", "Linux plain dm-crypt"),
    (GPT_LDM[0], "Windows dynamic disk metadata"),
    (GPT_LDM[1], "Windows dynamic disk data"),
    ("E75CAF8F-F680-4CEE-AFA3-B001E56EFC2D", "Windows storage spaces"),
    ("DB97DBA9-0840-4BAE-97F0-FFB9A327C7E1", "Windows cluster metadata"),
    ("558D43C5-A1AC-43C0-AAC8-D1472B2923D1", "Windows storage replica"),
    ("AA31E02A-400F-11DB-9590-000C2911D1B8", "VMware VMFS"),
    ("9D275380-40AD-11DB-BF97-000C2911D1B8", "VMware diagnostics"),
    ("9198EFFC-31C0-11DB-8F78-000C2911D1B8", "VMware reserved"),
    ("381CFCCC-7288-11E0-92EE-000C2911D0B2", "VMware vSAN"),
    ("516E7CBA-6ECF-11D6-8FF8-00022D09712B", "FreeBSD ZFS"),
    ("516E7CB8-6ECF-11D6-8FF8-00022D09712B", "FreeBSD Vinum"),
    ("6A898CC3-1DD2-11B2-99A6-080020736631", "Solaris usr or ZFS"),
    ("49F48DAA-B10E-11DC-B99B-0019D1879648", "NetBSD RAID"),
    ("2DB519C4-B10F-11DC-B99B-0019D1879648", "NetBSD concatenated"),
    ("2DB519EC-B10F-11DC-B99B-0019D1879648", "NetBSD encrypted"),
    ("52414944-0000-11AA-AA11-00306543ECAC", "Apple RAID"),
    ("52414944-5F4F-11AA-AA11-00306543ECAC", "Apple RAID, offline"),
    ("53746F72-6167-11AA-AA11-00306543ECAC", "Apple Core Storage"),
    ("37AFFC90-EF7D-4E96-91C3-2D7AE055B174", "IBM GPFS"),
    ("4FBD7E29-9D25-41B8-AFD0-062C0CEFF05D", "Ceph OSD"),
    ("4FBD7E29-9D25-41B8-AFD0-5EC00CEFF05D", "Ceph OSD, encrypted"),
    ("45B0969E-9B03-4F30-B4C6-B4B80CEFF106", "Ceph journal"),
    ("CAFECAFE-9B03-4F30-B4C6-B4B80CEFF106", "Ceph block"),
    ("30CD0809-C2B2-499C-8879-2D6B78529876", "Ceph block database"),
    ("5CE17FCE-4087-4169-B7FF-056CC58473F9", "Ceph write-ahead log"),
];

/// Sources: UEFI 5.3.3; "PARTITION_INFORMATION_GPT" of the Windows SDK; the Discoverable Partitions
/// Specification; `sfdisk --label gpt --list-types`.
const GPT_KINDS: &[(&str, &str)] = &[
    ("C12A7328-F81F-11D2-BA4B-00A0C93EC93B", "EFI system"),
    ("024DEE41-33E7-11D3-9D69-0008C781F39F", "MBR scheme"),
    ("21686148-6449-6E6F-744E-656564454649", "BIOS boot"),
    ("E3C9E316-0B5C-4DB8-817D-F92DF00215AE", "Microsoft reserved"),
    ("EBD0A0A2-B9E5-4433-87C0-68B6B72699C7", "Microsoft basic data"),
    ("DE94BBA4-06D1-4D40-A16A-BFD50179D6AC", "Windows recovery"),
    ("0FC63DAF-8483-4772-8E79-3D69D8477DE4", "Linux filesystem"),
    ("0657FD6D-A4AB-43C4-84E5-0933C84B4F4F", "Linux swap"),
    ("44479540-F297-41B2-9AF7-D131D5F0458A", "Linux root (x86)"),
    ("4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709", "Linux root (x86-64)"),
    ("B921B045-1DF0-41C3-AF44-4C6F280D3FAE", "Linux root (ARM64)"),
    ("933AC7E1-2EB4-4F13-B844-0E14E2AEF915", "Linux home"),
    ("3B8F8425-20E0-4F3B-907F-1A25A76F98E8", "Linux server data"),
    ("BC13C2FF-59E6-4262-A352-B275FD6F7172", "Linux extended boot"),
    ("8DA63339-0007-60C0-C436-083AC8230908", "Linux reserved"),
    ("48465300-0000-11AA-AA11-00306543ECAC", "HFS or HFS+"),
    ("7C3457EF-0000-11AA-AA11-00306543ECAC", "APFS"),
    ("426F6F74-0000-11AA-AA11-00306543ECAC", "Apple boot"),
    ("516E7CB4-6ECF-11D6-8FF8-00022D09712B", "FreeBSD data"),
    ("83BD6B9D-7F41-11DC-BE0B-001560B84F0F", "FreeBSD boot"),
    ("516E7CB5-6ECF-11D6-8FF8-00022D09712B", "FreeBSD swap"),
    ("516E7CB6-6ECF-11D6-8FF8-00022D09712B", "FreeBSD UFS"),
    ("FE3A2A5D-4F32-41A7-B725-ACCC3285A309", "ChromeOS kernel"),
    ("3CB8E202-3B7E-47DD-8A3C-7FF2A13CFCEC", "ChromeOS root"),
    ("2E0A753D-9E48-43B0-8337-B15192CB1B5E", "ChromeOS reserved"),
];

/// A GUID as it is printed: the first three fields are little-endian on the disk.
pub(crate) fn guid_text(bytes: [u8; 16]) -> String {
    Uuid::from_bytes_le(bytes).hyphenated().to_string().to_uppercase()
}

/// A GPT type in words, or as its GUID.
pub(crate) fn gpt_kind(guid: [u8; 16]) -> String {
    let text = guid_text(guid);
    let known = GPT_KINDS.iter().chain(GPT_MEMBERS).find(|(known, _)| *known == text);
    known.map_or(text, |(_, words)| (*words).to_owned())
}

/// As [`mbr_is_member`].
pub(crate) fn gpt_is_member(guid: [u8; 16]) -> bool {
    let text = guid_text(guid);
    GPT_MEMBERS.iter().any(|(known, _)| *known == text)
}
