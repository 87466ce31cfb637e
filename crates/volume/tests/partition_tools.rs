//! What is read must be what `sfdisk` reads, of tables that `sfdisk`, `sgdisk` and `parted` wrote.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{HostFile, Memory, ReadAt};
use extent::{Offset, Virtual, VirtualOffset};
use serde_json::Value;
use volume::{Scheme, Table};

const DISK_BYTES: u64 = 64 << 20;

/// A disk image under test, through a loop device where sectors are 4096 bytes.
struct Disk {
    file: PathBuf,
    device: Option<String>,
    _dir: tempfile::TempDir,
}

impl Disk {
    fn new(sector_bytes: u32) -> Self {
        let dir = testkit::scratch();
        let file = dir.path().join("disk");
        std::fs::File::create(&file).unwrap().set_len(DISK_BYTES).unwrap();
        let device = (sector_bytes != 512).then(|| {
            let size = sector_bytes.to_string();
            testkit::run("losetup", &["--show", "-f", "--sector-size", &size, file.to_str().unwrap()])
                .trim()
                .to_owned()
        });
        Self { file, device, _dir: dir }
    }

    fn path(&self) -> &str {
        self.device.as_deref().unwrap_or(self.file.to_str().unwrap())
    }

    fn sfdisk(&self, script: &str) -> &Self {
        shell(&format!("printf '{script}' | sfdisk -q --no-reread --no-tell-kernel {}", self.path()));
        self
    }

    fn sgdisk(&self, args: &str) -> &Self {
        shell(&format!("sgdisk {args} {}", self.path()));
        self
    }

    fn parted(&self, args: &str) -> &Self {
        shell(&format!("parted -s {} {args}", self.path()));
        self
    }

    fn bytes(&self) -> Vec<u8> {
        shell(&format!("sync {}", self.path()));
        std::fs::read(&self.file).unwrap()
    }

    /// What Leandisk reads, when told either sector size. Only the table is read: real disks are large.
    fn table(&self, sector_bytes: u32) -> Table {
        shell(&format!("sync {}", self.path()));
        volume::read(&InFile::open(&self.file), sector_bytes).unwrap()
    }

    /// The same as `sfdisk` says, to the byte; returns it.
    #[track_caller]
    fn agrees(&self, told_sector_bytes: u32) -> Table {
        let table = self.table(told_sector_bytes);
        assert_eq!(table.doubt, None);
        let json = testkit::run("sfdisk", &["--json", self.path()]);
        let theirs: Value = serde_json::from_str(&json).unwrap();
        let theirs = &theirs["partitiontable"];
        let scheme = if theirs["label"] == "gpt" { Scheme::Gpt } else { Scheme::Mbr };
        assert_eq!(table.scheme, scheme);
        assert_eq!(table.id.as_deref(), theirs["id"].as_str());
        let unit = theirs["sectorsize"].as_u64().unwrap();
        assert_eq!(u64::from(table.sector_bytes), unit);
        let mut expected: Vec<_> = theirs["partitions"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|partition| !["5", "f", "85"].contains(&partition["type"].as_str().unwrap()))
            .map(|partition| {
                let node = partition["node"].as_str().unwrap().strip_prefix(self.path()).unwrap();
                (
                    partition["start"].as_u64().unwrap() * unit,
                    partition["size"].as_u64().unwrap() * unit,
                    node.trim_start_matches('p').parse::<u32>().unwrap(),
                    partition["name"].as_str().map(str::to_owned),
                )
            })
            .collect();
        expected.sort();
        let ours: Vec<_> = table
            .partitions
            .iter()
            .map(|ours| (ours.span.start().get(), ours.span.len_bytes(), ours.number, ours.name.clone()))
            .collect();
        assert_eq!(ours, expected);
        table
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            let _ = std::process::Command::new("losetup").args(["-d", device]).status();
        }
    }
}

fn shell(line: &str) -> String {
    testkit::run("sh", &["-ec", line])
}

fn read(bytes: Vec<u8>, sector_bytes: u32) -> Table {
    volume::read(&Memory::new(bytes), sector_bytes).unwrap()
}

