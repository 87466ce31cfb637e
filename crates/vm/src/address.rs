//! How a running guest, or a disk of it, is named: `qmp:SOCKET[?disk=NAME]`.

use std::fmt;
use std::path::{Path, PathBuf};

use block::{Error, Result};

const SCHEME: &str = "qmp:";
const DISK: &str = "?disk=";

/// A QEMU by its monitor's socket, and one of its disks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// The socket where QEMU speaks QMP.
    pub socket: PathBuf,
    /// The disk: an id of its device, or the name of a block device or of a node. `None` where none was named.
    pub disk: Option<String>,
}

impl Address {
    /// What is named there; `None` if that is no such address.
    pub fn of(path: &Path) -> Option<Result<Self>> {
        let text = path.to_str()?.strip_prefix(SCHEME)?;
        Some(parse(text))
    }

    /// Whether this names a running guest or a disk of one.
    pub fn is_one(path: &Path) -> bool {
        path.as_os_str().as_encoded_bytes().starts_with(SCHEME.as_bytes())
    }
}

fn parse(text: &str) -> Result<Address> {
    let invalid = |what: &str| {
        Error::invalid(what).path(format!("{SCHEME}{text}")).hint("qmp:SOCKET, or qmp:SOCKET?disk=NAME")
    };
    let (socket, disk) = match text.split_once('?') {
        None => (text, None),
        Some((socket, query)) => {
            let disk =
                query.strip_prefix(&DISK[1..]).ok_or_else(|| invalid("what follows '?' is not disk="))?;
            if disk.is_empty() {
                return Err(invalid("the disk has no name"));
            }
            (socket, Some(disk.to_owned()))
        }
    };
    if socket.is_empty() {
        return Err(invalid("no socket is named"));
    }
    Ok(Address { socket: socket.into(), disk })
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.socket.display())?;
        match &self.disk {
            None => Ok(()),
            Some(disk) => write!(f, "{DISK}{disk}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use block::ErrorKind;

    use super::*;

    fn of(text: &str) -> Option<Result<Address>> {
        Address::of(Path::new(text))
    }

    #[test]
    fn names_a_socket_and_a_disk() {
        for (text, socket, disk) in [
            ("qmp:/run/vm.sock", "/run/vm.sock", None),
            ("qmp:vm.sock?disk=virtio0", "vm.sock", Some("virtio0")),
        ] {
            let address = of(text).unwrap().unwrap();
            assert_eq!((address.socket.as_path(), address.disk.as_deref()), (Path::new(socket), disk));
            assert_eq!(address.to_string(), text);
        }
        assert!(of("/run/vm.sock").is_none() && !Address::is_one(Path::new("disk.qmp:")));
        for wrong in ["qmp:", "qmp:?disk=a", "qmp:vm.sock?disk=", "qmp:vm.sock?node=a", "qmp:vm.sock?"] {
            assert_eq!(of(wrong).unwrap().unwrap_err().kind(), ErrorKind::Invalid, "{wrong}");
        }
    }
}
