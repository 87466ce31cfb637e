//! A copy of what a disk's guest uses: facts, plan, execution, proof.

mod identity;
mod reflink;
mod stream;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use block::{Disk, Error, ErrorKind, HostFile, ReadAt, Result, TargetFile, TargetName};
use claims::{Act, Seen};
use engine::{Checkpoint, CloneSource, CopyJob, CopyOutcome, JobIdentity, JobMonitor, Least, Left, Transfer};
use extent::Virtual;
use filesystem::Check;
use image::{AnyWriter, Chain, CreateOptions, Format, NoFiles};
use mutants::broken;
use os::FolderOptions;
use plan::{CopyOptions, CopyPlan, CopyPlanner};
use report::{CopyDocument, CopySubject, copy_document};
use stack::{Arranged, Stack, UsedMaps};

use self::identity::{check_unchanged, how, source_state};
pub use self::reflink::Reflink;
use self::reflink::{clone_block_bytes, raw_file};
pub use self::stream::{Input, take_input};
use crate::machine::{Caching, Machine, Named, ThisHost};
use crate::open::{Location, OpenDisk, OpenOptions, check_claims};
use crate::pack::pack;
use crate::remote::Written;
use crate::target::{Target, Wanted};
use crate::{Cancel, Observer, Progress, Provision, appliance, shadow_copies};

/// Where files lie in the target.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Layout {
    /// Every byte at the offset where it was.
    #[default]
    Keep,
    /// Each file in one piece.
    Packed,
}

/// What is copied, where to, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The disk to copy: an image file or a block device.
    pub source: PathBuf,
    /// The image file to create, or a block device, the address of an export, or `-` for standard output.
    pub target: PathBuf,
    /// How the source is opened.
    pub open: OpenOptions,
    /// The target's format; `None` for what its extension says.
    pub target_format: Option<Format>,
    /// Options of the target's format, such as `subformat=fixed`.
    pub target_option: Vec<String>,
    /// Whether the target is compressed: QCOW2 alone.
    pub compress: bool,
    /// Where files lie in the target.
    pub layout: Layout,
    /// Whether a raw target shares storage with a raw source.
    pub reflink: Reflink,
    /// When space is allocated for the target.
    pub provision: Provision,
    /// Whether free space is copied as well.
    pub keep_free: bool,
    /// Whether the contents of page files and swap space are copied as well.
    pub keep_swap: bool,
    /// Whether what only the shadow copies of Windows need is left out.
    pub drop_shadow_copies: bool,
    /// Whether old data stay on a block device where nothing is copied.
    pub fast: bool,
    /// Whether the target is read back and compared.
    pub verify: bool,
    /// Whether nothing is written: everything is checked and planned as for the copy.
    pub dry_run: bool,
    /// Whether a copy that was interrupted is continued.
    pub resume: bool,
    /// Whether the target is replaced if it exists.
    pub force: bool,
    /// Whether a disk is copied that another program writes to.
    pub in_use: bool,
    /// Whether data is read and written through the page cache.
    pub page_cache: bool,
    /// Worker threads; `None` for as many as keep the storage busy.
    pub threads: Option<u16>,
}

/// Copies the disk, or says what a copy would do. Nothing is under the target's name before it is complete.
pub fn run(options: &Options, observer: &dyn Observer) -> Result<CopyDocument> {
    run_on(&ThisHost, options, observer)
}

