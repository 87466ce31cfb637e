//! Documents in, figures and pages out.

use super::*;
use crate::text::Palette;
use block::ErrorKind;

fn analysis(path: &str, allocated: u64, fragments: u64, requests: u64, seconds: f64) -> String {
    format!(
        r#"{{"schema":"leandisk.analyze/1","path":"{path}","virtual_bytes":1000000,"later":true,
        "volumes":[{{"index":1,"size_bytes":900000,"fragmented_files":3,"fragments":{fragments},"free_extents":7,
        "largest_free_extent_bytes":4096,"free_extents_by_size":[{{"from_bytes":4096,"extents":7,"bytes":30000}}]}},
        {{"index":2,"size_bytes":1,"fragments":null}}],
        "image":{{"allocated_bytes":{allocated}}},"whole_stack":{{"extents":9}},"reclaimable_bytes":0,
        "worst_files":[{{"volume":1,"path":"/<b>\u001b","size_bytes":8192,"fragments":4}}],
        "device":"hdd","reading":[{{"device":"hdd","requests":{requests},"model_seconds":{seconds}}}]}}"#
    )
}

fn subject(before: &[&str], after: &[&str]) -> WorthSubject {
    let read = |texts: &[&str], when: When| {
        texts.iter().map(|text| Input::from_json("a.json", text, when).unwrap()).collect::<Vec<_>>()
    };
    WorthSubject {
        before: read(before, When::Before),
        after: read(after, When::After),
        ..WorthSubject::default()
    }
}

fn figure<'a>(document: &'a WorthDocument, key: &str) -> &'a Compared {
    document.figures.iter().find(|figure| figure.key == key).unwrap_or_else(|| panic!("{key}: {document:?}"))
}

#[test]
fn two_analyses_are_compared_and_priced() {
    let before = analysis("a.vhdx", 3_000_000_000, 100, 1000, 30.0);
    let after = analysis("a.vhdx", 1_000_000_000, 10, 250, 12.0);
    let document = worth_document(&subject(&[&before], &[&after]));
    let fragments = figure(&document, "fragments");
    assert_eq!((fragments.before, fragments.after, fragments.became), (100.0, 10.0, Became::Better));
    assert_eq!(fragments.basis, Basis::Measured);
    assert_eq!(figure(&document, "read_seconds_hdd").basis, Basis::Predicted);
    assert_eq!(figure(&document, "free_extents").became, Became::Same);
    let given_back = &document.savings.lines[0];
    assert_eq!(given_back.inputs[0].value, 2e9);
    assert!((given_back.amount_per_year.unwrap() - 2.0 * 2.0 * 0.05 * 12.0).abs() < 1e-9);
    assert_eq!(document.savings.lines[1].inputs[0].value, 18.0);
    assert_eq!(document.savings.lines[4].inputs[0].value, 0.75);
    assert_eq!(document.histograms.len(), 1);
}

/// What would be printed as a change of 0.0 % is no gain, and no loss.
#[test]
fn a_change_too_small_to_print_is_none() {
    let before = analysis("a", 3_000_000_000, 10, 1000, 30.0);
    let after = analysis("a", 2_999_000_000, 10, 999, 30.0);
    let document = worth_document(&subject(&[&before], &[&after]));
    let became = |key: &str| (figure(&document, key).became, change(figure(&document, key)));
    assert_eq!(became("allocated_bytes"), (Became::Same, "0 %".to_owned()));
    assert_eq!(became("read_requests_hdd"), (Became::Better, "−0.1 %".to_owned()));
}

/// The same figures the other way round: the same rows in the same order, as costs.
#[test]
fn what_became_worse_is_shown_as_what_became_better() {
    let (good, bad) = (analysis("a", 10, 10, 10, 1.0), analysis("a", 30, 40, 50, 2.0));
    let better = worth_document(&subject(&[&bad], &[&good]));
    let worse = worth_document(&subject(&[&good], &[&bad]));
    let names = |document: &WorthDocument| {
        document.figures.iter().map(|figure| figure.key.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&better), names(&worse));
    assert_eq!(figure(&worse, "fragments").became, Became::Worse);
    let amount = |document: &WorthDocument| document.savings.lines[1].amount_per_year.unwrap();
    assert!((amount(&better) + amount(&worse)).abs() < 1e-12 && amount(&worse) < 0.0);
    assert!(verdict(&worse).contains("saves nothing"), "{}", verdict(&worse));
    let strip = |page: &str| page.replace(|c: char| c.is_ascii_digit(), "");
    let pages = [(&bad, &good), (&good, &bad)].map(|(before, after)| {
        let subject = subject(&[before], &[after]);
        strip(&worth_page(&worth_document(&subject), &subject))
    });
    let classes = |page: &str| page.matches("class=\"bar").count();
    assert_eq!(classes(&pages[0]), classes(&pages[1]));
}

