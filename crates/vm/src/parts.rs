//! What the things are called that a run makes in QEMU.
//!
//! What there is of each disk ends with the disk's number: `leandisk-aaaaaaaaaaaaaaaa-cbw0`. With two digits that is as long as a node's
//! name may be.

/// The file that takes what the guest overwrites.
pub(crate) const OVERLAY: &str = "ovl";
/// The filter that copies there before a write.
pub(crate) const FILTER: &str = "cbw";
/// Between a device and the guest's node, and then its filter, where several disks are taken at one moment.
pub(crate) const GATE: &str = "gat";
/// The disk as it was at the moment.
pub(crate) const VIEW: &str = "snp";
/// The job that brings the filter to a disk that no device uses.
pub(crate) const JOB: &str = "job";
/// The export of the view.
pub(crate) const EXPORT: &str = "exp";
/// A bitmap of what is written since before the moment.
pub(crate) const SINCE_NOW: &str = "new";
/// What the user's bitmap had at the moment, or shortly after.
pub(crate) const UNTIL_NOW: &str = "old";
/// A node that holds nothing, its export, and a bitmap of what is written to it: the bits that the user's bitmap is to begin with.
pub(crate) const KEPT: &str = "kep";

/// The mark that the NBD server was started for the run.
pub(crate) const SERVER: &str = "serv";
/// The mark that the guest may be frozen.
pub(crate) const FROZEN: &str = "frozen";

/// Nodes that stand above the guest's own while it is read.
pub(crate) const ABOVE: [&str; 2] = [GATE, FILTER];
