//! `leandisk analyze`.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use block::{Error, HostFile, ReadAt, Result};
use engine::{ZeroCount, count_zeros};
use filesystem::Check;
use image::Format;
use os::{Probe, ProbeBudget, Queue};
use plan::CopyOptions;
use predict::advice::advise;
use predict::cost::{Access, QueueLimits, RequestSize};
use predict::profile::{PROFILES, Profile, Timings};
use predict::{advice_facts, read_costs, read_trace_cost};
use report::{
    AnalyzeSubject, analyze_document, analyze_full_text, analyze_page, analyze_text, disk_map, map_text,
    to_json, write_file_lines,
};
use stack::{Stack, UsedMaps};

use crate::arguments::{AnalyzeArguments, ProgressStyle};
use crate::disk::{Caching, OpenDisk};
use crate::output::OutputFile;
use crate::progress::{columns_of, waiting};
use crate::{print, recording, stdout_palette};

/// Columns of the map on a terminal.
const MAP_COLUMNS_MIN: usize = 40;
const MAP_COLUMNS_MAX: usize = 96;

pub(crate) fn run(arguments: &AnalyzeArguments) -> Result<()> {
    let disk = OpenDisk::open(&arguments.disk, &arguments.open, Caching::Direct)?;
    let stack = &disk.stack;
    stack.chain().check_readable()?;
    let outputs = Outputs::prepare(arguments, stack)?;
    let surveying = waiting(ProgressStyle::Auto, "reading the file systems' tables");
    let maps = stack.used_maps(Check::Quick)?;
    let survey = stack.survey(&maps)?;
    drop(surveying);
    let zeros = match arguments.zeros {
        true => {
            let _reading = waiting(ProgressStyle::Auto, "reading data to find zeros");
            Some(zeros(stack, &maps, survey.waste.unit_bytes)?)
        }
        false => None,
    };
    let predicting = waiting(ProgressStyle::Auto, "predicting what reading costs");
    let queue = os::queue_of(&arguments.disk);
    let storage = Storage::find(arguments, queue)?;
    let limits = queue.map_or(QueueLimits::DEFAULT, |queue| QueueLimits {
        request_bytes: queue.request_bytes,
        segments: queue.segments,
    });
    let size = RequestSize::new(arguments.request_size, limits);
    let mut profiles = vec![&storage.profile];
    profiles.extend(PROFILES.into_iter().filter(|profile| profile.name != storage.profile.name));
    // The lines are written while the costs are counted.
    let (written, (costs, by_profile)) = std::thread::scope(|scope| {
        let lines = outputs.files.as_ref().map(|file| {
            let survey = &survey;
            scope.spawn(move || file.write(|out| write_file_lines(survey, out)))
        });
        let costs = read_costs(stack, &survey, &profiles, size);
        (lines.map_or(Ok(()), |lines| lines.join().expect("no thread panicked")), costs)
    });
    written?;
    let allocated_bytes = disk.allocated_bytes()?;
    let advice = advise(&advice_facts(stack, &survey, allocated_bytes, &costs, &storage.profile));
    let trace = match &arguments.trace {
        Some(path) => {
            let accesses = read_trace(path)?;
            read_trace_cost(&survey, &storage.profile, limits, stack.chain().len_bytes(), accesses)
        }
        None => None,
    };
    let reading = profiles.iter().map(|profile| profile.name.to_owned()).zip(by_profile).collect();
    let subject = AnalyzeSubject {
        path: &arguments.disk.display().to_string(),
        format_option: arguments.open.format.map(Format::name),
        stack,
        maps: &maps,
        survey: &survey,
        allocated_bytes,
        zeros,
        top: arguments.top,
        reading,
        device_doubts: storage.doubts,
        trace,
        advice,
    };
    let document = analyze_document(&subject)?;
    // A map takes as long as the survey: it is drawn for those who look.
    let looks = arguments.full && !arguments.json && std::io::stdout().is_terminal();
    let map = match arguments.html.is_some() || looks {
        true => Some(disk_map(subject.path, stack, &maps, &survey)?),
        false => None,
    };
    drop(predicting);
    if let (Some(file), Some(map)) = (&outputs.html, &map) {
        file.write_page(&analyze_page(&document, map), &arguments.disk)?;
    }
    if arguments.json {
        return print(&to_json(&document));
    }
    let palette = stdout_palette();
    if !arguments.full {
        return print(&analyze_text(&document, palette));
    }
    let columns = columns_of(&std::io::stdout()).clamp(MAP_COLUMNS_MIN, MAP_COLUMNS_MAX);
    let strips = map.filter(|_| looks).map(|map| map_text(&map, columns, palette));
    print(&analyze_full_text(&document, strips.as_deref(), palette))
}

