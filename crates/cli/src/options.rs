//! What the command line says, as the use cases take it.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bench::{AgedKind, DiskState, HostKind, HostVolume, Stated, Workload};
use block::{Error, Result};
use leandisk::backup::{Password, Place, PlaceOptions};
use leandisk::confine::When;
use leandisk::running::Address;
use leandisk::{
    OpenOptions, analyze, backup, bench as benches, compact, copy, copy_all, create, defrag, files, folder,
    increment, info, map, recover, running, serve, stats, worth,
};

use crate::arguments::{
    Activity, AgeArguments, AgedFilesystem, AnalyzeArguments, BackupArguments, BootArguments, Bus,
    CatArguments, CheckArguments, CompactArguments, Confine, ConfineArguments, CopyArguments,
    CreateArguments, DefragArguments, ExtractArguments, FirstWriteArguments, FragmentationArguments, Freeze,
    Goal, GuestArguments, HostFilesystem, InfoArguments, Layout, ListArguments, LogArguments, MapArguments,
    Move, NtfsLog, OpenArguments, Order, Placement, Provision, RecoverArguments, Reflink, Remedy,
    ReportArguments, RepositoryArguments, RestoreArguments, ServeArguments, Simulate, SnapshotsArguments,
    State, StatsArguments, Storage, WorkloadsArguments,
};

impl OpenArguments {
    fn options(&self) -> OpenOptions {
        OpenOptions {
            format: self.format,
            allow_path: self.allow_path.clone(),
            with: self.with.clone(),
            ..OpenOptions::default()
        }
    }

    /// Of a command that can join logs in.
    fn options_with(&self, log: LogArguments) -> OpenOptions {
        OpenOptions { ntfs_log: log.ntfs_log.into(), ..self.options() }
    }

    /// Also of a disk in a snapshot.
    fn options_of_stored(&self, log: LogArguments, repository: &RepositoryArguments) -> OpenOptions {
        OpenOptions { repository: repository.place(), ..self.options_with(log) }
    }
}

impl From<NtfsLog> for leandisk::NtfsLog {
    fn from(log: NtfsLog) -> Self {
        match log {
            NtfsLog::Refuse => Self::Refuse,
            NtfsLog::Join => Self::Join,
        }
    }
}

/// A variable of restic's that says something.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl RepositoryArguments {
    /// The same, with those of a target's options that are of the repository; and the others.
    fn with_options_among(&self, options: &[String]) -> (Self, Vec<String>) {
        let is_extended = |option: &&String| PlaceOptions::is_extended(option);
        let (of_repository, others): (Vec<_>, Vec<_>) = options.iter().partition(is_extended);
        let mut all = self.clone();
        all.option.extend(of_repository.into_iter().cloned());
        (all, others.into_iter().cloned().collect())
    }

    /// What the repository is called, if one is named.
    fn name(&self) -> Option<String> {
        self.repo.clone().or_else(|| variable("RESTIC_REPOSITORY"))
    }

    /// What is not said is taken from restic's variables; `None` if no repository is named.
    fn place(&self) -> Option<Place> {
        let name = self.name()?;
        let password = match (&self.password_file, &self.password_command) {
            (Some(file), _) => Password::File(file.clone()),
            (None, Some(command)) => Password::Command(command.clone()),
            (None, None) => variable("RESTIC_PASSWORD_FILE")
                .map(|file| Password::File(file.into()))
                .or_else(|| variable("RESTIC_PASSWORD_COMMAND").map(Password::Command))
                .or_else(|| variable("RESTIC_PASSWORD").map(Password::Text))
                .unwrap_or(Password::Missing),
        };
        let mut options = PlaceOptions { authorities: self.cacert.clone(), ..PlaceOptions::default() };
        // Each was looked at when it was parsed.
        self.option.iter().try_for_each(|option| options.add(option)).ok()?;
        Some(Place::new(name, password, options))
    }

    fn needed(&self) -> Result<Place> {
        self.place()
            .ok_or_else(|| Error::invalid("no repository is named").hint("--repo, or RESTIC_REPOSITORY"))
    }
}

