//! Draws a made-up disk in every way: `cargo run -p leandisk-report --example pictures -- FOLDER [FILES]`.

#![allow(clippy::print_stdout, dead_code)]

#[path = "../tests/synthetic/mod.rs"]
mod synthetic;

use std::path::Path;
use std::{env, fs, io};

use report::{Advice, Column, Histogram, HistogramBin, Palette, ReportPage, Table};
use report::{map_html, map_svg, map_text, report_html};

fn main() -> io::Result<()> {
    let mut args = env::args().skip(1);
    let folder = args.next().unwrap_or_else(|| ".".to_owned());
    let file_count = args.next().and_then(|count| count.parse().ok()).unwrap_or(4000);
    let disk = synthetic::disk(file_count, 12);
    let folder = Path::new(&folder);
    fs::write(folder.join("map.svg"), map_svg(&disk))?;
    fs::write(folder.join("map.html"), map_html(&disk))?;
    fs::write(folder.join("report.html"), report_html(&report(), Some(&disk)))?;
    println!("{}", map_text(&disk, 100, Palette { colors: true }));
    Ok(())
}

fn report() -> ReportPage {
    let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
    let bin = |label: &str, count, bytes| HistogramBin { label: label.to_owned(), count, bytes };
    ReportPage {
        title: "server.vhdx".into(),
        about: "VHDX, 1 GiB of virtual disk, 840 MiB on the host".into(),
        verdict: "Give back 104 MiB that the guest has freed. Fragmentation costs little on this storage: leave it.".into(),
        summary: vec![
            ("Fragmented files".into(), "412 of 4,001".into()),
            ("Fragments a file".into(), "1.6".into()),
            ("Free extents".into(), "311, the largest 240 MiB".into()),
            ("Reclaimable".into(), "104 MiB".into()),
        ],
        advice: vec![
            Advice {
                action: "Compact the image".into(),
                gain: "104 MiB of the host".into(),
                cost: "2 s of reading; 12 blocks that the next incremental backup carries".into(),
                because: "the guest freed it, and the container still holds it".into(),
            },
            Advice {
                action: "Do not defragment".into(),
                gain: "0.3 s for reading every file once".into(),
                cost: "304 MiB written, and as much for the next backup".into(),
                because: "fragments of more than 1 MiB cost nothing on an SSD, and most are".into(),
            },
        ],
        layers: vec![Table {
            title: "Layers".into(),
            columns: vec![
                Column::text("Layer"),
                Column::text("What"),
                Column::number("Files"),
                Column::number("Fragmented"),
                Column::number("Fragments"),
                Column::number("Free extents"),
            ],
            rows: vec![
                row(&["volume 1", "ntfs “Windows”", "2,000", "204", "3,118", "160"]),
                row(&["volume 2", "ext4 “data <b>&amp;”", "2,001", "208", "3,205", "151"]),
                row(&["container", "VHDX, blocks of 2 MiB", "", "", "202", ""]),
                row(&["host", "ext4 on /dev/nvme0n1p2", "", "", "282", ""]),
            ],
            remark: Some("Volume 2 was not unmounted cleanly: its figures are those of its metadata as they are.".into()),
        }],
        histograms: vec![
            Histogram {
                title: "Free extents of volume 1".into(),
                bins: vec![
                    bin("4 to 8 KiB", 31, 131_072),
                    bin("16 to 64 KiB", 62, 2_621_440),
                    bin("64 to 256 KiB", 66, 9_961_472),
                    bin("256 KiB to 1 MiB", 0, 0),
                    bin("128 to 256 MiB", 1, 148_897_792),
                ],
            },
            Histogram { title: "Free extents of volume 2".into(), bins: vec![bin("64 to 128 MiB", 1, 125_829_120)] },
        ],
        files: vec![Table {
            title: "Worst files".into(),
            columns: vec![
                Column::text("Path"),
                Column::number("Size"),
                Column::number("Fragments"),
                Column::number("Down to the host"),
            ],
            rows: vec![
                row(&["/srv/projects/project-1/tree/44/object-001771.dat", "3.2 MiB", "12", "14"]),
                row(&[&report::printable_name(synthetic::HOSTILE_NAME), "8.2 MiB", "7", "10"]),
            ],
            remark: None,
        }],
        costs: vec![Table {
            title: "What fragmentation costs".into(),
            columns: vec![
                Column::text("Storage"),
                Column::number("Requests now"),
                Column::number("If contiguous"),
                Column::number("Time now"),
                Column::number("If contiguous"),
            ],
            rows: vec![
                row(&["hdd", "9,410", "6,002", "84.0 s", "51.2 s"]),
                row(&["nvme", "9,410", "6,002", "0.9 s", "0.6 s"]),
            ],
            remark: Some("Every file read once, in requests of 1 MiB.".into()),
        }],
        notes: vec!["A made-up disk.".into()],
        colophon: "Drawn by an example of Leandisk.".into(),
    }
}