/// The same on another machine than this host.
pub fn run_on(machine: &dyn Machine, options: &Options, observer: &dyn Observer) -> Result<CopyDocument> {
    let started = Instant::now();
    appliance::check_source(machine, &options.source, &options.open, observer)?;
    let Begun { disk, target_format, writer, in_order, before, least, target } = begin(machine, options)?;
    let stack = &disk.stack;
    warn_of_sectors(stack.chain().sector_bytes(), target_format, observer);
    let clone_block_bytes = clone_block_bytes(options, stack.chain(), target_format, &target)?;
    // Who has mapped a file can change it without its times changing at once.
    let source_state = if options.in_use { None } else { source_state(stack.chain())? };

    let checking = observer.waiting("checking what the guest uses");
    let maps = used_maps(options, stack)?;
    let kept = CopyOptions { keep_free: options.keep_free, keep_swap: options.keep_swap };
    let packing = match options.layout {
        Layout::Keep => None,
        Layout::Packed => Some(pack(stack, &maps)?),
    };
    let (arrangements, layouts) = packing.map(|packing| (packing.arrangements, packing.layouts)).unzip();
    let arranged = arrangements.map(|arrangements| Arranged::new(stack, arrangements));
    let mut plan = match &arranged {
        None => plan(kept, stack, &maps)?,
        Some(arranged) => {
            let mut planner = CopyPlanner::new(kept, stack.volumes().len());
            arranged.each_facts(&maps, |facts| planner.add(facts))?;
            planner.finish()
        }
    };
    plan.clone_block_bytes = clone_block_bytes;
    drop(checking);
    let source: &dyn ReadAt<Virtual> = match &arranged {
        None => &**stack.chain(),
        Some(arranged) => arranged,
    };
    let planned_bytes = plan.reads.total_bytes() - plan.cloned_bytes();
    let writer = match in_order {
        Some(create) => image::create_in_order(target_format, create, plan.parts().map(|part| part.span))?,
        None => writer,
    };
    let most_bytes = least.stored_bytes.saturating_add(planned_bytes);
    target.warn_of_room(most_bytes, writer.encoder().is_some(), observer);
    let identity = JobIdentity { source: source_state, how: how(options, &plan, target_format) };
    // Asked of a server as well, which may be gone once the target has its name.
    let source_allocated_bytes = disk.allocated_bytes()?;
    let done = if options.dry_run {
        target.tell_left(&identity, observer)?;
        None
    } else {
        let format = target_format;
        let job =
            Job { machine, options, observer, disk: &disk, source, plan: &plan, format, before: &before };
        Some(job.execute(target, writer, identity)?)
    };

    Ok(copy_document(&CopySubject {
        source_path: &options.open.shown(&options.source),
        stack,
        maps: &maps,
        plan: &plan,
        source_allocated_bytes,
        target_path: &options.target.display().to_string(),
        target_format: target_format.name(),
        provision: options.provision.word(),
        target_allocated_bytes: done.as_ref().map_or(0, |done| done.target_allocated_bytes),
        totals: done.as_ref().map(|done| done.outcome.totals),
        kept_bytes: done.as_ref().map_or(0, |done| done.kept_bytes),
        elapsed_seconds: started.elapsed().as_secs_f64(),
        verified: done.is_some() && options.verify,
        layouts: layouts.as_deref(),
        shadow_copies: &shadow_copies::care(options.drop_shadow_copies, stack, &maps)?,
    }))
}

/// A copy of which nothing is planned yet: its source is open, and nothing is in the target's way.
struct Begun<'a> {
    disk: OpenDisk,
    target_format: Format,
    writer: AnyWriter,
    /// What the writer is made of once the plan is known, if it goes from start to end.
    in_order: Option<CreateOptions>,
    before: Seen,
    least: Least,
    target: Target<'a>,
}

fn begin<'a>(machine: &'a dyn Machine, options: &Options) -> Result<Begun<'a>> {
    let disk = OpenDisk::open_on(machine, &options.source, &options.open, caching(options))?;
    let chain = disk.stack.chain();
    chain.check_readable()?;
    let target_format = target_format(machine, options, chain.facts().format)?;
    let create = create_options(machine, options, &disk.stack, target_format)?;
    let in_order = (machine.named(&options.target) == Named::Stream).then(|| create.clone());
    let writer = match &in_order {
        None => image::create(target_format, create)?,
        // What is placed is known later.
        Some(_) => {
            stream::check(options)?;
            image::create_in_order(target_format, create, std::iter::empty())?
        }
    };
    check_provision(machine, options, &writer)?;
    check_target_is_no_source(machine, options, chain)?;
    let before = Seen::of(chain);
    if !options.in_use {
        let resolver = Location { machine, path: &options.source, options: &options.open }.resolver()?;
        check_claims(chain, &*resolver, Act::Read).map_err(or_in_use)?;
    }
    let least = engine::least(writer.clone(), chain.len_bytes(), options.provision.when())?;
    let wanted = wanted(machine, options, chain, target_format, least);
    let target = Target::open(machine, &options.target, &wanted)?;
    Location { machine, path: &options.target, options: &options.open }.check_replaceable()?;
    Ok(Begun { disk, target_format, writer, in_order, before, least, target })
}

