//! Every rule by example, and what must hold whatever the facts.

use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// `bytes` in `requests` requests, of which `extra` are due to fragments that cost `extra_seconds`.
fn cost(seconds: f64, extra_seconds: f64) -> ReadCost {
    ReadCost {
        bytes: 10 * GIB,
        requests: 100_000,
        unfragmented_requests: 80_000,
        seconds,
        unfragmented_seconds: seconds - extra_seconds,
    }
}

/// A lean disk with few fragments on NVMe: nothing to do.
fn lean() -> AdviceFacts {
    AdviceFacts {
        volumes: vec![VolumeFacts {
            number: 1,
            filesystem: "ext4",
            doubt: None,
            is_movable: true,
            start_bytes: MIB,
            fragmented_files: 100,
            extra_fragments: 300,
            fragmented_bytes: 200 * MIB,
            free_bytes: 8 * GIB,
            free_extents: 50,
            largest_free_bytes: 6 * GIB,
            whole_cost: cost(6.0, 0.1),
            guest_cost: cost(5.95, 0.05),
        }],
        container: ContainerFacts {
            format: "qcow2",
            virtual_bytes: 40 * GIB,
            allocated_bytes: 11 * GIB,
            unit_bytes: Some(64 << 10),
            can_shrink: true,
            reclaimable_bytes: 100 * MIB,
            reclaimable_partial_bytes: 50 * MIB,
            parents: 0,
            snapshots: 0,
            children: Children::None,
        },
        host_extents: Some(40),
        profile: "nvme".into(),
        backup_block_bytes: BACKUP_BLOCK_BYTES,
    }
}

/// A third of it is waste, and it is badly fragmented, on a disk.
fn bad() -> AdviceFacts {
    let mut facts = lean();
    facts.profile = "hdd".into();
    facts.container.reclaimable_bytes = 4 * GIB;
    facts.volumes[0].whole_cost = cost(400.0, 330.0);
    facts.volumes[0].guest_cost = cost(380.0, 310.0);
    facts.volumes[0].fragmented_files = 20_000;
    facts.volumes[0].extra_fragments = 150_000;
    facts.volumes[0].fragmented_bytes = 3 * GIB;
    facts
}

fn with(facts: AdviceFacts, change: impl FnOnce(&mut AdviceFacts)) -> AdviceFacts {
    let mut facts = facts;
    change(&mut facts);
    facts
}

fn of(advice: &[Advice], action: Action) -> &Advice {
    advice.iter().find(|advice| advice.action == action).unwrap()
}

/// What is worth it, best first.
fn worthy(facts: &AdviceFacts) -> Vec<Action> {
    advise(facts).iter().filter(|advice| advice.worth_it).map(|advice| advice.action).collect()
}