impl BackupArguments {
    /// The files that are read and written.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let sources = self.disks.iter().map(|disk| backup::Source::parse(disk).disk);
        sources.chain(self.repository.name().map(PathBuf::from)).collect()
    }

    fn keep(&self) -> backup::Keep {
        let tags = |list: &String| list.split(',').map(|tag| tag.trim().to_owned()).collect();
        backup::Keep {
            last: self.keep_last,
            daily: self.keep_daily,
            weekly: self.keep_weekly,
            monthly: self.keep_monthly,
            yearly: self.keep_yearly,
            tags: self.keep_tag.iter().map(tags).collect(),
        }
    }

    /// How disks of running guests are read that are among `names`.
    pub(crate) fn of_guests(&self, names: &[PathBuf]) -> Result<running::Options> {
        self.guest.check(false, names.iter().any(|name| Address::is_one(name)))?;
        let bitmap = self.bitmap.clone().map_or(running::BitmapAsked::No, running::BitmapAsked::IfUsable);
        let how = running::Options { bitmap, ..self.guest.options() };
        Ok(match self.dry_run {
            // Nothing of it is kept.
            true => running::Options { freeze: running::Freeze::Never, ..how },
            false => how,
        })
    }

    pub(crate) fn options(&self) -> Result<backup::Options> {
        Ok(backup::Options {
            sources: self.disks.iter().map(|disk| backup::Source::parse(disk)).collect(),
            open: self.open.options(),
            place: self.repository.needed()?,
            init: self.init,
            tags: self.tag.iter().filter(|tag| !tag.is_empty()).cloned().collect(),
            host: self.host.clone(),
            keep_free: self.keep_free,
            keep_swap: self.keep_swap,
            drop_shadow_copies: self.shadow_copies.drop_shadow_copies,
            in_use: self.in_use,
            bitmap: self.bitmap.clone(),
            keep: self.keep(),
            metrics: self.metrics.clone(),
            verify: self.verify,
            dry_run: self.dry_run,
            page_cache: self.page_cache,
            threads: self.threads,
        })
    }
}

impl SnapshotsArguments {
    pub(crate) fn options(&self) -> Result<backup::SnapshotsOptions> {
        Ok(backup::SnapshotsOptions { place: self.repository.needed()? })
    }
}

impl RestoreArguments {
    /// The files that are read and written.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        std::iter::once(self.target.clone()).chain(self.repository.name().map(PathBuf::from)).collect()
    }

    pub(crate) fn options(&self) -> Result<backup::RestoreOptions> {
        let (repository, target_option) = self.repository.with_options_among(&self.target_option);
        let copy = copy::Options {
            source: self.snapshot.clone().into(),
            target: self.target.clone(),
            open: OpenOptions { repository: Some(repository.needed()?), ..OpenOptions::default() },
            target_format: self.target_format,
            target_option,
            compress: self.compress,
            layout: self.layout.into(),
            provision: self.provision.into(),
            verify: self.verify,
            dry_run: self.dry_run,
            force: self.force,
            resume: self.resume,
            threads: self.threads,
            ..copy::Options::default()
        };
        Ok(backup::RestoreOptions { copy, in_place: self.in_place })
    }
}

impl CheckArguments {
    pub(crate) fn options(&self) -> Result<backup::CheckOptions> {
        let snapshot = backup::SnapshotName::parse(&self.snapshot).ok_or_else(|| {
            Error::invalid(format!("'{}' is no snapshot", self.snapshot))
                .hint("SNAPSHOT is 'latest', or 8 digits or more of its ID")
        })?;
        Ok(backup::CheckOptions { snapshot, place: self.repository.needed()?, boot: self.boot.options() })
    }
}

impl BootArguments {
    fn options(&self) -> Option<backup::BootOptions> {
        self.boot.then(|| backup::BootOptions {
            time_max: Duration::from_secs(self.boot_seconds.into()),
            expect: self.boot_expect.clone(),
            screenshot: self.boot_screenshot.clone(),
            force: self.force,
            bus: match self.boot_bus {
                Bus::Sata => backup::Bus::Sata,
                Bus::Ide => backup::Bus::Ide,
                Bus::Virtio => backup::Bus::Virtio,
            },
            memory_mebibytes: self.boot_memory,
            firmware: self.boot_firmware.clone(),
        })
    }
}

