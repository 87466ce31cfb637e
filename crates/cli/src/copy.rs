//! `leandisk copy`: facts, plan, execution, proof.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use block::{Disk, Error, ErrorKind, ReadAt, Result, TargetFile};
use engine::{Checkpoint, CopyJob, CopyOutcome};
use extent::Virtual;
use filesystem::Check;
use image::{AnyWriter, Chain, CreateOptions, Format};
use os::{DeviceTarget, NewFile, SourceFile};
use plan::{CopyOptions, CopyPlan, CopyPlanner};
use report::{CopySubject, copy_document, copy_text, to_json};
use stack::{Arranged, Stack, UsedMaps};

use crate::arguments::{CopyArguments, Layout, OpenArguments, Provision};
use crate::disk::{Caching, OpenDisk, check_nothing_pending, open_chain};
use crate::pack::pack;
use crate::progress::{Progress, cancel_on_signal, waiting};
use crate::{print, say, stdout_palette};

/// Time between checkpoints: far enough apart to cost nothing, near enough to lose little.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(15);

pub(crate) fn run(arguments: &CopyArguments) -> Result<()> {
    let started = Instant::now();
    let disk = OpenDisk::open(&arguments.source, &arguments.open, caching(arguments))?;
    let stack = &disk.stack;
    stack.chain().check_readable()?;
    let target_format = target_format(arguments, stack.chain().facts().format);
    let options = create_options(arguments, stack, target_format)?;
    let writer = image::create(target_format, options.clone())?;
    check_provision(arguments, &writer)?;
    check_target_is_no_source(arguments, stack.chain())?;
    // What is in the journal of a disk that is replaced would be held against the new one.
    check_nothing_pending(&arguments.target)?;
    warn_of_sectors(stack.chain().sector_bytes(), target_format);
    let before = source_fingerprints(stack.chain());

    let checking = waiting(arguments.progress, "checking what the guest uses");
    let maps = stack.used_maps(if arguments.keep_free && arguments.keep_swap {
        Check::Quick
    } else {
        Check::Full
    })?;
    let kept = CopyOptions { keep_free: arguments.keep_free, keep_swap: arguments.keep_swap };
    let packing = match arguments.layout {
        Layout::Keep => None,
        Layout::Packed => Some(pack(stack, &maps)?),
    };
    let (arrangements, layouts) = packing.map(|packing| (packing.arrangements, packing.layouts)).unzip();
    let arranged = arrangements.map(|arrangements| Arranged::new(stack, arrangements));
    let plan = match &arranged {
        None => plan(kept, stack, &maps)?,
        Some(arranged) => {
            let mut planner = CopyPlanner::new(kept, stack.volumes().len());
            arranged.each_facts(&maps, |facts| planner.add(facts))?;
            planner.finish()
        }
    };
    drop(checking);
    let source: &dyn ReadAt<Virtual> = match &arranged {
        None => &**stack.chain(),
        Some(arranged) => arranged,
    };
    let done = if arguments.dry_run {
        None
    } else {
        check_not_in_use(stack.chain())?;
        Some(execute(arguments, &disk, source, &plan, writer, target_format, &before)?)
    };

    let document = copy_document(&CopySubject {
        source_path: &arguments.source.display().to_string(),
        stack,
        maps: &maps,
        plan: &plan,
        source_allocated_bytes: disk.allocated_bytes()?,
        target_path: &arguments.target.display().to_string(),
        target_format: target_format.name(),
        provision: arguments.provision.word(),
        target_allocated_bytes: done.as_ref().map_or(0, |done| done.target_allocated_bytes),
        totals: done.as_ref().map(|done| done.outcome.totals),
        elapsed_seconds: started.elapsed().as_secs_f64(),
        verified: done.is_some() && arguments.verify,
        layouts: layouts.as_deref(),
    });
    print(&if arguments.json { to_json(&document) } else { copy_text(&document, stdout_palette()) })
}

/// Facts in, plan out.
pub(crate) fn plan(options: CopyOptions, stack: &Stack, maps: &UsedMaps) -> Result<CopyPlan> {
    let mut planner = CopyPlanner::new(options, stack.volumes().len());
    stack.each_facts(maps, |facts| planner.add(facts))?;
    Ok(planner.finish())
}

/// `-O`, else the target's extension, else the source's format.
fn target_format(arguments: &CopyArguments, source: Format) -> Format {
    let by_extension = || Format::from_extension(arguments.target.extension()?.to_str()?);
    let device = is_block_device(&arguments.target).then_some(Format::Raw);
    arguments.target_format.or(device).or_else(by_extension).unwrap_or(source)
}

/// Before anything is made: whether the target can have its storage at once.
fn check_provision(arguments: &CopyArguments, writer: &AnyWriter) -> Result<()> {
    engine::check_provision(writer, arguments.provision.when())?;
    if arguments.provision != Provision::Thin && is_block_device(&arguments.target) {
        return Err(Error::unsupported("a block device has the storage that it has").hint("--provision thin"));
    }
    Ok(())
}

