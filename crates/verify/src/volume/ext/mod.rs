//! x
use block::Result;
use filesystem::Source;
pub(super) fn is_ext(_source: &Source) -> Result<bool> {
    Ok(false)
}
pub(super) mod check {
    pub(in crate::volume) fn check(_: &filesystem::Source) -> block::Result<crate::volume::VolumeReport> {
        Err(super::super::unknown())
    }
}
