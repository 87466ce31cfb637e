//! Files of text, and empty ones.

use super::{Foreign, Sample};

/// As much as has to be text: no disk begins with so much of it.
const TEXT_BYTES: usize = 4096;
const SECTOR_BYTES: usize = 512;

/// What `sample` is, if there is nothing but text in its first bytes, or nothing at all.
pub(super) fn recognise(sample: &Sample) -> Option<Foreign> {
    if sample.head.is_empty() {
        return Some(Foreign { name: "an empty file", advice: "name another file" });
    }
    let start = &sample.head[..sample.head.len().min(TEXT_BYTES)];
    is_text(start).then(|| kind_of(start, &sample.extension))
}

/// UTF-8 that is printed, up to a character that is cut off at the end.
fn is_text(bytes: &[u8]) -> bool {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            let (valid, _) = bytes.split_at(error.valid_up_to());
            std::str::from_utf8(valid).unwrap_or_default()
        }
        Err(_) => return false,
    };
    let is_printed = |letter: char| !letter.is_control() || matches!(letter, '\n' | '\r' | '\t' | '\u{c}');
    // A disk can be filled with one letter; text has lines, and what is shorter than a sector is no disk.
    text.chars().all(is_printed) && (text.contains('\n') || bytes.len() < SECTOR_BYTES)
}

fn kind_of(bytes: &[u8], extension: &str) -> Foreign {
    const MACHINES: [&str; 4] = ["vmx", "vbox", "vmc", "vmcx"];
    let name_the_disk = "name the disk image itself";
    match extension {
        "ovf" => Foreign {
            name: "the description of an appliance (OVF)",
            advice: "name the disk image that it refers to",
        },
        _ if MACHINES.contains(&extension) => {
            Foreign { name: "the description of a virtual machine", advice: name_the_disk }
        }
        _ if bytes.starts_with(b"<?xml") => Foreign { name: "an XML document", advice: name_the_disk },
        _ => Foreign { name: "a text file", advice: name_the_disk },
    }
}