#[test]
fn each_rule_decides_as_it_says() {
    use Action::{Compact, CopyPacked, Defrag, Nothing};
    type Change = fn(&mut AdviceFacts);
    let cases: Vec<(&str, AdviceFacts, Change, &[Action])> = vec![
        ("lean", lean(), |_| {}, &[Nothing]),
        ("bad", bad(), |_| {}, &[Defrag, Compact]),
        ("space alone", lean(), |f| f.container.reclaimable_bytes = 2 * GIB, &[Compact]),
        ("a share too small", lean(), |f| f.container.reclaimable_bytes = 500 * MIB, &[Nothing]),
        (
            "a share of nothing",
            lean(),
            |f| {
                f.container.allocated_bytes = 100 * MIB;
                f.container.reclaimable_bytes = 50 * MIB;
                f.container.reclaimable_partial_bytes = 0;
            },
            &[Nothing],
        ),
        (
            "space in partial units",
            lean(),
            |f| f.container.reclaimable_partial_bytes = 4 * GIB,
            &[CopyPacked],
        ),
        (
            "compact takes most",
            lean(),
            |f| {
                f.container.reclaimable_bytes = 4 * GIB;
                f.container.reclaimable_partial_bytes = 500 * MIB;
            },
            &[Compact],
        ),
        (
            "compact takes the lesser part",
            lean(),
            |f| {
                f.container.reclaimable_bytes = 2 * GIB;
                f.container.reclaimable_partial_bytes = 3 * GIB;
            },
            &[CopyPacked, Compact],
        ),
        ("fixed size", bad(), |f| f.container.can_shrink = false, &[Defrag, CopyPacked]),
        ("a linked clone", bad(), |f| f.container.parents = 2, &[Compact]),
        ("snapshots", bad(), |f| f.container.snapshots = 3, &[Nothing]),
        ("children", bad(), |f| f.container.children = Children::Some(2), &[Nothing]),
        ("children unknown", bad(), |f| f.container.children = Children::Unknown, &[Defrag, Compact]),
        ("dirty", bad(), |f| f.volumes[0].doubt = Some("not unmounted".into()), &[Compact]),
        ("no mover", bad(), |f| f.volumes[0].is_movable = false, &[Compact]),
        ("room has to be made", bad(), |f| f.volumes[0].largest_free_bytes = 4096, &[Defrag, Compact]),
        (
            "no room",
            bad(),
            |f| {
                f.volumes[0].free_bytes = 4096;
                f.volumes[0].largest_free_bytes = 4096;
            },
            &[Compact],
        ),
        (
            "not fragmented",
            bad(),
            |f| {
                f.volumes[0].extra_fragments = 0;
                f.volumes[0].fragmented_files = 0;
                f.volumes[0].fragmented_bytes = 0;
            },
            &[Compact],
        ),
        (
            "too much to move",
            bad(),
            |f| {
                f.volumes[0].whole_cost = cost(100.0, 12.0);
                f.volumes[0].guest_cost = cost(100.0, 12.0);
                f.volumes[0].fragmented_bytes = 10 * GIB;
            },
            &[Compact],
        ),
        (
            "less than a second",
            bad(),
            |f| {
                f.volumes[0].whole_cost = cost(2.0, 0.9);
                f.volumes[0].guest_cost = cost(2.0, 0.9);
            },
            &[Compact],
        ),
        (
            "scattered by the container",
            lean(),
            |f| {
                f.profile = "hdd".into();
                f.volumes[0].whole_cost = cost(300.0, 230.0);
                f.volumes[0].guest_cost = cost(80.0, 10.0);
            },
            &[CopyPacked],
        ),
        ("no volumes", lean(), |f| f.volumes.clear(), &[Nothing]),
    ];
    for (name, facts, change, expected) in cases {
        let facts = with(facts, change);
        assert_eq!(worthy(&facts), expected, "{name}: {:#?}", advise(&facts));
    }
}

#[test]
fn nothing_says_why_in_one_sentence_with_figures() {
    let advice = advise(&lean());
    assert_eq!(advice[0].action, Action::Nothing);
    assert_eq!(
        advice[0].because,
        "Too little to gain: fragments cost 100 ms of the 6.0 s that reading all files takes on nvme (1.7 %), and \
         100 MiB of 11 GiB are reclaimable."
    );
    let immovable = with(bad(), |facts| {
        facts.volumes[0].is_movable = false;
        facts.container.reclaimable_bytes = 0;
    });
    assert_eq!(
        advise(&immovable)[0].because,
        "Nothing else is worth its price, or can be done: fragments cost 6 min of the 7 min that reading all \
         files takes on hdd (82 %), and 0 B of 11 GiB are reclaimable."
    );
    let clone = with(lean(), |facts| facts.container.parents = 1);
    assert!(advise(&clone)[0].because.contains("the place to optimise is the base of this linked clone"));
}

