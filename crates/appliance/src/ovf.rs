//! The descriptor of an OVF (DMTF DSP0243, versions 1 and 2): its files and disks.

use std::num::NonZeroU64;

use block::{Error, Result};
use image::Format;

use crate::corrupt::Corrupt;
use crate::xml::Element;
use crate::{Capacity, DISK_COUNT_MAX, Description, Disk, NamedFile, Packing};

/// The disks of a descriptor.
pub fn read(text: &str) -> Result<Description> {
    let envelope = Element::parse(text, "Envelope")?;
    let files: Vec<&Element> = envelope.children("References").flat_map(|all| all.children("File")).collect();
    let mut description = Description::default();
    for file in &files {
        description.files.push(NamedFile {
            name: file.required("href")?.to_owned(),
            len_bytes: file.number("size")?,
            packing: packing(file)?,
        });
    }
    for disk in envelope.children("DiskSection").flat_map(|section| section.children("Disk")) {
        let id = disk.required("diskId")?.to_owned();
        let Some(reference) = disk.attribute("fileRef").filter(|reference| !reference.is_empty()) else {
            description.notes.push(format!("disk '{id}' has no file: it is empty, and not copied"));
            continue;
        };
        let file = files.iter().find(|file| file.attribute("id") == Some(reference)).ok_or_else(|| {
            let (disk, file) = (id.clone(), reference.to_owned());
            Error::corrupt(Corrupt::FileReference { disk, file })
        })?;
        check_supported(disk, &id)?;
        if description.disks.len() >= DISK_COUNT_MAX {
            return Err(Error::corrupt(Corrupt::TooManyDisks { max: DISK_COUNT_MAX }));
        }
        description.disks.push(Disk {
            id,
            file: file.required("href")?.to_owned(),
            format: disk.attribute("format").and_then(format_of),
            capacity: capacity(disk)?,
        });
    }
    Ok(description)
}

fn check_supported(disk: &Element, id: &str) -> Result<()> {
    if disk.attribute("parentRef").is_some() {
        return Err(Error::unsupported(format!(
            "disk '{id}', which stands on another disk of the appliance"
        )));
    }
    Ok(())
}

fn packing(file: &Element) -> Result<Packing> {
    let is_gzip = match file.attribute("compression") {
        None | Some("" | "identity") => false,
        Some("gzip") => true,
        Some(other) => {
            let name = file.attribute("href").unwrap_or_default();
            return Err(Error::unsupported(format!("file '{name}' with the compression '{other}'"))
                .hint("unpack the appliance with tar, decompress the file, and copy the disk itself"));
        }
    };
    let chunk_bytes = match file.number("chunkSize")? {
        None => None,
        Some(bytes) => {
            let none = || file.wrong("chunkSize", "'0', which is no length");
            // Without it nobody can tell whether the last chunk is there.
            file.required("size")?;
            Some(NonZeroU64::new(bytes).ok_or_else(none)?)
        }
    };
    Ok(Packing { chunk_bytes, is_gzip })
}

/// By the address that stands for a format.
fn format_of(address: &str) -> Option<Format> {
    let address = address.to_ascii_lowercase();
    // Such as http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized.
    if address.contains("vmdk") {
        return Some(Format::Vmdk);
    }
    if address.contains("vhdx") {
        return Some(Format::Vhdx);
    }
    // http://go.microsoft.com/fwlink/?LinkId=137171 is what VirtualBox writes for VHD.
    if address.contains("vhd") || address.contains("linkid=137171") {
        return Some(Format::Vhd);
    }
    address.contains("qcow").then_some(Format::Qcow2)
}

fn capacity(disk: &Element) -> Result<Option<Capacity>> {
    // A number that the user chooses, as `${size}`, is none.
    let Some(text) = disk.attribute("capacity").filter(|text| !text.starts_with("${")) else {
        return Ok(None);
    };
    let wrong = |attribute| disk.wrong(attribute, &format!("'{text}', which is no size"));
    let count: u64 = text.trim().parse().map_err(|_| wrong("capacity"))?;
    let unit_bytes = match disk.attribute("capacityAllocationUnits") {
        None => 1,
        Some(unit) => unit_of(unit).ok_or_else(|| {
            disk.wrong("capacityAllocationUnits", &format!("'{unit}', which is no unit of bytes"))
        })?,
    };
    let bytes = count.checked_mul(unit_bytes).ok_or_else(|| wrong("capacity"))?;
    Ok(Some(Capacity { bytes, unit_bytes }))
}

