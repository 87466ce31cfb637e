//! Swap partitions made by mkswap.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use crate::support::{source, spans, text};
use block::{Error, ErrorKind, Memory, ReadAt};
use extent::{Span, Volume};
use filesystem::{Check, FileSystem, Source, Use, swap};
use testkit::{check_hostile, run, scratch};

const LEN_BYTES: u64 = 4 << 20;

fn mkswap(path: &Path, len_bytes: u64, args: &[&str]) {
    File::create(path).unwrap().set_len(len_bytes).unwrap();
    let mut all = args.to_vec();
    all.push(text(path));
    run("mkswap", &all);
}

fn open(path: &Path) -> Box<dyn FileSystem> {
    swap::open(&source(path)).unwrap().expect("a swap signature")
}

#[test]
fn all_but_the_header_is_swap() {
    let dir = scratch();
    let path = dir.path().join("swap");
    for page in ["4096", "8192", "16384", "32768", "65536"] {
        let uuid = "01234567-89ab-cdef-0123-456789abcdef";
        mkswap(&path, LEN_BYTES + 512, &["-p", page, "-L", "s\u{fc}", "-U", uuid]);
        let page_bytes: u64 = page.parse().unwrap();
        let filesystem = open(&path);
        let facts = filesystem.facts();
        assert_eq!(facts.filesystem, "swap");
        assert_eq!((facts.label.as_deref(), facts.uuid.as_deref()), (Some("s\u{fc}"), Some(uuid)));
        assert_eq!((facts.size_bytes, facts.cluster_bytes), (LEN_BYTES, Some(page_bytes)));
        let found = spans(&*filesystem, Check::Full, LEN_BYTES + 512, Use::Swap);
        let expected = Span::between(extent::Offset::new(page_bytes), extent::Offset::new(LEN_BYTES));
        assert!(found.iter().eq([expected]), "{found:?}");
    }
}

#[test]
fn the_other_byte_order_is_read_too() {
    let dir = scratch();
    let path = dir.path().join("swap");
    mkswap(&path, LEN_BYTES, &[]);
    let mut bytes = fs::read(&path).unwrap();
    for at in [1024, 1028, 1032] {
        bytes[at..at + 4].reverse();
    }
    fs::write(&path, bytes).unwrap();
    assert_eq!(open(&path).facts().size_bytes, LEN_BYTES);
}

#[test]
fn what_is_odd_is_doubted() {
    let dir = scratch();
    let path = dir.path().join("swap");
    mkswap(&path, LEN_BYTES, &[]);
    let good = fs::read(&path).unwrap();
    let cases: &[(usize, &[u8], &str, &str)] = &[
        (4086, b"S1SUSPEND\0", "hibernated", "S1SUSPEND"),
        (4086, b"S2SUSPEND\0", "hibernated", "S2SUSPEND"),
        (4086, b"ULSUSPEND\0", "hibernated", "ULSUSPEND"),
        (4086, b"LINHIB0001", "hibernated", "LINHIB0001"),
        (4086, b"\xed\xc3\x02\xe9\x98\x56\xe5\x0c\0\0", "hibernated", "TuxOnIce"),
        (0, b"\xed\xc3\x02\xe9\x98\x56\xe5\x0c", "hibernated", "TuxOnIce"),
        (4086, b"SWAP-SPACE", "unsupported", "Linux 2.2"),
        (65526, b"SWAPSPACE2", "inconsistent", "more than one page size"),
        (1024, &[2], "inconsistent", "version"),
        (1028, &[0, 4], "inconsistent", "last_page is 1024"),
        (1028, &[0, 0], "inconsistent", "last_page is 0"),
        (1032, &[0xff; 4], "inconsistent", "nr_badpages"),
        (1032, &[1], "inconsistent", "bad page is 0"),
        (512, b"LABELONE", "inconsistent", "something else"),
    ];
    for (at, bytes, word, reason) in cases {
        let mut changed = good.clone();
        changed[*at..at + bytes.len()].copy_from_slice(bytes);
        fs::write(&path, changed).unwrap();
        let filesystem = open(&path);
        let state = &filesystem.facts().state;
        assert_eq!(state.word(), *word, "{reason}: {state:?}");
        assert!(state.doubt().unwrap().contains(reason), "{reason}: {state:?}");
        assert!(filesystem.used_map(Check::Full).is_err());
    }
    let mut changed = good;
    changed[4086..4096].fill(0);
    fs::write(&path, changed).unwrap();
    assert!(swap::open(&source(&path)).unwrap().is_none());
}

#[test]
fn bad_input_is_answered_soon() {
    let dir = scratch();
    let path = dir.path().join("swap");
    mkswap(&path, 256 << 10, &[]);
    check_hostile(&fs::read(&path).unwrap(), 4096, |file| {
        let mut bytes = vec![0; usize::try_from(file.len_bytes()).unwrap()];
        file.read_at(extent::Offset::new(0), &mut bytes)?;
        let source: Source = Arc::new(Memory::new(bytes));
        let Some(filesystem) = swap::open(&source)? else {
            return Ok(());
        };
        let len_bytes = ReadAt::<Volume>::len_bytes(&*source);
        let map = filesystem.used_map(Check::Full)?;
        let total: u64 = map.uses(Span::from_zero(len_bytes))?.iter().map(|part| part.span.len_bytes()).sum();
        match total == len_bytes {
            true => Ok(()),
            false => Err(Error::invalid(format!("{:?}: parts do not cover the volume", ErrorKind::Invalid))),
        }
    });
}
