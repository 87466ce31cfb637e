//! What tells one copy from another: whether a later one may go on with what it left, and whether its source stayed as it was.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use block::{Fingerprint, HostFile, Result};
use claims::Seen;
use image::{Chain, Format};
use mutants::broken;
use plan::CopyPlan;

use super::Options;
use crate::Observer;

/// Times of files are as coarse as this, but on FAT: the kernel counts ticks of a hundredth of a second or less.
const FILE_TIME_STEP: Duration = Duration::from_millis(20);
/// The same on FAT, and wherever a time is in whole seconds.
const COARSE_FILE_TIME_STEP: Duration = Duration::from_secs(2);

/// All that tells that one of the source's files is another one or was written: its numbers, length, and times, of which that of
/// the last change of anything cannot be put back. `None` if one of them is no file: a block device has no such times.
///
/// Waits until a change that comes after this would have another time than the last one.
pub(super) fn source_state(source: &Chain) -> Result<Option<String>> {
    let mut state = String::new();
    if broken!(SourceNotInIdentity) {
        return Ok(Some(state));
    }
    for file in source.files() {
        let Some(found) = file.fingerprint()?.filter(|_| !file.is_block_device()) else { return Ok(None) };
        std::thread::sleep(young_for(found));
        state.push_str(&format!("{:?} {:?}; ", file.path(), file.fingerprint()?));
    }
    Ok(Some(state))
}

/// How long a change of the file could still get the time that the last one has.
fn young_for(found: Fingerprint) -> Duration {
    const SECOND_NS: i128 = 1_000_000_000;
    let step = if found.changed_ns % SECOND_NS == 0 { COARSE_FILE_TIME_STEP } else { FILE_TIME_STEP };
    let changed = UNIX_EPOCH + Duration::from_nanos(u64::try_from(found.changed_ns).unwrap_or(0));
    let age = SystemTime::now().duration_since(changed).unwrap_or_default();
    step.saturating_sub(age)
}

/// What is read of the source, and all that shapes the target: the program's version as well, since another one may lay it out
/// otherwise.
pub(super) fn how(options: &Options, plan: &CopyPlan, format: Format) -> String {
    if broken!(OptionsNotInIdentity) {
        return String::new();
    }
    let reads = verify::window_hash(
        format!("{:?} {:?} {:?}", plan.reads, plan.fills, plan.clone_block_bytes).as_bytes(),
    )
    .unwrap_or(0);
    let Options { target_option, compress, verify, layout, provision, .. } = options;
    let version = env!("CARGO_PKG_VERSION");
    format!("{version} {reads:x} {format} {target_option:?} {compress} {verify} {layout:?} {provision:?}")
}

/// With `--in-use` it is known that the source changes.
pub(super) fn check_unchanged(
    options: &Options,
    source: &Chain,
    before: &Seen,
    observer: &dyn Observer,
) -> Result<()> {
    match before.check_after_reading(source) {
        Err(_) if broken!(ChangeOfSourceUnnoticed) => Ok(()),
        Err(_) if options.in_use => {
            observer.note(
                "warning: the source changed while it was copied: its parts may be from different moments",
            );
            Ok(())
        }
        checked => checked,
    }
}
