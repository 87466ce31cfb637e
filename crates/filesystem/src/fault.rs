//! Which errors speak of the volume, and which of the machine.

use block::{Error, ErrorKind, Result};

/// The error if it says what is wrong with the volume; that of a failed read does not, and stays an error.
pub(crate) fn of_volume(error: Error) -> Result<Error> {
    if error.kind() == ErrorKind::Io { Err(error) } else { Ok(error) }
}
