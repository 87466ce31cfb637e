//! A volume of which only the facts are known, or that is not to be relied on: copied whole, and never changed.

use block::{Error, Result};

use crate::{Check, Facts, FileSystem, Rearrange, State, UsedMap};

/// Nothing of it is believed but its name. Its state says why.
pub(crate) struct Doubtful {
    facts: Facts,
}

impl Doubtful {
    /// `facts` have a state in doubt.
    pub(crate) fn boxed(facts: Facts) -> Box<dyn FileSystem> {
        assert!(facts.state.doubt().is_some(), "what is only named is in doubt");
        Box::new(Self { facts })
    }

    fn reason(&self) -> &str {
        self.facts.state.doubt().expect("asserted when it was made")
    }
}

impl FileSystem for Doubtful {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn used_map(&self, _check: Check) -> Result<Box<dyn UsedMap>> {
        Err(Error::unsupported(self.reason()))
    }

    fn rearrange(&self) -> Result<Box<dyn Rearrange>> {
        let name = &self.facts.filesystem;
        Err(Error::unsupported(format!("the files of {name} are not moved: {}", self.reason())))
    }
}

/// What was recognised, but is not to be relied on for `reason`. What is known to be hibernated stays so: that concerns the
/// other volumes of the disk as well.
pub fn in_doubt(filesystem: &dyn FileSystem, reason: String) -> Box<dyn FileSystem> {
    let mut facts = filesystem.facts().clone();
    facts.state = match facts.state {
        State::Hibernated(why) => State::Hibernated(format!("{why}; {reason}")),
        State::Encrypted(why) => State::Encrypted(format!("{why}; {reason}")),
        _ => State::Unsupported(reason),
    };
    Doubtful::boxed(facts)
}
