//! Logical volumes of which several legs each have all: those of the kinds `raid1` and `mirror`, as the text describes them.
//!
//! Invariants: a leg and what a leg's state is kept in belong to one mirror, once, and to nobody else; whatever is said of a mirror that
//! is not understood makes it none.
//!
//! Source: LVM2, `lib/raid/raid.c` (`_raid_text_export_raid`), `lib/mirror/mirrored.c` (`_mirrored_text_export`).

use super::layout::SECTOR_BYTES;
use super::reader::Reader;
use super::segment::{Area, Segment};
use super::text::{Section, Value};

/// What is said of a segment of the kind `raid1` that is understood.
const RAID1_KEYS: [&str; 9] = [
    "start_extent",
    "extent_count",
    "type",
    "device_count",
    "region_size",
    "writebehind",
    "min_recovery_rate",
    "max_recovery_rate",
    "raids",
];
/// And of one of the kind `mirror`.
const MIRROR_KEYS: [&str; 7] =
    ["start_extent", "extent_count", "type", "mirror_count", "mirror_log", "region_size", "mirrors"];
/// By what LVM2 tells the metadata of a leg from its data.
const METADATA_MARK: &str = "_rmeta_";

/// A logical volume of which each leg has all, while they are in sync.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mirror {
    /// What segments of this sort are called.
    pub kind: &'static str,
    /// Where each leg lies.
    pub legs: Vec<Vec<Segment>>,
    /// Where it says whether they are in sync.
    pub log: Log,
}

/// Where a mirror says whether its legs are in sync.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Log {
    /// Each leg has metadata of its own, in the order of the legs.
    OfLegs(Vec<Vec<Segment>>),
    /// All have one log.
    Shared {
        /// Where it lies.
        place: Vec<Segment>,
        /// How much of the volume one of its bits stands for.
        region_bytes: u64,
    },
}

impl Mirror {
    /// The extents of the legs and of what they are said to be in sync by, in no order.
    pub fn areas(&self) -> Vec<Area> {
        let all = self.legs.iter().chain(self.log.places()).flatten();
        all.flat_map(|segment| segment.areas.iter().copied()).collect()
    }
}

impl Log {
    /// Where what is to be read of it lies.
    pub fn places(&self) -> &[Vec<Segment>] {
        match self {
            Self::OfLegs(places) => places,
            Self::Shared { place, .. } => std::slice::from_ref(place),
        }
    }
}

/// A mirror by the names of its parts.
pub(super) struct Named {
    kind: &'static str,
    legs: Vec<String>,
    logs: Vec<String>,
    /// Of a log that all share.
    region_bytes: Option<u64>,
}

impl Named {
    /// What a segment says; `None` if it is no mirror, or not one that is understood.
    pub(super) fn of(segment: &Reader<'_>) -> Option<Self> {
        match segment.text("type").ok()? {
            "raid1" => Self::of_raid1(segment),
            "mirror" => Self::of_mirror(segment),
            _ => None,
        }
    }

    fn of_raid1(segment: &Reader<'_>) -> Option<Self> {
        let names: Option<Vec<_>> = list(segment, "raids")?.iter().map(Value::text).collect();
        let (mut legs, mut logs) = (Vec::new(), Vec::new());
        for pair in names?.chunks(2) {
            let &[log, leg] = pair else { return None };
            if !log.contains(METADATA_MARK) || leg.contains(METADATA_MARK) {
                return None;
            }
            logs.push(log.to_owned());
            legs.push(leg.to_owned());
        }
        let named = Self { kind: "raid1", legs, logs, region_bytes: None };
        named.if_understood(segment, "device_count", &RAID1_KEYS)
    }

    fn of_mirror(segment: &Reader<'_>) -> Option<Self> {
        let mut legs = Vec::new();
        for pair in list(segment, "mirrors")?.chunks(2) {
            let [Value::Text(leg), Value::Number(0)] = pair else { return None };
            legs.push(leg.clone());
        }
        // Without a log on a disk nobody but the kernel that ran it knew what was in sync.
        let logs = vec![segment.text("mirror_log").ok()?.to_owned()];
        let region_bytes = segment.size("region_size").ok().filter(|bytes| *bytes >= SECTOR_BYTES);
        let named = Self { kind: "mirror", legs, logs, region_bytes: Some(region_bytes?) };
        named.if_understood(segment, "mirror_count", &MIRROR_KEYS)
    }

    fn if_understood(self, segment: &Reader<'_>, count: &str, known: &[&str]) -> Option<Self> {
        let Section { values, sections } = segment.section;
        let is_known = sections.is_empty() && values.iter().all(|(name, _)| known.contains(&name.as_str()));
        let is_count = segment.number(count).ok()? == self.legs.len() as u64;
        (is_known && is_count && self.legs.len() > 1).then_some(self)
    }

    /// With where each part lies; `None` if `place` does not know that of one, which it is asked for with whether it is a leg.
    pub(super) fn placed(&self, place: impl Fn(&str, bool) -> Option<Vec<Segment>>) -> Option<Mirror> {
        let legs = self.legs.iter().map(|leg| place(leg, true)).collect::<Option<Vec<_>>>()?;
        let mut logs = self.logs.iter().map(|log| place(log, false)).collect::<Option<Vec<_>>>()?;
        let log = match self.region_bytes {
            None => Log::OfLegs(logs),
            Some(region_bytes) => Log::Shared { place: logs.pop()?, region_bytes },
        };
        Some(Mirror { kind: self.kind, legs, log })
    }
}

fn list<'a>(segment: &Reader<'a>, name: &str) -> Option<&'a [Value]> {
    if let Value::List(items) = segment.section.value(name)? { Some(items) } else { None }
}
