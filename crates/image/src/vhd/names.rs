//! The names that VHD and VHDX give a parent, made into names to try.
//!
//! They were written by Windows: separators are backslashes, drives are letters. The parent's identity must
//! match whatever file is opened, so trying the bare file name beside the child cannot open a wrong one.

/// Names in the order in which they are tried, each once.
#[derive(Default)]
pub(crate) struct ParentNames {
    relative: Vec<String>,
    absolute: Vec<String>,
}

impl ParentNames {
    /// Adds a name relative to the child's folder.
    pub(crate) fn push_relative(&mut self, windows_name: &str) {
        let name = forward_slashes(windows_name);
        let name = name.strip_prefix("./").unwrap_or(&name);
        push_new(&mut self.relative, name);
    }

    /// Adds a name from a drive, a volume or a server.
    pub(crate) fn push_absolute(&mut self, windows_name: &str) {
        push_new(&mut self.absolute, without_drive(&forward_slashes(windows_name)));
    }

    /// Relative names, then absolute ones, then the bare file names of all of them.
    pub(crate) fn into_vec(self) -> Vec<String> {
        let mut names = self.relative;
        for name in self.absolute {
            push_new(&mut names, &name);
        }
        for name in names.clone() {
            push_new(&mut names, name.rsplit('/').next().unwrap_or_default());
        }
        names
    }
}

fn push_new(names: &mut Vec<String>, name: &str) {
    if !name.is_empty() && !names.iter().any(|known| known == name) {
        names.push(name.to_owned());
    }
}

fn forward_slashes(name: &str) -> String {
    name.trim_end_matches('\0').replace('\\', "/")
}

/// `C:/a/b` and `//?/Volume{id}/a/b` become `/a/b`: a drive has no meaning on this host, and `C:` must not be
/// taken for a protocol.
fn without_drive(name: &str) -> &str {
    let device = name.strip_prefix("//?/").or_else(|| name.strip_prefix("//./"));
    match (device, name.as_bytes()) {
        (Some(path), _) if path.get(1..2) == Some(":") => path.get(2..).unwrap_or_default(),
        (Some(path), _) => path.find('/').map_or("", |slash| &path[slash..]),
        (None, [letter, b':', ..]) if letter.is_ascii_alphabetic() => &name[2..],
        (None, _) => name,
    }
}

/// Text from UTF-16 code units up to the first zero; what is not UTF-16 is replaced.
pub(crate) fn from_utf16(units: impl Iterator<Item = u16>) -> String {
    char::decode_utf16(units.take_while(|unit| *unit != 0))
        .map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_goes_first_and_bare_names_last() {
        let mut names = ParentNames::default();
        names.push_absolute("C:\\vm\\base\\parent.vhd");
        names.push_absolute("\\\\?\\Volume{26A21BDA-A627-11D7-9931-806E6F6E6963}\\vm\\base\\parent.vhd");
        names.push_relative(".\\base\\parent.vhd\0");
        assert_eq!(names.into_vec(), ["base/parent.vhd", "/vm/base/parent.vhd", "parent.vhd"]);
    }

    #[test]
    fn drives_and_devices_are_dropped() {
        for (name, expected) in [
            ("C:/a", "/a"),
            ("c:a", "a"),
            ("//?/D:/a/b", "/a/b"),
            ("//?/D:", ""),
            ("//?/Volume{x}", ""),
            ("//server/share/a", "//server/share/a"),
            ("1:/a", "1:/a"),
            ("é:/a", "é:/a"),
            ("//?/é", ""),
            ("", ""),
        ] {
            assert_eq!(without_drive(name), expected, "{name}");
        }
    }
}