impl From<Layout> for copy::Layout {
    fn from(layout: Layout) -> Self {
        match layout {
            Layout::Keep => Self::Keep,
            Layout::Packed => Self::Packed,
        }
    }
}

impl From<ConfineArguments> for When {
    fn from(arguments: ConfineArguments) -> Self {
        arguments.confine.into()
    }
}

impl From<Confine> for When {
    fn from(confine: Confine) -> Self {
        match confine {
            Confine::Auto => Self::Auto,
            Confine::Always => Self::Always,
            Confine::Never => Self::Never,
        }
    }
}

impl From<Freeze> for running::Freeze {
    fn from(freeze: Freeze) -> Self {
        match freeze {
            Freeze::Auto => Self::Auto,
            Freeze::Always => Self::Always,
            Freeze::Never => Self::Never,
        }
    }
}

impl From<Provision> for leandisk::Provision {
    fn from(provision: Provision) -> Self {
        match provision {
            Provision::Thin => Self::Thin,
            Provision::Lazy => Self::Lazy,
            Provision::Eager => Self::Eager,
        }
    }
}

impl From<Reflink> for copy::Reflink {
    fn from(reflink: Reflink) -> Self {
        match reflink {
            Reflink::Auto => Self::Auto,
            Reflink::Always => Self::Always,
            Reflink::Never => Self::Never,
        }
    }
}

impl From<Placement> for serve::Placement {
    fn from(placement: Placement) -> Self {
        match placement {
            Placement::Dense => Self::Dense,
            Placement::Mirror => Self::Mirror,
        }
    }
}

impl InfoArguments {
    pub(crate) fn options(&self) -> info::Options {
        info::Options {
            disk: self.disk.clone(),
            open: self.open.options_of_stored(self.log, &self.repository),
        }
    }
}

/// The disk that files are read from.
/// The folder of a target that is a file: that of an address or of standard output is none.
fn folder_of(target: &Path) -> Option<PathBuf> {
    let folder = target.parent().filter(|_| target != Path::new("-"))?;
    (folder.as_os_str().is_empty() || folder.is_dir()).then(|| folder.to_owned())
}

fn files_of(disk: &Path, open: &OpenArguments, repository: &RepositoryArguments) -> files::DiskOptions {
    let open = OpenOptions { repository: repository.place(), ..open.options() };
    files::DiskOptions { disk: disk.to_owned(), open }
}

impl ListArguments {
    pub(crate) fn disk(&self) -> files::DiskOptions {
        files_of(&self.disk, &self.open, &self.repository)
    }

    pub(crate) fn options(&self) -> files::ListOptions {
        files::ListOptions { path: self.path.as_bytes().to_vec(), recursive: self.recursive }
    }
}

impl CatArguments {
    pub(crate) fn disk(&self) -> files::DiskOptions {
        files_of(&self.disk, &self.open, &self.repository)
    }
}

impl ExtractArguments {
    pub(crate) fn disk(&self) -> files::DiskOptions {
        files_of(&self.disk, &self.open, &self.repository)
    }

    /// The parser knows that there is either a folder or a tar.
    pub(crate) fn options(&self) -> files::ExtractOptions {
        let into = match (&self.into, &self.tar) {
            (Some(folder), _) => files::Destination::Folder(folder.clone()),
            (None, Some(tar)) if tar.as_os_str() != "-" => files::Destination::Tar(tar.clone()),
            _ => files::Destination::Stdout,
        };
        let paths = self.paths.iter().map(|path| path.as_bytes().to_vec()).collect();
        files::ExtractOptions { paths, into, force: self.force }
    }
}

impl AnalyzeArguments {
    /// `draws_map` is for those who look: a map takes as long as the survey.
    pub(crate) fn options(&self, draws_map: bool) -> analyze::Options {
        analyze::Options {
            disk: self.disk.clone(),
            open: self.open.options_of_stored(self.log, &self.repository),
            html: self.html.clone(),
            files: self.files.clone(),
            force: self.force,
            top: self.top,
            device: self.device.clone(),
            request_size: self.request_size,
            trace: self.trace.clone(),
            zeros: self.zeros,
            draws_map,
        }
    }
}

impl AnalyzeArguments {
    /// Of a whole folder.
    pub(crate) fn folder_options(&self) -> folder::Options {
        folder::Options { folder: self.disk.clone(), html: self.html.clone(), force: self.force, jobs: 0 }
    }
}

