//! What lies where on a volume, for planners.

use extent::VolumeSpan;
use filesystem::{FileExtent, FileStream, Fragments, Mobility, StreamVisitor};

use super::BackingMap;

/// The streams of a volume and its free space. Filled by showing it all streams ([`StreamVisitor`]) and all room.
#[derive(Debug)]
pub struct Layout {
    cluster_bytes: u64,
    fragments: Fragments,
    backing: BackingMap,
    room: Vec<VolumeSpan>,
}

impl Layout {
    /// An empty one. `fragments` is the rule by which the file system's runs are counted.
    pub fn new(cluster_bytes: u64, fragments: Fragments, backing: BackingMap) -> Self {
        Self { cluster_bytes, fragments, backing, room: Vec::new() }
    }

    /// Takes the next free span that files may go to.
    pub fn add_room(&mut self, span: VolumeSpan) {
        self.room.push(span);
    }
}

impl StreamVisitor for Layout {
    fn stream(&mut self, _stream: FileStream<'_>, _extents: &[FileExtent], _mobility: Mobility) {
        let _ = (self.cluster_bytes, self.fragments, &self.backing);
    }
}
