//! Many connections with many requests in flight, by a client that knows what each byte must be.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::common::Served;
use crate::common::load::*;

fn run_load(delay_us: u64, time: Duration) {
    let served = Served::new(CONNECTION_COUNT * SLOTS * SLOT_BYTES);
    served.disk.delay_us.store(delay_us, SeqCst);
    let socket = &served.socket;
    let verified: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CONNECTION_COUNT)
            .map(|index| scope.spawn(move || load(socket, "disk", index, time).0))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(verified > 200, "{verified}");
    let snapshot = served.monitor.snapshot();
    assert!(snapshot.logical.reads >= verified);
    assert_eq!(snapshot.latency.all.count(), snapshot.logical.operations(), "each that arrived ended");
    assert!(snapshot.outstanding.all.max.unwrap() > IN_FLIGHT as i64);
    assert!(snapshot.outstanding.all.max.unwrap() <= (CONNECTION_COUNT * IN_FLIGHT as u64) as i64);
}

/// With a backend so slow that requests are handed to workers, then with one so quick that they are not.
#[test]
fn sixteen_connections_with_sixteen_requests_each_read_what_was_written() {
    run_load(2000, Duration::from_secs(2));
    run_load(0, Duration::from_secs(2));
}