impl MapArguments {
    pub(crate) fn options(&self) -> map::Options {
        map::Options {
            disk: self.disk.clone(),
            open: OpenOptions { repository: self.repository.place(), ..self.open.options() },
            output: self.output.clone(),
            force: self.force,
        }
    }
}

impl GuestArguments {
    /// `Invalid` if any of it is asked, and no disk is one of a guest.
    fn check(&self, asks_more: bool, has_guest: bool) -> Result<()> {
        if !has_guest && (self.freeze.is_some() || self.agent.is_some() || asks_more) {
            let what = "--freeze, --agent and --since are for disks of running guests";
            return Err(Error::invalid(what).hint("name one: qmp:SOCKET?disk=NAME"));
        }
        Ok(())
    }

    fn options(&self) -> running::Options {
        running::Options {
            freeze: self.freeze.map(Into::into).unwrap_or_default(),
            agent: self.agent.clone(),
            ..running::Options::default()
        }
    }
}

impl CopyArguments {
    /// What an incremental copy is asked.
    pub(crate) fn increment(&self) -> Result<increment::Options> {
        let copy::Options { target, dry_run, open, .. } = self.options()?;
        Ok(increment::Options { target, dry_run, open })
    }

    /// The files that are read and written: the target is among the others, or it is a folder.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.sources().chain(&self.into).cloned().collect()
    }

    /// All that is named as a source, where several disks are.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &PathBuf> {
        std::iter::once(&self.source).chain(&self.others)
    }

    /// How disks of running guests are read that are copied into `into`.
    pub(crate) fn of_guests(&self, into: &Path) -> Result<running::Options> {
        self.guest.check(self.since.is_some(), self.sources().any(|source| Address::is_one(source)))?;
        if self.since.is_some() {
            return Err(Error::invalid("--since is for one disk").hint("copy each disk by itself"));
        }
        let folder = if into.is_dir() { Some(into.to_owned()) } else { folder_of(into) };
        Ok(running::Options { overlay_folder: folder, ..self.guest.options() })
    }

    /// How a disk of a running guest is read.
    pub(crate) fn of_guest(&self) -> Result<running::Options> {
        self.guest.check(self.since.is_some(), Address::is_one(&self.source))?;
        Ok(running::Options {
            bitmap: self.since.clone().map_or(running::BitmapAsked::No, running::BitmapAsked::Always),
            overlay_folder: self.others.first().and_then(|target| folder_of(target)),
            ..self.guest.options()
        })
    }

    /// Of one disk: `Invalid` if there are several targets.
    pub(crate) fn options(&self) -> Result<copy::Options> {
        match &self.others[..] {
            [target] => Ok(self.copy(target.clone())),
            _ => Err(Error::invalid("a disk is copied to one target")
                .hint("leandisk copy DISK... --into FOLDER -O FMT copies several disks")),
        }
    }

    /// Of several disks.
    pub(crate) fn options_of_all(&self, into: &Path) -> copy_all::Options {
        copy_all::Options {
            sources: self.sources().map(Into::into).collect(),
            into: into.to_owned(),
            copy: self.copy(PathBuf::new()),
        }
    }

    fn copy(&self, target: PathBuf) -> copy::Options {
        let (repository, target_option) = self.repository.with_options_among(&self.target_option);
        copy::Options {
            source: self.source.clone(),
            target,
            open: self.open.options_of_stored(self.log, &repository),
            target_format: self.target_format,
            target_option,
            compress: self.compress,
            layout: self.layout.into(),
            reflink: self.reflink.into(),
            provision: self.provision.into(),
            keep_free: self.keep_free,
            keep_swap: self.keep_swap,
            drop_shadow_copies: self.shadow_copies.drop_shadow_copies,
            fast: self.fast,
            verify: self.verify,
            dry_run: self.dry_run,
            resume: self.resume,
            force: self.force,
            in_use: self.in_use,
            page_cache: self.page_cache,
            threads: self.threads,
        }
    }
}

impl CreateArguments {
    pub(crate) fn options(&self) -> create::Options {
        create::Options {
            disk: self.disk.clone(),
            size: self.size,
            format: self.format,
            option: self.option.clone(),
            provision: self.provision.into(),
            force: self.force,
        }
    }
}

