//! What reading costs on a kind of storage: a handful of constants, each with its source.
//!
//! Invariants:
//! - every constant is finite and not negative, every rate is above zero;
//! - a jump never costs less for a longer distance, nor after a shorter piece.
//!
//! Absent on purpose: writes, several readers at once, caches. `docs/decisions/cost-model.md` says what that means,
//! and which sources could be checked.

/// What the kernel reads ahead of a program that reads in order, and so what a sequential read asks for at once
/// where nothing else is known (Linux, `VM_READAHEAD_PAGES`, 128 KiB).
pub const READ_AHEAD_BYTES: u64 = 128 << 10;

/// The longest piece after which flash still has a die that idles: every die of an SSD holds a part of a piece of
/// this size. An assumption: the order of dies times page size; makers do not publish it.
const FLASH_STRIPE_BYTES: u64 = 1 << 20;

/// How long moving from one place to another takes, by the distance.
///
/// The shape is that of Ruemmler and Wilkes, "An introduction to disk drive modeling" (IEEE Computer, 1994): as
/// the square root of the distance while the arm accelerates, then linear (the paper itself could not be read to
/// confirm it). Two uniformly random places are a third of the stroke apart, so that is where the average of a data
/// sheet belongs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SeekCurve {
    /// To the next track.
    pub short_seconds: f64,
    /// Over a third of the device.
    pub average_seconds: f64,
    /// From one end of the device to the other.
    pub full_seconds: f64,
    /// How long the device is.
    pub span_bytes: u64,
}

impl SeekCurve {
    /// The same for every distance.
    pub const fn flat(seconds: f64) -> Self {
        Self { short_seconds: seconds, average_seconds: seconds, full_seconds: seconds, span_bytes: 1 }
    }

    /// What moving by `distance_bytes` takes.
    pub fn seconds(&self, distance_bytes: u64) -> f64 {
        let share = (float(distance_bytes) / float(self.span_bytes.max(1))).min(1.0);
        let third = 1.0 / 3.0;
        if share <= third {
            self.short_seconds + (self.average_seconds - self.short_seconds) * (share / third).sqrt()
        } else {
            self.average_seconds
                + (self.full_seconds - self.average_seconds) * (share - third) / (1.0 - third)
        }
    }
}

/// What it costs to go on reading elsewhere than where the last piece ended.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Jump {
    /// The way there.
    pub seek: SeekCurve,
    /// One revolution; half of it passes until the data come by. Zero where nothing rotates.
    pub revolution_seconds: f64,
    /// A piece of at least this length spreads over the whole device, and a jump after it is free; after a shorter
    /// one it costs the share that is missing. `None` where the length does not matter.
    pub stripe_bytes: Option<u64>,
    /// Whether a jump costs anything where one request ends and the next begins. On flash it does not: the
    /// latency of a request is the same wherever it reads.
    pub counts_between_requests: bool,
}

/// A kind of storage, as one reader meets it that asks for one thing after the other.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Profile {
    /// Its name on the command line.
    pub name: &'static str,
    /// What each request to the device takes of the host and of the interface.
    pub command_seconds: f64,
    /// What a program's request waits for its first byte, wherever that lies.
    pub access_seconds: f64,
    /// How fast bytes come once they come.
    pub bytes_per_second: f64,
    /// What it costs to go on elsewhere.
    pub jump: Jump,
    /// How many of the pieces of one program's request the device fetches at once.
    pub queue_depth: u32,
}

/// A 7200 rpm disk.
///
/// Seek, rotation: Western Digital, Ultrastar DC HC310 OEM specification, section 4.5.1, tables 5 to 7 (reads,
/// typical): 7.4 ms, 0.23 ms, 8.33 ms a revolution. Full stroke: not in what we could read of it; 20/12 of the average,
/// as in the Hitachi 5K320 and 7K320 specifications, section 4.4.2, tables 5 and 6. Assumptions: 4 TB, the smaller
/// model; 180 MB/s in the middle tracks; 0.1 ms a command. NCQ does not help one reader: one arm.
pub const HDD: Profile = Profile {
    name: "hdd",
    command_seconds: 0.1e-3,
    access_seconds: 0.0,
    bytes_per_second: 180e6,
    jump: Jump {
        seek: SeekCurve {
            short_seconds: 0.23e-3,
            average_seconds: 7.4e-3,
            full_seconds: 12.3e-3,
            span_bytes: 4_000_000_000_000,
        },
        revolution_seconds: 8.33e-3,
        stripe_bytes: None,
        counts_between_requests: true,
    },
    queue_depth: 1,
};

