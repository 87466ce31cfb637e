//! The colours of pictures on white. They differ in lightness as well as in hue, so that they stay apart for eyes that
//! see fewer hues and on paper; the hues are those of Okabe and Ito, "Color Universal Design" (2008).

use super::model::PieceClass;

/// The fill of a class.
pub(crate) fn fill(class: PieceClass) -> &'static str {
    match class {
        PieceClass::Contiguous => "#0072b2",
        PieceClass::Fragmented => "#e8590c",
        PieceClass::Metadata => "#9b4f96",
        PieceClass::Reclaimable => "#f2cf3b",
        PieceClass::Free => "#dfe5ea",
        PieceClass::Outside => "#9aa5b1",
        PieceClass::Unknown => "#5c6773",
    }
}

/// Places on the virtual disk, from its start to its end: viridis, which grows lighter evenly.
pub(crate) const ORIGIN: [&str; 16] = [
    "#440154", "#481a6c", "#472f7d", "#414487", "#39568c", "#31688e", "#2a788e", "#23888e", "#1f988b",
    "#22a884", "#35b779", "#54c568", "#7ad151", "#a5db36", "#d2e21b", "#fde725",
];

/// The index in [`ORIGIN`] of a place on a disk.
pub(crate) fn origin_step(place: u64, virtual_bytes: u64) -> usize {
    let steps = ORIGIN.len() as u64;
    let step = u128::from(place) * u128::from(steps) / u128::from(virtual_bytes.max(1));
    usize::try_from(step).unwrap_or(usize::MAX).min(ORIGIN.len() - 1)
}
