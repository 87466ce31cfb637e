//! The order in which an incremental copy changes names, contents and the bitmap, cut at every step.

use std::sync::Mutex;

use block::{Error, ReadAt, Result, TargetFile};
use extent::{Host, HostOffset, HostSpan};
use leandisk::Mutant;
use leandisk::increment::{Place, in_order};

/// What the target's file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holds {
    Before,
    Half,
    After,
}

/// What is on stable storage, and where the bitmap begins.
#[derive(Clone, Copy, Debug)]
struct State {
    has_its_name: bool,
    stored: Holds,
    written: Holds,
    is_rotated: bool,
    /// Steps until the power goes.
    left: usize,
}

struct Model(Mutex<State>);

impl Model {
    /// One step; what is written but not flushed may have reached the storage in part.
    fn step(&self, act: impl FnOnce(&mut State)) -> Result<()> {
        let mut state = self.0.lock().unwrap();
        if state.left == 0 {
            if state.written != state.stored {
                state.stored = Holds::Half;
            }
            return Err(Error::interrupted());
        }
        state.left -= 1;
        act(&mut state);
        Ok(())
    }
}

impl Place for Model {
    fn hide(&self) -> Result<()> {
        self.step(|state| state.has_its_name = false)
    }

    fn show(&self) -> Result<()> {
        self.step(|state| state.has_its_name = true)
    }
}

impl ReadAt<Host> for Model {
    fn len_bytes(&self) -> u64 {
        0
    }

    fn read_at(&self, _at: HostOffset, _buf: &mut [u8]) -> Result<()> {
        Ok(())
    }
}

impl TargetFile for Model {
    fn write_at(&self, _at: HostOffset, _buf: &[u8]) -> Result<()> {
        Ok(())
    }

    fn set_len(&self, _len_bytes: u64) -> Result<()> {
        Ok(())
    }

    fn reserve(&self, _span: HostSpan) -> Result<()> {
        Ok(())
    }

    fn zero(&self, _span: HostSpan) -> Result<()> {
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.step(|state| state.stored = state.written)
    }
}

/// What is wrong after a cut, if anything is.
fn fault() -> Option<String> {
    for left in 0..20 {
        let whole = Holds::Before;
        let state = State { has_its_name: true, stored: whole, written: whole, is_rotated: false, left };
        let model = Model(Mutex::new(state));
        let update = || {
            model.step(|state| state.written = Holds::Half)?;
            model.step(|state| state.written = Holds::After)
        };
        let done = in_order(&model, &model, update, || model.step(|state| state.is_rotated = true));
        // The power goes after the last step as well.
        let state = *model.0.lock().unwrap();
        let stored = if state.stored == state.written { state.stored } else { Holds::Half };
        if state.has_its_name && stored == Holds::Half {
            return Some(format!("half a copy has the target's name after {left} steps"));
        }
        if state.is_rotated && !(stored == Holds::After && state.has_its_name) {
            return Some(format!("what the bitmap said is lost after {left} steps"));
        }
        if done.is_ok() {
            assert!(state.is_rotated && stored == Holds::After);
            return None;
        }
    }
    Some("it does not end".to_owned())
}

#[test]
fn half_a_copy_never_has_the_name_and_the_bitmap_begins_anew_last() {
    assert_eq!(fault(), None);
    for mutant in [Mutant::BitmapRotatedFirst, Mutant::HalfUnderItsName, Mutant::IncrementNotFlushed] {
        assert!(mutants::with(Some(mutant), fault).is_some(), "{mutant:?}");
    }
}
