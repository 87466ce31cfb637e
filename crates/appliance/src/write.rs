//! A new OVA: the headers of its members, its descriptor and its manifest.
//!
//! The order is that of DSP0243 (section 5.3): descriptor, manifest, disks. How long a disk's file becomes is known once it is written: so the
//! descriptor has room for the longest numbers, and is filled up with spaces, and the manifest is as long whatever its digests are.

use std::fmt::Write as _;

use crate::layout::*;

/// Disks on one SCSI controller: its own address is 7.
const ADDRESSES: [u32; 15] = [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15];
/// What a new machine has, for want of any word about it.
const CPU_COUNT: u32 = 2;
const MEMORY_MEGABYTES: u32 = 4096;
/// The largest number that octal digits have room for: longer members have it in binary.
const OCTAL_MAX: u64 = 0o777_7777_7777;

/// A member to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewMember {
    /// Its name: at most 100 bytes.
    pub name: String,
    /// Its length.
    pub len_bytes: u64,
}

/// A disk of a new appliance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewDisk {
    /// The member that holds it.
    pub name: String,
    /// How long that is.
    pub len_bytes: u64,
    /// The size of the virtual disk.
    pub capacity_bytes: u64,
    /// How much of that holds data.
    pub populated_bytes: u64,
}

/// With what fills it up to whole blocks.
pub fn padded_bytes(len_bytes: u64) -> u64 {
    len_bytes.next_multiple_of(BLOCK_BYTES)
}

/// The header of a member, changed at that time. The name has 100 bytes at the most.
pub fn header(member: &NewMember, unix_seconds: u64) -> Vec<u8> {
    let mut header = vec![0; usize::try_from(BLOCK_BYTES).expect("small")];
    let mut put =
        |field: Field, bytes: &[u8]| header[field.start..field.start + bytes.len()].copy_from_slice(bytes);
    assert!(member.name.len() <= NAME.len(), "a member's name fits its header");
    put(NAME, member.name.as_bytes());
    put(MODE, b"0000644");
    put(UID, b"0000000");
    put(GID, b"0000000");
    match member.len_bytes {
        octal @ ..=OCTAL_MAX => put(SIZE, format!("{octal:011o}").as_bytes()),
        binary => {
            let mut field = [0; 12];
            field[0] = 0x80;
            field[4..].copy_from_slice(&binary.to_be_bytes());
            put(SIZE, &field);
        }
    }
    put(MTIME, format!("{:011o}", unix_seconds.min(OCTAL_MAX)).as_bytes());
    put(TYPE..TYPE + 1, &[TYPE_FILE]);
    put(MAGIC, b"ustar\0");
    put(VERSION, b"00");
    let sum = crate::archive::sum(&header);
    header[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// The end of an archive whose members end at `end_bytes`: two empty blocks, and what fills up the record.
pub fn end_bytes(members_end_bytes: u64) -> u64 {
    (members_end_bytes + 2 * BLOCK_BYTES).next_multiple_of(RECORD_BYTES)
}

/// The manifest of members with their SHA-256.
pub fn manifest_text(digests: &[(String, String)]) -> String {
    digests.iter().map(|(name, digest)| format!("SHA256({name})= {digest}\n")).collect()
}

/// How long that is.
pub fn manifest_len_bytes<'a>(names: impl Iterator<Item = &'a str>) -> u64 {
    let all: Vec<_> = names.map(|name| (name.to_owned(), "0".repeat(64))).collect();
    manifest_text(&all).len() as u64
}

/// The descriptor of a new appliance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// What the machine is called.
    pub machine: String,
    /// Its disks.
    pub disks: Vec<NewDisk>,
}

impl Descriptor {
    /// How long its text is, whatever the disks' lengths turn out to be.
    pub fn len_bytes(&self) -> u64 {
        let longest = |disk: &NewDisk| NewDisk {
            name: disk.name.clone(),
            len_bytes: u64::MAX,
            capacity_bytes: u64::MAX,
            populated_bytes: u64::MAX,
        };
        let longest = Self { machine: self.machine.clone(), disks: self.disks.iter().map(longest).collect() };
        longest.unfilled().len() as u64
    }

    /// Its text, of that length.
    pub fn text(&self) -> String {
        let mut text = self.unfilled();
        let len = usize::try_from(self.len_bytes()).expect("a short text");
        text.extend(std::iter::repeat_n(' ', len.saturating_sub(text.len())));
        text
    }

