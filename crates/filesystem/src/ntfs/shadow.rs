//! Whether a volume has shadow copies: they keep old contents by where these lay, and break if files move behind the
//! back of Windows' driver for them.

use block::{Error, Result, read_struct};
use extent::VolumeOffset;

use super::index::Directory;
use super::layout::{
    RECORD_IS_DIRECTORY, SHADOW_HEADER_OFFSET, SHADOW_IDENTIFIER, SHADOW_NAME_END, ShadowHeader,
};
use super::mft::Mft;
use super::record::{RecordNumber, utf16_text};
use super::roots;

/// Where the files lie that hold shadow copies.
const FOLDER: &str = "System Volume Information";

/// A name of such a file is an identifier of the copy before [`SHADOW_NAME_END`].
const NAME_LEN: usize = 2 * SHADOW_NAME_END.len();

/// Fails with `Refused` if there are shadow copies.
pub(super) fn require_none(mft: &Mft) -> Result<()> {
    if has_catalog(mft)? || has_store(mft)? {
        let hint = "delete them in Windows first: vssadmin delete shadows";
        return Err(Error::refused("the volume has shadow copies, which break if files move").hint(hint));
    }
    Ok(())
}

fn has_catalog(mft: &Mft) -> Result<bool> {
    let header: ShadowHeader =
        read_struct(&mft.source, VolumeOffset::new(SHADOW_HEADER_OFFSET), "the header of shadow copies")?;
    Ok(header.identifier == SHADOW_IDENTIFIER && header.catalog_offset != 0)
}

fn has_store(mft: &Mft) -> Result<bool> {
    let root = mft.system_record(RecordNumber::ROOT)?;
    let Some(folder) = Directory::open(mft, &root.view())?.find(FOLDER)? else { return Ok(false) };
    let folder = mft.base_record(folder)?;
    if folder.view().flags() & RECORD_IS_DIRECTORY == 0 {
        return Ok(false);
    }
    let mut has_store = false;
    Directory::open(mft, &folder.view())?.each_entry(|reference| {
        for name in roots::file_names(&mft.base_record(reference)?.view()) {
            has_store |= is_store(&utf16_text(name?.2));
        }
        Ok(())
    })?;
    Ok(has_store)
}

fn is_store(name: &str) -> bool {
    name.len() == NAME_LEN && name.to_ascii_lowercase().ends_with(SHADOW_NAME_END)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_told_by_their_names() {
        assert!(is_store("{6F3CA0E6-2F51-11E4-8251-000C29B4B7E1}{3808876B-C176-4E48-B7AE-04046E6CC752}"));
        assert!(!is_store("{3808876b-c176-4e48-b7ae-04046e6cc752}"));
        assert!(!is_store("tracking.log"));
    }
}