/// A table written for one sector size means nothing to a guest that is told another.
fn warn_of_sectors(sector_bytes: u32, target: Format) {
    if sector_bytes != 512 && target != Format::Vhdx {
        say(&format!(
            "warning: the disk has sectors of {sector_bytes} bytes, which {target} cannot tell the guest: attach the \
             target with that sector size, or use vhdx"
        ));
    }
}

fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// What `-o` says.
pub(crate) fn format_keys(options: &[String]) -> Result<BTreeMap<String, String>> {
    let mut keys = BTreeMap::new();
    for option in options {
        let (key, value) = option
            .split_once('=')
            .ok_or_else(|| Error::invalid("-o").field("option", option, "KEY=VALUE"))?;
        if keys.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(Error::invalid(format!("-o {key}= is given twice")));
        }
    }
    Ok(keys)
}

fn create_options(arguments: &CopyArguments, stack: &Stack, format: Format) -> Result<CreateOptions> {
    let keys = format_keys(&arguments.target_option)?;
    if arguments.compress && format != Format::Qcow2 {
        return Err(Error::invalid(format!("{format} cannot be compressed with --compress"))
            .hint("-O qcow2 --compress, or -O vmdk -o subformat=streamOptimized"));
    }
    Ok(CreateOptions {
        virtual_bytes: stack.chain().len_bytes(),
        sector_bytes: stack.chain().sector_bytes(),
        compress: arguments.compress,
        keys,
        identity_seed: uuid::Uuid::new_v4().as_u128(),
        created_unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        file_name: arguments.target.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        target_is_dirty: is_block_device(&arguments.target) && !arguments.fast,
    })
}

/// Even `--force` does not write a disk over one of the files it is read from.
fn check_target_is_no_source(arguments: &CopyArguments, source: &Chain) -> Result<()> {
    let Ok(metadata) = arguments.target.metadata() else { return Ok(()) };
    let target = (metadata.dev(), metadata.ino());
    let same = |name: &str| {
        let source = Path::new(name).metadata();
        source
            .is_ok_and(|source| (source.dev(), source.ino()) == target || is_same_device(&source, &metadata))
    };
    match source.files().iter().find(|file| same(file.name())) {
        Some(file) => Err(Error::refused(format!("the target is the source's own file {}", file.name()))),
        None => Ok(()),
    }
}

fn is_same_device(a: &std::fs::Metadata, b: &std::fs::Metadata) -> bool {
    a.file_type().is_block_device() && b.file_type().is_block_device() && a.rdev() == b.rdev()
}

pub(crate) fn check_not_in_use(source: &Chain) -> Result<()> {
    for file in source.files() {
        if let Some(holder) = os::in_use_by_writer(Path::new(file.name())) {
            return Err(Error::refused(format!("in use: {holder}"))
                .path(file.name())
                .hint("shut the guest down, or copy from a snapshot"));
        }
    }
    Ok(())
}

