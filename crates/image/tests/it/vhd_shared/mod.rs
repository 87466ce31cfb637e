//! What the tests of VHD and VHDX share.

#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use std::path::Path;
use std::sync::Arc;

use block::{Error, HostFile, ReadAt};
use extent::{ExtentSet, Host, Offset, Span};
use image::{
    AnyWriter, Chain, CreateOptions, Format, OpenOptions, Piece, PieceBytes, TargetWrite, WriteBytes, create,
};
use testkit::{TestFile, TestResolver, run};

pub fn options(virtual_bytes: u64, keys: &[(&str, &str)]) -> CreateOptions {
    CreateOptions {
        virtual_bytes,
        sector_bytes: 512,
        compress: false,
        keys: keys.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
        identity_seed: 0x1122_3344_5566_7788_99aa_bbcc_ddee_ff00,
        created_unix_seconds: 1_700_000_000,
        file_name: "disk".into(),
        target_is_dirty: false,
    }
}

/// Contents with data and zeros in pieces of many sizes, aligned and not.
pub fn contents(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut state = 0x9e37_79b9_u32;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as usize % below
    };
    let mut at = 0;
    while at < len {
        at += [512, 4096, 100_000, 1 << 20, 5 << 20][next(5)];
        let end = (at + [1, 512, 4096, 70_000, 3 << 20][next(5)]).min(len);
        let value = next(255) + 1;
        for (index, byte) in bytes.iter_mut().enumerate().take(end).skip(at) {
            *byte = u8::try_from((index / 512 + value) % 251 + 1).unwrap();
        }
        at = end;
    }
    if let Some(last) = bytes.last_mut() {
        *last = 0x77;
    }
    bytes
}

pub fn open(path: &Path) -> Result<Chain, Error> {
    Chain::open(TestFile::open(path), OpenOptions::default(), &TestResolver::default())
}

pub fn open_as(file: Arc<dyn HostFile>, format: Format) -> Result<Chain, Error> {
    Chain::open(file, OpenOptions { format: Some(format) }, &TestResolver::default())
}

/// Opens, maps and reads all that a small disk has, and the ends of a large one.
pub fn open_and_read(file: Arc<dyn HostFile>, format: Format) -> Result<(), Error> {
    use block::Disk;
    let chain = open_as(file, format)?;
    let len = chain.len_bytes();
    for window in
        [Span::from_zero(len.min(64 << 20)), Span::new(Offset::new(len.saturating_sub(4096)), len.min(4096))]
    {
        for run in chain.map(window)? {
            let mut bytes = vec![0; usize::try_from(run.span.len_bytes().min(1 << 20)).unwrap()];
            chain.read_at(run.span.start(), &mut bytes)?;
        }
    }
    Ok(())
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What the oracle reads.
pub fn qemu_raw(path: &Path, format: &str) -> Vec<u8> {
    let raw = path.with_extension("oracle");
    run("qemu-img", &["convert", "-f", format, "-O", "raw", text(path), text(&raw)]);
    let bytes = std::fs::read(&raw).unwrap();
    std::fs::remove_file(raw).unwrap();
    bytes
}

pub fn qemu_info(path: &Path, format: &str) -> serde_json::Value {
    let out = run("qemu-img", &["info", "-f", format, "--output=json", text(path)]);
    serde_json::from_str(&out).unwrap()
}

pub fn check_reads_as(path: &Path, expected: &[u8]) {
    let chain = open(path).unwrap();
    testkit::check_disk(&chain, chain.files(), expected);
}

/// Writes the image in small chunks with the writer stored and restored between any two calls, and checks
/// that puts leave no hole and that no reserving comes after a write to the same place.
pub fn write_with_restarts(format: Format, options: CreateOptions, contents: &[u8], path: &Path) {
    const CHUNK: usize = 1 << 20;
    let mut file = vec![];
    let mut touched = Vec::new();
    let mut written = ExtentSet::<Host>::new();
    let mut apply = |chunk: &[u8], puts: Vec<TargetWrite>, is_place: bool| {
        for put in puts {
            let at = usize::try_from(put.at.get()).unwrap();
            let (len, bytes) = match put.bytes {
                WriteBytes::Chunk(range) => (range.len(), Some(chunk[range].to_vec())),
                WriteBytes::Owned(bytes) => (bytes.len(), Some(bytes)),
                WriteBytes::Reserve(len) | WriteBytes::Zero(len) => (usize::try_from(len).unwrap(), None),
            };
            let span = Span::new(put.at, len as u64);
            touched.push(span);
            if file.len() < at + len {
                file.resize(at + len, 0);
            }
            match bytes {
                Some(bytes) => {
                    file[at..at + len].copy_from_slice(&bytes);
                    if is_place {
                        written = written.union(&[span].into_iter().collect());
                    }
                }
                None => {
                    assert!(written.within(span).next().is_none(), "{span:?} reserved after it was written");
                }
            }
        }
    };
    let mut writer = create(format, options).unwrap();
    apply(&[], writer.start().unwrap(), true);
    let granule = usize::try_from(writer.granularity_bytes()).unwrap();
    for (index, bytes) in contents.chunks(CHUNK).enumerate() {
        let stored = serde_json::to_string(&writer).unwrap();
        writer = serde_json::from_str::<AnyWriter>(&stored).unwrap();
        let mut chunk = bytes.to_vec();
        chunk.resize(bytes.len().next_multiple_of(granule), 0);
        let at = Offset::new((index * CHUNK) as u64);
        let mut pieces = Vec::<Piece>::new();
        for start in (0..chunk.len()).step_by(granule) {
            if chunk[start..start + granule].iter().any(|byte| *byte != 0) {
                let bytes = PieceBytes::Plain(start..start + granule);
                pieces.push(Piece { at: at.plus(start as u64), len_bytes: granule as u64, bytes });
            }
        }
        if !pieces.is_empty() {
            apply(&chunk, writer.place(at, pieces).unwrap(), true);
        }
    }
    let finish = writer.finish().unwrap();
    apply(&[], finish.tables, false);
    apply(&[], finish.headers, false);
    let touched: ExtentSet<Host> = touched.into_iter().collect();
    assert_eq!(
        touched.iter().collect::<Vec<_>>(),
        [Span::from_zero(finish.len_bytes)],
        "no byte of the file is left for the host to keep as a hole"
    );
    std::fs::write(path, file).unwrap();
}

/// Prints the contents of the disk, with its parents from the same folder.
const READ_BY_LIBVHDI: &str = r#"
import os, sys, pyvhdi
def opened(path):
    disk = pyvhdi.file()
    disk.open(path)
    parent = disk.get_parent_filename()
    if not parent:
        return disk, []
    parent, kept = opened(os.path.join(os.path.dirname(path), parent.replace("\\", "/").split("/")[-1]))
    disk.set_parent(parent)
    return disk, kept + [parent]
disk, kept = opened(sys.argv[1])
left = disk.get_media_size()
while left > 0:
    data = disk.read_buffer(min(left, 1 << 20))
    sys.stdout.buffer.write(data)
    left -= len(data)
"#;

/// libvhdi reads the same. It has a module for the distribution's Python, not for another one.
pub fn libvhdi_reads(path: &Path, expected: &[u8]) {
    let output = std::process::Command::new("/usr/bin/python3")
        .args(["-c", READ_BY_LIBVHDI, text(path)])
        .output()
        .expect("`make test` installs what the tests need");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout == expected, "libvhdi reads the same");
}
