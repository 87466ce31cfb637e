//! Files that were closed after a change and are to be looked at: first those that are likelier to lie in pieces, among these the ones that have
//! waited longest. An installation closes thousands of files that were written at one go; a log beside them does not wait for all of these.

use std::collections::{BTreeMap, BTreeSet};

use crate::facts::{FileId, Millis};

#[derive(Clone, Debug, Default)]
pub(crate) struct Suspects {
    /// From when on, and whether it is likely to lie in pieces.
    files: BTreeMap<FileId, (Millis, bool)>,
    likely: BTreeSet<(Millis, FileId)>,
    others: BTreeSet<(Millis, FileId)>,
}

impl Suspects {
    fn queue(&mut self, is_likely: bool) -> &mut BTreeSet<(Millis, FileId)> {
        if is_likely { &mut self.likely } else { &mut self.others }
    }

    /// The file is to be looked at from `due` on. What was likely stays so.
    pub(crate) fn insert(&mut self, id: FileId, due: Millis, is_likely: bool) {
        let is_likely = self.remove(&id) || is_likely;
        self.queue(is_likely).insert((due, id.clone()));
        self.files.insert(id, (due, is_likely));
    }

    /// Whether it was likely to lie in pieces.
    pub(crate) fn remove(&mut self, id: &FileId) -> bool {
        let Some((due, is_likely)) = self.files.remove(id) else { return false };
        self.queue(is_likely).remove(&(due, id.clone()));
        is_likely
    }

    /// Makes room: the one that is missed least.
    pub(crate) fn forget_one(&mut self) {
        let last = self.others.last().or_else(|| self.likely.last()).map(|(_, id)| id.clone());
        if let Some(id) = last {
            self.remove(&id);
        }
    }

    /// Those whose time has come, in the order in which they are to be looked at.
    pub(crate) fn due(&self, now: Millis) -> impl Iterator<Item = &FileId> {
        let queues = self.likely.iter().take_while(move |(due, _)| *due <= now);
        queues.chain(self.others.iter().take_while(move |(due, _)| *due <= now)).map(|(_, id)| id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> FileId {
        FileId::new(&[number]).unwrap()
    }

    #[test]
    fn what_is_likely_to_lie_in_pieces_comes_first_and_among_equals_the_oldest() {
        let mut suspects = Suspects::default();
        for (number, due, is_likely) in [(1, 10, false), (2, 5, false), (3, 30, true), (4, 20, true)] {
            suspects.insert(id(number), due, is_likely);
        }
        let due = |suspects: &Suspects, now| suspects.due(now).map(|id| id.bytes()[0]).collect::<Vec<_>>();
        assert_eq!(due(&suspects, 30), [4, 3, 2, 1]);
        assert_eq!(due(&suspects, 10), [2, 1]);
        suspects.insert(id(4), 40, false);
        assert_eq!(due(&suspects, 30), [3, 2, 1], "its time is later now");
        assert_eq!(due(&suspects, 40), [3, 4, 2, 1], "and it is as likely as before");
        suspects.forget_one();
        assert_eq!((suspects.len(), due(&suspects, 40)), (3, vec![3, 4, 2]));
        assert!(suspects.remove(&id(3)) && !suspects.remove(&id(3)));
    }
}