#[test]
fn refusals_name_their_reason() {
    type Case = (fn(&mut AdviceFacts), Action, &'static str);
    let cases: [Case; 8] = [
        (|f| f.container.parents = 1, Action::Defrag, "Do not defragment; optimise the base"),
        (|f| f.container.snapshots = 1, Action::Defrag, "Do not defragment; optimise the base"),
        (|f| f.container.snapshots = 1, Action::Compact, "it holds 1 snapshot"),
        (|f| f.container.children = Children::Some(1), Action::Defrag, "1 linked clone stands on this disk"),
        (|f| f.container.children = Children::Some(3), Action::Compact, "3 linked clones stand on this disk"),
        (|f| f.container.can_shrink = false, Action::Compact, "fixed size"),
        (
            |f| f.volumes[0].doubt = Some("hibernated".into()),
            Action::Defrag,
            "volume 1 (ext4) is not to be changed: hibernated",
        ),
        (|f| f.volumes[0].is_movable = false, Action::Defrag, "cannot be moved in place"),
    ];
    for (change, action, text) in cases {
        let facts = with(bad(), change);
        let advice = advise(&facts);
        let refused = of(&advice, action);
        assert!(refused.is_refused && !refused.worth_it, "{refused:?}");
        assert!(refused.because.contains(text), "{refused:?}");
    }
}

#[test]
fn of_two_volumes_the_sound_one_is_advised_and_the_other_named() {
    let facts = with(bad(), |facts| {
        let mut other = facts.volumes[0].clone();
        other.number = 2;
        other.doubt = Some("it was not unmounted".into());
        facts.volumes.push(other);
    });
    let advice = advise(&facts);
    let defrag = of(&advice, Action::Defrag);
    assert!(defrag.worth_it);
    assert!((defrag.gain.seconds - 310.0).abs() < 1e-9, "only what volume 1 gains: {defrag:?}");
    assert_eq!(defrag.cost.moved_bytes, 3 * GIB);
    assert!(
        defrag.because.contains("Left alone: volume 2 (ext4) is not to be changed: it was not unmounted.")
    );
}

#[test]
fn remarks_come_with_the_first_advice() {
    let first = |change: fn(&mut AdviceFacts)| advise(&with(lean(), change))[0].because.clone();
    let unaligned = first(|facts| facts.volumes[0].start_bytes = 63 * 512);
    assert!(
        unaligned.contains("Volume 1 (ext4) begins at byte 32256, which is no multiple of 4096"),
        "{unaligned}"
    );
    let scattered = first(|facts| {
        facts.volumes[0].free_extents = 100_000;
        facts.volumes[0].largest_free_bytes = 2 * MIB;
    });
    assert!(scattered.contains("New files on volume 1 (ext4) will be fragmented"), "{scattered}");
    assert!(scattered.contains("100,000 extents, the largest of 2 MiB"), "{scattered}");
    let roomy = first(|facts| facts.volumes[0].free_extents = 100_000);
    assert!(!roomy.contains("will be fragmented"), "{roomy}");
    let dirty = first(|facts| facts.volumes[0].doubt = Some("it is dirty".into()));
    assert!(dirty.contains("What volume 1 (ext4) has free is not counted: it is dirty."), "{dirty}");
}

#[test]
fn costs_are_what_backups_and_thin_storage_see() {
    let facts = bad();
    let advice = advise(&facts);
    let defrag = of(&advice, Action::Defrag);
    assert_eq!(defrag.cost.moved_bytes, 3 * GIB);
    assert_eq!(defrag.cost.growth_bytes, 3 * GIB + 20_000 * (64 << 10), "a unit more for each file");
    assert_eq!(
        defrag.cost.changed_bytes,
        3 * GIB + 40_000 * BACKUP_BLOCK_BYTES,
        "two blocks more for each file"
    );
    let coarse = advise(&with(bad(), |facts| facts.backup_block_bytes = MIB));
    assert_eq!(of(&coarse, Action::Defrag).cost.changed_bytes, 40 * GIB, "at most the whole disk");
    let thick = advise(&with(bad(), |facts| facts.container.allocated_bytes = 40 * GIB));
    assert_eq!(of(&thick, Action::Defrag).cost.growth_bytes, 0);

    let compact = of(&advice, Action::Compact);
    assert_eq!(compact.gain.bytes, 4 * GIB);
    assert_eq!((compact.cost.moved_bytes, compact.cost.growth_bytes), (4 * GIB, 0));
    assert_eq!(
        compact.cost.new_to_dedup_bytes,
        4 * GIB,
        "units of 64 KiB are smaller than blocks of the store"
    );
    let large = advise(&with(bad(), |facts| facts.container.unit_bytes = Some(2 * MIB)));
    assert_eq!(of(&large, Action::Compact).cost.new_to_dedup_bytes, 0);
    let raw = advise(&with(bad(), |facts| facts.container.unit_bytes = None));
    assert_eq!(of(&raw, Action::Compact).cost, Cost::default(), "holes are made where the waste is");

    let copy = of(&advice, Action::CopyPacked);
    assert_eq!(copy.gain.bytes, 4 * GIB + 50 * MIB);
    assert_eq!(copy.cost.moved_bytes, 7 * GIB - 50 * MIB);
    assert_eq!(copy.cost.growth_bytes, copy.cost.moved_bytes);
    let clone = advise(&with(bad(), |facts| facts.container.parents = 1));
    assert_eq!(of(&clone, Action::CopyPacked).gain.bytes, 0, "it would hold what the parents hold");
}

#[test]
fn what_lies_in_partial_units_is_spoken_of() {
    let text = |bytes, change: fn(&mut AdviceFacts)| {
        let facts = with(bad(), |facts| facts.container.reclaimable_partial_bytes = bytes);
        of(&advise(&with(facts, change)), Action::Compact).because.clone()
    };
    let movable = text(GIB, |_| {});
    assert!(movable.contains("Another 1 GiB are free in blocks of the image that are partly in use"));
    assert!(movable.contains("'compact --defrag'"));
    let pinned = text(GIB, |facts| facts.volumes[0].is_movable = false);
    assert!(pinned.contains("Another 1 GiB") && !pinned.contains("--defrag"));
    assert!(!text(MIB, |_| {}).contains("Another"), "too little to speak of");
}

#[test]
fn cautions_are_spoken() {
    let unknown = advise(&with(bad(), |facts| facts.container.children = Children::Unknown));
    for action in [Action::Compact, Action::Defrag] {
        assert!(of(&unknown, action).because.contains("make sure that no linked clone stands on this disk"));
    }
    let both = advise(&bad());
    assert!(of(&both, Action::Compact).because.contains("after 'defrag'"));
    let alone = advise(&with(bad(), |facts| facts.volumes[0].is_movable = false));
    assert!(!of(&alone, Action::Compact).because.contains("after 'defrag'"));
}

fn any_cost() -> impl Strategy<Value = ReadCost> {
    (any::<u64>(), any::<u64>(), any::<u64>(), 0.0f64..1e9, 0.0f64..1e9).prop_map(
        |(bytes, requests, unfragmented_requests, seconds, unfragmented_seconds)| ReadCost {
            bytes,
            requests,
            unfragmented_requests,
            seconds,
            unfragmented_seconds,
        },
    )
}

/// Mostly of the size of real disks, sometimes anything.
fn any_bytes() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..1u64 << 42, 1 => any::<u64>()]
}