fn kinds(table: &Table) -> Vec<&str> {
    table.partitions.iter().map(|partition| partition.kind.as_str()).collect()
}

#[test]
fn mbr_of_sfdisk() {
    let disk = Disk::new(512);
    disk.sfdisk("label: dos\\n2048,8192,7,*\\n,8192,83\\n,4096,82\\n40000,,27\\n");
    let table = disk.agrees(512);
    assert_eq!(kinds(&table), ["NTFS or exFAT", "Linux", "Linux swap", "Windows recovery"]);
    assert!(table.warnings.is_empty());
}

#[test]
fn mbr_entries_out_of_order() {
    Disk::new(512).sfdisk("label: dos\\n60000,2048,83\\n2048,2048,83\\n30000,2048,83\\n").agrees(512);
}

#[test]
fn logical_partitions_of_sfdisk_and_parted() {
    let script = "label: dos\\n2048,8192,c\\n,,5\\n,4096,83\\n,4096,82\\n,10000,7\\n,2048,83\\n";
    let disk = Disk::new(512);
    disk.sfdisk(script);
    let table = disk.agrees(512);
    let numbers: Vec<_> = table.partitions.iter().map(|partition| partition.number).collect();
    assert_eq!(numbers, [1, 5, 6, 7, 8]);
    // The chain stays whole when one in the middle goes, and when its first record is left without a partition.
    shell(&format!("sfdisk -q --no-reread --no-tell-kernel --delete {} 6", disk.path()));
    disk.agrees(512);
    shell(&format!("sfdisk -q --no-reread --no-tell-kernel --delete {} 5", disk.path()));
    disk.agrees(512);

    let disk = Disk::new(512);
    disk.parted("mklabel msdos mkpart primary 1MiB 8MiB mkpart extended 8MiB 60MiB")
        .parted("mkpart logical 9MiB 20MiB mkpart logical 40MiB 59MiB mkpart logical 21MiB 39MiB");
    assert_eq!(disk.agrees(512).partitions.len(), 4);
}

#[test]
fn many_logical_partitions() {
    let disk = Disk::new(512);
    let logical = ",512,83\\n".repeat(30);
    disk.sfdisk(&format!("label: dos\\n,,f\\n{logical}"));
    assert_eq!(disk.agrees(512).partitions.len(), 30);
}

#[test]
fn mbr_with_large_sectors() {
    let disk = Disk::new(4096);
    disk.sfdisk("label: dos\\n256,2048,83\\n,,5\\n,1024,83\\n,1024,82\\n");
    assert_eq!(disk.agrees(4096).partitions.len(), 3);
}

#[test]
fn gpt_of_three_tools() {
    let disk = Disk::new(512);
    disk.sfdisk("label: gpt\\nsize=8192,type=U,name=boot\\nsize=8192,type=S\\nsize=4096,type=L,name=\"ünïcode 日本\"\\n");
    let table = disk.agrees(512);
    assert_eq!(kinds(&table), ["EFI system", "Linux swap", "Linux filesystem"]);
    assert!(table.warnings.is_empty(), "{:?}", table.warnings);

    let disk = Disk::new(512);
    disk.sgdisk(
        "-n 3:2048:10239 -t 3:0700 -c 3:windows -n 1:40960:0 -t 1:8e00 -n 128:20480:30000 -t 128:0c01",
    );
    let table = disk.agrees(512);
    assert_eq!(kinds(&table), ["Microsoft basic data", "Microsoft reserved", "Linux LVM"]);

    let disk = Disk::new(512);
    disk.parted("mklabel gpt mkpart one ext4 1MiB 10MiB mkpart two fat32 20MiB 30MiB set 2 esp on");
    assert_eq!(disk.agrees(512).partitions.len(), 2);
}

#[test]
fn gpt_with_large_sectors_is_found_whatever_the_container_says() {
    let disk = Disk::new(4096);
    disk.sgdisk("-n 1:256:2047 -n 2:0:0 -t 2:8200");
    assert_eq!(disk.agrees(4096).partitions.len(), 2);
    let table = disk.agrees(512);
    assert!(table.warnings.is_empty(), "{:?}", table.warnings);
    let small = Disk::new(512);
    small.sgdisk("-n 1:2048:4095");
    small.agrees(4096);
}

