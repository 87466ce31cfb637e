//! Many threads at once on real files: each reads what it wrote while others write and flush, and a clean end leaves nothing counted in
//! vain. What cuts leave of such is explored by `crash`.

use std::sync::atomic::{AtomicBool, Ordering};

use extent::{Offset, Span};
use sim::Random;
use testkit::scratch;

use crate::live::files::{KINDS, Kind, check_by_qemu, contents_by_qemu, create, open};
use crate::live::model::{Model, any_step, carry_out, rounds};

/// Each thread owns every fourth sector group of the disk, so that threads meet in units but not in bytes.
#[test]
fn threads_do_not_disturb_each_other() {
    const THREAD_COUNT: u64 = 4;
    const STRIPE_BYTES: u64 = 16 << 10;
    for kind in KINDS {
        let kind = Kind { size: 8 << 20, ..*kind };
        let dir = scratch();
        let path = create(kind, dir.path());
        let disk = open(&path);
        let done = AtomicBool::new(false);
        let models: Vec<Model> = std::thread::scope(|scope| {
            let flusher = scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    disk.flush().unwrap();
                    std::thread::yield_now();
                }
            });
            let owners: Vec<_> = (0..THREAD_COUNT)
                .map(|thread| {
                    let disk = &disk;
                    scope.spawn(move || {
                        let mut random = Random::new(thread);
                        let mut model = Model::new(disk.len_bytes());
                        for _ in 0..300 * rounds() {
                            let step = any_step(&mut random, STRIPE_BYTES);
                            let row = random.below(disk.len_bytes() / STRIPE_BYTES / THREAD_COUNT);
                            let base = (row * THREAD_COUNT + thread) * STRIPE_BYTES;
                            let step = step.moved(base);
                            carry_out(&**disk, &step).unwrap();
                            model.carry_out(&step);
                            let span = Span::new(Offset::new(base), STRIPE_BYTES);
                            let mut found = vec![0; usize::try_from(STRIPE_BYTES).unwrap()];
                            disk.read_at(span.start(), &mut found).unwrap();
                            model.check(span, &found, &format!("{} thread {thread} {step:?}", kind.name));
                            model.learn(span, &found);
                        }
                        model
                    })
                })
                .collect();
            let models = owners.into_iter().map(|owner| owner.join().unwrap()).collect();
            done.store(true, Ordering::Release);
            flusher.join().unwrap();
            models
        });
        disk.close().unwrap();
        check_by_qemu(kind, &path, true);
        let found = contents_by_qemu(kind, &path);
        for (thread, span) in (0..THREAD_COUNT).cycle().zip(Span::from_zero(kind.size).split(STRIPE_BYTES)) {
            let model = &models[usize::try_from(thread).unwrap()];
            let range =
                usize::try_from(span.start().get()).unwrap()..usize::try_from(span.end().get()).unwrap();
            model.check(span, &found[range], &format!("{} thread {thread}", kind.name));
        }
    }
}
