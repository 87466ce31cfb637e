//! `report`: its figures are those of the documents that it is given, and its page can be opened.

use std::fs;
use std::path::Path;

use crate::common::{arg, document, fail, names_in, succeed};
use serde_json::Value;
use testkit::{Guest, Inside, run, scratch};

fn keep(path: &Path, args: &[&str]) -> Value {
    let text = succeed(args);
    fs::write(path, &text).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn figure<'a>(told: &'a Value, key: &str) -> &'a Value {
    let figures = told["figures"].as_array().unwrap();
    figures.iter().find(|figure| figure["key"] == key).unwrap_or_else(|| panic!("{key}: {told:#}"))
}

/// Of all volumes.
fn sum(analysis: &Value, key: &str) -> f64 {
    analysis["volumes"].as_array().unwrap().iter().filter_map(|volume| volume[key].as_f64()).sum()
}

#[test]
fn a_disk_before_and_after_defrag_is_compared_and_priced() {
    let guest = Guest::get(Inside::Ext4);
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    run("cp", &["--sparse=always", arg(&guest.disk), arg(&path("d.raw"))]);
    let disk = path("d.raw");
    let analyze = |name: &str| {
        let (json, list) = (path(&format!("{name}.json")), path(&format!("{name}.jsonl")));
        let args = ["analyze", arg(&disk), "--device", "hdd", "--files", arg(&list), "--json"];
        keep(&json, &args)
    };
    let before = analyze("before");
    let done = keep(&path("defrag.json"), &["defrag", arg(&disk), "--json"]);
    let after = analyze("after");
    let (page, roi) = (path("gain.html"), path("roi.toml"));
    let printed = succeed(&["report", "--print-assumptions"]);
    fs::write(&roi, printed.replace("disks = 1\n", "disks = 100\n")).unwrap();
    let files = ["before.json", "before.jsonl", "after.json", "after.jsonl", "defrag.json"].map(path);
    let [before_json, before_list, after_json, after_list, defrag_json] = &files;
    let given = [
        "report",
        "--before",
        arg(before_json),
        "--before",
        arg(before_list),
        "--after",
        arg(after_json),
        "--after",
        arg(after_list),
        "--after",
        arg(defrag_json),
        "--roi",
        arg(&roi),
    ];
    let told = document("leandisk.report/1", &[&given[..], &["-o", arg(&page)]].concat());
    for key in ["fragments", "fragmented_files", "free_extents"] {
        assert_eq!(figure(&told, key)["before"].as_f64(), Some(sum(&before, key)), "{key}");
        assert_eq!(figure(&told, key)["after"].as_f64(), Some(sum(&after, key)), "{key}");
        assert_eq!(figure(&told, key)["basis"], "measured");
    }
    let read = |analysis: &Value| {
        let costs = analysis["reading"].as_array().unwrap();
        costs.iter().find(|cost| cost["device"] == "hdd").unwrap()["model_seconds"].as_f64().unwrap()
    };
    let saved = read(&before) - read(&after);
    assert_eq!(figure(&told, "read_seconds_hdd")["basis"], "predicted");
    let hours = &told["savings"]["lines"][1];
    assert!((hours["inputs"][0]["value"].as_f64().unwrap() - saved).abs() < 1e-9, "{hours:#}");
    let amount = saved / 3600.0 * 220.0 * 100.0 * 40.0;
    assert!((hours["amount_per_year"].as_f64().unwrap() - amount).abs() < 1e-6, "{hours:#} is not {amount}");
    assert_eq!(hours["basis"], "assumed");
    let moved = done["volumes"].as_array().unwrap().iter().any(|volume| volume["moved_bytes"] != 0);
    assert!(moved && told["done"][0].as_str().unwrap().contains("defragmented"), "{told:#}");
    let worst = &before["worst_files"]
        .as_array()
        .unwrap()
        .iter()
        .find(|file| file["path"] == told["worst_file"]["path"]);
    assert_eq!(worst.unwrap()["fragments"], told["worst_file"]["fragments_before"]);
    assert_eq!(told["worst_file"]["fragments_after"], 1);
    assert_eq!(told["published"]["total_per_year"], 68_766.0);

    // The page has the same figures, and is well-formed.
    let html = fs::read_to_string(&page).unwrap();
    let check = "import sys,html.parser\nclass P(html.parser.HTMLParser):\n  s=[]\n  def handle_starttag(self,t,a):\n    if t not in('meta','rect','path','br'): self.s.append(t)\n  def handle_startendtag(self,t,a): pass\n  def handle_endtag(self,t):\n    assert self.s.pop()==t,t\np=P();p.feed(open(sys.argv[1]).read());assert not p.s,p.s";
    run("python3", &["-c", check, arg(&page)]);
    assert!(
        html.contains("The worst file") && html.contains("6.5 months") && html.contains("Storage given back")
    );
    let text = succeed(&given);
    assert!(text.contains("pieces of all files") && text.contains("a year"), "{text}");

    // What is there is kept, and what is read is never written over.
    let (names, bytes) = (names_in(dir.path()), fs::read(before_json).unwrap());
    fail(3, &[&given[..], &["-o", arg(&page)]].concat());
    let message = fail(3, &[&given[..], &["-o", arg(before_json), "--force"]].concat());
    assert!(message.contains("which this command reads"), "{message}");
    assert_eq!(names, names_in(dir.path()));
    assert_eq!(fs::read(before_json).unwrap(), bytes);
}

#[test]
fn files_that_say_nothing_are_errors() {
    let dir = scratch();
    let path = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let compact = r#"{"schema":"leandisk.compact/1","dry_run":false,"allocated_before_bytes":5,"allocated_after_bytes":9}"#;
    let good = path("good.json", compact);
    let told = document("leandisk.report/1", &["report", "--before", arg(&good), "--after", arg(&good)]);
    assert_eq!(figure(&told, "allocated_bytes")["became"], "worse");
    assert!(
        told["savings"]["total_per_year"].as_f64().unwrap() < 0.0
            && told["savings"]["payback_months"].is_null()
    );
    for (name, text, status) in [
        ("broken.json", "{", 4),
        ("info.json", r#"{"schema":"leandisk.info/1"}"#, 3),
        ("analysis.json", r#"{"schema":"leandisk.analyze/1"}"#, 3),
    ] {
        let other = path(name, text);
        let message = fail(status, &["report", "--before", arg(&other), "--after", arg(&good)]);
        assert!(status == 3 || message.contains(name), "{message}");
    }
    let roi = path("roi.toml", "[hours]\nprice = 3\n");
    let message = fail(4, &["report", "--before", arg(&good), "--after", arg(&good), "--roi", arg(&roi)]);
    assert!(message.contains("price") && message.contains("roi.toml"), "{message}");
    fail(2, &["report", "--before", arg(&good)]);
    fail(5, &["report", "--before", arg(&good), "--after", arg(&dir.path().join("none"))]);
}
