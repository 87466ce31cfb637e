//! Pages that stand alone: one file, which asks no network for anything and runs no script but its own.
//!
//! Invariants:
//! - the policy in a page's head allows the one style sheet and the one script by their digests, and nothing else;
//! - what is not constant reaches a page as [`escaped`] text, or in the data, which is base64;
//! - a page's size has a bound, [`MAP_HTML_BYTES_MAX`], whatever the disk.

mod chart;
mod pair_page;
mod report_page;
mod worth_page;

use std::fmt::Write as _;

use crate::escape::{escaped, shortened};
use crate::map::{DiskMap, MAP_SVG_BYTES_MAX, fitted, map_svg};
use crate::text::{human_bytes, printable};

pub use chart::{Bar, BarChart, DayBar, DayChart, Histogram, HistogramBin};
pub(crate) use pair_page::{BarPair, PairChart, PairPage, PairSection, Recording, pair_html};
pub use report_page::{Advice, Column, ReportPage, Table, report_html};
pub(crate) use worth_page::{SavingCard, Strip, StripPair, WorthPage, worth_html};

/// The page of a map is no larger.
pub const MAP_HTML_BYTES_MAX: usize = 5_000_000;

/// What a page's style sheet, script and words take at most.
const FRAME_BYTES_MAX: usize = 100_000;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("map.js");
/// SHA-256 of the two, in base64, as a content security policy has them. A test tells when they are to be changed.
const STYLE_DIGEST: &str = "6m2VExS1NQz3CSFu0ViFi/jt8KaoNuhl3QHQ7joUHH0=";
const SCRIPT_DIGEST: &str = "SvtqDx4Ra1kFYKz3rSD6eT6sNW2AvzjXJm7CiseLFFs=";

/// A page that shows the disk: to zoom, to point at, to search for files.
pub fn map_html(map: &DiskMap) -> String {
    let title = printable(&map.title);
    let about = format!("{} of virtual disk", human_bytes(map.virtual_bytes));
    let body = format!(
        "<main class=\"lone\">\n<h1>{}</h1>\n<p class=\"about\">{about}</p>\n{}</main>\n",
        escaped(&shortened(&title, 300)),
        map_section(map, "always")
    );
    page(&title, &body, true)
}

/// A page with a line below its title that says where it comes from: when it was made, on which host, of what.
pub fn with_origin(page: &str, origin: &str) -> String {
    const TITLE_END: &str = "</h1>\n";
    // What stands in the title is escaped: the first end of a heading is its own.
    page.replacen(TITLE_END, &format!("{TITLE_END}<p class=\"about\">{}</p>\n", escaped(origin)), 1)
}

/// The map as a section of a page. `wheel` says whether turning the wheel zooms: `always`, or when `chosen`.
fn map_section(map: &DiskMap, wheel: &str) -> String {
    let svg = map_svg(map);
    assert!(svg.len() <= MAP_SVG_BYTES_MAX, "a picture has a bound");
    let data = fitted(map, MAP_HTML_BYTES_MAX - FRAME_BYTES_MAX - svg.len());
    format!(
        r#"<section class="map" aria-label="Map of the disk" data-wheel="{wheel}" data-state="loading">
<div class="tools">
<label class="find"><span class="hidden-text">Find files by any part of their path</span><input type="search" data-part="search" placeholder="Find files by any part of their path" autocomplete="off" spellcheck="false"></label>
<div class="group" role="group" aria-label="Zoom"><button type="button" data-part="in" aria-label="Zoom in">+</button><button type="button" data-part="out" aria-label="Zoom out">−</button><button type="button" data-part="all">Whole disk</button></div>
<label>Colours <select data-part="colors"><option value="state">what is there</option><option value="place">place on the virtual disk</option></select></label>
</div>
<p class="note" data-part="note" role="status"></p>
<ul class="legend" data-part="legend"></ul>
<div class="body">
<div class="rows" data-part="rows"></div>
<aside>
<section><h3>Under the pointer</h3><div class="here"><p class="hint" data-part="hint">Point at a row to see which file lies there; click to see all of it. Turn the wheel or press + and − to zoom, drag or use the arrow keys to move. Where one row is zoomed, the others show where the same data lie.</p><dl data-part="here" aria-live="polite"></dl></div></section>
<section><h3>Files highlighted</h3><p data-part="found" role="status"></p><button type="button" class="fit" data-part="fit" hidden>Zoom to fit</button><ul class="hits" data-part="hits"></ul><p class="more" data-part="more"></p></section>
</aside>
</div>
<div class="still">
{svg}</div>
<script type="application/octet-stream" data-part="data">{data}</script>
</section>
"#
    )
}

/// A whole page around `body`, with the script if a map is in it.
fn page(title: &str, body: &str, has_map: bool) -> String {
    let mut out = String::with_capacity(body.len() + STYLE.len() + SCRIPT.len() + 1000);
    let (scripts, script) = match has_map {
        true => (format!("script-src 'sha256-{SCRIPT_DIGEST}'; "), format!("<script>{SCRIPT}</script>\n")),
        false => (String::new(), String::new()),
    };
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{STYLE_DIGEST}'; {scripts}base-uri 'none'; form-action 'none'"
    );
    let _ = write!(
        out,
        r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{}</title>
<style>{STYLE}</style>
</head>
<body>
{body}{script}</body>
</html>
"#,
        escaped(&shortened(title, 200))
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a real tool computes it.
    fn digest(text: &str) -> String {
        let dir = testkit::scratch();
        let path = dir.path().join("text");
        std::fs::write(&path, text).expect("a scratch folder can be written");
        let program = "import base64,hashlib,sys;print(base64.b64encode(hashlib.sha256(open(sys.argv[1],'rb').read()).digest()).decode())";
        testkit::run("python3", &["-c", program, path.to_str().expect("UTF-8")]).trim().to_owned()
    }

    #[test]
    fn the_policy_allows_this_style_and_this_script() {
        assert_eq!(STYLE_DIGEST, digest(STYLE));
        assert_eq!(SCRIPT_DIGEST, digest(SCRIPT));
    }

    #[test]
    fn constants_do_not_end_their_elements() {
        assert!(!STYLE.contains("</") && !SCRIPT.contains("</script") && !SCRIPT.contains("<!--"));
        assert!(STYLE.len() + SCRIPT.len() < FRAME_BYTES_MAX - 10_000);
    }
}
