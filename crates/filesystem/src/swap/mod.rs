//! Linux swap partitions.
//!
//! All but the header means nothing once the guest is off, unless it is hibernated: then it is its memory.

use block::{Error, Result, read_vec};
use extent::{Extent, Offset, Span, Volume, VolumeOffset, VolumeSpan};

use crate::probe::fields::uuid_text;
use crate::{Check, Facts, FileSystem, Source, State, Use, UsedMap};

mod corrupt;
pub(crate) mod header;
mod layout;

pub use corrupt::Corrupt;
pub(crate) use header::PAGE_BYTES_MAX;

use header::{Found, Header};

/// Opens the volume if it is one.
pub fn open(source: &Source) -> Result<Option<Box<dyn FileSystem>>> {
    let first = first_bytes(source, PAGE_BYTES_MAX)?;
    let (state, header) = match header::examine(&first) {
        Found::None => return Ok(None),
        Found::Hibernated { signature } => {
            (State::Hibernated(format!("the guest is hibernated in it (signature {signature})")), None)
        }
        Found::Old => (State::Unsupported("swap area of the kind before Linux 2.2".into()), None),
        Found::Broken(error) => (State::Inconsistent(error.to_string()), None),
        Found::Swap(header) if header.area_bytes() > source.len_bytes() => {
            let error = Error::corrupt(Corrupt::Header).field(
                "last_page",
                header.last_page,
                format!("within the volume of {} bytes", source.len_bytes()),
            );
            (State::Inconsistent(error.to_string()), None)
        }
        Found::Swap(header) => (State::Clean, Some(header)),
    };
    Ok(Some(Box::new(Swap { facts: facts(header.as_ref(), state), header })))
}

/// Whether one of the signatures is at the end of a page within the first `len_bytes`.
pub(crate) fn has_signature(source: &Source, len_bytes: u64) -> Result<bool> {
    let first = first_bytes(source, len_bytes.min(PAGE_BYTES_MAX))?;
    Ok(!matches!(header::examine(&first), Found::None))
}

fn first_bytes(source: &Source, len_bytes: u64) -> Result<Vec<u8>> {
    read_vec(source, VolumeOffset::ZERO, len_bytes.min(source.len_bytes()), "swap header")
}

fn facts(header: Option<&Header>, state: State) -> Facts {
    Facts {
        filesystem: "swap".into(),
        label: header.and_then(|header| header.label.clone()),
        uuid: header.and_then(|header| uuid_text(&header.uuid)),
        cluster_bytes: header.map(|header| header.page_bytes),
        size_bytes: header.map_or(0, Header::area_bytes),
        free_bytes: None,
        state,
        details: Vec::new(),
    }
}

struct Swap {
    facts: Facts,
    header: Option<Header>,
}

impl FileSystem for Swap {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn used_map(&self, _check: Check) -> Result<Box<dyn UsedMap>> {
        match (&self.facts.state, &self.header) {
            (State::Clean, Some(header)) => {
                let start = Offset::new(header.page_bytes);
                Ok(Box::new(Map { swap: Span::between(start, Offset::new(header.area_bytes())) }))
            }
            (state, _) => Err(state.refusal()),
        }
    }
}

/// The header's page is used, and so is whatever lies behind the area.
struct Map {
    swap: VolumeSpan,
}

impl UsedMap for Map {
    fn uses(&self, span: VolumeSpan) -> Result<Vec<Extent<Volume, Use>>> {
        let before = Span::between(Offset::ZERO, self.swap.start());
        let after = Span::between(self.swap.end(), Offset::new(u64::MAX));
        let parts = [(before, Use::Used), (self.swap, Use::Swap), (after, Use::Used)];
        let within = parts.into_iter().filter_map(|(part, state)| Some((part.intersect(&span)?, state)));
        Ok(within.map(|(part, state)| Extent::new(part, state)).collect())
    }
}