/// A programmatic unit (DMTF DSP0004, annex C): `byte * 2^30`, or a word of VMware's.
fn unit_of(text: &str) -> Option<u64> {
    let text = text.trim();
    match text {
        "byte" | "Bytes" | "bytes" | "" => return Some(1),
        "KiloBytes" => return Some(1 << 10),
        "MegaBytes" => return Some(1 << 20),
        "GigaBytes" => return Some(1 << 30),
        _ => {}
    }
    let (byte, power) = text.split_once('*')?;
    let (base, exponent) = power.trim().split_once('^')?;
    let base: u64 = base.trim().parse().ok()?;
    let exponent: u32 = exponent.trim().parse().ok()?;
    (byte.trim() == "byte" && base > 0).then(|| base.checked_pow(exponent)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(file: &str, disk: &str) -> String {
        format!(
            "<Envelope xmlns:ovf='http://schemas.dmtf.org/ovf/envelope/1'><References>\
             <File ovf:id='f1' ovf:href='a.vmdk' ovf:size='4096' {file}/></References><DiskSection>\
             <Disk ovf:diskId='d1' ovf:fileRef='f1' {disk}/><Disk ovf:diskId='d2' ovf:capacity='5'/>\
             </DiskSection></Envelope>"
        )
    }

    #[test]
    fn disks_have_files_sizes_and_formats() {
        let text = descriptor(
            "",
            "ovf:capacity='8' ovf:capacityAllocationUnits='byte * 2^30' \
             ovf:format='http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized'",
        );
        let found = read(&text).unwrap();
        let capacity = Some(Capacity { bytes: 8 << 30, unit_bytes: 1 << 30 });
        let (id, file) = ("d1".to_owned(), "a.vmdk".to_owned());
        let packing = Packing::default();
        let disk = Disk { id, file: file.clone(), format: Some(Format::Vmdk), capacity };
        assert_eq!(found.disks, [disk]);
        assert_eq!(found.files, [NamedFile { name: file, len_bytes: Some(4096), packing }]);
        assert!(found.notes[0].contains("'d2' has no file"), "{:?}", found.notes);
    }

    #[test]
    fn files_are_packed_in_chunks_and_with_gzip() {
        let found = read(&descriptor("ovf:chunkSize='2000' ovf:compression='gzip'", "")).unwrap();
        assert!(found.file("a.vmdk").unwrap().packing.is_gzip);
        let part = |name: &str, len_bytes| (name.to_owned(), Some(len_bytes));
        let chunks =
            [part("a.vmdk.000000000", 2000), part("a.vmdk.000000001", 2000), part("a.vmdk.000000002", 96)];
        assert_eq!(found.files[0].parts().unwrap(), chunks);
        let found = read(&descriptor("ovf:compression='identity'", "")).unwrap();
        assert_eq!(found.files[0].parts().unwrap(), [part("a.vmdk", 4096)]);
        let many = read(&descriptor("ovf:chunkSize='1'", "").replace("4096", "4097")).unwrap();
        assert!(many.files[0].parts().unwrap_err().to_string().contains("4097 chunks"));
        let text = descriptor("ovf:chunkSize='1000'", "").replace("ovf:size='4096'", "");
        assert!(read(&text).unwrap_err().to_string().contains("'size'"));
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (file, disk, why) in [
            ("", "ovf:capacity='x'", "is no size"),
            ("", "ovf:capacity='99999999999999999999'", "is no size"),
            ("", "ovf:capacity='2' ovf:capacityAllocationUnits='byte * 2^63'", "is no size"),
            ("", "ovf:capacity='2' ovf:capacityAllocationUnits='byte * 2^64'", "no unit"),
            ("", "ovf:parentRef='d0'", "stands on another disk"),
            ("ovf:compression='zstd'", "", "compression 'zstd'"),
            ("ovf:chunkSize='0'", "", "is no length"),
            ("ovf:chunkSize='x'", "", "'chunkSize'"),
        ] {
            let error = read(&descriptor(file, disk)).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
        let error = read(&descriptor("", "").replace("'f1' ovf:href", "'f2' ovf:href")).unwrap_err();
        assert!(error.to_string().contains("does not list"), "{error}");
        assert!(read("<domain/>").unwrap_err().to_string().contains("expected 'Envelope'"));
    }
}