/// The source as a copy opens it, looked at before any of several copies begins.
pub(crate) struct SourceSeen {
    pub(crate) virtual_bytes: u64,
    pub(crate) allocated_bytes: u64,
    /// The permissions that a copy may have.
    pub(crate) mode: u32,
}

/// Whether the source can be copied, as far as it is known without reading its volumes.
pub(crate) fn see_source(machine: &dyn Machine, options: &Options) -> Result<SourceSeen> {
    let disk = OpenDisk::open_on(machine, &options.source, &options.open, caching(options))?;
    let chain = disk.stack.chain();
    chain.check_readable()?;
    if !options.in_use {
        let resolver = Location { machine, path: &options.source, options: &options.open }.resolver()?;
        check_claims(chain, &*resolver, Act::Read).map_err(or_in_use)?;
    }
    let (virtual_bytes, allocated_bytes) = (chain.len_bytes(), disk.allocated_bytes()?);
    Ok(SourceSeen { virtual_bytes, allocated_bytes, mode: source_mode(machine, chain) })
}

/// Whether anything is in the target's way: answers what it takes at the least, and what is free, if it is a file.
pub(crate) fn see_target(machine: &dyn Machine, options: &Options) -> Result<(u64, Option<u64>)> {
    let begun = begin(machine, options)?;
    let free_bytes = match &begun.target {
        Target::Folder { room, .. } => Some(room.free_bytes),
        Target::Device(_) | Target::Stream(_) => None,
    };
    Ok((begun.least.stored_bytes, free_bytes))
}

/// What the volumes use. Where all of them is kept, and nothing moves, they need not be understood: not one of them is looked at.
fn used_maps(options: &Options, stack: &Stack) -> Result<UsedMaps> {
    match options.keep_free && options.keep_swap && options.layout == Layout::Keep {
        true => Ok(stack.whole_maps("--keep-free and --keep-swap keep all of it")),
        false => stack.used_maps_for(Check::Full, shadow_copies::what(options.drop_shadow_copies)),
    }
}

/// Facts in, plan out.
pub(crate) fn plan(options: CopyOptions, stack: &Stack, maps: &UsedMaps) -> Result<CopyPlan> {
    let mut planner = CopyPlanner::new(options, stack.volumes().len());
    stack.each_facts(maps, |facts| planner.add(facts))?;
    Ok(planner.finish())
}

/// `-O`, else the target's extension, else the source's format. An extension that stands for none of them is a mistake, or a format that
/// cannot be written: what is made under such a name would not be what the name says.
fn target_format(machine: &dyn Machine, options: &Options, source: Format) -> Result<Format> {
    let target = &options.target;
    let hint = "say it with -O raw, vhd, vhdx, vmdk, qcow2 or vdi";
    if machine.named(target) == Named::Stream && options.target_format.is_none() {
        return Err(Error::invalid("standard output has no name that tells a format")
            .path("-")
            .hint("say it with -O raw, qcow2 or vmdk"));
    }
    if vm::Address::is_one(target) {
        return Err(
            Error::unsupported("a running guest's disk is read, and not written").path(target.display())
        );
    }
    if let Some(format) = options.target_format {
        return Ok(format);
    }
    if machine.named(target).is_written_over() {
        return Ok(Format::Raw);
    }
    let Some(extension) = target.extension() else { return Ok(source) };
    extension
        .to_str()
        .and_then(Format::from_extension)
        .ok_or_else(|| Error::invalid("the target's name tells no format").path(target.display()).hint(hint))
}

/// Before anything is made: whether the target can have its storage at once.
fn check_provision(machine: &dyn Machine, options: &Options, writer: &AnyWriter) -> Result<()> {
    engine::check_provision(writer, options.provision.when())?;
    if options.provision != Provision::Thin && machine.named(&options.target).is_written_over() {
        return Err(Error::unsupported("a block device or an export has the storage that it has")
            .hint("--provision thin"));
    }
    Ok(())
}

