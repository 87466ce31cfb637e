//! The headers of a VHDX through power cuts: at every moment one of them is valid.

use image::NoFiles;
use sim::SimDisk;

use super::*;

fn open_sim(disk: &Arc<SimDisk>) -> Result<Edit> {
    let options = OpenOptions { format: Some(Format::Vhdx) };
    let chain = Chain::open(disk.clone(), options, &NoFiles)?;
    Edit::open(&chain, &NoFiles, &mut |_| Ok(disk.clone() as Arc<dyn EditTarget>))
}

/// Sequence number and data write GUID of each header.
fn headers(bytes: &[u8]) -> [(u64, Vec<u8>); 2] {
    [64 << 10, 128 << 10].map(|at: usize| {
        let sequence = u64::from_le_bytes(bytes[at + 8..at + 16].try_into().unwrap());
        (sequence, bytes[at + 32..at + 48].to_vec())
    })
}

/// A small disk as QEMU makes it, its block in place.
fn image() -> (Vec<u8>, Vec<u8>) {
    let dir = scratch();
    let path = dir.path().join("disk.vhdx");
    run(
        "qemu-img",
        &["create", "-q", "-f", "vhdx", "-o", "subformat=dynamic,block_size=1M", text(&path), "2M"],
    );
    run("qemu-io", &["-t", "unsafe", "-f", "vhdx", "-c", "write -P 5 0 1M", text(&path)]);
    (fs::read(&path).unwrap(), by_qemu(&path, "vhdx"))
}

#[test]
fn both_headers_tell_of_the_change_once_it_may_begin() {
    let _alone = alone();
    let (bytes, _) = image();
    let before = headers(&bytes);
    let current = before[0].0.max(before[1].0);
    let disk = Arc::new(SimDisk::with_contents(1, bytes));
    let edit = open_sim(&disk).unwrap();
    edit.begin(SEED).unwrap();
    let after = headers(&disk.to_vec());
    let mut sequences = [after[0].0, after[1].0];
    sequences.sort_unstable();
    assert_eq!(sequences, [current + 1, current + 2]);
    let counted = usize::from(before[1].0 >= before[0].0);
    assert_eq!(after[1 - counted].0, current + 1, "the one that counted is written last");
    assert!(after[0].1 == after[1].1 && !before.iter().any(|(_, id)| *id == after[0].1));
    edit.begin(SEED + 99).unwrap();
    assert!(headers(&disk.to_vec())[0].1 != after[0].1);
}

#[test]
fn a_power_cut_at_any_moment_leaves_a_disk_that_opens() {
    let _alone = alone();
    let (bytes, contents) = image();
    let dir = scratch();
    let run_to_end = Arc::new(SimDisk::with_contents(2, bytes.clone()));
    let edit = open_sim(&run_to_end).unwrap();
    let first = run_to_end.counters().operations + 1;
    edit.begin(SEED).unwrap();
    edit.write_at(Offset::ZERO, &[8; 4096]).unwrap();
    let last = run_to_end.counters().operations;
    let mut new_ids = 0;
    for operation in first..=last + 1 {
        for seed in 0..12 {
            let disk = Arc::new(SimDisk::with_contents(3, bytes.clone()));
            let edit = open_sim(&disk).unwrap();
            disk.die_at_operation(operation);
            let began = edit.begin(SEED);
            let wrote = began.is_ok() && edit.write_at(Offset::ZERO, &[8; 4096]).is_ok();
            let left = disk.cut(seed).to_vec();
            let options = OpenOptions { format: Some(Format::Vhdx) };
            let file: Arc<dyn HostFile> = Arc::new(block::Memory::new(left.clone()));
            let chain = Chain::open(file, options, &NoFiles)
                .unwrap_or_else(|error| panic!("cut at {operation}, seed {seed}: {error}"));
            let mut found = vec![0; contents.len()];
            chain.read_at(Offset::ZERO, &mut found).unwrap();
            assert!(found[4096..] == contents[4096..]);
            if !wrote {
                assert!(found == contents);
            }
            let has_new_id = !headers(&bytes).iter().any(|(_, old)| chain.facts().id == Some(uuid_of(old)));
            assert!(has_new_id || found == contents, "contents never change before the identity");
            new_ids += u32::from(has_new_id);
            // What the cut left is changed by a second attempt, and then QEMU opens it as well.
            let again = Arc::new(SimDisk::with_contents(4, left));
            let edit = open_sim(&again).unwrap();
            edit.begin(SEED + 7).unwrap();
            if seed == 0 {
                let path = dir.path().join("again.vhdx");
                fs::write(&path, again.to_vec()).unwrap();
                run("qemu-img", &["check", "-f", "vhdx", text(&path)]);
                assert!(by_qemu(&path, "vhdx")[4096..] == contents[4096..]);
            }
        }
    }
    assert!(new_ids > 12, "cuts before and after the first header");
}

fn uuid_of(bytes: &[u8]) -> String {
    let b = bytes;
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let turned = |range: std::ops::Range<usize>| hex(&b[range].iter().rev().copied().collect::<Vec<_>>());
    format!("{}-{}-{}-{}-{}", turned(0..4), turned(4..6), turned(6..8), hex(&b[8..10]), hex(&b[10..16]))
}
