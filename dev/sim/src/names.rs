//! Names that a power cut takes back, and in any order, until they are synced: what folders of every kind are made of here.
//!
//! Invariant: after a cut each name means what it meant at the last sync, or after any of the steps since, whatever the other names
//! mean: worse than file systems that keep the order of steps.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use crate::Random;

/// What of the steps since the last sync survives a cut.
#[derive(Clone, Copy)]
pub(crate) enum Surviving {
    /// Nothing.
    Nothing,
    /// All of them.
    All,
    /// Of each name any number of them, by itself.
    Any,
}

/// What names stand for: now, and on stable storage.
#[derive(Clone)]
pub(crate) struct SyncedNames<K, E> {
    now: BTreeMap<K, E>,
    stable: BTreeMap<K, E>,
    /// What a name stood for after each step since the last sync.
    versions: BTreeMap<K, Vec<Option<E>>>,
}

impl<K, E> Default for SyncedNames<K, E> {
    fn default() -> Self {
        Self { now: BTreeMap::new(), stable: BTreeMap::new(), versions: BTreeMap::new() }
    }
}

impl<K: Ord + Clone, E: Clone> SyncedNames<K, E> {
    /// What a name stands for now.
    pub(crate) fn get<Q: Ord + ?Sized>(&self, name: &Q) -> Option<&E>
    where
        K: Borrow<Q>,
    {
        self.now.get(name)
    }

    /// All names, with what they stand for now.
    pub(crate) fn now(&self) -> &BTreeMap<K, E> {
        &self.now
    }

    /// One step: the name stands for `entry` now, or for nothing.
    pub(crate) fn set(&mut self, name: K, entry: Option<E>) {
        self.versions.entry(name.clone()).or_default().push(entry.clone());
        put(&mut self.now, name, entry);
    }

    /// Gives `entry` a name, on stable storage at once.
    pub(crate) fn put_stable(&mut self, name: K, entry: E) {
        self.stable.insert(name.clone(), entry.clone());
        self.now.insert(name, entry);
    }

    /// Brings the names that are `here` to stable storage.
    pub(crate) fn sync(&mut self, here: impl Fn(&K) -> bool) {
        self.versions.retain(|name, _| !here(name));
        self.stable.retain(|name, _| !here(name));
        let synced = self.now.iter().filter(|(name, _)| here(name));
        self.stable.extend(synced.map(|(name, entry)| (name.clone(), entry.clone())));
    }

    /// What a power cut leaves.
    pub(crate) fn cut(&self, surviving: Surviving, random: &mut Random) -> Self {
        let mut names = self.stable.clone();
        for (name, versions) in &self.versions {
            let step_count = match surviving {
                Surviving::Nothing => 0,
                Surviving::All => versions.len(),
                Surviving::Any => usize::try_from(random.below(versions.len() as u64 + 1)).expect("an index"),
            };
            if let Some(last) = step_count.checked_sub(1) {
                put(&mut names, name.clone(), versions[last].clone());
            }
        }
        Self { now: names.clone(), stable: names, versions: BTreeMap::new() }
    }

    /// The same names of other things.
    pub(crate) fn map<T>(&self, mut each: impl FnMut(&E) -> T) -> SyncedNames<K, T> {
        let now = self.now.iter().map(|(name, entry)| (name.clone(), each(entry))).collect();
        let stable = self.stable.iter().map(|(name, entry)| (name.clone(), each(entry))).collect();
        let versions = self.versions.iter().map(|(name, versions)| {
            (name.clone(), versions.iter().map(|version| version.as_ref().map(&mut each)).collect())
        });
        SyncedNames { now, stable, versions: versions.collect() }
    }
}

fn put<K: Ord, E>(names: &mut BTreeMap<K, E>, name: K, entry: Option<E>) {
    match entry {
        Some(entry) => _ = names.insert(name, entry),
        None => _ = names.remove(&name),
    }
}