/// A table written for one sector size means nothing to a guest that is told another.
fn warn_of_sectors(sector_bytes: u32, target: Format, observer: &dyn Observer) {
    if sector_bytes != 512 && target != Format::Vhdx {
        observer.note(&format!(
            "warning: the disk has sectors of {sector_bytes} bytes, which {target} cannot tell the guest: attach the \
             target with that sector size, or use vhdx"
        ));
    }
}

/// What `-o` says.
pub(crate) fn format_keys(options: &[String]) -> Result<BTreeMap<String, String>> {
    let mut keys = BTreeMap::new();
    for option in options {
        let (key, value) = option
            .split_once('=')
            .ok_or_else(|| Error::invalid("-o").field("option", option.as_str(), "KEY=VALUE"))?;
        if keys.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(Error::invalid(format!("-o {key}= is given twice")));
        }
    }
    Ok(keys)
}

fn create_options(
    machine: &dyn Machine,
    options: &Options,
    stack: &Stack,
    format: Format,
) -> Result<CreateOptions> {
    let keys = format_keys(&options.target_option)?;
    if options.compress && format != Format::Qcow2 {
        return Err(Error::invalid(format!("{format} cannot be compressed with --compress"))
            .hint("-O qcow2 --compress, or -O vmdk -o subformat=streamOptimized"));
    }
    Ok(CreateOptions {
        virtual_bytes: stack.chain().len_bytes(),
        sector_bytes: stack.chain().sector_bytes(),
        compress: options.compress,
        keys,
        identity_seed: uuid::Uuid::new_v4().as_u128(),
        created_unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        file_name: match machine.named(&options.target) {
            Named::Stream => "disk".into(),
            _ => options.target.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        },
        target_is_dirty: machine.named(&options.target).is_written_over() && !options.fast,
    })
}

/// Even `--force` does not write a disk over one of the files it is read from.
fn check_target_is_no_source(machine: &dyn Machine, options: &Options, source: &Chain) -> Result<()> {
    if broken!(TargetNotTold) {
        return Ok(());
    }
    if machine.named(&options.target) == Named::Export {
        // What the server has it in is not known here.
        return match source.files().iter().any(|file| file.path() == options.target) {
            true => Err(Error::refused("the target is the source").path(options.target.display())),
            false => Ok(()),
        };
    }
    let target = machine.storage_of(&options.target)?;
    for file in source.files() {
        // A partition lies on its disk, and a loop device on its file: either way round.
        let source = machine.storage_of(file.path())?;
        if file.holders().iter().any(|holder| target.contains(holder))
            || target.first().is_some_and(|target| source.contains(target))
        {
            return Err(Error::refused(format!("the target is the source's own file {}", file.name())));
        }
    }
    Ok(())
}

/// Says how to copy a disk in use all the same.
fn or_in_use(error: Error) -> Error {
    let first = error.hint_text().map(|hint| format!("{hint}; or ")).unwrap_or_default();
    error.hint(format!(
        "{first}copy a snapshot of it; --in-use copies what its file holds at this moment, which may not fit together"
    ))
}

/// What a copy left behind.
struct Done {
    outcome: CopyOutcome,
    /// Bytes that an earlier attempt had read.
    kept_bytes: u64,
    target_allocated_bytes: u64,
}

/// Opens what was written, to be read.
type Opens<'a> = &'a dyn Fn() -> Result<Arc<dyn HostFile>>;

/// A copy to be made.
struct Job<'a> {
    machine: &'a dyn Machine,
    options: &'a Options,
    observer: &'a dyn Observer,
    disk: &'a OpenDisk,
    source: &'a dyn ReadAt<Virtual>,
    plan: &'a CopyPlan,
    format: Format,
    before: &'a Seen,
}

/// Opens what was written, to be read back.
type ReadBack<'a> = dyn Fn() -> Result<Arc<dyn HostFile>> + 'a;