#[test]
fn gpt_with_many_entries() {
    let disk = Disk::new(512);
    disk.sgdisk("-S 512");
    let args: Vec<_> = (1..=200).map(|number| format!("-n {number}:{}:+100", 2048 + number * 256)).collect();
    disk.sgdisk(&format!("-a 1 {}", args.join(" ")));
    assert_eq!(disk.agrees(512).partitions.len(), 200);
}

#[test]
fn a_damaged_gpt_is_read_from_its_backup() {
    for (sector_bytes, damaged_at) in
        [(512, 512 + 40), (512, 1024 + 32), (512, 512), (4096, 4096 + 56), (4096, 8192)]
    {
        let disk = Disk::new(sector_bytes);
        disk.sgdisk("-a 1 -n 1:512:1023 -n 2:2048:4095 -c 2:two");
        let whole = disk.agrees(sector_bytes);
        let mut bytes = disk.bytes();
        bytes[damaged_at] ^= 1;
        for told in [512, 4096] {
            let table = read(bytes.clone(), told);
            assert_eq!(table.doubt, None);
            assert_eq!(format!("{:?}", table.partitions), format!("{:?}", whole.partitions));
            assert_eq!(table.id, whole.id);
            assert!(table.warnings[0].contains("backup at the disk's end is used"), "{:?}", table.warnings);
        }
        // The backup's header is the last sector.
        let last = bytes.len() - sector_bytes as usize;
        bytes[last + 20] ^= 1;
        let table = read(bytes, sector_bytes);
        assert!(table.doubt.unwrap().contains("neither"));
        assert!(table.partitions.is_empty());
    }
}

#[test]
fn a_damaged_backup_is_a_warning() {
    let disk = Disk::new(512);
    disk.sgdisk("-n 1:2048:4095");
    let mut bytes = disk.bytes();
    let last = bytes.len() - 512;
    bytes[last] = 0;
    let table = read(bytes, 512);
    assert_eq!((table.partitions.len(), table.doubt), (1, None));
    assert!(table.warnings[0].contains("backup is damaged"), "{:?}", table.warnings);
}

#[test]
fn a_grown_disk_is_a_warning() {
    let disk = Disk::new(512);
    disk.sgdisk("-n 1:2048:4095");
    std::fs::OpenOptions::new()
        .write(true)
        .open(&disk.file)
        .unwrap()
        .set_len(DISK_BYTES + (8 << 20))
        .unwrap();
    let table = disk.agrees(512);
    assert!(table.warnings[0].contains("the disk has grown"), "{:?}", table.warnings);
}

#[test]
fn a_cut_disk_is_a_doubt_if_a_partition_is_cut() {
    let disk = Disk::new(512);
    disk.sgdisk("-n 1:2048:4095 -n 2:0:0");
    let mut bytes = disk.bytes();
    bytes.truncate(32 << 20);
    assert!(read(bytes.clone(), 512).doubt.unwrap().contains("partition 2 lies outside the disk"));
    let disk = Disk::new(512);
    disk.sgdisk("-n 1:2048:4095");
    bytes = disk.bytes();
    bytes.truncate(32 << 20);
    let table = read(bytes, 512);
    assert_eq!((table.partitions.len(), table.doubt), (1, None));
    assert!(table.warnings[0].contains("past the disk's end"));
}

#[test]
fn hybrid_mbr() {
    let disk = Disk::new(512);
    disk.sgdisk("-n 1:2048:4095 -n 2:8192:16383 -t 2:0700").sgdisk("-h 2");
    let table = disk.table(512);
    assert_eq!((table.scheme, table.partitions.len(), &table.doubt), (Scheme::Gpt, 2, &None));
    assert!(table.warnings[0].contains("hybrid"), "{:?}", table.warnings);
    // The same with a partition that the GPT does not have.
    let mut bytes = disk.bytes();
    let data = (0..4).map(|index| 446 + index * 16).find(|at| bytes[at + 4] == 7).unwrap();
    bytes[data + 8] ^= 1;
    assert!(read(bytes, 512).doubt.unwrap().contains("hybrid"));
}

