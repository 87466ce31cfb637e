//! The table that `vscsiStats -p all -c` prints, for tools that take it.
//!
//! Each histogram is a paragraph: its title with the disk it is of, then minimum, maximum, mean and count, then a line a bin
//! with its count and its upper limit. The bin above the last limit repeats that limit. Of the closest of the last 16 I/Os
//! vscsiStats has one histogram, for all.

use std::fmt::Write;

use super::export_stats::ExportStats;
use crate::monitor::{Histogram, Snapshot};

/// What was measured of `exports`. Those that are not measured are left out.
pub fn vscsi_stats(exports: &[ExportStats]) -> String {
    let mut text = String::new();
    for (index, export) in exports.iter().enumerate() {
        let Some(snapshot) = &export.snapshot else { continue };
        for (title, histogram) in titled(snapshot) {
            let name: String =
                export.name.chars().map(|c| if c.is_control() || c == ',' { '_' } else { c }).collect();
            let _ = writeln!(
                text,
                "Histogram: {title},virtual machine worldGroupID,{},virtual disk handleID,{index},virtual disk display name,{name}",
                std::process::id()
            );
            push_histogram(&mut text, histogram);
        }
    }
    text
}

fn push_histogram(text: &mut String, histogram: &Histogram) {
    let (min, max) = (histogram.min.unwrap_or(0), histogram.max.unwrap_or(0));
    let _ = write!(text, "min,{min}\nmax,{max}\nmean,{}\ncount,{}\n", histogram.mean(), histogram.count());
    text.push_str("Frequency,Histogram Bucket Limit\n");
    let limits = histogram.limits.iter().chain(histogram.limits.last());
    for (count, limit) in histogram.counts.iter().zip(limits) {
        let _ = writeln!(text, "{count},{limit}");
    }
}

fn titled(snapshot: &Snapshot) -> [(&'static str, &Histogram); 16] {
    let Snapshot {
        io_length, seek_distance, seek_distance_last16, latency, interarrival, outstanding, ..
    } = snapshot;
    [
        ("IO lengths of commands", &io_length.all),
        ("IO lengths of Read commands", &io_length.reads),
        ("IO lengths of Write commands", &io_length.writes),
        ("distance (in LBNs) between successive commands", &seek_distance.all),
        ("distance (in LBNs) between successive Read commands", &seek_distance.reads),
        ("distance (in LBNs) between successive Write commands", &seek_distance.writes),
        (
            "distance (in LBNs) between each command from the closest of previous 16",
            &seek_distance_last16.all,
        ),
        ("latency of IOs in Microseconds (us)", &latency.all),
        ("latency of Read IOs in Microseconds (us)", &latency.reads),
        ("latency of Write IOs in Microseconds (us)", &latency.writes),
        ("number of outstanding IOs when a new IO is issued", &outstanding.all),
        ("number of outstanding Read IOs when a new Read IO is issued", &outstanding.reads),
        ("number of outstanding Write IOs when a new Write IO is issued", &outstanding.writes),
        ("latency of IO interarrival time in Microseconds (us)", &interarrival.all),
        ("latency of IO interarrival time for Reads in Microseconds (us)", &interarrival.reads),
        ("latency of IO interarrival time for Writes in Microseconds (us)", &interarrival.writes),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::{IO_LENGTH_BINS, Tally};

    #[test]
    fn a_paragraph_is_laid_out_as_vscsistats_does() {
        let mut snapshot = Snapshot::default();
        let mut tally = Tally::new(&IO_LENGTH_BINS);
        [512, 4096, 4096, 1 << 20].into_iter().for_each(|len| tally.record(len));
        snapshot.io_length.all = tally.histogram();
        let export = ExportStats {
            name: "a,b".into(),
            len_bytes: 0,
            is_read_only: false,
            failure: None,
            snapshot: Some(snapshot),
        };
        let text = vscsi_stats(&[export]);
        let paragraph: Vec<&str> = text.lines().take(24).collect();
        assert!(paragraph[0].starts_with("Histogram: IO lengths of commands,virtual machine worldGroupID,"));
        assert!(
            paragraph[0].ends_with(",virtual disk handleID,0,virtual disk display name,a_b"),
            "{}",
            paragraph[0]
        );
        let figures =
            ["min,512", "max,1048576", "mean,264320", "count,4", "Frequency,Histogram Bucket Limit"];
        assert_eq!(paragraph[1..6], figures);
        assert_eq!(paragraph[6], "1,512");
        assert_eq!(paragraph[10], "2,4096");
        assert_eq!(paragraph[22..24], ["0,524288", "1,524288"]);
        assert_eq!(text.lines().filter(|line| line.starts_with("Histogram: ")).count(), 16);
        // A reader of such tables takes each line of a bin as two numbers.
        assert!(
            text.lines()
                .filter(|line| line.as_bytes()[0].is_ascii_digit())
                .all(|line| { line.split(',').map(str::parse::<i64>).all(|number| number.is_ok()) })
        );
    }
}
