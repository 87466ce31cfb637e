//! What of a disk is fragmented or wasted, what that costs, and what is worth doing about it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use block::{Error, ReadAt, Result};
use claims::{Claim, Claims, Kind};
use engine::{ZeroCount, count_zeros};
use filesystem::Check;
use image::{Format, Found};
use os::{Queue, StorageTiming, TimingBudget};
use plan::CopyOptions;
use predict::advice::advise;
use predict::cost::{Access, QueueLimits, RequestSize};
use predict::profile::{PROFILES, Profile, Timings};
use predict::{advice_facts, read_costs, read_trace_cost};
use report::{
    AnalyzeDocument, AnalyzeSubject, DiskEntry, DiskMap, DiskReport, analyze_document, analyze_page,
    disk_map, write_file_lines,
};
use stack::{Stack, UsedMaps};

use crate::machine::Caching;
use crate::open::{OpenDisk, OpenOptions};
use crate::output::{OutputFile, output_beside};
use crate::{Observer, Unwatched, recording};

/// What is asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// The disk: an image file or a block device.
    pub disk: PathBuf,
    /// How it is opened.
    pub open: OpenOptions,
    /// Where the whole report goes as a page, if anywhere.
    pub html: Option<PathBuf>,
    /// Where a line of JSON for every file goes, if anywhere.
    pub files: Option<PathBuf>,
    /// Whether these replace files that are there.
    pub force: bool,
    /// How many of the most fragmented files are listed.
    pub top: usize,
    /// The storage that advice is for: the name of a profile, or `measured`; `None` for what the host says of it.
    pub device: Option<String>,
    /// The size of the guest's read requests, in bytes.
    pub request_size: u64,
    /// Requests whose cost is predicted as well: a recording, or text with an offset and a length a line.
    pub trace: Option<PathBuf>,
    /// Whether all data in use is read, to count its zeros.
    pub zeros: bool,
    /// Whether a map is drawn though no page is written. It takes as long as the survey.
    pub draws_map: bool,
}

/// How many of the most fragmented files are listed, if nothing else is said.
pub const TOP: usize = 10;
/// The size of read requests that is assumed, if nothing else is said.
pub const REQUEST_BYTES: u64 = 128 << 10;

impl Default for Options {
    fn default() -> Self {
        Self {
            disk: PathBuf::new(),
            open: OpenOptions::default(),
            html: None,
            files: None,
            force: false,
            top: TOP,
            device: None,
            request_size: REQUEST_BYTES,
            trace: None,
            zeros: false,
            draws_map: false,
        }
    }
}

/// What was found.
#[derive(Debug)]
pub struct Analysis {
    /// All of it.
    pub document: AnalyzeDocument,
    /// Where everything lies, if that was asked for.
    pub map: Option<DiskMap>,
}

/// Surveys the disk, predicts, advises, and writes the files that were asked for.
pub fn run(options: &Options, observer: &dyn Observer) -> Result<Analysis> {
    let disk = OpenDisk::open(&options.disk, &options.open, Caching::Direct)?;
    disk.stack.chain().check_readable()?;
    let reading = observer.waiting("reading the file systems' tables");
    let maps = disk.stack.used_maps(Check::Quick)?;
    drop(reading);
    run_on(&disk, &maps, options, observer)
}

/// The analysis of a disk in a few figures, for a table of many.
pub fn summarize(options: &Options) -> Result<DiskReport> {
    let disk = OpenDisk::open(&options.disk, &options.open, Caching::Direct)?;
    let chain = disk.stack.chain();
    chain.check_readable()?;
    let maps = disk.stack.used_maps(Check::Quick)?;
    let Analysis { document, .. } = run_on(&disk, &maps, options, &Unwatched)?;
    let layers = chain.links().iter().map(|link| link.layer.files());
    let own = layers.clone().next().unwrap_or_default();
    let allocated: Result<u64> = own.iter().map(|file| file.allocated_bytes()).sum();
    let uses = |claim: &Claim| matches!(claim.kind, Kind::Writer | Kind::Reader) && claim.is_top;
    let parent = layers.clone().nth(1).and_then(|files| Some(files.first()?.name().to_owned()));
    let entry = DiskEntry {
        allocated_bytes: Some(allocated?),
        used_bytes: Some(crate::copy::plan(CopyOptions::default(), &disk.stack, &maps)?.used_bytes),
        in_use: Claims::of_users(chain).iter().any(uses),
        parent,
        ..DiskEntry::of(&document)
    };
    let is_known =
        disk.stack.volumes().iter().any(|volume| volume.filesystem.is_some() || volume.partition.is_some());
    let is_disk = is_known || chain.links()[0].found != Found::ByElimination;
    let identities = layers.map(|files| files.iter().filter_map(|file| file.identity()).collect());
    Ok(DiskReport { is_disk, entry, layers: identities.collect() })
}