#[test]
fn a_gpt_that_no_mbr_announces_is_a_doubt_or_nothing() {
    let disk = Disk::new(512);
    disk.sgdisk("-n 1:2048:4095");
    let gpt = disk.bytes();
    let other = Disk::new(512);
    other.sfdisk("label: dos\\n2048,8192,7\\n");
    let mut bytes = gpt.clone();
    bytes[..512].copy_from_slice(&other.bytes()[..512]);
    assert!(read(bytes, 512).doubt.unwrap().contains("does not announce it"));
    let mut bytes = gpt;
    bytes[..512].fill(0);
    assert_eq!(read(bytes, 512).scheme, Scheme::None);
}

#[test]
fn bare_file_systems_are_no_tables() {
    for command in [
        "mkfs.ntfs -q -F -f",
        "mkfs.fat -F 12",
        "mkfs.fat -F 16",
        "mkfs.fat -F 32",
        "mkfs.exfat",
        "mkfs.ext4 -q -F",
        "mkfs.btrfs -q --mixed",
        "mkswap",
        "true",
    ] {
        let disk = Disk::new(512);
        shell(&format!("{command} {}", disk.path()));
        for told in [512, 4096] {
            let table = disk.table(told);
            assert_eq!((table.scheme, &table.doubt), (Scheme::None, &None), "{command}");
            assert!(table.partitions.is_empty());
        }
    }
}

#[test]
fn a_fat_volume_that_pretends_to_be_a_table_is_none() {
    let disk = Disk::new(512);
    shell(&format!("mkfs.fat --mbr=y {}", disk.path()));
    assert_eq!(disk.table(512).scheme, Scheme::None);
}

#[test]
fn a_boot_sector_with_a_table_that_holds_together_is_a_doubt() {
    let disk = Disk::new(512);
    shell(&format!("mkfs.fat -F 32 {}", disk.path()));
    let other = Disk::new(512);
    other.sfdisk("label: dos\\n2048,8192,7\\n");
    let mut bytes = disk.bytes();
    bytes[440..512].copy_from_slice(&other.bytes()[440..512]);
    assert!(read(bytes, 512).doubt.unwrap().contains("boot sector of FAT"));
}

#[test]
fn boot_code_changes_nothing() {
    let disk = Disk::new(512);
    disk.sfdisk("label: dos\\n2048,8192,7,*\\n");
    let mut bytes = disk.bytes();
    bytes[..440].copy_from_slice(&[0xeb; 440]);
    bytes[54..58].copy_from_slice(b"FAT3");
    assert_eq!(read(bytes, 512).partitions.len(), 1);
}

#[test]
fn an_mbr_in_other_sectors_is_a_doubt() {
    let disk = Disk::new(4096);
    disk.sfdisk("label: dos\\n256,2048,7\\n");
    let mut bytes = disk.bytes();
    bytes[256 * 4096 + 3..256 * 4096 + 11].copy_from_slice(b"NTFS    ");
    assert_eq!(read(bytes.clone(), 4096).doubt, None);
    assert!(read(bytes, 512).doubt.unwrap().contains("sectors"));
}

#[test]
fn dynamic_disks_are_named() {
    let disk = Disk::new(512);
    disk.sfdisk("label: dos\\n63,20000,42\\n");
    assert!(disk.table(512).doubt.unwrap().contains("dynamic disk"));
    let disk = Disk::new(512);
    disk.sgdisk("-a 1 -n 1:34:2047 -t 1:4201 -n 2:2048:0 -t 2:4200");
    let table = disk.table(512);
    assert!(table.doubt.unwrap().contains("dynamic disk"));
    assert!(table.partitions.is_empty());
}

