//! Names that a guest chose: which of them a host's file can have.

use block::{Error, Result};

use crate::kept::Names;

/// The longest name of a file.
const NAME_BYTES_MAX: usize = 255;
/// The longest path below the folder.
const PATH_BYTES_MAX: usize = 8192;
/// The most folders above a file.
const DEPTH_MAX: usize = 2048;
/// The most that a link may say (`PATH_MAX`).
const TARGET_BYTES_MAX: usize = 4095;

/// `Refused` unless each is the name of a file in a folder, and the path is one that a host can have.
pub fn check_names(names: &Names) -> Result<()> {
    let is_name = |name: &Vec<u8>| {
        !name.is_empty()
            && name.len() <= NAME_BYTES_MAX
            && name != b"."
            && name != b".."
            && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
    };
    let len: usize = names.iter().map(|name| name.len() + 1).sum();
    match names.iter().all(is_name) && len <= PATH_BYTES_MAX && names.len() <= DEPTH_MAX {
        true => Ok(()),
        false => Err(Error::refused("has a name that no file of this host can have").path(shown(names))),
    }
}

/// `Refused` unless a link can say so.
pub fn check_target(target: &[u8]) -> Result<()> {
    match target.is_empty() || target.len() > TARGET_BYTES_MAX || target.contains(&0) {
        true => Err(Error::refused("a link that leads where no path of this host does")),
        false => Ok(()),
    }
}

pub(crate) fn shown(names: &Names) -> String {
    names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect::<Vec<_>>().join("/")
}