/// An array behind a network, disks and a cache.
///
/// Assumptions throughout, since no data sheet speaks for all arrays: 0.3 ms for what the array read ahead, 1 ms
/// more for what it did not, 800 MB/s (the payload rate of 8 Gbit/s Fibre Channel), 32 outstanding commands. What
/// your own does is what `measured` is for.
pub const SAN: Profile = Profile {
    name: "san",
    command_seconds: 0.02e-3,
    access_seconds: 0.3e-3,
    bytes_per_second: 800e6,
    jump: Jump {
        seek: SeekCurve::flat(1e-3),
        revolution_seconds: 0.0,
        stripe_bytes: None,
        counts_between_requests: true,
    },
    queue_depth: 32,
};

/// A SATA SSD.
///
/// Latency: 10,000 reads of 4 KiB a second at queue depth 1; rate: 540 MB/s (both as specified for the Samsung 850 EVO,
/// 1 TB). Commands at once: 32, the depth of NCQ. What a jump costs: as [`NVME`].
pub const SATA_SSD: Profile = Profile {
    name: "sata-ssd",
    command_seconds: 0.01e-3,
    access_seconds: 0.082e-3,
    bytes_per_second: 540e6,
    jump: FLASH_JUMP,
    queue_depth: 32,
};

/// An NVMe SSD.
///
/// Rate: 3,500 MB/s (as specified for the Samsung 970 EVO Plus). Assumptions: 50 µs until the first byte, 3 µs of the
/// kernel and the interface for each command, at least 32 commands at once.
pub const NVME: Profile = Profile {
    name: "nvme",
    command_seconds: 0.003e-3,
    access_seconds: 0.05e-3,
    bytes_per_second: 3_500e6,
    jump: FLASH_JUMP,
    queue_depth: 32,
};

/// What pieces that were written apart cost on flash: they lie on random dies, and when two of one request lie on the
/// same, one waits for the other. Jun et al., "We Ain't Afraid of No File Fragmentation" (FAST'24), find this the
/// main cost of fragments, rather than the splitting of requests: a database of 162 MB in 10,011 pieces was read 40 %
/// slower (abstract). This constant is chosen so that [`NVME`] says the same of it; it is about one read of a page.
const FLASH_JUMP: Jump = Jump {
    seek: SeekCurve::flat(0.0295e-3),
    revolution_seconds: 0.0,
    stripe_bytes: Some(FLASH_STRIPE_BYTES),
    counts_between_requests: false,
};

/// All profiles that come with the program.
pub const PROFILES: [&Profile; 4] = [&HDD, &SAN, &SATA_SSD, &NVME];

impl Profile {
    /// The one with this name, of [`PROFILES`].
    pub fn named(name: &str) -> Option<&'static Self> {
        PROFILES.into_iter().find(|profile| profile.name == name)
    }

    /// What it costs to go on at a place that is `move_by` from where a piece of `piece_bytes` ended; at an
    /// unknown distance if there was no piece.
    pub fn jump_seconds(&self, move_by: Option<i128>, piece_bytes: u64) -> f64 {
        let jump = &self.jump;
        let half_turn = jump.revolution_seconds / 2.0;
        let Some(move_by) = move_by else {
            return jump.seek.average_seconds + half_turn;
        };
        let distance_bytes = u64::try_from(move_by.unsigned_abs()).unwrap_or(u64::MAX);
        let there = jump.seek.seconds(distance_bytes) + half_turn;
        // A short gap ahead passes under the head sooner than the arm could find the place anew.
        let there = if jump.revolution_seconds > 0.0 && move_by > 0 {
            there.min(float(distance_bytes) / self.bytes_per_second)
        } else {
            there
        };
        match jump.stripe_bytes {
            Some(stripe) => there * (1.0 - float(piece_bytes) / float(stripe.max(1))).max(0.0),
            None => there,
        }
    }
}

/// Medians of what was measured on a storage, in pairs of a read's length in bytes and its seconds.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Timings {
    /// Reads that go on where the one before ended.
    pub sequential: Vec<(u64, f64)>,
    /// Reads at random places of all of it.
    pub random: Vec<(u64, f64)>,
    /// Reads a few MiB from the one before.
    pub near: Vec<(u64, f64)>,
    /// How much was there to read from.
    pub span_bytes: u64,
}

