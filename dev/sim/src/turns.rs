//! Threads that go on one at a time, in an order that a seed decides: so a race that goes wrong goes wrong again.
//!
//! A thread that is in a run goes on until it pauses, waits at the gate, or ends; then one of those that can go on does. What is
//! called outside of a run does not wait for anybody.
//!
//! Absent on purpose: other locks. Who holds one must not pause.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use preallocate::Gate;

use crate::Random;

thread_local! {
    /// The thread's number in the run that it is a part of.
    static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Thread {
    CanGoOn,
    /// Waits to be let through beside others.
    Beside,
    /// Waits to be let through alone.
    Alone,
    IsOver,
}

struct State {
    random: Random,
    threads: Vec<Thread>,
    running: Option<usize>,
    beside_count: usize,
    is_alone: bool,
    is_stuck: bool,
}

/// See the module's page.
pub struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

impl Turns {
    /// The order of `seed`.
    pub fn new(seed: u64) -> Self {
        let state = State {
            random: Random::new(seed),
            threads: Vec::new(),
            running: None,
            beside_count: 0,
            is_alone: false,
            is_stuck: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Runs `count` threads by turns, each with its number, and returns what they return.
    pub fn run<R: Send>(&self, count: usize, act: impl Fn(usize) -> R + Sync) -> Vec<R> {
        self.state().threads = vec![Thread::CanGoOn; count];
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..count)
                .map(|number| {
                    let act = &act;
                    scope.spawn(move || {
                        NUMBER.set(Some(number));
                        let _ends = Ends { turns: self, number };
                        self.wait(self.state(), number);
                        act(number)
                    })
                })
                .collect();
            self.state().choose();
            self.changed.notify_all();
            threads.into_iter().map(|thread| thread.join().expect("no thread panicked")).collect()
        })
    }

    /// Others may go on first.
    pub fn pause(&self) {
        self.become_one_that(Thread::CanGoOn);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up the turn, and returns with the next one. `false` outside of a run.
    fn become_one_that(&self, waits: Thread) -> bool {
        let Some(number) = NUMBER.get() else { return false };
        let mut state = self.state();
        state.threads[number] = waits;
        state.choose();
        self.changed.notify_all();
        self.wait(state, number);
        true
    }

    fn wait(&self, mut state: MutexGuard<'_, State>, number: usize) {
        while state.running != Some(number) {
            assert!(!state.is_stuck, "all threads wait for each other");
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    fn choose(&mut self) {
        let can_go_on = |thread: &Thread| match thread {
            Thread::CanGoOn => true,
            Thread::Beside => !self.is_alone,
            Thread::Alone => !self.is_alone && self.beside_count == 0,
            Thread::IsOver => false,
        };
        let ready: Vec<usize> =
            (0..self.threads.len()).filter(|number| can_go_on(&self.threads[*number])).collect();
        self.is_stuck = ready.is_empty() && self.threads.iter().any(|thread| *thread != Thread::IsOver);
        self.running = match ready.len() as u64 {
            0 => None,
            count => Some(ready[usize::try_from(self.random.below(count)).expect("few threads")]),
        };
        let Some(number) = self.running else { return };
        match std::mem::replace(&mut self.threads[number], Thread::CanGoOn) {
            Thread::Beside => self.beside_count += 1,
            Thread::Alone => self.is_alone = true,
            Thread::CanGoOn | Thread::IsOver => {}
        }
    }
}

/// Passes the turn on when its thread ends, however it does.
struct Ends<'a> {
    turns: &'a Turns,
    number: usize,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        state.threads[self.number] = Thread::IsOver;
        state.choose();
        self.turns.changed.notify_all();
    }
}

/// Leaves the gate, however it is left.
struct Leaves<'a> {
    turns: &'a Turns,
    was_alone: bool,
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        if self.was_alone {
            state.is_alone = false;
        } else {
            state.beside_count -= 1;
        }
    }
}

impl Gate for Turns {
    fn beside<R>(&self, act: impl FnOnce() -> R) -> R {
        let _leaves = self.become_one_that(Thread::Beside).then(|| Leaves { turns: self, was_alone: false });
        act()
    }

    fn alone<R>(&self, act: impl FnOnce() -> R) -> R {
        let _leaves = self.become_one_that(Thread::Alone).then(|| Leaves { turns: self, was_alone: true });
        act()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// In which order three threads add their numbers.
    fn order(seed: u64) -> Vec<usize> {
        let (turns, seen) = (Turns::new(seed), Mutex::new(Vec::new()));
        turns.run(3, |number| {
            for _ in 0..4 {
                seen.lock().unwrap().push(number);
                turns.pause();
            }
        });
        seen.into_inner().unwrap()
    }

    #[test]
    fn a_seed_repeats_its_order() {
        let orders: std::collections::BTreeSet<_> = (0..50).map(order).collect();
        assert!(orders.len() > 40, "{}", orders.len());
        assert!((0..50).all(|seed| order(seed) == order(seed)));
    }

    #[test]
    fn who_is_alone_at_the_gate_is_alone() {
        for seed in 0..100 {
            let (turns, inside) = (Turns::new(seed), AtomicUsize::new(0));
            turns.run(4, |number| {
                for _ in 0..5 {
                    if number == 0 {
                        turns.alone(|| {
                            assert_eq!(inside.load(Ordering::Relaxed), 0);
                            turns.pause();
                            assert_eq!(inside.load(Ordering::Relaxed), 0);
                        });
                    } else {
                        turns.beside(|| {
                            inside.fetch_add(1, Ordering::Relaxed);
                            turns.pause();
                            inside.fetch_sub(1, Ordering::Relaxed);
                        });
                    }
                }
            });
        }
    }
}
