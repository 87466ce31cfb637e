//! Copies to a stream that takes a little at a time, is interrupted, and fails at any byte: `copy` as the program runs it.
//!
//! What must hold: a copy that says it is done has sent all of the disk, in the format that was asked for; once the stream has failed, the
//! copy fails, and nothing more is sent.

use std::sync::Arc;

use block::{ErrorKind, Memory, ReadAt};
use extent::VirtualOffset;
use image::{Chain, Format, NoFiles, OpenOptions};
use leandisk::{Unwatched, copy};
use sim::{Pages, Random};

use crate::explore::{Explored, Violation};
use crate::host::SimHost;
use crate::outlet::Received;

const SOURCE: &str = "/disks/disk";
const LEN_BYTES: usize = 3 << 20;
const DATA_BYTES: usize = 4096;
const FORMATS: [Format; 3] = [Format::Raw, Format::Qcow2, Format::Vmdk];

/// Has copies of a disk that follows from a seed fail at places of their streams, and one not fail.
pub fn explore_streams(seed: u64, tries: u64) -> Result<Explored, Violation> {
    let mut random = Random::new(seed);
    let mut bytes = vec![0; LEN_BYTES];
    for block in bytes.chunks_exact_mut(DATA_BYTES) {
        if random.below(10) == 0 {
            random.next_u64().to_le_bytes().iter().cycle().zip(block).for_each(|(from, to)| *to = *from);
        }
    }
    let disk = Pages::new(&bytes);
    let format = FORMATS[usize::try_from(seed % 3).expect("an index")];
    let mut explored = Explored::default();
    let sent = one(&disk, format, seed, usize::MAX).map_err(|text| Violation { seed, text })?;
    for _ in 0..tries {
        let fails_at = usize::try_from(random.below(sent as u64)).expect("small");
        let told = |text| Violation { seed, text: format!("{format}, failing at byte {fails_at}: {text}") };
        one(&disk, format, random.next_u64(), fails_at).map_err(told)?;
        explored.states += 1;
    }
    Ok(explored)
}

/// Answers how many bytes were sent.
fn one(disk: &Pages, format: Format, seed: u64, fails_at: usize) -> Result<usize, String> {
    let received = Received::new(seed, fails_at);
    let host = SimHost::new(SOURCE, disk.clone()).with_outlet(received.clone());
    let options = copy::Options {
        source: SOURCE.into(),
        target: "-".into(),
        open: leandisk::OpenOptions { format: Some(Format::Raw), ..leandisk::OpenOptions::default() },
        target_format: Some(format),
        threads: Some(2),
        ..copy::Options::default()
    };
    let result = copy::run_on(&host, &options, &Unwatched);
    let state = received.state();
    match result {
        _ if state.went_on => Err("it goes on after a failure".into()),
        Ok(_) if state.has_failed => Err("it says that it is done".into()),
        Ok(_) if is_copy(&state.bytes, format, disk) => Ok(state.bytes.len()),
        Ok(_) => Err("what was sent is no copy".into()),
        Err(error) if !state.has_failed => Err(format!("it fails by itself: {error:?}")),
        Err(error) if error.kind() != ErrorKind::Io => Err(format!("the error is {error:?}")),
        Err(_) => Ok(state.bytes.len()),
    }
}

fn is_copy(sent: &[u8], format: Format, disk: &Pages) -> bool {
    let read = || -> block::Result<Vec<u8>> {
        let file = Arc::new(Memory::new(sent.to_vec()));
        let chain = Chain::open(file, OpenOptions { format: Some(format) }, &NoFiles)?;
        let mut bytes = vec![0; usize::try_from(chain.len_bytes()).expect("small")];
        chain.read_at(VirtualOffset::ZERO, &mut bytes)?;
        Ok(bytes)
    };
    read().is_ok_and(|bytes| Pages::new(&bytes) == *disk)
}