/// A difference between a random and a sequential read below this share of the latter is noise.
const NOISE_SHARE: f64 = 0.05;

/// What no storage is faster than: memory moves some 100 GB a second.
const BYTES_PER_SECOND_MAX: f64 = 100e9;

impl Profile {
    /// The profile `measured`: the line through the sequential reads tells latency and rate, what random reads take
    /// more is the jump, and the length at which they no longer do is the stripe. `None` without two lengths of
    /// sequential reads and one of random ones, or with times that are none.
    ///
    /// The program's requests were measured one at a time, so the profile has a queue depth of 1.
    pub fn measured(timings: &Timings) -> Option<Self> {
        let all = [&timings.sequential, &timings.random, &timings.near];
        if all.into_iter().flatten().any(|&(bytes, seconds)| bytes == 0 || !(seconds > 0.0 && seconds < 1e6))
        {
            return None;
        }
        let shortest = timings.sequential.iter().min_by_key(|(bytes, _)| *bytes)?;
        let longest = timings.sequential.iter().max_by_key(|(bytes, _)| *bytes)?;
        let extra_bytes = longest.0.checked_sub(shortest.0).filter(|bytes| *bytes > 0)?;
        let slope = (longest.1 - shortest.1) / float(extra_bytes);
        // Where a long read takes no longer than a short one, the long one tells the rate.
        let slope = slope.clamp(1.0 / BYTES_PER_SECOND_MAX, longest.1 / float(longest.0));
        let access_seconds = (shortest.1 - slope * float(shortest.0)).max(0.0);
        let sequential = |bytes: u64| access_seconds + slope * float(bytes);
        let extra = |(bytes, seconds): (u64, f64)| (seconds - sequential(bytes)).max(0.0);
        let is_small = |&&(bytes, _): &&(u64, f64)| bytes <= READ_AHEAD_BYTES;
        let average = median(timings.random.iter().filter(is_small).copied().map(extra))?;
        let short = median(timings.near.iter().copied().map(extra)).unwrap_or(average).min(average);
        // As on a disk: over the whole device it takes a little more than on average.
        let full = average + (average - short);
        let is_noise = |read: (u64, f64)| extra(read) <= NOISE_SHARE * sequential(read.0);
        let mut random = timings.random.clone();
        random.sort_by_key(|(bytes, _)| *bytes);
        // From which length on a jump is never seen.
        let seen = random.iter().rposition(|read| !is_noise(*read)).map_or(0, |last| last + 1);
        let stripe = random.get(seen).map(|(bytes, _)| *bytes);
        Some(Self {
            name: "measured",
            command_seconds: 0.0,
            access_seconds,
            bytes_per_second: 1.0 / slope,
            jump: Jump {
                seek: SeekCurve {
                    short_seconds: short,
                    average_seconds: average,
                    full_seconds: full,
                    span_bytes: timings.span_bytes,
                },
                revolution_seconds: 0.0,
                stripe_bytes: stripe,
                counts_between_requests: true,
            },
            queue_depth: 1,
        })
    }
}

/// The middle one of some numbers, none of which is NaN.
fn median(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let mut numbers: Vec<_> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}

