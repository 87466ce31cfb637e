//! `--files`: a line of JSON a file.

use std::io::{self, Write};

use filesystem::{CatalogStream, StreamName};
use serde::Serialize;
use stack::{LayerFragments, Survey};

/// One stream of a file. The keys `volume`, `path`, `size_bytes`, `fragments` and `whole_stack_fragments` are what
/// scripts rely on.
#[derive(Serialize)]
struct FileLine {
    volume: usize,
    /// From the volume's root, by the file's first name; bytes that are no UTF-8 are replaced here.
    path: String,
    /// The bytes of `path`, where they are no UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    kind: &'static str,
    /// Whether it is a stream besides the file's main one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    named_stream: bool,
    size_bytes: u64,
    fragments: u64,
    image_fragments: u64,
    whole_stack_fragments: u64,
    /// The file's further names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    links: Vec<String>,
    /// Offset in the stream, offset on the volume, length, all in bytes.
    extents: Vec<[u64; 3]>,
}

/// Writes a line for every stream of every volume whose files could be listed.
pub fn write_file_lines(survey: &Survey, mut out: impl Write) -> io::Result<()> {
    for (index, volume) in survey.volumes.iter().enumerate() {
        let Some(catalog) = &volume.catalog else { continue };
        for (stream, fragments) in catalog.streams().zip(&volume.fragments) {
            let is_main = stream.stream.name == StreamName::Main;
            let links = match is_main {
                true => catalog.paths(stream.stream.file).skip(1).map(|path| text(&path)).collect(),
                false => Vec::new(),
            };
            let line = file_line(index + 1, &stream, (*fragments).into(), links);
            serde_json::to_writer(&mut out, &line)?;
            out.write_all(b"\n")?;
        }
    }
    out.flush()
}

fn file_line(
    volume: usize,
    stream: &CatalogStream<'_>,
    fragments: LayerFragments,
    links: Vec<String>,
) -> FileLine {
    let bytes = stream.path();
    let extent = |extent: filesystem::FileExtent| {
        [extent.logical.get(), extent.span.start().get(), extent.span.len_bytes()]
    };
    FileLine {
        volume,
        path: text(&bytes),
        path_hex: std::str::from_utf8(&bytes).is_err().then(|| hex(&bytes)),
        kind: stream.stream.kind.word(),
        named_stream: stream.stream.name != StreamName::Main,
        size_bytes: stream.stream.size_bytes,
        fragments: fragments.guest,
        image_fragments: fragments.image,
        whole_stack_fragments: fragments.whole_stack,
        links,
        extents: stream.extents().map(extent).collect(),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
