//! Maps of an open disk, layer by layer: what the guest uses, where the image holds it, where the host does.

use std::ffi::{c_int, c_void};

use block::{Disk as _, Result, RunState};
use extent::{Span, VirtualSpan};
use filesystem::Check;
use plan::Role;
use stack::{Layers, Stack};

use crate::disk::{DiskHandle, with_disk};
use crate::each::Each;
use crate::error::ErrorHandle;
use crate::options::choice;

/// The disk is mapped in windows of this size, so that those of a badly fragmented one fit in memory.
const WINDOW_BYTES: u64 = 256 << 20;

/// A layer of an open disk.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    /// What the guest uses, by volumes' maps that were checked in full. Extents cover the disk, and have a use and a volume.
    Guest = 0,
    /// Where the image's files hold it. Extents cover the disk, and have a state; of data, a file and a place in it.
    Image = 1,
    /// Where it lies on the host's devices: one behind the other if there are several. Where the host does not tell, places are
    /// those in the image's files. Holes have no extents.
    Host = 2,
}

/// What is at an extent, in the image and on the host.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentState {
    /// This layer does not tell.
    Untold = 0,
    /// Not allocated: reads as zeros.
    Hole = 1,
    /// Marked as zeros.
    Zero = 2,
    /// Bytes as they are.
    Data = 3,
    /// Bytes in another form: place and stored_bytes are those of all of the compressed unit.
    Compressed = 4,
}

/// What an extent is to the guest.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentUse {
    /// This layer does not tell.
    Untold = 0,
    /// In no volume: tables, boot code, gaps.
    Outside = 1,
    /// In a volume whose use is not known, or not relied on.
    Whole = 2,
    /// Used.
    Used = 3,
    /// Free: its contents mean nothing.
    Free = 4,
    /// Contents of a page file or of swap space.
    Swap = 5,
    /// A log that was emptied: one byte throughout.
    EmptyLog = 6,
}

/// A part of the virtual disk. A later version may have more fields at its end.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Where it begins on the virtual disk.
    pub start_bytes: u64,
    /// How long it is.
    pub len_bytes: u64,
    /// Where it begins in the file, or on the device.
    pub place_bytes: u64,
    /// How many bytes it takes there.
    pub stored_bytes: u64,
    /// LEANDISK_EXTENT_STATE_...
    pub state: u32,
    /// LEANDISK_EXTENT_USE_...
    pub usage: u32,
    /// The volume, counted from 1; 0 for none.
    pub volume: u32,
    /// The image's file, counted from 0 in the order of images[].files[] in leandisk.info/1.
    pub file: u32,
}

impl Extent {
    fn of(span: VirtualSpan) -> Self {
        Self {
            start_bytes: span.start().get(),
            len_bytes: span.len_bytes(),
            place_bytes: 0,
            stored_bytes: 0,
            state: ExtentState::Untold as u32,
            usage: ExtentUse::Untold as u32,
            volume: 0,
            file: 0,
        }
    }

    fn used(span: VirtualSpan, role: Role) -> Self {
        let (usage, volume) = match role {
            Role::Outside => (ExtentUse::Outside, None),
            Role::Whole(volume) => (ExtentUse::Whole, Some(volume)),
            Role::Used(volume) => (ExtentUse::Used, Some(volume)),
            Role::Free(volume) => (ExtentUse::Free, Some(volume)),
            Role::Swap(volume) => (ExtentUse::Swap, Some(volume)),
            Role::EmptyLog(volume, _) => (ExtentUse::EmptyLog, Some(volume)),
        };
        let number = volume.map_or(0, |volume| u32::try_from(volume.0 + 1).unwrap_or(u32::MAX));
        Self { usage: usage as u32, volume: number, ..Self::of(span) }
    }

    fn stored(span: VirtualSpan, state: RunState) -> Self {
        let extent = Self::of(span);
        match state {
            RunState::Hole => Self { state: ExtentState::Hole as u32, ..extent },
            RunState::Zero => Self { state: ExtentState::Zero as u32, ..extent },
            RunState::Data { file, offset } => Self {
                state: ExtentState::Data as u32,
                file: file.0,
                place_bytes: offset.get(),
                stored_bytes: span.len_bytes(),
                ..extent
            },
            RunState::Compressed { file, offset, len_bytes } => Self {
                state: ExtentState::Compressed as u32,
                file: file.0,
                place_bytes: offset.get(),
                stored_bytes: len_bytes,
                ..extent
            },
        }
    }
}

/// Calls `each` with the extents of a layer (LEANDISK_LAYER_...), in order of the virtual disk. An answer other than 0 ends that, with
/// LEANDISK_KIND_INTERRUPTED. No data is read.
///
/// # Safety
/// The pointers are null or lead to what the header says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leandisk_disk_map(
    disk: *const DiskHandle,
    layer: u32,
    each: Option<unsafe extern "C" fn(context: *mut c_void, extent: *const Extent) -> c_int>,
    context: *mut c_void,
) -> *mut ErrorHandle {
    with_disk(disk, |disk| {
        // SAFETY: as the caller promises.
        let each = unsafe { Each::new(each, context) }?;
        match choice(layer, &[Layer::Guest, Layer::Image, Layer::Host], "layer")? {
            Layer::Guest => show_uses(disk.stack(), &each),
            Layer::Image => show_runs(disk.stack(), &each),
            Layer::Host => show_places(disk.stack(), &each),
        }
    })
}

fn windows(stack: &Stack) -> impl Iterator<Item = VirtualSpan> + use<> {
    use block::ReadAt as _;
    Span::from_zero(stack.chain().len_bytes()).split(WINDOW_BYTES)
}

/// Facts are cut where the image changes, too, which is not asked for here: neighbours of one role are joined.
fn show_uses(stack: &Stack, each: &Each<Extent>) -> Result<()> {
    let maps = stack.used_maps(Check::Full)?;
    let mut last: Option<(VirtualSpan, Role)> = None;
    for window in windows(stack) {
        for fact in stack.facts(&maps, window)? {
            match &mut last {
                Some((span, role)) if *role == fact.role => {
                    *span = Span::between(span.start(), fact.span.end());
                }
                _ => {
                    let ended = last.replace((fact.span, fact.role));
                    ended.map_or(Ok(()), |(span, role)| each.show(&Extent::used(span, role)))?;
                }
            }
        }
    }
    last.map_or(Ok(()), |(span, role)| each.show(&Extent::used(span, role)))
}

fn show_runs(stack: &Stack, each: &Each<Extent>) -> Result<()> {
    for window in windows(stack) {
        for run in stack.chain().map(window)? {
            each.show(&Extent::stored(run.span, run.state))?;
        }
    }
    Ok(())
}

fn show_places(stack: &Stack, each: &Each<Extent>) -> Result<()> {
    let layers = Layers::of(stack.chain())?;
    for window in windows(stack) {
        let mut shown = Ok(());
        layers.each_place(window, |place| {
            if shown.is_ok() {
                let is_plain = place.stored_bytes == place.span.len_bytes();
                let state = if is_plain { ExtentState::Data } else { ExtentState::Compressed };
                shown = each.show(&Extent {
                    state: state as u32,
                    place_bytes: place.address,
                    stored_bytes: place.stored_bytes,
                    ..Extent::of(place.span)
                });
            }
        });
        shown?;
    }
    Ok(())
}
