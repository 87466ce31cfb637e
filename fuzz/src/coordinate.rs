//! Lines of a guest to its host, and of a host to its guest.

use ::coordinate::{
    ClientId, Coordinator, DeviceId, DiskAnswer, Disks, FromGuest, FromHost, Growth, Guest, Host,
    LINE_BYTES_MAX, Limits, LineReader, Serial,
};

struct Below;

impl Host for Below {
    fn disk(&mut self, _client: ClientId, size_bytes: u64, serial: &Serial) -> Option<DiskAnswer> {
        let devices = serial.text().bytes().map(u64::from).collect();
        let growth = if size_bytes.is_multiple_of(2) { Growth::Thick } else { Growth::Thin(size_bytes) };
        (size_bytes > 0).then_some(DiskAnswer { devices, growth })
    }

    fn is_busy(&mut self, device: DeviceId) -> bool {
        device == 7
    }
}

/// Each line goes to a coordinator and to a guest, a millisecond after the one before. What is understood must be said in the same
/// way; no device is leased more often, nor with more bytes, than it may be.
pub fn coordinate(data: &[u8]) {
    let limits = Limits::default();
    let mut coordinator = Coordinator::new(0, 1, limits);
    let mut guest = Guest::new(0, vec![(1 << 30, Serial::new("a")), (1, Serial::new("b"))]);
    for client in [1, 2] {
        assert!(coordinator.connected(0, client));
    }
    let mut now = 5_000;
    LineReader::default().feed(data, |line| {
        now += 1;
        if let Some(said) = FromGuest::parse(line) {
            let again = said.to_string();
            assert!(again.len() <= LINE_BYTES_MAX);
            assert_eq!(FromGuest::parse(again.trim_end_matches('\n').as_bytes()).as_ref(), Some(&said));
            coordinator.receive(now, 1 + now % 2, said, &mut Below);
        }
        if let Some(said) = FromHost::parse(line) {
            let again = said.to_string();
            assert_eq!(FromHost::parse(again.trim_end_matches('\n').as_bytes()).as_ref(), Some(&said));
            guest.receive(now, said);
        }
        if let Some(disks) = Disks::new(1 + now % 3) {
            let _ = guest.may(now, disks, now, now);
        }
        for (_, leases) in coordinator.leases() {
            assert!(leases.len() <= limits.leases && leases.iter().all(|bytes| *bytes <= limits.lease_bytes));
        }
        assert!(coordinator.take_out().len() < 100 && guest.take_out().len() < 100);
    });
}