prop_compose! {
    fn any_volume()(
        doubt in prop::option::of(Just("it is dirty".to_owned())),
        is_movable in any::<bool>(),
        numbers in prop::collection::vec(any_bytes(), 7),
        whole_cost in any_cost(),
        guest_cost in any_cost(),
    ) -> VolumeFacts {
        VolumeFacts {
            number: 1,
            filesystem: "ntfs",
            doubt,
            is_movable,
            start_bytes: numbers[0],
            fragmented_files: numbers[1],
            extra_fragments: numbers[2],
            fragmented_bytes: numbers[3],
            free_bytes: numbers[4],
            free_extents: numbers[5],
            largest_free_bytes: numbers[6],
            whole_cost,
            guest_cost,
        }
    }
}

prop_compose! {
    fn any_facts()(
        volumes in prop::collection::vec(any_volume(), 0..4),
        numbers in prop::collection::vec(any_bytes(), 5),
        unit_bytes in prop::option::of(any_bytes()),
        can_shrink in any::<bool>(),
        parents in 0usize..3,
        snapshots in 0u64..3,
        children in prop_oneof![
            Just(Children::None), Just(Children::Unknown), (1u64..9).prop_map(Children::Some)
        ],
        host_extents in any::<Option<u64>>(),
    ) -> AdviceFacts {
        AdviceFacts {
            volumes,
            container: ContainerFacts {
                format: "vhdx",
                virtual_bytes: numbers[0],
                allocated_bytes: numbers[1],
                unit_bytes,
                can_shrink,
                reclaimable_bytes: numbers[2],
                reclaimable_partial_bytes: numbers[3],
                parents,
                snapshots,
                children,
            },
            host_extents,
            profile: "hdd".into(),
            backup_block_bytes: numbers[4],
        }
    }
}