/// The files to be written.
struct Outputs {
    files: Option<OutputFile>,
    html: Option<OutputFile>,
}

impl Outputs {
    fn prepare(arguments: &AnalyzeArguments, stack: &Stack) -> Result<Self> {
        if arguments.files.is_some() && arguments.files == arguments.html {
            return Err(Error::invalid("--files and --html name the same file"));
        }
        let inputs: Vec<_> = arguments.trace.as_deref().into_iter().collect();
        let prepare = |path: &Option<PathBuf>| match path {
            Some(path) => output_beside(stack, path, arguments.force, &inputs).map(Some),
            None => Ok(None),
        };
        Ok(Self { files: prepare(&arguments.files)?, html: prepare(&arguments.html)? })
    }
}

/// A file to be written about a disk, which is none of the disk's own files.
pub(crate) fn output_beside(
    stack: &Stack,
    path: &Path,
    replaces: bool,
    inputs: &[&Path],
) -> Result<OutputFile> {
    check_is_no_part_of(stack, path)?;
    OutputFile::prepare(path, replaces, inputs)
}

/// The storage that advice is about.
struct Storage {
    profile: Profile,
    doubts: Vec<String>,
}

impl Storage {
    fn find(arguments: &AnalyzeArguments, queue: Option<Queue>) -> Result<Self> {
        let name = match arguments.device.as_deref() {
            Some("measured") => return Self::measure(&arguments.disk),
            Some(name) => name,
            None => queue.map_or("sata-ssd", guessed),
        };
        let profile = Profile::named(name).expect("the parser knows the names");
        Ok(Self { profile: *profile, doubts: Vec::new() })
    }

    fn measure(disk: &Path) -> Result<Self> {
        let probe = os::probe(disk, ProbeBudget::default())?;
        let Probe { sequential, random, near, span_bytes, doubts, .. } = probe;
        let timings = Timings { sequential, random, near, span_bytes };
        let profile = Profile::measured(&timings)
            .ok_or_else(|| Error::unsupported("what was measured makes no sense").path(disk.display()))?;
        Ok(Self { profile, doubts })
    }
}

/// What a device most probably is, from what the host says of it. A virtual one may say that it rotates when it does not.
fn guessed(queue: Queue) -> &'static str {
    match (queue.is_nvme, queue.is_virtual, queue.is_rotational) {
        (true, _, _) => "nvme",
        (_, true, _) => "san",
        (_, _, true) => "hdd",
        _ => "sata-ssd",
    }
}

/// The most accesses of a trace that are taken.
const ACCESSES_MAX: usize = 50_000_000;

/// A recording of requests; or a line an access: offset and length, apart by a space, a tab or a comma; what follows is not looked at. Lines that are
/// empty or begin with `#` say nothing.
fn read_trace(path: &Path) -> Result<Vec<Access>> {
    if let Some(accesses) = recording::accesses(path, ACCESSES_MAX)? {
        return Ok(accesses);
    }
    let failed = |error| Error::io("read", error).path(path.display());
    let lines = BufReader::new(File::open(path).map_err(failed)?).lines();
    let mut accesses = Vec::new();
    for (number, line) in (1..).zip(lines) {
        let line = line.map_err(failed)?;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut words = line.split([' ', '\t', ',']).filter(|word| !word.is_empty());
        let mut next = || words.next()?.parse::<u64>().ok();
        let (Some(offset), Some(len_bytes)) = (next(), next()) else {
            return Err(Error::invalid(format!("trace, line {number}"))
                .field("access", line, "an offset and a length in bytes")
                .path(path.display()));
        };
        if accesses.len() == ACCESSES_MAX {
            return Err(recording::too_many(path, ACCESSES_MAX));
        }
        accesses.push(Access { offset, len_bytes });
    }
    Ok(accesses)
}

/// Reads what a copy would read.
fn zeros(stack: &Stack, maps: &UsedMaps, unit_bytes: u64) -> Result<ZeroCount> {
    let plan = crate::copy::plan(CopyOptions::default(), stack, maps)?;
    let threads = std::thread::available_parallelism().map_or(4, |count| count.get() * 2);
    count_zeros(&**stack.chain(), plan.reads.iter(), unit_bytes, threads)
}

/// Refuses to write over a file of the disk that was asked about.
fn check_is_no_part_of(stack: &Stack, path: &Path) -> Result<()> {
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(()) };
    let identity = Some((metadata.dev(), metadata.ino()));
    if metadata.file_type().is_block_device()
        || stack.chain().files().iter().any(|file| file.identity() == identity)
    {
        let what = "is a part of the disk, or a block device: a report is not written there";
        return Err(Error::refused(what).path(path.display()));
    }
    Ok(())
}
