//! A volume that is a part of others: what lies on it is theirs, but for what their holder keeps for itself and what it calls free.

use std::sync::Arc;

use block::Result;
use extent::{Extent, ExtentSet, Span, Volume, VolumeSpan};
use filesystem::{Check, Facts, FileSystem, FileVisitor, Use, UsedMap};

/// See the module.
pub(crate) struct Member {
    facts: Facts,
    free: Arc<ExtentSet<Volume>>,
}

impl Member {
    pub(crate) fn boxed(facts: Facts, free: ExtentSet<Volume>) -> Box<dyn FileSystem> {
        Box::new(Self { facts, free: Arc::new(free) })
    }
}

impl FileSystem for Member {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn used_map(&self, _check: Check) -> Result<Box<dyn UsedMap>> {
        Ok(Box::new(FreeExtents(self.free.clone())))
    }

    /// It has no files, and lacks none.
    fn scan_files(&self, _visitor: &mut dyn FileVisitor) -> Result<()> {
        Ok(())
    }

    fn each_free_span(&self, each: &mut dyn FnMut(VolumeSpan)) -> Result<()> {
        self.free.iter().for_each(each);
        Ok(())
    }
}

struct FreeExtents(Arc<ExtentSet<Volume>>);

impl UsedMap for FreeExtents {
    fn uses(&self, span: VolumeSpan) -> Result<Vec<Extent<Volume, Use>>> {
        let mut uses = Vec::new();
        let mut push = |span: VolumeSpan, state| {
            if !span.is_empty() {
                uses.push(Extent { span, state });
            }
        };
        let mut at = span.start();
        for free in self.0.within(span) {
            push(Span::between(at, free.start()), Use::Used);
            push(free, Use::Free);
            at = free.end();
        }
        push(Span::between(at, span.end()), Use::Used);
        Ok(uses)
    }
}