impl Job<'_> {
    fn execute(&self, target: Target<'_>, writer: AnyWriter, identity: JobIdentity) -> Result<Done> {
        let cancelled = self.observer.cancel()?;
        match target {
            Target::Device(device) => {
                let progress = self.progress(&cancelled);
                let result = self.copy(writer, &*device, None, None, &*progress, &*progress);
                let is_export = self.machine.named(&self.options.target) == Named::Export;
                let (written, what): (Box<ReadBack<'_>>, _) = match is_export {
                    true => (
                        Box::new(|| {
                            let name = self.options.target.display().to_string();
                            Ok(Arc::new(Written { name, target: device.clone() }))
                        }),
                        "export",
                    ),
                    false => (
                        Box::new(|| self.machine.open(&self.options.target, Caching::Direct)),
                        "block device",
                    ),
                };
                let outcome = result
                    .and_then(|outcome| self.prove(outcome, &*written, cancelled))
                    .map_err(|error| error.hint(format!("the {what} holds an incomplete copy")))?;
                let target_allocated_bytes = written()?.allocated_bytes()?;
                Ok(Done { outcome, kept_bytes: 0, target_allocated_bytes })
            }
            Target::Stream(stream) => {
                let stream = stream.expect("opened to be written");
                let progress = self.progress(&cancelled);
                let head_bytes = stream::write_head(&writer, &stream)?;
                let mut outcome = self.copy(writer, &stream, None, None, &*progress, &*progress)?;
                outcome.totals.written_bytes += head_bytes;
                let outcome = self.prove_source(outcome)?;
                Ok(Done { outcome, kept_bytes: 0, target_allocated_bytes: stream.len_bytes() })
            }
            Target::Folder { folder, .. } => {
                let (transfer, left) = Transfer::begin(&*folder, identity, self.options.resume)?;
                let resume = going_on(left, self.options.resume, self.observer);
                let kept_bytes = resume.as_ref().map_or(0, Checkpoint::read_bytes);
                let progress = self.progress(&cancelled);
                let watched = transfer.watched_by(&*progress);
                let written = || self.machine.open(&folder.path(TargetName::Partial), Caching::Direct);
                let interval = Some(self.machine.checkpoint_interval());
                let result = self
                    .copy(writer, transfer.partial(), interval, resume, &*progress, &watched)
                    .and_then(|outcome| self.prove(outcome, &written, cancelled));
                drop(watched);
                match result {
                    Ok(outcome) => {
                        transfer.publish()?;
                        let kept = self.options.provision.kept();
                        let is_marked = self.machine.kept(&self.options.target) == kept;
                        self.options.provision.note_unless(is_marked, self.observer);
                        self.done(outcome, kept_bytes)
                    }
                    Err(error) => Err(self.give_up(transfer, &folder.path(TargetName::Partial), error)),
                }
            }
        }
    }

    fn progress(&self, cancelled: &Cancel) -> Box<dyn Progress> {
        self.observer.progress("copy", self.plan.reads.total_bytes(), cancelled.clone())
    }

    fn copy(
        &self,
        writer: AnyWriter,
        target: &dyn TargetFile,
        checkpoint_interval: Option<Duration>,
        resume: Option<Checkpoint>,
        progress: &dyn Progress,
        monitor: &dyn JobMonitor,
    ) -> Result<CopyOutcome> {
        let job = CopyJob {
            source: self.source,
            plan: self.plan,
            clones: self.clones(),
            writer,
            target,
            provision: self.options.provision.when(),
            thread_count: self.thread_count(),
            digests: self.options.verify,
            checkpoint_interval,
            resume,
        };
        let outcome = job.run(monitor)?;
        progress.finish();
        Ok(outcome)
    }

    /// A server takes longer to answer than a file does: with more requests on their way neither waits for the other.
    fn thread_count(&self) -> usize {
        let is_export = |path: &Path| self.machine.named(path) == Named::Export;
        let least = if is_export(&self.options.source) || is_export(&self.options.target) { 16 } else { 8 };
        self.options.threads.map_or((4 * os::processor_count()).clamp(least, 32), usize::from)
    }

    fn clones(&self) -> Option<CloneSource<'_>> {
        let file = raw_file(self.disk.stack.chain()).filter(|_| self.plan.clone_block_bytes.is_some())?;
        Some(CloneSource { file, is_required: self.options.reflink == Reflink::Always })
    }

    /// Whether the source is still what was read.
    fn prove_source(&self, outcome: CopyOutcome) -> Result<CopyOutcome> {
        check_unchanged(self.options, self.disk.stack.chain(), self.before, self.observer)?;
        Ok(outcome)
    }

    /// Whether the source is still what was read, and, with `--verify`, the target what was written.
    fn prove(&self, outcome: CopyOutcome, written: Opens<'_>, cancelled: Cancel) -> Result<CopyOutcome> {
        let outcome = self.prove_source(outcome)?;
        if self.options.verify {
            self.verify_target(written, &outcome, cancelled)?;
        }
        Ok(outcome)
    }

    /// Opens what was written as any disk is opened, but that it stands on nothing, and compares.
    fn verify_target(&self, written: Opens<'_>, outcome: &CopyOutcome, cancelled: Cancel) -> Result<()> {
        let open = image::OpenOptions { format: Some(self.format) };
        let written = written()
            .and_then(|file| Chain::open(file, open, &NoFiles))
            .map_err(|error| Error::mismatch(format!("the target does not open: {error}")))?;
        let progress = self.observer.progress("verify", written.len_bytes(), cancelled);
        let digests = outcome.digests.as_ref().expect("asked for with --verify");
        let advanced = |bytes| {
            progress.advanced(bytes, 0);
            !progress.is_cancelled()
        };
        let result = verify::check(&written, digests, self.thread_count(), &advanced);
        progress.finish();
        result
    }

    /// Nothing is left under the target's name. What can be gone on with is kept under another, unless it is in the way: of a full file
    /// system, or of the truth.
    fn give_up(&self, transfer: Transfer<'_>, partial: &Path, error: Error) -> Error {
        let is_full =
            error.io_source().is_some_and(|source| source.kind() == std::io::ErrorKind::StorageFull);
        match transfer.give_up(error.kind() != ErrorKind::Mismatch && !is_full) {
            Some(kept) => error.hint(format!(
                "nothing is under the target's name; '{}' is kept, and --resume goes on with it after {}",
                partial.display(),
                report::human_bytes(kept.done_bytes)
            )),
            None if self.machine.named(partial) != Named::Nothing => error.hint(format!(
                "nothing is under the target's name; '{}' could not be removed",
                partial.display()
            )),
            None if is_full => {
                error.hint("the incomplete target was removed; --dry-run shows how much space a copy needs")
            }
            None => error.hint("the incomplete target was removed"),
        }
    }

    fn done(&self, outcome: CopyOutcome, kept_bytes: u64) -> Result<Done> {
        let target = self.machine.open(&self.options.target, Caching::PageCache)?;
        let target_allocated_bytes = target.allocated_bytes()?;
        Ok(Done { outcome, kept_bytes, target_allocated_bytes })
    }
}

