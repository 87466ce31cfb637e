//! Access-control lists of POSIX as Linux gives them out in `system.posix_acl_access` and `system.posix_acl_default`
//! (`include/uapi/linux/posix_acl_xattr.h`).

/// `POSIX_ACL_XATTR_VERSION`.
const VERSION: u32 = 2;
/// `ACL_UNDEFINED_ID`.
const NO_ID: u32 = u32::MAX;
/// `ACL_USER` and `ACL_GROUP`: entries that say of whom they are.
const WITH_ID: [u16; 2] = [0x02, 0x08];

/// An entry of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) tag: u16,
    pub(crate) permissions: u16,
    pub(crate) id: u32,
}

/// Whether entries of this tag say of whom they are.
pub(crate) fn has_id(tag: u16) -> bool {
    WITH_ID.contains(&tag)
}

/// The value of the attribute.
pub(crate) fn value(entries: &[Entry]) -> Vec<u8> {
    let mut value = VERSION.to_le_bytes().to_vec();
    for entry in entries {
        value.extend(entry.tag.to_le_bytes());
        value.extend(entry.permissions.to_le_bytes());
        value.extend(if has_id(entry.tag) { entry.id } else { NO_ID }.to_le_bytes());
    }
    value
}