fn run_on(disk: &OpenDisk, maps: &UsedMaps, options: &Options, observer: &dyn Observer) -> Result<Analysis> {
    let stack = &disk.stack;
    let outputs = Outputs::prepare(options, stack)?;
    let surveying = observer.waiting("reading the file systems' tables");
    let survey = stack.survey(maps)?;
    drop(surveying);
    let zeros = match options.zeros {
        true => {
            let _reading = observer.waiting("reading data to find zeros");
            Some(zeros(stack, maps, survey.waste.unit_bytes)?)
        }
        false => None,
    };
    let predicting = observer.waiting("predicting what reading costs");
    let queue = os::queue_of(&options.disk);
    let storage = Storage::find(options, queue)?;
    let limits = queue.map_or(QueueLimits::DEFAULT, |queue| QueueLimits {
        request_bytes: queue.request_bytes,
        segments: queue.segments,
    });
    let size = RequestSize::new(options.request_size, limits);
    let mut profiles = vec![&storage.profile];
    profiles.extend(PROFILES.into_iter().filter(|profile| profile.name != storage.profile.name));
    // The lines are written while the costs are counted.
    let (written, (costs, by_profile)) = std::thread::scope(|scope| {
        let lines = outputs.files.as_ref().map(|file| {
            let survey = &survey;
            scope.spawn(move || file.write(observer, |out| write_file_lines(survey, out)))
        });
        let costs = read_costs(stack, &survey, &profiles, size);
        (lines.map_or(Ok(()), |lines| lines.join().expect("no thread panicked")), costs)
    });
    written?;
    let allocated_bytes = disk.allocated_bytes()?;
    let advice = advise(&advice_facts(stack, &survey, allocated_bytes, &costs, &storage.profile));
    let trace = match &options.trace {
        Some(path) => {
            let accesses = read_trace(path, observer)?;
            read_trace_cost(&survey, &storage.profile, limits, stack.chain().len_bytes(), accesses)
        }
        None => None,
    };
    let reading = profiles.iter().map(|profile| profile.name.to_owned()).zip(by_profile).collect();
    let subject = AnalyzeSubject {
        path: &options.open.shown(&options.disk),
        format_option: options.open.format.map(Format::name),
        stack,
        maps,
        survey: &survey,
        allocated_bytes,
        zeros,
        top: options.top,
        reading,
        device_doubts: storage.doubts,
        trace,
        advice,
    };
    let document = analyze_document(&subject)?;
    let map = match options.html.is_some() || options.draws_map {
        true => Some(disk_map(subject.path, stack, maps, &survey)?),
        false => None,
    };
    drop(predicting);
    if let (Some(file), Some(map)) = (&outputs.html, &map) {
        file.write_page(&analyze_page(&document, map), &options.disk, observer)?;
    }
    Ok(Analysis { document, map })
}

/// The files to be written.
struct Outputs {
    files: Option<OutputFile>,
    html: Option<OutputFile>,
}

impl Outputs {
    fn prepare(options: &Options, stack: &Stack) -> Result<Self> {
        if options.files.is_some() && options.files == options.html {
            return Err(Error::invalid("--files and --html name the same file"));
        }
        let inputs: Vec<_> = options.trace.as_deref().into_iter().collect();
        let prepare = |path: &Option<PathBuf>| match path {
            Some(path) => output_beside(stack, path, options.force, &inputs).map(Some),
            None => Ok(None),
        };
        Ok(Self { files: prepare(&options.files)?, html: prepare(&options.html)? })
    }
}

/// The storage that advice is about.
struct Storage {
    profile: Profile,
    doubts: Vec<String>,
}

impl Storage {
    fn find(options: &Options, queue: Option<Queue>) -> Result<Self> {
        let name = match options.device.as_deref() {
            Some("measured") => return Self::measure(&options.disk),
            Some(name) => name,
            None => queue.map_or("sata-ssd", guessed),
        };
        let profile = Profile::named(name).expect("the parser knows the names");
        Ok(Self { profile: *profile, doubts: Vec::new() })
    }

    fn measure(disk: &Path) -> Result<Self> {
        let probe = os::time_storage(disk, TimingBudget::default())?;
        let StorageTiming { sequential, random, near, span_bytes, doubts, .. } = probe;
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
fn read_trace(path: &Path, observer: &dyn Observer) -> Result<Vec<Access>> {
    if let Some(accesses) = recording::accesses(path, ACCESSES_MAX, observer)? {
        return Ok(accesses);
    }
    let failed = |error| Error::io("read", error).path(path.display());
    let lines = BufReader::new(os::open_input(path)?).lines();
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
    let threads = os::processor_count() * 2;
    count_zeros(&**stack.chain(), plan.reads.iter(), unit_bytes, threads)
}
