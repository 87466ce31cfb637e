//! When a disk's storage is allocated, and what it keeps of it from then on.

use os::{NewFile, StoragePromise};

use crate::Observer;

/// When a disk's storage is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Provision {
    /// When the guest first writes: the image starts small and grows.
    #[default]
    Thin,
    /// All of it at once; the host zeroes each part when it is first written.
    Lazy,
    /// All of it at once, and zeroed.
    Eager,
}

impl Provision {
    /// For the engine.
    pub(crate) fn when(self) -> engine::Provision {
        match self {
            Self::Thin => engine::Provision::Thin,
            Self::Lazy => engine::Provision::Lazy,
            Self::Eager => engine::Provision::Eager,
        }
    }

    /// What such a disk keeps of its storage.
    pub(crate) fn kept(self) -> StoragePromise {
        match self {
            Self::Thin => StoragePromise::Nothing,
            Self::Lazy => StoragePromise::Storage,
            Self::Eager => StoragePromise::Written,
        }
    }

    /// As on the command line, and in documents.
    pub fn word(self) -> &'static str {
        match self {
            Self::Thin => "thin",
            Self::Lazy => "lazy",
            Self::Eager => "eager",
        }
    }

    /// Leaves the mark that `serve` goes by on a disk that keeps something.
    pub(crate) fn mark(self, file: &NewFile, observer: &dyn Observer) {
        self.note_unless(self == Self::Thin || file.mark(self.kept()), observer);
    }

    /// Says that the mark is not there, unless it is.
    pub(crate) fn note_unless(self, is_marked: bool, observer: &dyn Observer) {
        if !is_marked {
            let word = self.word();
            observer.note(&format!(
                "note: this file system has no extended attributes to record that the disk is {word}: use --provision \
                 {word} with 'leandisk serve' as well"
            ));
        }
    }
}
