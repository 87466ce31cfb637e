//! How long others waited, as the kernel counts it: what background work looks at.

use std::path::Path;

use ::guard::{Waits, waited_us};

/// What the kernel counts of waiting; of the busiest device where it does not count that.
pub(crate) fn waits(folder: &Path) -> Waits {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let io_us = read("io").and_then(|text| waited_us(&text)).or_else(|| {
        // The thirteenth field is the time with requests under way (Documentation/admin-guide/iostats.rst).
        let text = std::fs::read_to_string("/proc/diskstats").ok()?;
        let busy = |line: &str| line.split_whitespace().nth(12)?.parse::<u64>().ok();
        text.lines()
            .filter(|line| !line.contains(" loop") && !line.contains(" ram"))
            .filter_map(busy)
            .max()
            .map(|ms| ms.saturating_mul(1000))
    });
    Waits { io_us, cpu_us: read("cpu").and_then(|text| waited_us(&text)) }
}
