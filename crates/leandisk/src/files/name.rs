//! `[VOLUME:]PATH` as people write it.

use block::{Error, Result};

/// A file as it was named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Named<'a> {
    /// The volume's index or name, if it was told.
    pub(super) volume: Option<&'a str>,
    /// From the volume's root on, with a slash in front.
    pub(super) path: &'a [u8],
}

/// Takes a name apart.
pub(super) fn parse(name: &[u8]) -> Result<Named<'_>> {
    if name.first() == Some(&b'/') {
        return Ok(Named { volume: None, path: name });
    }
    let invalid = || {
        Error::invalid(format!("'{}' names no file of a disk", super::shown(name)))
            .hint("a path begins with '/', with a volume and a colon in front if there are several: 2:/etc/fstab, vg/root:/etc/fstab")
    };
    // Names of logical volumes have no colon.
    let at = name.windows(2).position(|pair| pair == b":/").ok_or_else(invalid)?;
    let volume = std::str::from_utf8(&name[..at]).ok().filter(|volume| !volume.is_empty());
    Ok(Named { volume: Some(volume.ok_or_else(invalid)?), path: &name[at + 1..] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_stands_before_the_path() {
        let named = |name: &'static str| {
            let Named { volume, path } = parse(name.as_bytes()).ok()?;
            Some((volume, std::str::from_utf8(path).unwrap()))
        };
        assert_eq!(named("/a:b/c"), Some((None, "/a:b/c")));
        assert_eq!(named("2:/a"), Some((Some("2"), "/a")));
        assert_eq!(named("vg/root:/a:/b"), Some((Some("vg/root"), "/a:/b")));
        assert_eq!(named("a/b"), None);
        assert_eq!(named(":/b"), None);
        assert_eq!(named(""), None);
    }
}
