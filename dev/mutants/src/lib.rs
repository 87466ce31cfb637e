//! Code broken on purpose, in one way at a time: an exploration that does not find each of them proves nothing.
//!
//! A crate that can be broken lists its ways as `Mutant` at its root and asks for them by [`broken!`]. Both the list and the question
//! are there with its own feature `mutants` alone, which tests switch on; without it every answer is a constant.
//!
//! Invariant: what is broken is so on one thread, and for one call ([`with`]).
//!
//! Absent on purpose: a feature of this crate, which would reach every crate that asks as soon as one of them wants it.

use std::any::Any;
use std::cell::RefCell;

thread_local! {
    /// A `Mutant` of one crate or another.
    static CHOSEN: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

/// Runs `act` with the crate that lists this mutant broken in that way, on this thread.
pub fn with<M: 'static, R>(mutant: Option<M>, act: impl FnOnce() -> R) -> R {
    let before = CHOSEN.replace(mutant.map(|mutant| Box::new(mutant) as Box<dyn Any>));
    let result = act();
    CHOSEN.set(before);
    result
}

/// Whether it is this mutant that runs. Asked by [`broken!`].
pub fn is<M: PartialEq + 'static>(mutant: &M) -> bool {
    CHOSEN.with_borrow(|chosen| chosen.as_ref().and_then(|chosen| chosen.downcast_ref()) == Some(mutant))
}

/// What [`broken!`] answers in the program.
#[inline]
pub const fn never() -> bool {
    false
}

/// Asks for a mutant of the crate that asks; never there in the program.
// The feature and the list are meant to be those of the crate that asks.
#[allow(clippy::crate_in_macro_def)]
#[macro_export]
macro_rules! broken {
    ($mutant:ident) => {{
        #[cfg(feature = "mutants")]
        let answer = $crate::is(&crate::Mutant::$mutant);
        #[cfg(not(feature = "mutants"))]
        let answer = $crate::never();
        answer
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(PartialEq)]
    enum Mutant {
        One,
        Two,
    }

    #[derive(PartialEq)]
    enum OfAnother {
        One,
    }

    #[test]
    fn one_is_broken_on_one_thread_and_for_one_call() {
        with(Some(Mutant::One), || {
            assert!(is(&Mutant::One) && !is(&Mutant::Two) && !is(&OfAnother::One));
            with(None::<Mutant>, || assert!(!is(&Mutant::One)));
            with(Some(OfAnother::One), || assert!(is(&OfAnother::One) && !is(&Mutant::One)));
            assert!(is(&Mutant::One));
            std::thread::spawn(|| assert!(!is(&Mutant::One))).join().unwrap();
        });
        assert!(!is(&Mutant::One) && !never());
    }
}