fn caching(options: &Options) -> Caching {
    if options.page_cache { Caching::PageCache } else { Caching::Direct }
}

/// Where to go on; says so, or why not.
fn going_on(left: Left, resumes: bool, observer: &dyn Observer) -> Option<Checkpoint> {
    let say = |text: &str| observer.note(text);
    match left {
        Left::Usable(checkpoint) if resumes => {
            say(&format!("going on after {}", report::human_bytes(checkpoint.done_bytes())));
            return Some(*checkpoint);
        }
        Left::Usable(checkpoint) => say(&format!(
            "starting over: the {} that an interrupted copy kept are removed; --resume would have gone on with them",
            report::human_bytes(checkpoint.done_bytes())
        )),
        Left::Useless(why) if resumes => say(&format!("starting over: {why}")),
        Left::Useless(_) => say("removing what an interrupted copy left"),
        Left::Nothing if resumes => say("starting from the beginning: nothing was kept to go on with"),
        Left::Nothing => {}
    }
    None
}

/// What the target is to be, as far as it decides whether it can be.
fn wanted(machine: &dyn Machine, options: &Options, source: &Chain, format: Format, least: Least) -> Wanted {
    Wanted {
        format,
        force: options.force,
        least,
        is_rehearsal: options.dry_run,
        options: FolderOptions {
            replace: options.force || broken!(TargetReplacedUnasked),
            mode: source_mode(machine, source),
            kept: options.provision.kept(),
            direct: caching(options) == Caching::Direct,
        },
    }
}

/// The permissions that all files of the source have: a copy is for nobody who could not read each of them.
fn source_mode(machine: &dyn Machine, source: &Chain) -> u32 {
    source.files().iter().fold(0o777, |all, file| all & machine.copied_mode(file.path()))
}
