//! Repositories whose files say whatever a fuzzer wants, sealed as if an honest program had written them.

use std::sync::Arc;

use block::Result;

use crate::Id;
use crate::crypto::Key;
use crate::repository::Repository;
use crate::storage::{Kind, Storage};
use crate::unlocked::Unlocked;

impl Repository {
    /// One with a key of its own, which nobody can open again.
    pub fn forged(storage: Arc<dyn Storage>) -> Result<Self> {
        storage.prepare()?;
        let key = Key::random()?;
        Self::begin(Unlocked { storage, key, version: 2, id: Id::of(b"forged") })
    }

    /// Stores these bytes, sealed, under the name that they have then.
    pub fn forge(&self, kind: Kind, plain: &[u8]) -> Result<Id> {
        let sealed = self.inner.key.seal(plain)?;
        let id = Id::of(&sealed);
        self.inner.storage.create(kind, &id.to_string(), &sealed)?;
        Ok(id)
    }
}