impl CompactArguments {
    pub(crate) fn options(&self) -> compact::Options {
        compact::Options {
            disk: self.disk.clone(),
            open: self.open.options(),
            defrag: self.defrag,
            moves: match self.moves {
                Move::Auto => compact::Move::Auto,
                Move::Always => compact::Move::Always,
                Move::Never => compact::Move::Never,
            },
            drop_shadow_copies: self.shadow_copies.drop_shadow_copies,
            dry_run: self.dry_run,
            verify: self.verify,
        }
    }
}

impl DefragArguments {
    pub(crate) fn options(&self) -> defrag::Options {
        defrag::Options {
            disk: self.disk.clone(),
            open: self.open.options(),
            goal: match self.goal {
                Goal::Files => defrag::Goal::Files,
                Goal::Free => defrag::Goal::Free,
                Goal::Pack => defrag::Goal::Pack,
            },
            volume: self.volume,
            dry_run: self.dry_run,
            verify: self.verify,
            mft: self.mft,
            grow: self.grow.unwrap_or_default(),
            journal: self.journal.clone(),
        }
    }
}

impl RecoverArguments {
    pub(crate) fn options(&self) -> recover::Options {
        recover::Options { disk: self.disk.clone(), open: self.open.options(), journal: self.journal.clone() }
    }
}

impl ServeArguments {
    pub(crate) fn options(&self) -> Result<serve::Options> {
        Ok(serve::Options {
            disks: self.served()?,
            open: self.open.options_of_stored(self.log, &self.repository),
            socket: self.socket.clone(),
            socket_mode: self.socket_mode,
            socket_group: self.socket_group.clone(),
            listen: self.listen,
            passed_sockets: true,
            read_only: self.read_only,
            lean: self.lean,
            provision: self.provision.map(Into::into),
            placement: self.placement.into(),
            compact_at_close: self.compact_at_close,
            tls: self.tls_files(),
            insecure: self.insecure,
            metrics: self.metrics,
            simulate: self.simulate.map(|kind| match kind {
                Simulate::Hdd => serve::Simulate::Hdd,
                Simulate::San => serve::Simulate::San,
            }),
        })
    }

    fn served(&self) -> Result<Vec<serve::Served>> {
        let mut names = once_each("--name", &self.name, self.disks.len())?;
        let mut traces = once_each("--trace", &self.trace, self.disks.len())?;
        let mut targets = once_each("--into", &self.into, self.disks.len())?;
        let mut overlays = once_each("--overlay", &self.overlay, self.disks.len())?;
        let served = |disk: &PathBuf| serve::Served {
            disk: disk.clone(),
            read_at: None,
            name: names.next().cloned(),
            trace: traces.next().cloned(),
            overlay: overlays.next().cloned(),
            into: targets.next().cloned(),
        };
        Ok(self.disks.iter().map(served).collect())
    }

