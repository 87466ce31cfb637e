//! `--files`: a line of JSON a file.

use std::borrow::Cow;
use std::io::{self, Write};

use filesystem::{CatalogStream, StreamName};
use serde::Serialize;
use stack::{LayerFragments, Survey};

/// One stream of a file. The keys `volume`, `path`, `size_bytes`, `fragments` and `whole_stack_fragments` are what
/// scripts rely on.
#[derive(Serialize)]
struct FileLine<'a> {
    volume: usize,
    /// From the volume's root, by the file's first name; bytes that are no UTF-8 are replaced here.
    path: Cow<'a, str>,
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
    /// Of its extents, what other files of the volume have as well.
    shared_bytes: u64,
    /// The file's further names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    links: Vec<String>,
    /// Offset in the stream, offset on the volume, length, all in bytes.
    extents: Vec<[u64; 3]>,
}

/// Writes a line for every stream of every volume whose files could be listed.
pub fn write_file_lines(survey: &Survey, mut out: impl Write) -> io::Result<()> {
    let mut path = Vec::new();
    for (index, volume) in survey.volumes.iter().enumerate() {
        let Some(catalog) = &volume.catalog else { continue };
        let shared = catalog.shared_places();
        let mut walk = catalog.walk_paths();
        for (stream, fragments) in catalog.streams().zip(&volume.fragments) {
            path.clear();
            let name_count = walk.push_path(&stream, &mut path);
            let is_main = stream.stream.name == StreamName::Main;
            let links = match is_main && name_count > 1 {
                true => {
                    catalog.paths(stream.stream.file).skip(1).map(|path| text(&path).into_owned()).collect()
                }
                false => Vec::new(),
            };
            let shared_bytes = stream.extents().flat_map(|extent| shared.within(extent.span));
            let shared_bytes = shared_bytes.map(|span| span.len_bytes()).sum();
            let line =
                FileLine { shared_bytes, ..file_line(index + 1, &path, &stream, (*fragments).into(), links) };
            serde_json::to_writer(&mut out, &line)?;
            out.write_all(b"\n")?;
        }
    }
    out.flush()
}

fn file_line<'a>(
    volume: usize,
    path: &'a [u8],
    stream: &CatalogStream<'_>,
    fragments: LayerFragments,
    links: Vec<String>,
) -> FileLine<'a> {
    let extent = |extent: filesystem::FileExtent| {
        [extent.logical.get(), extent.span.start().get(), extent.span.len_bytes()]
    };
    let path_text = text(path);
    FileLine {
        volume,
        path_hex: matches!(path_text, Cow::Owned(_)).then(|| hex(path)),
        path: path_text,
        kind: stream.stream.kind.word(),
        named_stream: stream.stream.name != StreamName::Main,
        size_bytes: stream.stream.size_bytes,
        fragments: fragments.guest,
        image_fragments: fragments.image,
        whole_stack_fragments: fragments.whole_stack,
        shared_bytes: 0,
        links,
        extents: stream.extents().map(extent).collect(),
    }
}

/// What is no UTF-8 is replaced, which makes another text of it.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
