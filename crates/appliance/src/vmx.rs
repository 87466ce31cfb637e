//! VMware's configuration of a machine: lines `key = "value"`.

use std::collections::BTreeMap;

use block::{Error, Result};

use crate::corrupt::Corrupt;
use crate::{DISK_COUNT_MAX, Description, Disk, NamedFile};

/// The buses that disks hang on.
const BUSES: [&str; 4] = ["scsi", "sata", "nvme", "ide"];

/// The hard disks that are present.
pub fn read(text: &str) -> Result<Description> {
    let mut values = BTreeMap::new();
    let mut devices = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = pair(line).ok_or(Corrupt::VmxLine { line: index + 1 }).map_err(Error::corrupt)?;
        let key = key.to_ascii_lowercase();
        if key.starts_with("encryption.") {
            return Err(Error::unsupported("a machine whose configuration is encrypted"));
        }
        if let Some((device, "filename")) = key.split_once('.')
            && is_device(device)
        {
            devices.push(device.to_owned());
        }
        // Of a key that is there twice VMware takes the last.
        values.insert(key, value);
    }
    devices.dedup();
    let mut description = Description::default();
    for device in devices {
        let value = |key: &str| values.get(&format!("{device}.{key}")).map_or("", String::as_str);
        let file = value("filename");
        let kind = value("devicetype").to_ascii_lowercase();
        let is_present = value("present").eq_ignore_ascii_case("true");
        let is_disc = kind.contains("cdrom") || file.to_ascii_lowercase().ends_with(".iso");
        if !is_present || is_disc || file.is_empty() || description.disks.iter().any(|disk| disk.id == device)
        {
            continue;
        }
        if description.disks.len() >= DISK_COUNT_MAX {
            return Err(Error::corrupt(Corrupt::TooManyDisks { max: DISK_COUNT_MAX }));
        }
        description.files.push(NamedFile::plain(file));
        // What VMware attaches is a VMDK, whatever its name.
        let format = Some(image::Format::Vmdk);
        description.disks.push(Disk { id: device, file: file.to_owned(), format, capacity: None });
    }
    Ok(description)
}

fn pair(line: &str) -> Option<(&str, String)> {
    let (key, value) = line.split_once('=')?;
    let value = value.trim();
    let value = value.strip_prefix('"').map_or(Some(value), |rest| rest.strip_suffix('"'))?;
    Some((key.trim(), unescaped(value)))
}

/// `|22` is a quotation mark, and so on.
fn unescaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut rest = value;
    while let Some((before, after)) = rest.split_once('|') {
        out.push_str(before);
        let code = after.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match code.filter(u8::is_ascii) {
            Some(code) => {
                out.push(char::from(code));
                rest = &after[2..];
            }
            None => {
                out.push('|');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

/// Such as `scsi0:12`.
fn is_device(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let bus = BUSES.iter().find_map(|bus| name.strip_prefix(bus));
    bus.and_then(|rest| rest.split_once(':')).is_some_and(|(bus, slot)| is_number(bus) && is_number(slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_those_that_are_present_and_no_discs() {
        let text = "#!/usr/bin/vmware\n.encoding = \"UTF-8\"\nscsi0.present = \"TRUE\"\n\
            scsi0:0.present = \"TRUE\"\nscsi0:0.fileName = \"a |22b|22.vmdk\"\n\
            SCSI0:1.FileName = \"off.vmdk\"\nscsi0:1.present = \"FALSE\"\n\
            ide1:0.present = \"TRUE\"\nide1:0.fileName = \"dvd\"\nide1:0.deviceType = \"cdrom-image\"\n\
            sata0:1.present = \"true\"\nsata0:1.fileName = \"dvd.iso\"\n\
            nvme0:0.fileName = \"b.vmdk\"\nnvme0:0.present = \"TRUE\"\n\
            floppy0.fileName = \"floppy.flp\"\nfloppy0.present = \"TRUE\"\n\
            ethernet0.present = \"TRUE\"\n";
        let found = read(text).unwrap();
        let disks: Vec<_> = found.disks.iter().map(|disk| (&*disk.id, &*disk.file)).collect();
        assert_eq!(disks, [("scsi0:0", "a \"b\".vmdk"), ("nvme0:0", "b.vmdk")]);
    }

    #[test]
    fn what_is_no_configuration_is_told() {
        assert!(read("scsi0:0.present").unwrap_err().to_string().contains("line 1"));
        assert!(read("a = \"b").unwrap_err().to_string().contains("line 1"));
        assert!(read("encryption.keySafe = \"x\"").unwrap_err().to_string().contains("encrypted"));
        assert_eq!(unescaped("a|zz|4"), "a|zz|4");
        assert_eq!(unescaped("|é"), "|é");
    }
}