    /// The parser knows that a certificate and its key come together.
    fn tls_files(&self) -> Option<serve::TlsFiles> {
        let (certificate, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(serve::TlsFiles { certificate, key, authority: self.tls_ca.clone() })
    }
}

impl StatsArguments {
    pub(crate) fn options(&self) -> stats::Options {
        stats::Options {
            source: self.source.clone(),
            export: self.export.clone(),
            later: self.later.clone(),
            html: self.html.clone(),
            force: self.force,
        }
    }
}

impl ReportArguments {
    pub(crate) fn options(&self) -> worth::Options {
        worth::Options {
            before: self.before.clone(),
            after: self.after.clone(),
            assumptions: self.roi.clone(),
            html: self.output.clone(),
            force: self.force,
        }
    }
}

impl AgeArguments {
    pub(crate) fn options(&self) -> benches::AgeOptions {
        benches::AgeOptions {
            target: self.target.clone(),
            filesystem: match self.filesystem {
                AgedFilesystem::Ext4 => AgedKind::Ext4,
                AgedFilesystem::Xfs => AgedKind::Xfs,
                AgedFilesystem::Btrfs => AgedKind::Btrfs,
                AgedFilesystem::Ntfs => AgedKind::Ntfs,
            },
            seed: self.seed,
            size: self.size,
            fill_percent: self.fill,
            months: self.months,
            stated: Stated {
                fragmented_percent: self.fragmented,
                pieces_per_file: self.pieces,
                free_extents: self.free_extents,
            },
        }
    }
}

impl WorkloadsArguments {
    pub(crate) fn options(&self) -> benches::WorkloadsOptions {
        benches::WorkloadsOptions {
            dir: self.dir.clone(),
            state: match self.state {
                State::Fresh => DiskState::Fresh,
                State::Light => DiskState::Light,
                State::Heavy => DiskState::Heavy,
                State::Nested => DiskState::Nested,
            },
            activities: self.activities.iter().map(|activity| (*activity).into()).collect(),
            remedies: self.remedy.iter().map(|remedy| (*remedy).into()).collect(),
            size: self.size,
            runs: self.runs,
            seed: self.seed,
            storage: match self.storage {
                Storage::This => bench::Storage::This,
                Storage::Hdd => bench::Storage::Hdd,
                Storage::San => bench::Storage::San,
            },
            html: self.results.html.clone(),
            force: self.results.force,
        }
    }
}

impl From<Activity> for bench::Activity {
    fn from(activity: Activity) -> Self {
        match activity {
            Activity::TreeCopy => Self::TreeCopy,
            Activity::Documents => Self::Documents,
            Activity::Backup => Self::Backup,
            Activity::Scan => Self::Scan,
            Activity::MailServer => Self::MailServer,
            Activity::MailClient => Self::MailClient,
            Activity::Insert => Self::Insert,
            Activity::Unique => Self::Unique,
            Activity::Join => Self::Join,
            Activity::Sort => Self::Sort,
        }
    }
}

impl From<Remedy> for bench::Remedy {
    fn from(remedy: Remedy) -> Self {
        match remedy {
            Remedy::None => Self::None,
            Remedy::Defrag => Self::Defrag,
            Remedy::DefragPack => Self::DefragPack,
            Remedy::CopyPacked => Self::CopyPacked,
        }
    }
}

impl FirstWriteArguments {
    pub(crate) fn options(&self) -> benches::FirstWriteOptions {
        benches::FirstWriteOptions {
            dir: self.dir.clone(),
            size: self.size,
            passes: self.passes,
            formats: self.formats.clone(),
            provision: self.provision.iter().map(|&provision| provision.into()).collect(),
            write: self.write,
            iterations: self.iterations,
            keep: self.keep,
            html: self.results.html.clone(),
            force: self.results.force,
        }
    }
}

impl FragmentationArguments {
    pub(crate) fn options(&self) -> Result<benches::FragmentationOptions> {
        let host = self.host_filesystem.map(|kind| HostVolume {
            kind: match kind {
                HostFilesystem::Ext4 => HostKind::Ext4,
                HostFilesystem::Xfs => HostKind::Xfs,
                HostFilesystem::Btrfs => HostKind::Btrfs,
            },
            is_aged: self.aged,
        });
        Ok(benches::FragmentationOptions {
            dir: self.dir.clone(),
            workload: Workload {
                files: usize::from(self.files),
                size_bytes: self.size,
                write_bytes: self.write,
                order: match self.order {
                    Order::Turns => bench::Order::Turns,
                    Order::Random => bench::Order::Random,
                },
                churns: self.churn,
                flush_bytes: self.flush,
            },
            formats: self.formats.clone(),
            host,
            iterations: self.iterations,
            keep: self.keep,
            html: self.results.html.clone(),
            force: self.results.force,
            program: this_program()?,
        })
    }
}

/// Values of an option that is given for each disk, in their order, or for none.
fn once_each<'a, T>(option: &str, values: &'a [T], disk_count: usize) -> Result<std::slice::Iter<'a, T>> {
    if values.is_empty() || values.len() == disk_count {
        return Ok(values.iter());
    }
    let (given, disks) = (values.len(), if disk_count == 1 { "disk" } else { "disks" });
    Err(Error::invalid(format!("{option} is given {given} times for {disk_count} {disks}"))
        .hint(format!("give {option} once for each disk, in the order of the disks, or not at all")))
}

fn this_program() -> Result<PathBuf> {
    std::env::current_exe().map_err(|error| Error::io("find this program", error))
}
