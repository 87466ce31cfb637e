//! Files and disks that stand before others: what they leave as it is, they forward.

/// The methods of [`ReadAt`](crate::ReadAt) (of a host file), [`HostFile`](crate::HostFile) and [`TargetFile`](crate::TargetFile)
/// that another file does: `forward!(self, self.file => set_len, flush);` in one of their implementations. Of [`Disk`](crate::Disk) and
/// [`LiveDisk`](crate::LiveDisk) those that have no namesake there.
#[macro_export]
macro_rules! forward {
    ($self:ident, $to:expr => $($method:ident),+ $(,)?) => {$($crate::forward!(@$method $self, $to);)+};

    (@lend $self:ident, $to:expr) => {
        fn lend(&$self, span: $crate::extent::HostSpan, take: $crate::Take<'_>) -> $crate::Result<bool> {
            $to.lend(span, take)
        }
    };
    (@len_bytes $self:ident, $to:expr) => {
        fn len_bytes(&$self) -> u64 { $to.len_bytes() }
    };
    (@read_at $self:ident, $to:expr) => {
        fn read_at(&$self, at: $crate::extent::HostOffset, buf: &mut [u8]) -> $crate::Result<()> { $to.read_at(at, buf) }
    };

    (@name $self:ident, $to:expr) => {
        fn name(&$self) -> &str { $to.name() }
    };
    (@path $self:ident, $to:expr) => {
        fn path(&$self) -> &::std::path::Path { $to.path() }
    };
    (@fingerprint $self:ident, $to:expr) => {
        fn fingerprint(&$self) -> $crate::Result<Option<$crate::Fingerprint>> { $to.fingerprint() }
    };
    (@fingerprint_when_opened $self:ident, $to:expr) => {
        fn fingerprint_when_opened(&$self) -> Option<$crate::Fingerprint> { $to.fingerprint_when_opened() }
    };
    (@users $self:ident, $to:expr) => {
        fn users(&$self) -> Vec<$crate::User> { $to.users() }
    };
    (@holders $self:ident, $to:expr) => {
        fn holders(&$self) -> Vec<(u64, u64)> { $to.holders() }
    };
    (@allocated_bytes $self:ident, $to:expr) => {
        fn allocated_bytes(&$self) -> $crate::Result<u64> { $to.allocated_bytes() }
    };
    (@host_map $self:ident, $to:expr) => {
        fn host_map(
            &$self,
            span: $crate::extent::HostSpan,
        ) -> $crate::Result<Vec<$crate::extent::Extent<$crate::extent::Host, $crate::HostState>>> {
            $to.host_map(span)
        }
    };
    (@host_extents $self:ident, $to:expr) => {
        fn host_extents(&$self) -> $crate::Result<Option<Vec<$crate::HostExtent>>> { $to.host_extents() }
    };
    (@stored $self:ident, $to:expr) => {
        fn stored(&$self) -> $crate::Result<Option<$crate::extent::ExtentSet<$crate::extent::Host>>> { $to.stored() }
    };
    (@host_filesystem $self:ident, $to:expr) => {
        fn host_filesystem(&$self) -> Option<String> { $to.host_filesystem() }
    };
    (@name_count $self:ident, $to:expr) => {
        fn name_count(&$self) -> u64 { $to.name_count() }
    };
    (@identity $self:ident, $to:expr) => {
        fn identity(&$self) -> Option<(u64, u64)> { $to.identity() }
    };
    (@is_block_device $self:ident, $to:expr) => {
        fn is_block_device(&$self) -> bool { $to.is_block_device() }
    };

    (@descriptor $self:ident, $to:expr) => {
        fn descriptor(&$self) -> Option<::std::os::fd::BorrowedFd<'_>> { $to.descriptor() }
    };

    (@write_at $self:ident, $to:expr) => {
        fn write_at(&$self, at: $crate::extent::HostOffset, buf: &[u8]) -> $crate::Result<()> { $to.write_at(at, buf) }
    };
    (@set_len $self:ident, $to:expr) => {
        fn set_len(&$self, len_bytes: u64) -> $crate::Result<()> { $to.set_len(len_bytes) }
    };
    (@reserve $self:ident, $to:expr) => {
        fn reserve(&$self, span: $crate::extent::HostSpan) -> $crate::Result<()> { $to.reserve(span) }
    };
    (@reserve_ahead $self:ident, $to:expr) => {
        fn reserve_ahead(&$self, span: $crate::extent::HostSpan, spare_bytes: u64) -> bool {
            $to.reserve_ahead(span, spare_bytes)
        }
    };
    (@prepare_memory $self:ident, $to:expr) => {
        fn prepare_memory(&$self, memory: &mut [u8]) { $to.prepare_memory(memory) }
    };
    (@zero $self:ident, $to:expr) => {
        fn zero(&$self, span: $crate::extent::HostSpan) -> $crate::Result<()> { $to.zero(span) }
    };
    (@punch $self:ident, $to:expr) => {
        fn punch(&$self, span: $crate::extent::HostSpan) -> $crate::Result<()> { $to.punch(span) }
    };
    (@flush $self:ident, $to:expr) => {
        fn flush(&$self) -> $crate::Result<()> { $to.flush() }
    };
    (@read_stored $self:ident, $to:expr) => {
        fn read_stored(&$self, at: $crate::extent::HostOffset, buf: &mut [u8]) -> $crate::Result<()> {
            $to.read_stored(at, buf)
        }
    };

    (@clone_range $self:ident, $to:expr) => {
        fn clone_range(&$self, source: &dyn $crate::HostFile, span: $crate::extent::HostSpan) -> $crate::Result<bool> {
            $to.clone_range(source, span)
        }
    };

    (@forget $self:ident, $to:expr) => {
        fn forget(&$self, span: $crate::extent::HostSpan) { $to.forget(span) }
    };

    (@map $self:ident, $to:expr) => {
        fn map(&$self, span: $crate::extent::VirtualSpan) -> $crate::Result<Vec<$crate::Run>> { $to.map(span) }
    };
    (@sector_bytes $self:ident, $to:expr) => {
        fn sector_bytes(&$self) -> u32 { $to.sector_bytes() }
    };
    (@occupancy $self:ident, $to:expr) => {
        fn occupancy(&$self) -> $crate::Result<Option<$crate::Occupancy>> { $to.occupancy() }
    };
    (@relocate $self:ident, $to:expr) => {
        fn relocate(&$self, moves: &[$crate::UnitMove]) -> $crate::Result<()> { $to.relocate(moves) }
    };
    (@is_changed $self:ident, $to:expr) => {
        fn is_changed(&$self) -> bool { $to.is_changed() }
    };
    (@reclaim $self:ident, $to:expr) => {
        fn reclaim(&$self) -> $crate::Result<u64> { $to.reclaim() }
    };
    (@restart_bitmap $self:ident, $to:expr) => {
        fn restart_bitmap(
            &$self,
            name: &str,
            kept: &$crate::extent::ExtentSet<$crate::extent::Virtual>,
        ) -> $crate::Result<()> {
            $to.restart_bitmap(name, kept)
        }
    };
    (@has_failed $self:ident, $to:expr) => {
        fn has_failed(&$self) -> bool { $to.has_failed() }
    };
    (@close $self:ident, $to:expr) => {
        fn close(&$self) -> $crate::Result<()> { $to.close() }
    };
}
