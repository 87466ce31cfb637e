mod support;
#[test]
fn try_it() {
    for path in std::env::var("TRY").unwrap().split(',') {
        let started = std::time::Instant::now();
        let result = verify::volume::check(&support::source(std::path::Path::new(path)));
        println!("{path}: {result:?} {:?}", started.elapsed());
    }
}