/// Length and times of each of the source's files, to see whether they changed while being read.
pub(crate) fn source_fingerprints(source: &Chain) -> Vec<Option<(u64, i64, i64)>> {
    let fingerprint = |path: &Path| {
        let metadata = path.metadata().ok()?;
        Some((metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
    };
    source.files().iter().map(|file| fingerprint(Path::new(file.name()))).collect()
}

/// What a copy left behind.
struct Done {
    outcome: CopyOutcome,
    target_allocated_bytes: u64,
}

/// Where the target is made.
enum Target {
    New(NewFile),
    Device(DeviceTarget),
}

impl Target {
    fn file(&self) -> &dyn TargetFile {
        match self {
            Self::New(file) => file,
            Self::Device(device) => device,
        }
    }
}

fn execute(
    arguments: &CopyArguments,
    disk: &OpenDisk,
    source: &dyn ReadAt<Virtual>,
    plan: &CopyPlan,
    writer: AnyWriter,
    format: Format,
    before: &[Option<(u64, i64, i64)>],
) -> Result<Done> {
    let cancelled = cancel_on_signal()?;
    let checkpoint_path = checkpoint_path(&arguments.target);
    let identity = job_identity(arguments, plan, before, format);
    let (target, resume) = open_target(arguments, format, &checkpoint_path, &identity)?;
    let kept = matches!(target, Target::New(_)).then(|| checkpoint_path.clone());
    let progress =
        Progress::new(arguments.progress, "copy", plan.reads.total_bytes(), cancelled.clone(), kept.clone());
    let job = CopyJob {
        source,
        plan,
        writer,
        target: target.file(),
        provision: arguments.provision.when(),
        thread_count: thread_count(arguments),
        digests: arguments.verify,
        identity,
        checkpoint_interval: CHECKPOINT_INTERVAL,
        resume,
    };
    let result = job.run(&progress).and_then(|outcome| {
        progress.finish();
        check_unchanged(disk.stack.chain(), before)?;
        if arguments.verify {
            verify_target(arguments, &target, format, &outcome, cancelled)?;
        }
        Ok(outcome)
    });
    match result {
        Ok(outcome) => {
            let target_allocated_bytes = publish(target, arguments)?;
            let _ = std::fs::remove_file(&checkpoint_path);
            Ok(Done { outcome, target_allocated_bytes })
        }
        Err(error) => Err(give_up(target, &checkpoint_path, error)),
    }
}

fn caching(arguments: &CopyArguments) -> Caching {
    if arguments.page_cache { Caching::PageCache } else { Caching::Direct }
}

fn thread_count(arguments: &CopyArguments) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    arguments.threads.map_or((4 * cores).clamp(8, 32), usize::from)
}

fn open_target(
    arguments: &CopyArguments,
    format: Format,
    checkpoint_path: &Path,
    identity: &str,
) -> Result<(Target, Option<Checkpoint>)> {
    if is_block_device(&arguments.target) {
        if format != Format::Raw {
            return Err(Error::unsupported(format!("{format} on a block device")).hint("-O raw"));
        }
        if !arguments.force {
            return Err(Error::refused("the target is a block device, whose contents would be lost")
                .path(arguments.target.display())
                .hint("--force replaces them"));
        }
        return Ok((Target::Device(DeviceTarget::open_direct(&arguments.target)?), None));
    }
    if arguments.resume && checkpoint_path.exists() {
        let bytes = std::fs::read(checkpoint_path)
            .map_err(|error| Error::io("read stored progress", error).path(checkpoint_path.display()))?;
        let checkpoint = Checkpoint::from_bytes(&bytes, identity)?;
        if let Some(file) = NewFile::open_partial_direct(&arguments.target, arguments.force)? {
            say(&format!("going on after {}", report::human_bytes(checkpoint.done_bytes())));
            return Ok((Target::New(file), Some(checkpoint)));
        }
    }
    let file = match caching(arguments) {
        Caching::Direct => NewFile::create_direct(&arguments.target, arguments.force)?,
        Caching::PageCache | Caching::Metadata => NewFile::create(&arguments.target, arguments.force)?,
    };
    let _ = std::fs::remove_file(checkpoint_path);
    Ok((Target::New(file), None))
}

/// `.NAME.leandisk-progress` beside the target.
fn checkpoint_path(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.leandisk-progress"))
}

/// What a resumed copy must agree with: the source as it was, the plan, and all that shapes the target.
fn job_identity(
    arguments: &CopyArguments,
    plan: &CopyPlan,
    before: &[Option<(u64, i64, i64)>],
    format: Format,
) -> String {
    let reads = verify::window_hash(format!("{:?} {:?}", plan.reads, plan.fills).as_bytes()).unwrap_or(0);
    let CopyArguments { source, target_option, compress, verify, layout, provision, .. } = arguments;
    format!(
        "{source:?} {before:?} {reads:x} {format} {target_option:?} {compress} {verify} {layout:?} {provision:?}"
    )
}

pub(crate) fn check_unchanged(source: &Chain, before: &[Option<(u64, i64, i64)>]) -> Result<()> {
    if source_fingerprints(source) == before {
        return Ok(());
    }
    Err(Error::mismatch("the source changed while it was read")
        .hint("is a guest running on it? Copy a snapshot"))
}

/// Opens what was written as any disk is opened, and compares.
fn verify_target(
    arguments: &CopyArguments,
    target: &Target,
    format: Format,
    outcome: &CopyOutcome,
    cancelled: Arc<AtomicBool>,
) -> Result<()> {
    let path = match target {
        Target::New(file) => file.partial_path(),
        Target::Device(_) => &arguments.target,
    };
    let open = OpenArguments { format: Some(format), allow_path: Vec::new() };
    let written = open_chain(path, &open, Caching::Direct)
        .map_err(|error| Error::mismatch(format!("the target does not open: {error}")))?;
    let progress = Progress::new(arguments.progress, "verify", written.len_bytes(), cancelled, None);
    let digests = outcome.digests.as_ref().expect("asked for with --verify");
    let advanced = |bytes| {
        engine::Monitor::advanced(&progress, bytes, 0);
        !engine::Monitor::is_cancelled(&progress)
    };
    let result = verify::check(&written, digests, thread_count(arguments), &advanced);
    progress.finish();
    result
}

/// Gives the target its name; answers the bytes it has on the host.
fn publish(target: Target, arguments: &CopyArguments) -> Result<u64> {
    if let Target::New(file) = target {
        arguments.provision.mark(&file);
        file.publish()?;
    }
    use block::HostFile as _;
    SourceFile::open(&arguments.target)?.allocated_bytes()
}

/// Nothing is left under the target's name. What can be resumed is kept under another.
fn give_up(target: Target, checkpoint_path: &Path, error: Error) -> Error {
    let Target::New(file) = target else {
        return error.hint("the block device holds an incomplete copy");
    };
    if checkpoint_path.exists() && error.kind() != ErrorKind::Mismatch {
        let name = file.partial_path().display().to_string();
        file.keep();
        return error.hint(format!("nothing is under the target's name; --resume goes on with {name}"));
    }
    let _ = std::fs::remove_file(checkpoint_path);
    let no_space = error.io_source().is_some_and(|source| source.kind() == std::io::ErrorKind::StorageFull);
    drop(file);
    error.hint(if no_space {
        "the incomplete target was removed; --dry-run shows how much space a copy needs"
    } else {
        "the incomplete target was removed"
    })
}
