//! The one suite that every disk must pass.

use std::sync::Arc;

use block::{Disk, HostFile, RunState};
use extent::{Offset, Span, Virtual, VirtualOffset, VirtualSpan};

/// Checks a disk against its own contents `expected` (from an oracle), its contract, and its host files:
/// - `map` covers exactly what was asked, for whole, small, unaligned and empty spans, and agrees with itself;
/// - holes and zeros read as zeros; data reads as its host file has it at the place told;
/// - reads of any size and alignment give `expected`, from several threads at once;
/// - a read or map past the end is an error.
pub fn check_disk(disk: &dyn Disk, files: &[Arc<dyn HostFile>], expected: &[u8]) {
    let len_bytes = disk.len_bytes();
    assert_eq!(len_bytes, expected.len() as u64, "size of the virtual disk");
    let whole = Span::from_zero(len_bytes);
    check_map(disk, files, expected, whole);
    for step in [512, 4096, 65_536, 1 << 20, 3_000_017] {
        for window in whole.split(step).step_by(usize::try_from(len_bytes / step / 64 + 1).unwrap()) {
            check_map(disk, files, expected, window);
        }
    }
    check_map(disk, files, expected, Span::new(Offset::new(len_bytes / 2), 0));
    std::thread::scope(|scope| {
        for step in [1 << 20, 65_536 + 512, 262_144 - 1, 700_001] {
            scope.spawn(move || check_reads(disk, expected, step));
        }
    });
    assert!(disk.read_at(Offset::new(len_bytes), &mut [0]).is_err(), "a read past the end must fail");
    assert!(disk.map(Span::new(Offset::new(len_bytes), 1)).is_err(), "a map past the end must fail");
}

fn slice(bytes: &[u8], span: VirtualSpan) -> &[u8] {
    &bytes[index(span.start())..index(span.end())]
}

fn index(at: VirtualOffset) -> usize {
    usize::try_from(at.get()).unwrap()
}

fn check_map(disk: &dyn Disk, files: &[Arc<dyn HostFile>], expected: &[u8], window: VirtualSpan) {
    let mut at = window.start();
    for run in disk.map(window).unwrap_or_else(|error| panic!("map of {window:?}: {error}")) {
        assert_eq!(run.span.start(), at, "runs of {window:?} follow each other");
        assert!(!run.span.is_empty(), "no run of {window:?} is empty");
        at = run.span.end();
        let contents = slice(expected, run.span);
        match run.state {
            RunState::Hole | RunState::Zero => {
                assert!(contents.iter().all(|byte| *byte == 0), "{run:?} is not zeros");
            }
            RunState::Data { file, offset } => {
                let mut bytes = vec![0; contents.len()];
                files[file.0 as usize]
                    .read_at(offset, &mut bytes)
                    .unwrap_or_else(|error| panic!("{run:?}: {error}"));
                assert!(bytes == contents, "{run:?} does not lie there");
            }
            RunState::Compressed { file, offset, .. } => {
                assert!(
                    offset.get() < files[file.0 as usize].len_bytes(),
                    "{run:?} lies past its file's end"
                );
            }
        }
    }
    assert_eq!(at, window.end(), "runs cover {window:?}");
}

fn check_reads(disk: &dyn Disk, expected: &[u8], step: u64) {
    for window in Span::<Virtual>::from_zero(disk.len_bytes()).split(step) {
        let contents = slice(expected, window);
        let mut bytes = vec![0xa5; contents.len()];
        disk.read_at(window.start(), &mut bytes)
            .unwrap_or_else(|error| panic!("read of {window:?}: {error}"));
        assert!(bytes == contents, "contents of {window:?}");
    }
}