proptest! {
    #[test]
    fn advice_is_sound_whatever_the_facts(facts in any_facts()) {
        let advice = advise(&facts);
        let mut actions: Vec<_> = advice.iter().map(|advice| advice.action.word()).collect();
        actions.sort_unstable();
        prop_assert_eq!(actions, ["compact", "copy --layout packed", "defrag", "nothing"]);
        prop_assert!(advice[0].worth_it, "the first is always to be followed");
        let nothing = of(&advice, Action::Nothing);
        prop_assert_eq!(nothing.worth_it, advice[0].action == Action::Nothing);
        prop_assert!(!nothing.worth_it || advice.iter().filter(|advice| advice.worth_it).count() == 1);
        for one in &advice {
            prop_assert!(one.gain.seconds >= 0.0 && one.gain.seconds.is_finite(), "{one:?}");
            prop_assert!(one.cost.seconds >= 0.0 && one.cost.seconds.is_finite(), "{one:?}");
            prop_assert!(one.gain.bytes <= facts.container.allocated_bytes);
            prop_assert_eq!(&one.gain.profile, &facts.profile);
            prop_assert!(one.because.ends_with('.'), "{one:?}");
            if one.is_refused {
                prop_assert!(!one.worth_it && one.cost == Cost::default());
                prop_assert!(one.gain.bytes == 0 && one.gain.requests == 0 && one.gain.seconds == 0.0);
            }
            prop_assert!(one.cost.changed_bytes >= one.cost.moved_bytes || one.cost.moved_bytes == 0, "{one:?}");
        }
        // What is worth it stands before what is not.
        let is_worth: Vec<_> = advice.iter().map(|advice| advice.worth_it).collect();
        prop_assert!(is_worth.is_sorted_by(|before, after| before >= after));
        let container = &facts.container;
        if container.parents > 0 || container.snapshots > 0 || matches!(container.children, Children::Some(_)) {
            prop_assert!(of(&advice, Action::Defrag).is_refused);
            prop_assert!(!of(&advice, Action::CopyPacked).worth_it);
        }
        if facts.volumes.iter().all(|volume| volume.doubt.is_some()) {
            prop_assert!(!of(&advice, Action::Defrag).worth_it);
        }
        prop_assert_eq!(advise(&facts), advice, "the same facts, the same advice");
    }

    #[test]
    fn more_waste_never_makes_compacting_less_worth_it(more in 0u64..10 * GIB) {
        let before = advise(&bad());
        let after = advise(&with(bad(), |facts| facts.container.reclaimable_bytes += more));
        prop_assert!(of(&after, Action::Compact).worth_it >= of(&before, Action::Compact).worth_it);
        prop_assert!(of(&after, Action::Compact).gain.bytes >= of(&before, Action::Compact).gain.bytes);
    }
}
