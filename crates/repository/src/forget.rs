//! Which snapshots are kept, by the rules of `restic forget` as of 0.14. Later ones also keep the oldest where fewer are kept than allowed.
//!
//! Absent on purpose: removing data, which is `restic prune`'s.

use crate::snapshot::Snapshot;
use crate::time::{self, Moment};

/// How many snapshots of which kind are kept. Nothing of it is set by default, and then all are kept.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Keep {
    /// The newest ones.
    pub last: Option<u32>,
    /// The newest of a day, of so many days that have one.
    pub daily: Option<u32>,
    /// Of a week, from Monday to Sunday.
    pub weekly: Option<u32>,
    /// Of a month.
    pub monthly: Option<u32>,
    /// Of a year.
    pub yearly: Option<u32>,
    /// Those that have all tags of one of these lists.
    pub tags: Vec<Vec<String>>,
}

/// Counts the newest snapshots of so many stretches of time.
struct Bucket {
    left: u32,
    /// Which stretch a moment is in.
    key: fn(Moment, usize) -> (i64, i64, i64),
    last: Option<(i64, i64, i64)>,
}

impl Bucket {
    fn keeps(&mut self, at: Moment, number: usize) -> bool {
        let key = Some((self.key)(at, number));
        let keeps = self.left > 0 && key != self.last;
        if keeps {
            self.last = key;
            self.left -= 1;
        }
        keeps
    }
}

impl Keep {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// For each of the snapshots of one group, newest first, whether it is kept. All are if none would be.
    pub fn of(&self, snapshots: &[&Snapshot]) -> Vec<bool> {
        let bucket = |left: Option<u32>, key| Bucket { left: left.unwrap_or(0), key, last: None };
        let mut buckets = [
            bucket(self.last, |_, number| (i64::try_from(number).unwrap_or(i64::MAX), 0, 0)),
            bucket(self.daily, |at, _| (at.year, at.month, at.day)),
            bucket(self.weekly, |at, _| {
                let (year, week) = at.iso_week();
                (year, week, 0)
            }),
            bucket(self.monthly, |at, _| (at.year, at.month, 0)),
            bucket(self.yearly, |at, _| (at.year, 0, 0)),
        ];
        let mut kept = Vec::new();
        for (number, snapshot) in snapshots.iter().enumerate() {
            let has = |list: &Vec<String>| list.iter().all(|tag| snapshot.tags.contains(tag));
            let mut is_kept = self.tags.iter().any(has);
            match time::moment(&snapshot.time) {
                Some(at) => {
                    // Each of them counts, whatever the others say.
                    buckets.iter_mut().for_each(|bucket| is_kept |= bucket.keeps(at, number));
                }
                None => is_kept = true,
            }
            kept.push(is_kept);
        }
        match self.is_empty() || !kept.contains(&true) {
            true => vec![true; kept.len()],
            false => kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Id;

    fn kept(keep: &Keep, times: &[&str]) -> Vec<usize> {
        let of = |time: &&str| Snapshot { time: (*time).into(), ..Snapshot::now(Id::of(b"")) };
        let snapshots: Vec<_> = times.iter().map(of).collect();
        let all = keep.of(&snapshots.iter().collect::<Vec<_>>());
        (0..all.len()).filter(|at| all[*at]).collect()
    }

    #[test]
    fn the_newest_of_a_stretch_counts() {
        let times = [
            "2024-03-02T10:00:00Z",
            "2024-03-02T09:00:00Z",
            "2024-03-01T23:30:00-01:00",
            "2024-02-29T10:00:00Z",
            "2023-12-31T10:00:00Z",
            "2023-12-25T10:00:00Z",
        ];
        let keep = Keep::default();
        assert_eq!(kept(&keep, &times), [0, 1, 2, 3, 4, 5]);
        assert_eq!(kept(&Keep { last: Some(2), ..keep.clone() }, &times), [0, 1]);
        assert_eq!(kept(&Keep { daily: Some(3), ..keep.clone() }, &times), [0, 2, 3]);
        // Of Monday the 25th and Sunday the 31st, which are one week, the newer one.
        assert_eq!(kept(&Keep { weekly: Some(3), ..keep.clone() }, &times), [0, 4]);
        assert_eq!(kept(&Keep { monthly: Some(2), yearly: Some(2), ..keep.clone() }, &times), [0, 3, 4]);
        assert_eq!(kept(&Keep { tags: vec![vec!["none".into()]], ..keep }, &times), [0, 1, 2, 3, 4, 5]);
    }
}
