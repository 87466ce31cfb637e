//! An export as a file of the host: read by position from any thread, with its holes.

use std::path::Path;
use std::sync::Mutex;

use block::{HostFile, HostState, ReadAt, Result, check_bounds};
use extent::{Extent, Host, HostOffset, HostSpan, Offset, Span};
use mutants::broken;

use crate::allocation::{Told, ZEROS, asked_bytes};
use crate::connection::BATCH_BYTES_MAX;
use crate::handshake::{Facts, Wanted};
use crate::lanes::{Dial, Lanes, Patience};
use crate::layout::allocation;
use crate::lock;
use crate::reply::Failure;

/// The most questions about allocation that counting what an export occupies takes.
const COUNTING_QUESTIONS_MAX: usize = 100_000;

/// An export, read.
pub struct RemoteDisk {
    lanes: Lanes,
    told: Mutex<Told>,
    /// [`ZEROS`], but for a mutant.
    zeros: u64,
    /// Whether a reply that breaks off is one: only of a mutant.
    takes_broken: bool,
}

impl RemoteDisk {
    /// Connects to an export. `name` is what messages call it, and what it was named by.
    pub fn connect(
        name: impl Into<String>,
        dial: Box<dyn Dial>,
        wanted: Wanted,
        patience: Patience,
    ) -> Result<Self> {
        let lanes = Lanes::connect(name.into(), dial, wanted, patience)?;
        // Asked here: a mutant is one on its own thread alone.
        let zeros = if broken!(HoleTakenForZeros) { ZEROS | u64::from(allocation::HOLE) } else { ZEROS };
        Ok(Self { lanes, told: Mutex::default(), zeros, takes_broken: broken!(BrokenReplyTaken) })
    }

    /// What the server says of the export.
    pub fn facts(&self) -> &Facts {
        self.lanes.facts()
    }

    pub(crate) fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// The extent that holds `at`, from wherever it is known to begin; `at` lies before the end.
    fn extent_at(&self, at: HostOffset) -> Result<Extent<Host, HostState>> {
        self.extent_told_by(at, |id, start, asked| {
            self.lanes.run(|connection| connection.allocation(id, start, asked))
        })
    }

    /// The same, as `ask` has the server tell it: of the context with this number, from here, so many bytes.
    pub(crate) fn extent_told_by(
        &self,
        at: HostOffset,
        ask: impl Fn(u32, u64, u64) -> Result<Vec<(u64, u64)>>,
    ) -> Result<Extent<Host, HostState>> {
        let whole = Span::between(at, Offset::new(self.len_bytes()));
        let Facts { allocation_id: Some(id), minimum_bytes, .. } = *self.facts() else {
            return Ok(Extent::new(whole, HostState::Data));
        };
        let mut told = lock(&self.told);
        if let Some(extent) = told.at(at) {
            return Ok(extent);
        }
        let start = at.get() / u64::from(minimum_bytes) * u64::from(minimum_bytes);
        let found = ask(id, start, asked_bytes(self.facts(), self.len_bytes() - start))?;
        *told = Told::new(start, &found, self.len_bytes(), self.zeros);
        // A server whose blocks are larger than what it tells of is not helped.
        Ok(told.at(at).unwrap_or(Extent::new(whole, HostState::Data)))
    }

    /// Reads what suits the server's blocks, or lies at the end of an export that does not.
    fn read_aligned(&self, start: u64, buf: &mut [u8]) -> Result<()> {
        let mut offset = start;
        for part in buf.chunks_mut(BATCH_BYTES_MAX) {
            self.lanes.run_at(offset, |connection| match connection.read(offset, part) {
                Err(Failure::Lost(_)) if self.takes_broken => Ok(()),
                read => read,
            })?;
            offset += part.len() as u64;
        }
        Ok(())
    }
}

impl ReadAt<Host> for RemoteDisk {
    fn len_bytes(&self) -> u64 {
        self.facts().len_bytes
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes()).map_err(|error| error.path(self.name()))?;
        let unit = u64::from(self.facts().minimum_bytes);
        let (start, end) = (at.get(), at.get() + buf.len() as u64);
        let aligned = (start / unit * unit, end.next_multiple_of(unit).min(self.len_bytes()));
        if aligned == (start, end) {
            return self.read_aligned(start, buf);
        }
        // Small as a rule: what is long is aligned by those who read.
        let index = |at: u64| usize::try_from(at - aligned.0).expect("within a buffer");
        let mut whole = vec![0; index(aligned.1)];
        self.read_aligned(aligned.0, &mut whole)?;
        buf.copy_from_slice(&whole[index(start)..index(end)]);
        Ok(())
    }
}

impl HostFile for RemoteDisk {
    fn name(&self) -> &str {
        self.lanes.name()
    }

    fn path(&self) -> &Path {
        Path::new(self.lanes.name())
    }

    /// What the server does not call zeros. A server with very many extents is not asked to the end: the rest counts as allocated.
    fn allocated_bytes(&self) -> Result<u64> {
        let (mut at, end, mut allocated_bytes) = (Offset::ZERO, self.len_bytes(), 0);
        for _ in 0..COUNTING_QUESTIONS_MAX {
            if at.get() >= end {
                return Ok(allocated_bytes);
            }
            let extent = self.extent_at(at)?;
            if extent.state == HostState::Data {
                allocated_bytes += extent.span.end().get() - at.get();
            }
            at = extent.span.end();
        }
        Ok(allocated_bytes + (end - at.get()))
    }

    fn host_map(&self, span: HostSpan) -> Result<Vec<Extent<Host, HostState>>> {
        check_bounds(span.start(), 0, self.len_bytes())?;
        let mut extents: Vec<Extent<Host, HostState>> = Vec::new();
        let mut at = span.start();
        while at < span.end() {
            let found = self.extent_at(at)?;
            let end = found.span.end().min(span.end());
            match extents.last_mut() {
                Some(last) if last.state == found.state => last.span = Span::between(last.span.start(), end),
                _ => extents.push(Extent::new(Span::between(at, end), found.state)),
            }
            at = end;
        }
        Ok(extents)
    }
}