#[test]
fn a_change_knows_both_states() {
    let defrag = r#"{"schema":"leandisk.defrag/1","dry_run":false,"path":"d.raw","goal":"pack","elapsed_seconds":2.5,"volumes":[
        {"index":1,"before":{"fragments":50,"fragmented_files":5,"fragmented_bytes":1,"free_extents":9,"largest_free_extent_bytes":100},
        "after":{"fragments":10,"fragmented_files":0,"fragmented_bytes":0,"free_extents":2,"largest_free_extent_bytes":900},"moved_bytes":4096,
        "reading":{"bytes":1,"requests_before":80,"requests_after":20,"seconds_before":0.8,"seconds_after":0.2}},
        {"index":2,"refused":"why","before":null,"after":null,"moved_bytes":0,"reading":null}]}"#;
    let compact = r#"{"schema":"leandisk.compact/1","dry_run":true,"path":"d.raw","virtual_bytes":9,"allocated_before_bytes":5000,
        "allocated_after_bytes":4000,"freed_bytes":1000,
        "error":{"kind":"io","message":"no room","hint":null,"path":null}}"#;
    let document = worth_document(&subject(&[defrag, compact], &[defrag, compact]));
    assert_eq!((figure(&document, "fragments").before, figure(&document, "fragments").after), (50.0, 10.0));
    assert_eq!(figure(&document, "largest_free_extent_bytes").became, Became::Better);
    assert_eq!(figure(&document, "allocated_bytes").basis, Basis::Predicted, "a dry run");
    assert_eq!(document.done.len(), 2);
    assert!(document.done[0].contains("4 KiB moved in 2.5 s"), "{:?}", document.done);
    assert!(document.done[1].contains("would be compacted"), "{:?}", document.done);
    assert!(document.done[1].ends_with("it did not come to its end: no room"), "{:?}", document.done);
}

#[test]
fn other_documents_are_told() {
    let read = |text: &str| Input::from_json("x", text, When::Before).unwrap_err().kind();
    assert_eq!(read("{"), ErrorKind::Corrupt);
    assert_eq!(read(r#"{"schema":"leandisk.info/1"}"#), ErrorKind::Unsupported);
    assert_eq!(read(r#"{"schema":"leandisk.compact/1"}"#), ErrorKind::Corrupt);
    assert_eq!(read(&analysis("a", 1, 1, 1, -1.0)), ErrorKind::Corrupt);
    assert_eq!(read(r#"{"schema":"leandisk.stats/1","exports":[]}"#), ErrorKind::Refused);
    let one = analysis("a", 1, 1, 1, 1.0);
    let compact = r#"{"schema":"leandisk.compact/1","dry_run":false,"allocated_before_bytes":5,"allocated_after_bytes":4}"#;
    let document = worth_document(&subject(&[&one], &[compact]));
    assert!(document.is_empty());
    assert!(document.notes[0].contains("nothing to be compared with"), "{:?}", document.notes);
}

#[test]
fn pages_and_texts_hold_what_guests_named_as_text() {
    let before = analysis("a", 3000, 100, 1000, 30.0);
    let mut subject = subject(&[&before], &[&before]);
    let listed = ListedFile {
        volume: 1,
        path: "/<b>\u{1b}".into(),
        size_bytes: 8192,
        fragments: 2,
        extents: vec![(0, 4096), (800_000, 4096)],
    };
    subject.worst_before = Some(listed.clone());
    subject.worst_after = Some(ListedFile { fragments: 1, extents: vec![(0, 8192)], ..listed });
    let document = worth_document(&subject);
    let page = worth_page(&document, &subject);
    assert!(page.contains("/&lt;b&gt;\\u{1b}") && !page.contains("<b>\u{1b}"));
    assert!(page.matches("<rect class=\"bar before\"").count() >= 2, "both pieces");
    for expected in [
        "storage.price_per_gb_month",
        "(measured: ",
        "(predicted: ",
        "(assumed: ",
        "37,500",
        "68,766",
        "6.5 months",
    ] {
        assert!(page.contains(expected), "{expected} in {page}");
    }
    let text = worth_text(&document, Palette { colors: false });
    assert!(text.lines().all(|line| line.chars().count() <= 80) && !text.contains('\u{1b}'), "{text}");
}

fn recording(reads: u64, bytes: u64) -> String {
    let mut snapshot = serve::monitor::Snapshot::default();
    snapshot.logical.reads = reads;
    snapshot.logical.read_bytes = bytes;
    snapshot.latency.all.counts[3] = reads;
    let export = serve::stats::ExportStats {
        name: "disk".into(),
        len_bytes: 1 << 30,
        is_read_only: false,
        failure: None,
        snapshot: Some(snapshot),
    };
    crate::to_json(&crate::StatsDocument::new(vec![export]))
}

#[test]
fn fewer_requests_count_only_for_the_same_work() {
    let avoided = |before: &str, after: &str| {
        let document = worth_document(&subject(&[before], &[after]));
        assert_eq!(figure(&document, "ios").basis, Basis::Measured);
        assert!(!document.histograms.is_empty());
        (document.savings.lines[4].inputs[0].value, document.savings.lines[4].missing, document.notes)
    };
    let (share, missing, _) = avoided(&recording(400, 1 << 20), &recording(100, 1 << 20));
    assert_eq!((share, missing), (0.75, None));
    let (_, missing, notes) = avoided(&recording(400, 1 << 20), &recording(100, 1 << 18));
    assert!(missing.is_some() && notes[0].contains("not of the same work"), "{notes:?}");
}