#[test]
fn a_chain_in_a_circle_or_out_of_bounds_is_a_doubt() {
    let disk = Disk::new(512);
    disk.sfdisk("label: dos\\n2048,,5\\n,4096,83\\n,4096,83\\n,4096,83\\n");
    disk.agrees(512);
    let good = disk.bytes();
    // In the first record: the link's entry, its first sector at 8.
    let link = 2048 * 512 + 446 + 16;
    for (first_sector, reason) in
        [(0u32, "circle"), (1, "no signature"), (131_072, "leaves"), (u32::MAX, "leaves")]
    {
        let mut bytes = good.clone();
        bytes[link + 8..link + 12].copy_from_slice(&first_sector.to_le_bytes());
        let doubt = read(bytes, 512).doubt.unwrap();
        assert!(doubt.contains(reason), "{first_sector}: {doubt}");
    }
    let mut bytes = good.clone();
    let data = 2048 * 512 + 446;
    bytes[data + 12..data + 16].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(read(bytes, 512).doubt.unwrap().contains("lies outside the disk"));
    let mut bytes = good;
    bytes[data + 8..data + 12].copy_from_slice(&0u32.to_le_bytes());
    assert!(read(bytes, 512).doubt.unwrap().contains("over the partition table"));
}

#[test]
fn overlapping_partitions_are_a_doubt() {
    let disk = Disk::new(512);
    disk.sfdisk("label: dos\\n2048,8192,7\\n20480,8192,83\\n");
    let mut bytes = disk.bytes();
    bytes[446 + 12..446 + 16].copy_from_slice(&18_433u32.to_le_bytes());
    assert!(read(bytes.clone(), 512).doubt.unwrap().contains("partitions 1 and 2 overlap"));
    bytes[446 + 12..446 + 16].copy_from_slice(&18_432u32.to_le_bytes());
    assert_eq!(read(bytes.clone(), 512).partitions.len(), 2);
    bytes[446 + 16 + 12..446 + 32].copy_from_slice(&(131_072u32 - 20_480 + 1).to_le_bytes());
    assert!(read(bytes, 512).doubt.unwrap().contains("partition 2 lies outside the disk"));
}

#[test]
fn hostile_tables_never_panic() {
    let small = 256 << 10;
    let mbr = Disk::new(512);
    mbr.sfdisk("label: dos\\n64,100,7\\n200,300,5\\n210,50,83\\n310,50,83\\n");
    let gpt = Disk::new(512);
    gpt.sgdisk("-a 1 -n 1:40:100 -n 2:200:300");
    for (disk, header_bytes) in [(mbr, 512), (gpt, 1024 + 256)] {
        let bytes = disk.bytes();
        testkit::check_hostile(&bytes[..small], header_bytes, |file| {
            let disk = AsDisk(file);
            for told in [512, 4096] {
                let table = volume::read(&disk, told)?;
                for partition in &table.partitions {
                    assert!(partition.span.end().get() <= disk.len_bytes());
                }
            }
            Ok(())
        });
    }
}

/// A file that is the virtual disk itself.
struct InFile {
    file: std::fs::File,
    len_bytes: u64,
}

impl InFile {
    fn open(path: &Path) -> Self {
        let file = std::fs::File::open(path).unwrap();
        Self { len_bytes: file.metadata().unwrap().len(), file }
    }
}

impl ReadAt<Virtual> for InFile {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> block::Result<()> {
        self.file.read_exact_at(buf, at.get()).map_err(|error| block::Error::io("the disk under test", error))
    }
}

/// A host file taken for the virtual disk itself.
struct AsDisk(Arc<dyn HostFile>);

impl ReadAt<Virtual> for AsDisk {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> block::Result<()> {
        self.0.read_at(Offset::new(at.get()), buf)
    }
}

#[test]
fn real_disks_agree_with_sfdisk() {
    for name in ["hv-dynamic.vhd", "hv-fixed.vhdx", "discutils-xfs5.vhdx"] {
        let disk = Disk::new(512);
        let dir = disk.file.parent().unwrap();
        let Some(path) = testkit::real_image(name, dir) else { continue };
        testkit::run("qemu-img", &["convert", "-O", "raw", path.to_str().unwrap(), disk.path()]);
        if disk.table(512).scheme != Scheme::None {
            disk.agrees(512);
        }
    }
}
