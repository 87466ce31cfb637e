//! Disks that are filled while guests use them, killed and cut off from power: `make crash` is the long run.

use crash::{FILL_FORMATS, explore_fill, explore_killed_flush};
use engine::Mutant;
use sim::FileMarks;

#[test]
fn a_disk_that_is_filled_keeps_what_guests_flushed_and_is_the_source_otherwise() {
    for format in FILL_FORMATS {
        for marks in [FileMarks::Marks, FileMarks::Numbers] {
            let filled = explore_fill(format, 1, 60, marks, &|act| act())
                .unwrap_or_else(|violation| panic!("{format} {marks:?}: {violation}"));
            println!("{format} {marks:?}: {filled:?}");
            assert!(filled.deaths > 40 && filled.resumed > 10, "{filled:?}");
        }
    }
}

#[test]
fn each_mutant_is_found() {
    for mutant in [Mutant::FillOverGuestWrite, Mutant::MarkFilledTooSoon] {
        let broken = move |act: &mut dyn FnMut()| mutants::with(Some(mutant), act);
        for format in FILL_FORMATS {
            let found = (0..50)
                .find_map(|seed| explore_fill(format, seed * 100, 40, FileMarks::Marks, &broken).err());
            println!("{format} {mutant:?}: {found:?}");
            assert!(found.is_some(), "{format} {mutant:?}");
        }
    }
}

#[test]
fn what_a_killed_flush_left_in_the_hosts_cache_is_flushed_before_it_is_relied_on() {
    for format in FILL_FORMATS {
        let changes = explore_killed_flush(format, &|act| act());
        assert!(changes.as_ref().is_ok_and(|changes| *changes > 2), "{format}: {changes:?}");
        let broken = |act: &mut dyn FnMut()| mutants::with(Some(Mutant::FoundRecordNotFlushed), act);
        assert!(explore_killed_flush(format, &broken).is_err(), "{format}");
    }
}