/// A count as a factor in a computation of times, whose last bits do not matter.
#[expect(clippy::cast_precision_loss, reason = "times are not exact to 1 in 2^53")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn profiles_are_found_by_name() {
        for profile in PROFILES {
            assert_eq!(Profile::named(profile.name), Some(profile));
        }
        assert_eq!(Profile::named("floppy"), None);
    }

    #[test]
    fn a_seek_curve_goes_through_its_points() {
        let seek = HDD.jump.seek;
        let near = |left: f64, right: f64| (left - right).abs() < 1e-6;
        assert!(near(seek.seconds(0), 0.23e-3));
        assert!(near(seek.seconds(seek.span_bytes / 3), 7.4e-3));
        assert!(near(seek.seconds(seek.span_bytes), 12.3e-3));
        assert!(near(seek.seconds(u64::MAX), 12.3e-3));
    }

    #[test]
    fn a_random_read_of_a_disk_takes_what_its_data_sheet_says() {
        let seconds = HDD.jump_seconds(None, 0);
        assert!((seconds - (7.4e-3 + 4.165e-3)).abs() < 1e-9, "{seconds}");
    }

    #[test]
    fn a_random_read_of_a_sata_ssd_takes_what_its_data_sheet_says() {
        let seconds = SATA_SSD.command_seconds + SATA_SSD.access_seconds + 4096.0 / SATA_SSD.bytes_per_second;
        assert!((1.0 / seconds - 10_000.0).abs() < 100.0, "{seconds}");
    }

    #[test]
    fn a_small_gap_ahead_costs_a_disk_no_more_than_reading_it() {
        assert!(HDD.jump_seconds(Some(18_000), 1) <= 0.000_101);
        assert!(HDD.jump_seconds(Some(-18_000), 1) > 0.004, "backwards it is a revolution's matter");
    }

    #[test]
    fn jumps_after_long_pieces_are_free_on_flash() {
        for profile in [&SATA_SSD, &NVME] {
            assert!(profile.jump_seconds(Some(1 << 30), 1 << 20) == 0.0);
            assert!(profile.jump_seconds(Some(1 << 30), 4096) > 0.0);
        }
    }

    /// A storage that obeys a formula is recognised.
    #[test]
    fn measured_storage_is_fitted() {
        let time = |bytes: u64, jump: f64| 100e-6 + jump + float(bytes) / 500e6;
        let sizes = [4096, 64 << 10, 256 << 10, 1 << 20];
        let timings = Timings {
            sequential: vec![(64 << 10, time(64 << 10, 0.0)), (1 << 20, time(1 << 20, 0.0))],
            random: sizes.map(|bytes| (bytes, time(bytes, 8e-3))).to_vec(),
            near: vec![(4096, time(4096, 2e-3))],
            span_bytes: 1 << 40,
        };
        let profile = Profile::measured(&timings).unwrap();
        let close = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-6;
        assert!(close(profile.access_seconds, 100e-6), "{profile:?}");
        assert!(close(profile.bytes_per_second, 500e6), "{profile:?}");
        assert!(close(profile.jump.seek.average_seconds, 8e-3), "{profile:?}");
        assert!(close(profile.jump.seek.short_seconds, 2e-3), "{profile:?}");
        assert_eq!(profile.jump.stripe_bytes, None);

        let even =
            Timings { random: sizes.map(|bytes| (bytes, time(bytes, 0.0))).to_vec(), ..timings.clone() };
        let profile = Profile::measured(&even).unwrap();
        assert!(
            profile.jump_seconds(Some(1 << 30), 4096) < 1e-9,
            "no jump is seen where none is: {profile:?}"
        );

        for broken in [
            Timings::default(),
            Timings { sequential: vec![(4096, 1.0)], ..timings.clone() },
            Timings { random: vec![], ..timings.clone() },
            Timings { random: vec![(4096, f64::NAN)], ..timings.clone() },
            Timings { near: vec![(0, 1.0)], ..timings },
        ] {
            assert_eq!(Profile::measured(&broken), None, "{broken:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_measured_gives_usable_constants(
            sequential in prop::collection::vec((1u64..1 << 30, 1e-9f64..1e3), 0..4),
            random in prop::collection::vec((1u64..1 << 30, 1e-9f64..1e3), 0..4),
            near in prop::collection::vec((1u64..1 << 30, 1e-9f64..1e3), 0..4),
            distances in prop::collection::vec(any::<i64>(), 2),
        ) {
            if let Some(profile) = Profile::measured(&Timings { sequential, random, near, span_bytes: 1 << 40 }) {
                prop_assert!(profile.bytes_per_second > 0.0 && profile.bytes_per_second.is_finite());
                prop_assert!(profile.access_seconds >= 0.0);
                let cost = |by: i64| profile.jump_seconds(Some(i128::from(by)), 4096);
                let (near, far) = (distances[0].unsigned_abs(), distances[1].unsigned_abs());
                prop_assert!(cost(distances[0]) >= 0.0);
                let (shorter, longer) = if near <= far { (0, 1) } else { (1, 0) };
                prop_assert!(cost(distances[shorter]) <= cost(distances[longer]));
            }
        }

        #[test]
        fn further_is_never_faster(one in 0u64..1 << 45, other in 0u64..1 << 45) {
            for profile in PROFILES {
                let cost = |by: u64| profile.jump_seconds(Some(-i128::from(by)), 4096);
                prop_assert!(cost(one.min(other)) <= cost(one.max(other)));
            }
        }
    }
}