    fn unfilled(&self) -> String {
        let mut out = String::from(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <Envelope xmlns=\"http://schemas.dmtf.org/ovf/envelope/1\" \
             xmlns:ovf=\"http://schemas.dmtf.org/ovf/envelope/1\" \
             xmlns:rasd=\"http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData\" \
             xmlns:vssd=\"http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_VirtualSystemSettingData\">\n\
             \x20 <References>\n",
        );
        for (number, disk) in (1..).zip(&self.disks) {
            let (name, len_bytes) = (escaped(&disk.name), disk.len_bytes);
            let _ = writeln!(
                out,
                "    <File ovf:href=\"{name}\" ovf:id=\"file{number}\" ovf:size=\"{len_bytes}\"/>"
            );
        }
        out.push_str("  </References>\n  <DiskSection>\n    <Info>Virtual disks</Info>\n");
        for (number, disk) in (1..).zip(&self.disks) {
            let NewDisk { capacity_bytes, populated_bytes, .. } = disk;
            let _ = writeln!(
                out,
                "    <Disk ovf:capacity=\"{capacity_bytes}\" ovf:capacityAllocationUnits=\"byte\" \
                 ovf:diskId=\"vmdisk{number}\" ovf:fileRef=\"file{number}\" \
                 ovf:format=\"http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized\" \
                 ovf:populatedSize=\"{populated_bytes}\"/>"
            );
        }
        out.push_str("  </DiskSection>\n");
        self.system(&mut out);
        out.push_str("</Envelope>\n");
        out
    }

    fn system(&self, out: &mut String) {
        let name = escaped(&self.machine);
        let _ = write!(
            out,
            "  <VirtualSystem ovf:id=\"{name}\">\n    <Info>A virtual machine</Info>\n    <Name>{name}</Name>\n    \
             <OperatingSystemSection ovf:id=\"1\">\n      <Info>The operating system is not known</Info>\n    \
             </OperatingSystemSection>\n    <VirtualHardwareSection>\n      <Info>Virtual hardware</Info>\n      \
             <System>\n        <vssd:ElementName>Virtual Hardware Family</vssd:ElementName>\n        \
             <vssd:InstanceID>0</vssd:InstanceID>\n        \
             <vssd:VirtualSystemIdentifier>{name}</vssd:VirtualSystemIdentifier>\n        \
             <vssd:VirtualSystemType>vmx-10</vssd:VirtualSystemType>\n      </System>\n"
        );
        // Elements of an item come in the order of their names, as the schema has them.
        item(
            out,
            &[
                ("AllocationUnits", "hertz * 10^6"),
                ("Description", "Number of virtual CPUs"),
                ("ElementName", &format!("{CPU_COUNT} virtual CPUs")),
                ("InstanceID", "1"),
                ("ResourceType", "3"),
                ("VirtualQuantity", &CPU_COUNT.to_string()),
            ],
        );
        item(
            out,
            &[
                ("AllocationUnits", "byte * 2^20"),
                ("Description", "Memory size"),
                ("ElementName", &format!("{MEMORY_MEGABYTES} MB of memory")),
                ("InstanceID", "2"),
                ("ResourceType", "4"),
                ("VirtualQuantity", &MEMORY_MEGABYTES.to_string()),
            ],
        );
        let mut instance = 3;
        for (controller, disks) in self.disks.chunks(ADDRESSES.len()).enumerate() {
            let parent = instance.to_string();
            item(
                out,
                &[
                    ("Address", &controller.to_string()),
                    ("Description", "SCSI controller"),
                    ("ElementName", &format!("SCSI controller {controller}")),
                    ("InstanceID", &parent),
                    ("ResourceSubType", "lsilogic"),
                    ("ResourceType", "6"),
                ],
            );
            instance += 1;
            for (index, address) in (0..disks.len()).zip(ADDRESSES) {
                let number = controller * ADDRESSES.len() + index + 1;
                item(
                    out,
                    &[
                        ("AddressOnParent", &address.to_string()),
                        ("ElementName", &format!("Hard disk {number}")),
                        ("HostResource", &format!("ovf:/disk/vmdisk{number}")),
                        ("InstanceID", &instance.to_string()),
                        ("Parent", &parent),
                        ("ResourceType", "17"),
                    ],
                );
                instance += 1;
            }
        }
        out.push_str("    </VirtualHardwareSection>\n  </VirtualSystem>\n");
    }
}

fn item(out: &mut String, values: &[(&str, &str)]) {
    out.push_str("      <Item>\n");
    for (name, value) in values {
        let _ = writeln!(out, "        <rasd:{name}>{}</rasd:{name}>", escaped(value));
    }
    out.push_str("      </Item>\n");
}

/// As text or the value of an attribute.
fn escaped(text: &str) -> String {
    quick_xml::escape::escape(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_read_back_and_always_as_long() {
        let disk = |number: u64, len_bytes| NewDisk {
            name: format!("a & b-disk{number}.vmdk"),
            len_bytes,
            capacity_bytes: 1 << 30,
            populated_bytes: 1 << 20,
        };
        let of = |len_bytes| Descriptor {
            machine: "a & b".into(),
            disks: (1..=20).map(|number| disk(number, len_bytes)).collect(),
        };
        for len_bytes in [0, 4096, 1 << 40, u64::MAX] {
            let text = of(len_bytes).text();
            assert_eq!(text.len() as u64, of(0).len_bytes());
            let found = crate::ovf::read(&text).unwrap();
            assert_eq!(found.disks.len(), 20);
            assert_eq!(found.disks[0].file, "a & b-disk1.vmdk");
            assert_eq!(found.files[0].len_bytes, Some(len_bytes));
            assert_eq!(found.disks[0].capacity.unwrap().bytes, 1 << 30);
        }
    }
}
