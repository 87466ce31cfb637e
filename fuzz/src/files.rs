//! Lists the files and the free space of a file system, and sees to it that the listing keeps its promises.

use block::{ErrorKind, Result};
use filesystem::{
    Catalog, FileExtent, FileId, FileName, FileStream, FileSystem, FileVisitor, NodeKind, StreamName,
};

/// The least unit in which any file system allocates.
const UNIT_BYTES: u64 = 256;

struct Strict {
    volume_bytes: u64,
    last: Option<FileId>,
    stream_count: u64,
    doubt_count: u64,
}

impl FileVisitor for Strict {
    fn stream(&mut self, stream: FileStream<'_>, extents: &[FileExtent]) {
        assert!(self.last <= Some(stream.file), "files ascend");
        let is_first = self.last != Some(stream.file);
        assert_eq!(stream.name == StreamName::Main, is_first, "the main stream, then the others");
        assert!(!stream.is_inline || extents.is_empty(), "what is inline has no extents");
        let mut end = 0;
        for extent in extents {
            assert!(extent.logical.get() >= end && !extent.span.is_empty(), "extents follow each other");
            end = extent.logical.get().checked_add(extent.span.len_bytes()).expect("within the file");
            assert!(extent.span.end().get() <= self.volume_bytes, "on the volume");
            assert!(
                (extent.logical.get() | extent.span.start().get() | end) % UNIT_BYTES == 0,
                "whole units"
            );
        }
        self.last = Some(stream.file);
        self.stream_count += 1;
    }

    fn name(&mut self, name: FileName<'_>) {
        assert!(name.name.len() <= 3 * 255, "a name has 255 units at most");
    }

    fn doubt(&mut self, _file: Option<FileId>, why: String) {
        assert!(!why.is_empty(), "a doubt has a reason");
        self.doubt_count += 1;
    }
}

/// The most folders and files that are looked at one by one.
const NODES_MAX: usize = 64;
/// The most that is read of a file.
const READ_BYTES_MAX: u64 = 256 << 10;

/// Goes through some folders, and reads some of what is in files: all of it may fail, and none may panic or go on for ever.
fn browse(filesystem: &dyn FileSystem) {
    let Ok(browse) = filesystem.browse() else { return };
    let mut waiting = vec![browse.root()];
    for _ in 0..NODES_MAX {
        let Some(file) = waiting.pop() else { return };
        let Ok(node) = browse.node(file) else { continue };
        let _ = browse.attributes(file);
        match node.kind {
            NodeKind::Directory => {
                let _ = browse.each_entry(file, &mut |_, file| {
                    if waiting.len() < NODES_MAX {
                        waiting.push(file);
                    }
                    Ok(())
                });
            }
            NodeKind::Link => drop(browse.target(file)),
            NodeKind::File | NodeKind::Special(_) => {}
        }
        let streams = node.streams.iter().map(|stream| StreamName::Named(&stream.name));
        for name in streams.chain([StreamName::Main]).take(4) {
            let Ok(contents) = browse.open(file, name) else { continue };
            let Ok(Some(span)) = contents.next_data(extent::Offset::ZERO) else { continue };
            assert!(!span.is_empty() && span.end().get() <= contents.len_bytes(), "within the file");
            let len = span.len_bytes().min(READ_BYTES_MAX);
            let mut bytes = vec![0; usize::try_from(len).expect("some kilobytes")];
            let _ = contents.read_at(span.start(), &mut bytes);
        }
    }
}

/// Lists everything, once for the promises and once into a catalog, whose paths must end.
pub(crate) fn list(filesystem: &dyn FileSystem, volume_bytes: u64) -> Result<()> {
    browse(filesystem);
    let mut strict = Strict { volume_bytes, last: None, stream_count: 0, doubt_count: 0 };
    match filesystem.scan_files(&mut strict) {
        // It lists none.
        Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
        scanned => scanned.expect("what is broken is a doubt"),
    }
    let catalog = Catalog::read(filesystem)?;
    assert_eq!(catalog.streams().len() as u64, strict.stream_count, "twice the same");
    assert_eq!(catalog.doubt_count(), strict.doubt_count, "twice the same");
    for stream in catalog.streams().take(100) {
        assert!(stream.path().starts_with(b"/"), "a path begins at the root");
    }
    let mut last_end = None;
    filesystem.each_free_span(&mut |span| {
        assert!(last_end.is_none_or(|end| span.start() > end), "free spans ascend and are joined");
        assert!(!span.is_empty() && span.end().get() <= volume_bytes, "on the volume");
        last_end = Some(span.end());
    })
}
