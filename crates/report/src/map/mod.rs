//! Pictures of a disk: what lies where for the guest, in the container and on the host, one row above the other.
//!
//! A piece has the colour of its class in every row, so that one sees where the same data go downwards. The thin line
//! under each row has the colour of the place on the virtual disk: smooth where the order is kept, confetti where
//! it is lost.
//!
//! Invariants:
//! - pure: a [`DiskMap`] in, text out; the size of a picture has a bound that does not depend on the disk;
//! - names from a guest are shown as text, never as markup or control ([`crate::printable_name`]).

mod build;
mod colors;
mod fit;
mod folds;
mod model;
mod pack;
mod strip;
mod svg;
mod tiles;
#[cfg(test)]
mod unpack;

pub use build::disk_map;
pub(crate) use fit::fitted;
pub use model::{DiskMap, MapLayer, MapOwner, MapOwners, MapPiece, MapRun, MapVolume, OwnerId, PieceClass};
pub use strip::map_text;
pub use svg::{MAP_SVG_BYTES_MAX, map_svg};
