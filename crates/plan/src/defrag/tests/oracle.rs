//! Plans of volumes that are so small that the best plan can be found by trying all: a measure of how far the rules are from it.
//!
//! The best plan leaves the fewest streams in pieces, and moves the fewest clusters for it; a run moves as a whole to what is free.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::model::{CLUSTER, Model, options, planned};
use crate::defrag::*;

const VOLUMES: u64 = 600;

/// Where each piece lies.
type Places = Vec<u8>;

struct Volume {
    len: u8,
    /// Stream and length of each piece; those of a stream follow each other in its order.
    pieces: Vec<(u8, u8)>,
    places: Places,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Outcome {
    left: u64,
    moved: u64,
}

impl Volume {
    /// Of up to twelve clusters, in up to six pieces.
    fn random(seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut roll = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            u8::try_from((state >> 33) % below).unwrap()
        };
        let len = 9 + roll(4);
        let count = 4 + roll(3);
        let mut volume = Self { len, pieces: Vec::new(), places: Vec::new() };
        let mut stream = 0;
        for _ in 0..count {
            let piece_len = 1 + roll(3);
            let free = volume.free_places(piece_len);
            if free.is_empty() {
                break;
            }
            let place = free[usize::from(roll(free.len() as u64))];
            volume.pieces.push((stream, piece_len));
            volume.places.push(place);
            stream += u8::from(roll(5) < 2);
        }
        volume
    }

    fn model(&self) -> Model {
        let mut model = Model::new(usize::from(self.len));
        for stream in self.pieces.iter().map(|(stream, _)| *stream).collect::<BTreeSet<_>>() {
            let pieces = self.pieces.iter().zip(&self.places).filter(|((of, _), _)| *of == stream);
            let pieces: Vec<_> = pieces.map(|((_, len), at)| (u64::from(*at), u64::from(*len))).collect();
            model.add_dense(&pieces);
        }
        model
    }

    /// Where so many clusters are free.
    fn free_places(&self, len: u8) -> Vec<u8> {
        let mut is_used = vec![false; usize::from(self.len)];
        for ((_, len), at) in self.pieces.iter().zip(&self.places) {
            is_used[usize::from(*at)..usize::from(at + len)].fill(true);
        }
        let is_free = |at: &u8| !is_used[usize::from(*at)..usize::from(at + len)].contains(&true);
        (0..=self.len.saturating_sub(len)).filter(is_free).collect()
    }

    /// The pieces that each run is made of.
    fn runs(&self) -> Vec<std::ops::Range<usize>> {
        let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
        for index in 0..self.pieces.len() {
            let follows = index > 0
                && self.pieces[index - 1].0 == self.pieces[index].0
                && self.places[index - 1] + self.pieces[index - 1].1 == self.places[index];
            match runs.last_mut().filter(|_| follows) {
                Some(run) => run.end = index + 1,
                None => runs.push(index..index + 1),
            }
        }
        runs
    }

    fn left(&self) -> u64 {
        let mut seen = BTreeSet::new();
        let starts = self.runs().into_iter().map(|run| self.pieces[run.start].0);
        starts.filter(|stream| !seen.insert(*stream)).collect::<BTreeSet<_>>().len() as u64
    }

    /// Every volume that one move makes of it, with the clusters that move.
    fn moves(&self) -> Vec<(u64, Places)> {
        let mut all = Vec::new();
        for run in self.runs() {
            let len: u8 = run.clone().map(|piece| self.pieces[piece].1).sum();
            for place in self.free_places(len) {
                let mut places = self.places.clone();
                let mut at = place;
                for piece in run.clone() {
                    places[piece] = at;
                    at += self.pieces[piece].1;
                }
                all.push((u64::from(len), places));
            }
        }
        all
    }

    /// The best outcome there is.
    fn best(mut self) -> Outcome {
        let mut best = Outcome { left: u64::MAX, moved: 0 };
        let mut seen = BTreeSet::new();
        let mut next = BinaryHeap::from([Reverse((0, self.places.clone()))]);
        while let Some(Reverse((moved, places))) = next.pop() {
            if !seen.insert(places.clone()) {
                continue;
            }
            self.places = places;
            best = best.min(Outcome { left: self.left(), moved });
            if best.left == 0 {
                break;
            }
            let unseen = self.moves().into_iter().filter(|(_, places)| !seen.contains(places));
            next.extend(unseen.map(|(len, places)| Reverse((moved + len, places))));
        }
        best
    }
}

#[test]
fn small_volumes_are_nearly_as_well_planned_as_can_be() {
    let mut sums = [Outcome { left: 0, moved: 0 }; 2];
    for seed in 0..VOLUMES {
        let volume = Volume::random(seed);
        let model = volume.model();
        let (plan, _) = planned(&model, &options(Goal::Files));
        let found = Outcome { left: plan.left.len() as u64, moved: plan.moved_bytes / CLUSTER };
        let best = volume.best();
        assert!(found >= best, "volume {seed}: {found:?} is better than the best, {best:?}: {model:?}");
        for (sum, outcome) in sums.iter_mut().zip([found, best]) {
            sum.left += outcome.left;
            // What is left moves less.
            sum.moved += if found.left == best.left { outcome.moved } else { 0 };
        }
    }
    let [found, best] = sums;
    assert!(found.left <= best.left + VOLUMES / 15, "{found:?}, and the best is {best:?}");
    assert!(found.moved * 100 <= best.moved * 115, "{found:?}, and the best is {best:?}");
}
