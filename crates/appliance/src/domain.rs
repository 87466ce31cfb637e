//! The XML of a domain of libvirt's (`virsh dumpxml`): its disks.

use block::{Error, Result};
use image::Format;

use crate::corrupt::Corrupt;
use crate::xml::Element;
use crate::{DISK_COUNT_MAX, Description, Disk, NamedFile};

/// The disks that are files or block devices. `Unsupported` if one is neither.
pub fn read(text: &str) -> Result<Description> {
    let domain = Element::parse(text, "domain")?;
    let mut description = Description::default();
    let disks = domain.children("devices").flat_map(|devices| devices.children("disk"));
    for (index, disk) in disks.enumerate() {
        let device = disk.attribute("device").unwrap_or("disk");
        if !["disk", "lun"].contains(&device) {
            continue;
        }
        let target = disk.child("target").and_then(|target| target.attribute("dev"));
        let id = target.map_or_else(|| format!("disk {}", index + 1), str::to_owned);
        let Some(file) = source(disk, &id)? else {
            description.notes.push(format!("disk '{id}' has no source, and is not copied"));
            continue;
        };
        if description.disks.len() >= DISK_COUNT_MAX {
            return Err(Error::corrupt(Corrupt::TooManyDisks { max: DISK_COUNT_MAX }));
        }
        description.files.push(NamedFile::plain(file));
        let format = Some(format(disk, &id)?);
        description.disks.push(Disk { id, file: file.to_owned(), format, capacity: None });
    }
    Ok(description)
}

fn source<'a>(disk: &'a Element, id: &str) -> Result<Option<&'a str>> {
    let attribute = match disk.attribute("type").unwrap_or("file") {
        "file" => "file",
        "block" => "dev",
        other => {
            let protocol = disk.child("source").and_then(|source| source.attribute("protocol"));
            let protocol = protocol.map(|protocol| format!(", '{protocol}'")).unwrap_or_default();
            return Err(Error::unsupported(format!("disk '{id}' of the type '{other}'{protocol}"))
                .hint("copy the other disks one by one"));
        }
    };
    Ok(disk.child("source").and_then(|source| source.attribute(attribute)))
}

/// libvirt probes nothing: a disk whose format is not stated is raw.
fn format(disk: &Element, id: &str) -> Result<Format> {
    match disk.child("driver").and_then(|driver| driver.attribute("type")).unwrap_or("raw") {
        "raw" => Ok(Format::Raw),
        "qcow2" => Ok(Format::Qcow2),
        "vpc" => Ok(Format::Vhd),
        "vhdx" => Ok(Format::Vhdx),
        "vmdk" => Ok(Format::Vmdk),
        "vdi" => Ok(Format::Vdi),
        other => Err(Error::unsupported(format!("disk '{id}' of the format '{other}'"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(disks: &str) -> String {
        format!("<domain type='kvm'><name>x</name><devices>{disks}</devices></domain>")
    }

    #[test]
    fn disks_are_files_and_devices_in_stated_formats() {
        let text = domain(
            "<disk type='file' device='disk'><driver name='qemu' type='qcow2'/>\
             <source file='/vm/a.img' index='1'/><backingStore type='file'><source file='/vm/b'/></backingStore>\
             <target dev='vda'/></disk>\
             <disk type='block'><source dev='/dev/vg/b'/><target dev='vdb'/></disk>\
             <disk type='file' device='cdrom'><source file='/iso'/><target dev='sda'/></disk>\
             <disk type='file'><target dev='vdc'/></disk>",
        );
        let found = read(&text).unwrap();
        let disks: Vec<_> = found.disks.iter().map(|disk| (&*disk.id, &*disk.file, disk.format)).collect();
        assert_eq!(
            disks,
            [("vda", "/vm/a.img", Some(Format::Qcow2)), ("vdb", "/dev/vg/b", Some(Format::Raw))]
        );
        assert_eq!(found.notes, ["disk 'vdc' has no source, and is not copied"]);
    }

    #[test]
    fn what_is_elsewhere_is_named() {
        let network = "<disk type='network'><source protocol='rbd' name='p/v'/><target dev='vda'/></disk>";
        let error = read(&domain(network)).unwrap_err();
        assert!(error.to_string().contains("'vda' of the type 'network', 'rbd'"), "{error}");
        let qed = "<disk type='file'><driver type='qed'/><source file='a'/><target dev='vda'/></disk>";
        assert!(read(&domain(qed)).unwrap_err().to_string().contains("format 'qed'"));
    }
}
